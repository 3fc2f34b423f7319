"""The first request of a split server's own, with which it warms up, does not come back, and its health check fails."""

from __future__ import annotations

from gemma4_triage.logs.facts import Alarm, LogFacts, Remark

_ITS_OWN = (
    "once with --skip-server-warmup, and one short request through the router, with both logs at hand: where that is "
    "answered, the warm-up of this release alone stands; where it is not, the transfer does: both sides of one "
    "release, --page-size and --kv-cache-dtype, once with the other --disaggregation-transfer-backend"
)
_COPIES_BACK = (
    "once without --enable-hierarchical-cache{0} on the decode server{1}: a request there waits for its KV from the "
    "prefill server and for pages from the host, and where the prefix cache of this model never says that these are "
    "back, it waits for ever, with no error; then a later release"
)
_OF_A_TREE = ", which has SGLANG_ENABLE_UNIFIED_RADIX_TREE=1 (once without that, too)"


def standing(facts: LogFacts, lead: Alarm) -> Remark | None:
    """Return the line where a split server began its warm-up, if that has not ended by an alarm; None if it has."""
    begun = facts.remarks.get("pd_warmup")
    if begun is None or facts.served or "ready" in facts.remarks or begun.place.line > lead.place.line:
        return None
    return begun


def looks(facts: LogFacts) -> tuple[str, ...]:
    """Return what to try where it has not ended, what concerns a decode server's pages on the host first."""
    asked = {**facts.arguments, **facts.settings}
    decodes = asked.get("disaggregation_mode") == "decode"
    if not decodes or asked.get("enable_hierarchical_cache") != "True":
        return (_ITS_OWN,)
    cached = asked.get("disaggregation_decode_enable_radix_cache") == "True"
    unified = asked.get("SGLANG_ENABLE_UNIFIED_RADIX_TREE", "0") in ("1", "true")
    beside = " and --disaggregation-decode-enable-radix-cache" if cached else ""
    return _COPIES_BACK.format(beside, _OF_A_TREE if unified else ""), _ITS_OWN
