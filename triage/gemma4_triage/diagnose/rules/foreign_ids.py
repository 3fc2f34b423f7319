"""Ids of one pool are about to index another pool's buffer, and no rule knows this pair."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, in_dump
from gemma4_triage.diagnose.where_wrong import index_list
from gemma4_triage.finding import Confidence, Finding

ID = "foreign-ids"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=PAGE_TABLE, verdict="wrong_space")
    if dump is None:
        return None
    return Finding(
        rule=ID,
        structure=index_list(dump),
        defect=Defect.OTHER_SPACE,
        cause="A kernel is about to follow one pool's ids into another pool's buffer; who mixed them up is not known.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            said(dump, "provenance.table_space", "whose ids the table holds"),
            said(dump, "provenance.table_origin", "the table"),
            said(dump, "provenance.buffer_space", "whose buffer they index"),
            said(dump, "provenance.buffer_origin", "the buffer"),
            said(dump, "role", "who reads"),
        ),
        advice=(
            "Look at who set the table and who set the pool of this backend, and which of the two was left behind.",
        ),
        next_commands=(
            commands.show(dump),
            commands.serve(incident, "--patches default", "--debug trap"),
            commands.DOCTOR,
        ),
        fix="swa-state-swap" if dump.manifest.role == "draft" else None,
    )


def _are_of_one_pool(dump: Dump) -> bool | None:
    """Return whether table and buffer are of the same pool; None where the dump does not say of which."""
    spaces = dump.manifest.provenance.table_space, dump.manifest.provenance.buffer_space
    return None if "unknown" in spaces else spaces[0] == spaces[1]


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the ids and the buffer are of one pool", in_dump(_are_of_one_pool)),),
    leads_to=LEAVES_BUFFERS,
    fallback=True,
)
