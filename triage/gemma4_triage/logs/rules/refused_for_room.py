"""Requests are refused for their length, and what they are held against is a pool of this server's, not the model.

SGLang: disaggregation/prefill.py and decode.py ("exceeds the maximum number of tokens"), managers/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import Rule, at, of_settings, over, remarked

_HELD_AGAINST = pattern(r"\b(\d{2,12}) ?(?:>=?|exceeds) ?(\d{2,12})\b")
_TOO_LONG = pattern(r"Input length \((\d{2,12}) tokens\) exceeds the maximum allowed length \((\d{2,12}) tokens\)")
"""What a server without a split says of any limit: of the model's context too, which is no want of room."""
_SOON = 3  # lines
_NEAR = 0.03  # of the limit: pages are cut off, and a few tokens are kept


def _find(facts: LogFacts) -> Iterator[Finding]:
    said = facts.remarks.get("refused_length")
    short = _HELD_AGAINST.search(said.text) if said is not None else None
    found = short or (_TOO_LONG.search(said.text) if said is not None else None)
    if said is None or found is None:
        return
    limit = int(found[2])
    window, full = facts.pool_tokens.get("swa", 0), facts.pool_tokens.get("full", 0)
    pools = facts.remarks.get("pools")
    tokens = number_in(pools.text, "max_total_num_tokens") if pools is not None else None
    context = number_in(pools.text, "context_len") if pools is not None else None
    given = facts.settings.get("context_length", "")
    if not context and not short and given.isdecimal() and limit < (1 - _NEAR) * int(given):
        # A server without a split holds a request against the smaller one of its context, here set by hand, and pool.
        tokens, context = limit, int(given)
    asked = int(found[1])
    if window and full > window and abs(limit - window) <= _NEAR * window:
        yield _of_the_window(facts, said, asked, window, full)
    elif tokens and context and tokens < context and abs(limit - tokens) <= _NEAR * tokens:
        yield _of_the_pool(facts, said, asked, (int(tokens), int(context)))


def ended_right_behind(facts: LogFacts) -> bool:
    """Say whether a process died in the lines behind a request that was refused for want of room."""
    said = facts.remarks.get("refused_length")
    if said is None or not any(True for _ in _find(facts)):
        return False
    return any(0 < death.place.line - said.place.line <= _SOON for death in facts.deaths)


def _of_the_window(facts: LogFacts, said: Remark, asked: int, window: int, full: int) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=f"Requests are refused though they fit: {asked} tokens are held against the pool of the sliding windows "
        f"({window}), as if it had to hold a whole prompt; the pool of the other layers has {full}.",
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, said.place, said.text, "the last one that was refused"),
            over(facts, "pools", f"full {full}, swa {window}", "the tokens of both pools, at the start"),
            *of_settings(facts, "disaggregation_mode", "swa_full_tokens_ratio", "mem_fraction_static"),
        ),
        ruled_out_if=("a line of the start names another limit of that size (--context-length, a cap of requests)",),
        advice=(
            f"a larger --swa-full-tokens-ratio, so that the pool of the windows holds the longest prompt "
            f"({asked} of {full} tokens are {asked / full:.2f}; {window / full:.2f} now)"
            if asked <= full
            else "a larger pool: a higher --mem-fraction-static, more GPUs, fewer --max-running-requests",
            "a later release, which holds prompts against the full pool (SGLang 26607)",
            "until then --disable-hybrid-swa-memory: one pool for all layers; or more memory for the pools "
            "(--mem-fraction-static, fewer --max-running-requests)"
            if facts.settings.get("disaggregation_mode", "null") in ("null", "None")
            else "until then long prompts to a server that does both, prefill and decode; or more memory for the pools "
            "(--mem-fraction-static, fewer --max-running-requests)",
        ),
        next_commands=("gemma4-triage pools --config CONFIG --kv-mem 40GiB --workload 64x8000+1000",),
        upstream=("SGLang 24523",),
    )


def _of_the_pool(facts: LogFacts, said: Remark, asked: int, sizes: tuple[int, int]) -> Finding:
    tokens, context = sizes
    return Finding(
        rule=RULE.id,
        cause=f"Requests are refused for want of room: {asked} tokens are more than the whole pool has ({tokens}), "
        f"though the server takes {context} by its context.",
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, said.place, said.text, "the last one that was refused"),
            *remarked(facts, "pools", "the pool and the longest prompt, at the start"),
            *of_settings(facts, "context_length", "mem_fraction_static"),
        ),
        advice=(
            "a larger pool: a higher --mem-fraction-static, more GPUs (--tp), --kv-cache-dtype fp8_e4m3, fewer "
            "--max-running-requests",
            f"or a --context-length of at most {tokens}, so that clients are told what they may ask for; a larger one "
            "makes no room. Shorter prompts, or --allow-auto-truncate, which cuts them",
        ),
        next_commands=("gemma4-triage pools --config CONFIG --kv-mem 40GiB --workload 64x8000+1000",),
    )


RULE = Rule("refused-for-room", "requests are refused for a pool's size", _find)
