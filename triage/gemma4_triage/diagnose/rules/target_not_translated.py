"""The target itself reads its sliding-window buffer with full-pool ids."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said, tensor_or_none
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, of_layers
from gemma4_triage.finding import Confidence, Finding

ID = "target-not-translated"

_MISSING = (
    "The target's sliding layers follow full-pool ids into the sliding-window buffer: the full-to-SWA translation is "
    "missing on this path."
)
_WRITES = (
    "The slots to which this forward writes in sliding layers of the target are the full pool's: they were not "
    "translated on this path (out_cache_loc)."
)
_LISTS = {"page_table": "swa_page_table", "kv_indices": "window_kv_indices"}
"""What full layers follow, and what sliding ones do in its place."""
_NOT_TAKEN = (
    "A sliding layer of the target follows the full layers' table into the sliding-window buffer, although this "
    "forward has a table for sliding layers: what chooses a layer's table took the other one."
)


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=PAGE_TABLE, role="target", table_space="full", buffer_space="swa")
    if dump is None:
        return None
    table = dump.manifest.offences[0].table if dump.manifest.offences else ""
    has_both = table in _LISTS and tensor_or_none(dump, _LISTS[table]) is not None
    of_writes = table.endswith("out_cache_loc")
    return Finding(
        rule=ID,
        structure=Structure.WRITE_LOCATIONS if of_writes else Structure.SWA_TABLE,
        defect=Defect.OTHER_SPACE,
        cause=_NOT_TAKEN if has_both else _WRITES if of_writes else _MISSING,
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "provenance.table_space", "whose ids the table holds"),
            said(dump, "provenance.buffer_space", "whose buffer they index"),
            said(dump, "provenance.table_origin", "the table"),
            said(dump, "forward_mode", "the path that built it"),
            said(dump, "backend", "the attention backend"),
        ),
        advice=(
            *(("Look at what gives each layer its table (_get_layer_page_table), and by which layer id.",) * has_both),
            "Trust no output of this server: nothing verifies what the target reads.",
            "Serve with another attention backend until the path is mended; a bisection of forward modes names it.",
        ),
        next_commands=(commands.serve(incident, "--debug trap"), commands.PATCHES),
        upstream=() if has_both else ("SGLang 24402",),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the layers that read are full ones: then the buffer is the wrong one", of_layers("full")),
    ),
    leads_to=LEAVES_BUFFERS,
)
