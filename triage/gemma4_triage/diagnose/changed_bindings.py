"""What a layer reads, and how, is no longer what it was: of a layer, a window or a scale, and in which way."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import GEOMETRY, Incident
from gemma4_triage.finding import Confidence, Finding

_LATER = "What layers of the {role} read, and how, is no longer what it was at the start: {what} was written since."
_OF_CACHE = (
    "A window that the scheduler or its prefix cache goes by is no longer what it was at the start: {what} is {found}, "
    "and was {expected}. The cache locks, matches and evicts by its own: what is too narrow gives back pages that "
    "layers still read, and what is too wide keeps pages that nobody needs."
)
_WHAT = {
    "pool": "the pool that they read",
    "layer_id": "the id of a layer",
    "kv_buffer": "the buffer of a layer's keys or values",
    "window_left": "a window",
    "scaling": "the scale of a layer's scores",
    "kv_scales": "a scale of the keys or values that a layer reads",
}
BOUND_ELSEWHERE = (
    "Layers of the draft are bound to another layer of the target than the one whose keys and values its last layer of "
    "that type reads. Nothing else of the two differs, so they fit each other, and the binding is wrong."
)
AT_BINDING = (
    "Look at what chooses the target's layer for each type of a draft's layers (build_frozen_kv_mtp_context, "
    "bind_frozen_kv_context): the last one of that type, and of one that shares its keys and values their owner.",
    "Answers stay right, and accept length falls.",
)
_DRAFT_BOUND = "draft bound_layer"


def is_bound_elsewhere(summaries: list[str], others: list[str]) -> bool:
    """Return whether a draft's layers read another layer of the target, and nothing else was found to differ.

    Args:
        summaries: What was said of each comparison whose sides differ.
        others: What the dumps say was found at the same moment, each as one text.
    """
    said = [*summaries, *(one for text in others for one in text.split("; ") if " found " in one)]
    return bool(summaries) and all(one.startswith(_DRAFT_BOUND) for one in said)


def of_change(rule: str, incident: Incident, dump: Dump) -> Finding:
    """Return the finding of a rule about a dump of `geometry` that is of a change since the start."""
    scalars, role = dump.manifest.scalars, dump.manifest.role
    what = str(scalars.get("what"))
    # These are named by whose they are.
    of_cache = "." in what
    was = str(scalars.get("expected")).partition(",")[0]
    structure = Structure.KV_SCALE if what == "kv_scales" else Structure.DRAFT_BINDING if role == "draft" else None
    return Finding(
        rule=rule,
        structure=structure,
        defect=_defect_of_later(dump),
        cause=_OF_CACHE.format(what=what, found=scalars.get("found"), expected=was)
        if of_cache
        else _LATER.format(role=role, what=_WHAT.get(what, what)),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.found", "what it is now"),
            said(dump, "scalars.expected", "what it was"),
            *(() if of_cache else (said(dump, "scalars.layers", "of which layer, by the id that it had"),)),
            said(dump, "step", "when that was seen; outside of trap it is looked at every 64 steps"),
        ),
        advice=(
            "Nothing of SGLang's writes it while a server serves: look at what else runs in the process.",
            *(() if of_cache else ("Answers stay right where only a draft is concerned, and accept length falls.",)),
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes geometry")),
    )


def _defect_of_later(dump: Dump) -> Defect | None:
    """Return in which way what a layer reads is wrong, by what it was; None where no word fits."""
    scalars = dump.manifest.scalars
    what, found, expected = scalars.get("what"), scalars.get("found"), str(scalars.get("expected"))
    if what == "kv_buffer":
        return Defect.SWAPPED if "exchanged" in str(found) else Defect.DUPLICATE if "of layer" in str(found) else None
    if what == "layer_id":
        return of_binding(found, expected)
    if (what == "window_left" or "." in str(what)) and isinstance(found, int):
        return Defect.NEGATIVE if found < 0 else of_window(found, expected, dump.manifest.page_size or 1)
    if what in ("scaling", "kv_scales"):
        new = {one for one in str(found).split(" and ") if one not in expected.partition(",")[0].split(" and ")}
        value = new.pop() if len(new) == 1 else ""
        return Defect.ZERO if value in ("0", "-0") else Defect.NEGATIVE if value.startswith("-") else None
    return None


def of_binding(found: object, expected: str) -> Defect | None:
    """Return in which way a draft layer is bound to another layer of the target, which has KV of its type."""
    wanted = expected.partition(",")[0]
    if not isinstance(found, int) or not wanted.isdecimal():
        return None
    if found <= 0:
        return Defect.NEGATIVE if found else Defect.ZERO
    return Defect.OFF_BY_ONE if abs(found - int(wanted[:12])) == 1 else Defect.FOREIGN


def of_window(found: int, expected: str, page_size: int) -> Defect | None:
    """Return in which way a window is wrong: by one token or by one page, or in none that has a word."""
    if found == 0:
        return Defect.ZERO
    wanted = expected.partition(",")[0]
    return Defect.OFF_BY_ONE if wanted.isdecimal() and abs(found - int(wanted[:12])) in (1, page_size) else None


def defect_at_start(incident: Incident) -> Defect | None:
    """Return in which way a draft layer's id or window is wrong; None where nothing is said of one."""
    for dump in incident.of(rule=GEOMETRY):
        scalars = dump.manifest.scalars
        said = f"{dump.manifest.summary}; {scalars.get('other_findings', '')}"
        if "draft layer_id" in said and "draft window_left" in said:
            return Defect.SWAPPED
        if "draft sub_pool" in said:
            # The other pool's layers begin with the first.
            return Defect.ZERO if scalars.get("layers") == "0" else Defect.OTHER_SPACE
        found, what = scalars.get("found"), scalars.get("what")
        if what == "bound_layer" and "draft layer_id" not in said:
            return of_binding(found, str(scalars.get("expected")))
        if what == "kv_store" and found == f"the values of layer {scalars.get('layers')}":
            # What was looked for are the keys.
            return Defect.SWAPPED
        if what in ("kv_buffer", "kv_store"):
            return Defect.DUPLICATE if what == "kv_buffer" else Defect.FOREIGN
        if what in ("bound_layer", "layer_id", "window_left") and isinstance(found, int):
            if found < 0:
                return Defect.NEGATIVE
            if what != "window_left" or found >= dump.manifest.extents.get("context_length", found + 1):
                return Defect.PAST_END
            return of_window(found, str(scalars.get("expected")), dump.manifest.page_size or 1)
    return None
