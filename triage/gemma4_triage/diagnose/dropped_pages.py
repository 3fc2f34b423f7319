"""Pages that a hand-out took off a free list and gave to nobody."""

from __future__ import annotations

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import event, readable_events, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.where_wrong import free_list_of_pool
from gemma4_triage.finding import Confidence, Finding

DROPPED = (Structure.FULL_FREE_LIST, Structure.SWA_FREE_LIST)


def dropped_by_a_hand_out(rule: str, incident: Incident, dump: Dump) -> Finding | None:
    """Return the finding where the lists of a call say so of all pages that are lost: before it, behind it, and given.

    As the audit kept them of the latest calls.
    """
    told = {pool: numbers for pool in ("full", "swa") if (numbers := _numbers(dump, pool)) is not None}
    if not told or not all(whole for _, _, whole in told.values()):
        return None
    counts = " and ".join(f"{dropped} of {taken} of the {pool} pool" for pool, (dropped, taken, _) in told.items())
    calls = [number for number, one in enumerate(readable_events(dump)) if one.get("kind") == "handed_out"]
    return Finding(
        rule=rule,
        structure=free_list_of_pool(next(iter(told))),
        defect=Defect.LOST,
        cause=(
            f"A hand-out took more pages off the free list than it gave: {counts} went to nobody, and nobody will give "
            "them back. What is cut off the list is counted otherwise than what the requests need."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offence_count", "pages that are lost"),
            said(dump, "step", "when it was seen"),
            *(
                said(
                    dump, f"scalars.{pool}_dropped", "pages that the call took and did not give, of how many, all lost"
                )
                for pool in told
            ),
            *(event(dump, number, "site", "the latest hand-out then") for number in calls[-1:]),
        ),
        advice=(
            "Look at what takes pages off free_pages in alloc_extend and alloc_decode: by num_new_pages of the call, "
            "and not by an upper bound of it.",
            "The pool stays smaller until a flush_cache or a restart.",
        ),
        next_commands=(commands.audit(dump),),
        upstream=("SGLang 11970", "SGLang 7130"),
    )


def _numbers(dump: Dump, pool: str) -> tuple[int, int, bool] | None:
    numbers = str(dump.manifest.scalars.get(f"{pool}_dropped") or "").split(":")
    if len(numbers) != 3 or not all(one.isdecimal() for one in numbers):
        return None
    dropped, taken, whole = map(int, numbers)
    return dropped, taken, bool(whole)
