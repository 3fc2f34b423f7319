"""Ids of one pool are about to index another pool's buffer, and no rule knows this pair."""

from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Rule
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


RULE = Rule(ID, find, leads_to=LEAVES_BUFFERS, fallback=True)
