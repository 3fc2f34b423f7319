"""Draft and target, or layers and pools, were put together from parts that do not fit, or no longer do."""

import re

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.changed_bindings import (
    AT_BINDING,
    BOUND_ELSEWHERE,
    defect_at_start,
    is_bound_elsewhere,
    of_change,
)
from gemma4_triage.diagnose.incident import GEOMETRY, Incident
from gemma4_triage.diagnose.process_state import ships_right_windows
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule
from gemma4_triage.diagnose.start_up import (
    POOL_SIZE,
    SINCE_START,
    sides_agree,
    start_up_evidence,
    start_up_summaries,
)
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.rules.probe_stopped import shows_one_key_more

ID = "parts-disagree"
_NUMBER = r"(-?[0-9.e+-]{1,24})"
_SCALES = re.compile(rf"target kv_scales, layers [\d, ]+: found {_NUMBER} and {_NUMBER}, expected")
_SCALE_DEFECTS = {"0": Defect.ZERO, "2": Defect.OFF_BY_ONE, "-1": Defect.NEGATIVE}
_PARTS = "Parts of this server that must agree do not: a draft and its target, or layers and the pool they read."
_WINDOW = "Layers of the target show another number of keys than the model's configuration says: their window is wrong."
_WINDOWS = ("draft window_left", "target window_left")
_SOURCES = {
    "target bound_layer": "Layers of the target read the keys and values of another layer than the model's "
    "configuration says.",
    "target kv_buffer": "Two layers of the target have one buffer for their keys or values, by the pool's own lookup: "
    "one of them is bound to the other's.",
    "draft kv_buffer": "Two layers of the draft have one buffer for their keys or values, by the pool's own lookup: "
    "one of them is bound to the other's.",
    **{
        f"{role} kernel_{what}": f"A decode's kernel is given another {words} of the {role} has{more}."
        for role in ("target", "draft")
        for what, words, more in (
            ("window", "window than the layer", "; -1 is none"),
            ("scale", "scale of its scores than the layer", ""),
        )
    },
    "target kv_store": "The keys or values that a layer of the target stores do not lie where it reads them.",
}
_OF_DRAFT_LAYERS = ("draft layer_id", "draft bound_layer", "draft window_left", "draft sub_pool", "draft scaling")


def find(incident: Incident) -> Finding | None:
    evidence = start_up_evidence(
        incident,
        "geometry_mismatch",
        # A pool that was left behind has a rule of its own, and so has a pool's size.
        lambda summary: not summary.startswith("draft pool:") and not POOL_SIZE.match(summary),
        "one side of the comparison",
    )
    windows = [one for one in start_up_summaries(incident, "window_width") if one.startswith(_WINDOWS)]
    of_target = not evidence and all(one.startswith("target") for one in windows)
    evidence += start_up_evidence(
        incident,
        "window_width",
        # Of a release whose windows are right, one key more is a part's doing.
        lambda summary: (
            summary.startswith(_WINDOWS) and (not shows_one_key_more(summary) or ships_right_windows(incident) is True)
        ),
        "keys before its own that a layer shows",
    )
    if not evidence:
        return None
    later = next((dump for dump in incident.of(rule=GEOMETRY) if dump.manifest.scalars.get(SINCE_START)), None)
    if later is not None and incident.first(rule=GEOMETRY) is later:
        return of_change(ID, incident, later)
    scale = _of_scales(incident)
    others = [str(dump.manifest.scalars.get("other_findings", "")) for dump in incident.of(rule=GEOMETRY)]
    bound = is_bound_elsewhere(start_up_summaries(incident, "geometry_mismatch"), others)
    structure = Structure.KV_SCALE if scale else Structure.DRAFT_BINDING if _is_of_draft_layers(incident) else None
    return Finding(
        rule=ID,
        structure=structure,
        defect=_SCALE_DEFECTS.get(scale) if scale else None if of_target else defect_at_start(incident),
        cause=_WINDOW if of_target else BOUND_ELSEWHERE if bound else _of_sources(incident) or _PARTS,
        confidence=Confidence.CERTAIN,
        evidence=evidence,
        advice=AT_BINDING
        if bound
        else (
            "If a layer id, head count or head dim differs, draft and target are checkpoints of different models.",
            "Page size, context length and KV dtype come from the launch arguments: see launch_args in the dump.",
        ),
        next_commands=(commands.serve(incident, "--debug trap", "--probes geometry"), commands.DOCTOR),
    )


def _of_sources(incident: Incident) -> str | None:
    """Return what is wrong where layers read, or store, what is another's; None where something else differs too."""
    said = start_up_summaries(incident, "geometry_mismatch")
    if not all(one.startswith(tuple(_SOURCES)) for one in said):
        return None
    # What a layer reads says more than what it stores.
    return next((words for begin, words in _SOURCES.items() if any(one.startswith(begin) for one in said)), None)


def _of_scales(incident: Incident) -> str | None:
    """Return the one scale of the target's layers that is not 1; None if there is none, or more than one."""
    found = [_SCALES.match(summary) for summary in start_up_summaries(incident, "geometry_mismatch")]
    wrong = {one for match in found if match for one in match.groups() if one != "1"}
    return wrong.pop() if len(wrong) == 1 else None


def _is_of_draft_layers(incident: Incident) -> bool:
    """Return whether what was compared is which layers of the target a draft reads, its window, or its scale."""
    return any(dump.manifest.summary.startswith(_OF_DRAFT_LAYERS) for dump in incident.of(rule=GEOMETRY))


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("both sides name the same value", sides_agree),),
    explains=("index-outside-buffer", "null-page-in-live-column", "page-past-pool-end", "table-too-narrow"),
    leads_to=LEAVES_BUFFERS,
)
