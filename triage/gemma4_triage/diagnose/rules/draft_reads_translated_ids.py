"""Translated once too often: the draft's full layers read the full buffer with SWA page ids, all of them in range."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import SPOILS_DRAFTS, Exclusion, Rule, of_layers
from gemma4_triage.finding import Confidence, Finding

ID = "draft-reads-translated-ids"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(
        rule=PAGE_TABLE, verdict="wrong_space", role="draft", table_space="swa", buffer_space=("full", "draft")
    )
    if dump is None:
        return None
    return Finding(
        rule=ID,
        structure=Structure.FULL_TABLE,
        defect=Defect.OTHER_SPACE,
        cause=(
            "The draft's full-attention layers read a buffer that is not the sliding-window pool's with page ids that "
            "went through the full-to-SWA map, so they read other requests' keys."
        ),
        # Which table a layer is handed and which buffer it reads is known on the host, whatever the values.
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "layer.type", "the layers that read"),
            said(dump, "provenance.table_space", "whose page ids they follow"),
            said(dump, "provenance.buffer_space", "whose buffer they index"),
            said(dump, "provenance.table_origin", "the table that they are handed"),
        ),
        advice=(
            "Nothing crashes, since the SWA pool is the smaller one; outputs stay right, and accept length is too low.",
            "Look at who chooses the page table of a layer: _get_layer_page_table, or what replaces it.",
        ),
        next_commands=(commands.corpus("full-draft-through-swa-map"), commands.PATCHES),
        upstream=("SGLang 25103",),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the layers that read are sliding ones: then the buffer is the wrong one", of_layers("sliding")),
    ),
    injected_by=("full-draft-through-swa-map",),
    leads_to=SPOILS_DRAFTS,
)
