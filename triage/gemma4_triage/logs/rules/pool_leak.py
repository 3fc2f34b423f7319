"""SGLang's own checker found that a pool's tokens do not add up."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_dumps.wording import number_of
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LeakLine, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Rule, at, of_failure

_SHOWN = 4


def _explains(death: Death) -> bool:
    return "leak detected!" in death.message.lower()


_NEAR = 8  # lines


def _as_it_hung(facts: LogFacts, leak: LeakLine) -> bool:
    """Say whether the watchdog printed it, in the middle of a step, in which pages are on their way."""
    fired = [death.place.line for death in facts.deaths if "atchdog timeout" in death.message]
    return not leak.negative and any(0 <= line - leak.place.line <= _NEAR for line in fired)


def _find(facts: LogFacts) -> Iterator[Finding]:
    first: dict[str, LeakLine] = {}
    for leak in facts.leaks:
        if _as_it_hung(facts, leak):
            continue
        first.setdefault(leak.pool, leak)
    drafts = facts.settings.get("speculative_algorithm", "None") != "None"
    if not first:
        death = next(filter(_explains, facts.deaths), None)
        if death is not None:
            yield Finding(
                rule=RULE.id,
                cause="SGLang's own check ended the server: what a pool holds does not add up to its size.",
                confidence=Confidence.LIKELY,
                evidence=tuple(of_failure(facts, death, "what the check said")),
                advice=_advice(facts, drafts),
                next_commands=("gemma4-triage audit --live",),
            )
        return
    what = " and ".join(_sentence(leak) for leak in first.values())
    ends = any(_explains(death) for death in facts.deaths)
    negative = any(leak.negative for leak in facts.leaks)
    yield Finding(
        rule=RULE.id,
        cause=f"The pools do not add up: {what}{'; the server ended there' if ends else ''}.",
        confidence=Confidence.CERTAIN,
        evidence=tuple(at(facts, leak.place, leak.text, _missing(leak)) for leak in facts.leaks[:_SHOWN]),
        advice=(
            *_advice(facts, drafts),
            *(
                ("a count below 0 was released twice: two features that end requests do not know of each other",)
                if negative
                else ()
            ),
        ),
        next_commands=("gemma4-triage audit --live", "gemma4-triage audit latest"),
        upstream=("SGLang 11970",) if any("max_total_num_tokens=" in leak.text for leak in facts.leaks) else (),
    )


def _advice(facts: LogFacts, drafts: bool) -> tuple[str, ...]:
    split = facts.settings.get("disaggregation_mode", "null") not in ("null", "None")
    return (
        "this is a defect of the release's accounting and no lack of memory: take another release",
        f"until then once without {', once without '.join(_suspects(facts, drafts))}",
        *((_OF_ABORTS,) if split else ()),
        *((_OF_SESSIONS,) if "busy_session" in facts.remarks or any(map(_held, facts.leaks)) else ()),
    )


_HELD = pattern(r"session_held=[1-9]")
_OF_SESSIONS = (
    "a client that goes away, or asks again before its session's request has ended, leaves slots behind (SGLang "
    "36475): sessions whose requests follow each other, clients that wait"
)
_OF_ABORTS = (
    "on a split server requests that are aborted while their KV is computed or on its way have leaked (SGLang 9817, "
    "SGLang 36926): clients and routers that wait longer"
)


def _suspects(facts: LogFacts, drafts: bool) -> list[str]:
    """Return what this server has that hands pages on, as switches; the prefix cache is one of every server."""
    asked = facts.settings
    found = ["drafts (--speculative-algorithm)"] if drafts else []
    if asked.get("dllm_algorithm", facts.arguments.get("dllm_algorithm", "None")) != "None":
        # A block that is still written is taken into the tree, and counted there and as a request's.
        found.append("the prefix cache of blocks that are still written (--disable-radix-cache)")
    if drafts and asked.get("page_size", "1") not in ("1", "None"):
        found.append("pages of several tokens (--page-size 1)")
    if asked.get("enable_hierarchical_cache") == "True":
        found.append("--enable-hierarchical-cache")
    if asked.get("enable_mixed_chunk") == "True":
        found.append("--enable-mixed-chunk")
    for name in ("disaggregation_decode_enable_offload_kvcache", "disaggregation_decode_enable_radix_cache"):
        if asked.get(name) == "True":
            found.append(f"--{name.replace('_', '-')}")
    if asked.get("enable_streaming_session") == "True" or any(map(_held, facts.leaks)):
        found.append("streaming sessions (--enable-streaming-session)")
    if any(leak.pool == "swa" for leak in facts.leaks):
        found.append("a pool of its own for windows (--disable-hybrid-swa-memory)")
    if any("mamba" in leak.pool for leak in facts.leaks):
        found.append("states in the prefix cache (--disable-radix-cache)")
    return found or ["overlap (--disable-overlap-schedule)", "the prefix cache (--disable-radix-cache)"]


def _held(leak: LeakLine) -> bool:
    """Say whether sessions of requests held slots as it was counted."""
    return _HELD.search(leak.text) is not None


def _missing(leak: LeakLine) -> str:
    return f"{number_of(abs(leak.missing), 'token')} {'missing' if leak.missing > 0 else 'too many'}"


def _sentence(leak: LeakLine) -> str:
    pool = f"of the {leak.pool} pool"
    if leak.missing > 0 and not leak.negative:
        return f"{leak.missing} of {leak.total} tokens {pool} {'is' if leak.missing == 1 else 'are'} nobody's"
    if leak.negative:
        return f"a part {pool} is below 0, for it was released more often than it was taken"
    return f"{number_of(-leak.missing, f'token {pool} is', f'tokens {pool} are')} counted twice"


RULE = Rule("pool-leak", "tokens of a pool are lost or counted twice", _find, _explains, alarms=frozenset({"leak"}))
