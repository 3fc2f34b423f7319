"""A write location outside the buffer, without the allocation that it came from."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.entry_places import led_alone
from gemma4_triage.diagnose.evidence import lies_inside, said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, in_dump, met_by
from gemma4_triage.diagnose.where_wrong import SWA_TABLE, where_wrong
from gemma4_triage.diagnose.written_by import where_to_look
from gemma4_triage.finding import Confidence, Finding

ID = "write-past-buffer"
_OUTSIDE = "New keys and values are about to be written outside the pool's buffer, into another tensor; "
_FROM_ROW = "the request's row has that slot for the token, and a verification's list is read from the row."
_FROM_ELSEWHERE = "an allocator gave out the slot, or the list of slots is not this batch's."
_ALONE = (
    "the mapping's entry of full slot {0} is wrong, or what was made of it in this list: each of the {2} other slots "
    "of its page here leads to page {1} of the sliding-window pool, which hands out whole pages."
)
_UNTRANSLATED = (
    "Sliding layers are about to write new keys and values at the full pool's slots, outside their own pool: the whole "
    "list that they write by is the full pool's (out_cache_loc), which was not translated, or is taken for the "
    "translated one."
)


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=PAGE_TABLE, verdict="write_out_of_range")
    if dump is None:
        return None
    wrong = where_wrong(dump)
    untranslated, of_row = wrong.defect is Defect.OTHER_SPACE, wrong.structure is Structure.REQUEST_ROW
    alone = led_alone(dump)
    whence = _FROM_ROW if of_row else _FROM_ELSEWHERE if alone is None else _ALONE.format(*alone)
    # Where the table has another page of the same token, the map has too.
    certain = untranslated and any(piece.field.startswith(SWA_TABLE) for piece in wrong.proof)
    return Finding(
        rule=ID,
        structure=wrong.structure,
        defect=wrong.defect or Defect.PAST_END,
        cause=_UNTRANSLATED if untranslated else _OUTSIDE + whence,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY if wrong.proof else Confidence.POSSIBLE,
        evidence=(
            said(dump, "offences.0.value", "the slot"),
            said(dump, "offences.0.upper", "the first slot that the buffer does not have"),
            said(dump, "offences.0.table", "the list that it is in"),
            met_by(dump, wrong.structure),
            *wrong.proof,
        ),
        advice=(
            "Trust no result since the first such write.",
            f"{where_to_look(wrong.structure)} A cache of translated lists may have them under another pool's key."
            if untranslated
            else "With swa-allocator in trap mode the server stops at the hand-out, if that is where the slot comes "
            "from.",
        ),
        next_commands=(commands.serve(incident, "--debug trap"), commands.show(dump)),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("every slot that is listed lies inside the buffer", in_dump(lies_inside)),),
    leads_to=LEAVES_BUFFERS,
    fallback=True,
)
