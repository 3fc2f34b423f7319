"""The full-to-SWA mapping has negative numbers where slots have no SWA slot any more."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "mapping-cleared-wrong"


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit found such entries of pages that are otherwise in their place."""
    dump = incident.first(rule=LEAK, verdict="mapping_negative")
    if dump is None:
        return None
    return Finding(
        rule=ID,
        structure=Structure.SWA_MAPPING,
        defect=Defect.NEGATIVE,
        cause=(
            "The full-to-SWA mapping has negative numbers for full pages whose SWA pages were given back, where 0 says "
            "that there is none: what clears an entry writes another number. What asks for 0, or sums up, is misled."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(
                dump,
                "offence_count",
                "full pages with such an entry that are nobody's, or of which nothing else is wrong",
            ),
            *([cell(dump, TABLE, (0, 0), "the first of them")] if tensor_or_none(dump, TABLE) is not None else []),
            said(dump, "step", "when it was seen"),
        ),
        advice=(
            "Look at what clears entries: clear_full_to_swa_mapping, free_swa and free_swa_segment; they fill in 0.",
        ),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
    )


RULE = Rule(ID, find, ruled_out_if=(Exclusion("something beside the allocator wrote over these entries"),))
