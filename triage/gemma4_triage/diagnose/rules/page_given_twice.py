"""An allocator hands out a page that somebody still owns."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.finding import Confidence, Finding

ID = "page-given-twice"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(verdict="alloc_overlap")
    if dump is None:
        return None
    states, offences = tensor_or_none(dump, "page_states"), dump.manifest.offences
    state = ()
    if states is not None and offences and states.ndim == 2 and 0 <= offences[0].row < states.shape[0]:
        at = (offences[0].row, min(offences[0].column, states.shape[1] - 1))
        state = (cell(dump, "page_states", at, "state of its page before: full side 1 is in use, SWA side the owner"),)
    return Finding(
        rule=ID,
        structure=Structure.FREE_CALL,
        defect=Defect.EARLY,
        cause=(
            "A page that is still in use was handed out again, so a second request overwrites the keys and values of "
            "the first: something had freed it too early."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "site", "who handed it out, or noticed"),
            said(dump, "offences.0.value", "the slot, or in an audit the number of places"),
            said(dump, "pool_kind", "of which pool"),
            *state,
        ),
        ruled_out_if=("the free list held the page twice: then see the double free",),
        advice=("Trust no output since. A server in trap mode stops at the free that came too early.",),
        next_commands=(commands.serve(incident, "--debug trap", "--probes swa-allocator"), commands.show(dump)),
    )


RULE = Rule(ID, find, leads_to=("pool-leak",))
