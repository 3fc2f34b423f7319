"""A decode server whose KV pool is full though hardly a request runs: what has ended did not give its pages back."""

from __future__ import annotations

from gemma4_triage.finding import Evidence
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import on_rank, over

_FULL, _FEWER = 0.9, 8
"""Usage of a pool that is full, and by what the most that ran are divided for what few are."""
_COPIES = "disaggregation_decode_enable_offload_kvcache"


def kept_by_none(facts: LogFacts) -> tuple[str, tuple[str, ...], Evidence] | None:
    """Return why requests wait, what to do and the line that shows it; None where the pool has room or many run."""
    if facts.settings.get("disaggregation_mode") == "prefill":
        return None
    for rank in facts.schedulers:
        usages, running = (rank.series.get(name, []) for name in ("full_usage_max", "running_max"))
        if not usages or usages[-1] is None or running[-1] is None or rank.prefill_lines:
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
