"""A decode server whose KV pool is full though hardly a request runs: what has ended did not give its pages back."""

from __future__ import annotations

from gemma4_triage.finding import Evidence
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import on_rank, over

_FULL, _FEWER = 0.9, 8
"""Usage of a pool that is full, and by what the most that ran are divided for what few are."""
_COPIES = "disaggregation_decode_enable_offload_kvcache"


def is_split(facts: LogFacts) -> bool:
    """Say whether prefill and decode are apart, by the start or a note of it."""
    asked = (facts.settings.get("disaggregation_mode"), facts.arguments.get("disaggregation_mode"))
    return any(mode in ("prefill", "decode") for mode in asked)


def kept_by_none(facts: LogFacts) -> tuple[str, tuple[str, ...], Evidence] | None:
    """Return why requests wait, what to do and the line that shows it; None where the pool has room or many run."""
    # Of a pair both logs may stand in one, where a rank's name is that of either; a prefill server has no decodes.
    paired = is_split(facts)
    if facts.settings.get("disaggregation_mode") == "prefill" and not any(rank.decode_lines for rank in facts.ranks):
        return None
    for rank in facts.schedulers:
        if rank.prefill_lines and not (paired and rank.decode_lines):
            continue
        columns = (rank.series.get(name, []) for name in ("full_usage_max", "running_max", "new_tokens"))
        decodes = [(usage, runs) for usage, runs, new in zip(*columns, strict=True) if not new]
        usages, running = [usage for usage, _ in decodes], [runs for _, runs in decodes]
        if not usages or usages[-1] is None or running[-1] is None:
            continue
        most = max(value or 0 for value in running)
        if usages[-1] < _FULL or running[-1] > most // _FEWER:
            continue
        copies = facts.settings.get(_COPIES) == "True" or facts.arguments.get(_COPIES) == "True"
        why = (
            f"the decode server has no room{on_rank(rank.rank)}: its pool is at {usages[-1]:.0%} while "
            f"{running[-1]:.0f} requests run, of up to {most:.0f} before, so requests that have ended, or were "
            "aborted, still keep their pages there"
        )
        without = f"without --{_COPIES.replace('_', '-')} on the decode server: what is aborted while its KV is copied "
        return (
            why,
            (
                *((f"{without}to the host keeps pages, place and host memory (SGLang 21652)",) if copies else ()),
                "a later release on the decode server; until then restart it when its pool stays full, and have fewer "
                "requests aborted (clients that wait longer)",
                "more decode capacity, a larger pool or a longer time-out only delay it",
            ),
            over(facts, "the last decode lines", f"{usages[-1]:.2f}", f"full usage at #running-req {running[-1]:.0f}"),
        )
    return None
