"""Off by one at the end of a pool: the index is the first that the buffer does not have."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, in_dump
from gemma4_triage.diagnose.where_wrong import where_wrong
from gemma4_triage.finding import Confidence, Finding

ID = "page-past-pool-end"


def find(incident: Incident) -> Finding | None:
    for dump in incident.of(rule=PAGE_TABLE, verdict="out_of_range"):
        manifest = dump.manifest
        own = manifest.provenance.table_space == manifest.provenance.buffer_space
        if own and manifest.offences and all(offence.value == offence.upper for offence in manifest.offences):
            break
    else:
        return None
    wrong = where_wrong(dump)
    return Finding(
        rule=ID,
        structure=wrong.structure,
        defect=Defect.PAST_END,
        cause=(
            "Somebody counts one further than the pool reaches: the table belongs to the pool that it indexes, and the "
            "bad entry is the first page past the end of the buffer."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "provenance.table_space", "whose page ids the table holds"),
            said(dump, "provenance.buffer_space", "the same pool: nothing was left untranslated"),
            said(dump, "offences.0.value", "the bad entry"),
            said(dump, "offences.0.upper", "the first index that the buffer does not have: the same"),
            said(dump, "offences.0.request_slot", "the request whose row it is in"),
            *wrong.proof,
        ),
        advice=(
            "Compare how the pool counts pages (size / page_size, plus the dummy page 0) with who fills this table: "
            "ids run from 1 to the number of pages.",
        ),
        next_commands=(
            commands.serve(incident, "--debug trap", "--probes page-table,swa-allocator,geometry"),
            commands.corpus("page-past-the-end"),
        ),
        upstream=("SGLang 9123",),
    )


def _is_by_chance(dump: Dump) -> bool | None:
    """Return False where rows of several requests have the very same page, which no stray write leaves."""
    return False if len({offence.row for offence in dump.manifest.offences}) > 1 else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("a stray value is this one by chance", in_dump(_is_by_chance)),),
    injected_by=("page-past-the-end",),
    leads_to=LEAVES_BUFFERS,
)
