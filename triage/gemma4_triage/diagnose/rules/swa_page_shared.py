"""Two full pages, or two holders, share one page."""

from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.hand_out import hand_out_wrong
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.finding import Confidence, Finding

ID = "swa-page-shared"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(verdict="pool_alias")
    if dump is None:
        return None
    wrong = hand_out_wrong(dump)
    return Finding(
        rule=ID,
        structure=wrong.structure,
        defect=wrong.defect or Defect.DUPLICATE,
        cause="A page has two owners, and both write their keys and values there.",
        # That it has is certain; which of the two came by it wrongly is not, but where a hand-out shows it.
        confidence=Confidence.CERTAIN if wrong.proof else Confidence.LIKELY,
        evidence=(
            said(dump, "site", "where it was seen"),
            said(dump, "offences.0.value", "the slot, or in an audit the number of places"),
            said(dump, "pool_kind", "of which pool"),
            said(dump, "offence_count", "so many are shared"),
            *wrong.proof,
        ),
        ruled_out_if=("page_states names the same full page for both",),
        advice=(
            "Look at who wrote the mapping last: set_full_to_swa_mapping, or a hand-out of a page that was not free.",
            "page_states in a dump of the allocator names, per slot, the full page that the SWA page serves.",
        ),
        next_commands=(commands.serve(incident, "--debug trap", "--probes swa-allocator"), commands.show(dump)),
    )


RULE = Rule(ID, find, leads_to=("pool-leak",))
