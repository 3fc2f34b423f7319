"""The full-to-SWA mapping has something for slots that have no SWA slot, where 0 belongs."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import MAPPED_ELSEWHERE, first_census
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "mapping-cleared-wrong"


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit found such entries of pages that are otherwise in their place, or of page 0."""
    dump = incident.first(rule=LEAK, verdict="mapping_negative")
    if dump is None:
        return _of_padding(incident)
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


def _of_padding(incident: Incident) -> Finding | None:
    """Return a finding where the mapping has an SWA slot for page 0, of which nothing is ever handed out."""
    census = first_census(incident)
    listed = () if census is None else census.of("full", MAPPED_ELSEWHERE)
    first = next((one for one in listed if one.page == 0), None)
    if first is None:
        return None
    return Finding(
        rule=ID,
        structure=Structure.SWA_MAPPING,
        defect=Defect.FOREIGN,
        cause=(
            "The full-to-SWA mapping has an SWA slot for page 0, which is for padding: what rows that only fill up a "
            "batch store goes over the keys and values of whoever has that slot, in sliding layers."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            cell(first.dump, TABLE, (first.row, 0), "the full page"),
            cell(first.dump, TABLE, (first.row, 3), "slots of it that have an SWA slot"),
            said(first.dump, "scalars.padding_leads_to", "the first of those SWA slots"),
            said(first.dump, "step", "when it was seen"),
        ),
        advice=("Look at what writes the mapping at slot 0: slots of padded rows, and rows that were never written.",),
        next_commands=(commands.audit(first.dump), commands.serve(incident, "--debug trap")),
    )


RULE = Rule(ID, find, ruled_out_if=(Exclusion("something beside the allocator wrote over these entries"),))
