"""What SGLang's router says of its workers' health, which is its own check and no failure of the router itself."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.facts import Alarm, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_BY_A_ROUTER = pattern(r"\bsglang_router|\bsmg\b|\bcore::worker\b|\[Router \(Rust\)\]|\brouter\S*::")
_ADDRESS = pattern(r"https?://[\w.\[\]:-]+\w")
_ASKED_BY_GET = pattern(
    r"\bGET /\S+ status=5\d\d|/v1/models\b|/get_(?:model|server)_info\b|\bGET (?:routes?|requests?|/\S+)"
)
_ASKS_THE_FIRST = (
    "a later sglang-router, or the health of the worker that stands first in its list: what the router only hands on "
    "(GET /v1/models, /get_model_info, /get_server_info) some releases send to the first worker, whether it is healthy "
    "or not, while chats go to healthy ones (SGLang 10827). Until then POST /remove_worker?url={0} of the router (or "
    "restart it), and let who only lists models ask a worker itself"
)
_STALE = (
    "GET /workers (/list_workers in earlier releases) of the router: an address that is gone for good, as of a pod "
    "that came back under another one, has to leave the list (POST /remove_worker?url={0}, or a restart of the router)"
)
_ITS_LOG = (
    "the worker's own log at that time (kubectl logs --previous), and curl -i of its /health from the router's host: "
    "whether it ended, was restarted, or is only not reached"
)


def of_its_own_check(facts: LogFacts) -> tuple[Alarm, str, Confidence, tuple[str, ...]] | None:
    """Return the line, cause, confidence and advice where a router found a worker unhealthy; None elsewhere."""
    alarm = next((one for one in facts.alarms if one.kind == "health"), None)
    if alarm is None or facts.served or not _BY_A_ROUTER.search(alarm.text):
        return None
    found = _ADDRESS.search(alarm.text)
    address = found[0] if found else "ADDRESS"
    said = [facts.remarks[name].text for name in ("notes", "router_hands_on") if name in facts.remarks]
    handed_on = any(map(_ASKED_BY_GET.search, said))
    cause = (
        f"The router's health check of one worker ({address}) failed: it keeps that worker in its list and sends it no "
        "chats. Of the router, and of the other workers, that says nothing."
    )
    if handed_on:
        cause += " Requests that it only hands on, as GET /v1/models, fail beside it: those may still go there."
    advice = (*((_ASKS_THE_FIRST,) if handed_on else ()), _STALE, _ITS_LOG)
    confidence = Confidence.LIKELY if handed_on else Confidence.POSSIBLE
    return alarm, cause, confidence, tuple(one.format(address) for one in advice)
