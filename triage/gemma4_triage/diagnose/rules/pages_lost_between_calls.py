"""Pages that an allocator's own bookkeeping dropped."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import exchanged, invalid_defect
from gemma4_triage.diagnose.evidence import said, tensor_or_none
from gemma4_triage.diagnose.incident import LOST_PAGES, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, Seen, in_dump
from gemma4_triage.diagnose.where_wrong import are_free, free_list
from gemma4_triage.finding import Confidence, Finding

ID = "pages-lost-between-calls"
_END, _SHORT = "free_group_end", "group_short"

_CAUSES = {
    "restore_state": (
        "Pages that were freed between backup_state and restore_state came back as taken, and their mapping is gone: "
        "nobody can free them."
    ),
    "free_group_begin": "A free group began anew while slots of the group before it were still to be freed.",
    "free_group": "A group's call gave pages back, and as it ends it does not hold them, or holds others.",
}
_IN_FREE = (
    "A call that gives pages back returned, and pages that it was given are on no free list: whoever had them has "
    "given them back, and the call lost them."
)
_IN_END = (
    "A group of frees ended, and pages that it held until then are on no free list: its calls gave them back, and the "
    "end of the group lost them."
)
_ADVICE = {
    "restore_state": "Free nothing between backup and restore.",
    "free_group_begin": "End each free group before the next begins.",
    "free_group": "Look at what writes the group's lists.",
}


def find(incident: Incident) -> Finding | None:
    dump = next((dump for dump in incident.of(rule=LOST_PAGES) if ".alloc" not in dump.manifest.site), None)
    if dump is None:
        return None
    entry = dump.manifest.site.rpartition(".")[2]
    in_free = entry.startswith("free") and entry not in _CAUSES
    at_end = entry == _END and dump.manifest.scalars.get(_SHORT) is False
    of_group = entry == "free_group"
    return Finding(
        rule=ID,
        structure=Structure.FREE_GROUP if of_group or at_end else Structure.FREE_CALL if in_free else free_list(dump),
        defect=_of_group(dump) if of_group else Defect.LOST,
        cause=_IN_END if at_end else _IN_FREE if in_free else _CAUSES.get(entry, _CAUSES["free_group_begin"]),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "site", "the call that lost them"),
            said(dump, "offence_count", "pages or slots that are lost"),
            said(dump, "offences.0.value", "the first of them"),
            said(dump, "pool_kind", "of which pool"),
            said(dump, "offences.0.request_slot", "whose it was"),
        ),
        advice=(
            "The pool stays smaller until it is cleared or the server restarts.",
            _ADVICE.get(entry, "Look at what that call does with what it is given."),
        ),
        next_commands=(commands.serve(incident, "--debug trap", "--probes swa-allocator"), commands.show(dump)),
    )


def _of_group(dump: Dump) -> Defect | None:
    """Return in which way a group's entry is wrong."""
    instead = tensor_or_none(dump, "pages_instead")
    if instead is None or len(dump.manifest.offences) != 1 or instead.size > 2:
        return None
    if not instead.size:
        return Defect.LOST
    page, times = instead.ravel().tolist()
    lost = dump.manifest.offences[0]
    if not 0 < page < lost.upper:
        return invalid_defect(page)
    if times > 1:
        return Defect.DUPLICATE
    return Defect.OFF_BY_ONE if abs(page - lost.value) == 1 else Defect.FOREIGN


def _replaced(seen: Seen) -> bool | None:
    """Return whether the mapping led elsewhere by the end of a group, which translates what it frees only then."""
    if exchanged(seen.incident):
        return True
    if seen.dump is None:
        return None
    manifest = seen.dump.manifest
    return None if manifest.site.endswith(".free_group_end") and manifest.pool_kind == "swa" else False


def _may_be_the_end(dump: Dump) -> bool | None:
    """Return None where a group's end is what saw it, and the dump does not say whether the group held them."""
    is_told = dump.manifest.scalars.get(_SHORT) is not None
    return None if dump.manifest.site.endswith(f".{_END}") and not is_told else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("they are in a free list of the dump", in_dump(are_free)),
        Exclusion("the group held them until it ended: then its end lost them, and no call", in_dump(_may_be_the_end)),
        Exclusion("the mapping was replaced within the group of frees, so that another page was freed", _replaced),
    ),
    leads_to=LOSES_PAGES,
)
