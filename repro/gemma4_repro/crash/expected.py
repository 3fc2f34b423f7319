"""What a cell is expected to do on a device, with the patches and faults that its server gets, and who measured that.

Nobody of this project has had the real weights in hand. `measured` says what stands behind an expectation instead: a
test on the CPU engine or on an H200 with small random weights, or a publication.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_repro.crash.cells import Cell, released_with
from gemma4_repro.crash.outcome import Answered, Dies, Expectation, LeavesDump, LeavesNoDump

SEED_FAULT = "swa-state-stale"
FAULTS = (SEED_FAULT,)
"""The faults of which `repro crash` knows what to expect; `repro corpus` runs all."""
_SWAP, _EAGER, _V2 = "swa-state-swap", "eager-out-cache-loc", "mtp-v2"
_ILLEGAL = ("IllegalAddress", "AcceleratorError")
_NOT_REAL = "not measured with real weights"
_CPU = "measured on the CPU engine for the cells that tests/engine/results names"


@dataclass(frozen=True)
class Situation:
    """Where and with what a cell runs.

    Args:
        device: `sm90`, `sm100` and so on; of the CPU engine, its device model.
        patches: Ids of the fixes and optimisations that are attached.
        fault: The id of an injected fault, or None.
        eager: Whether there are no CUDA graphs, as on the CPU engine.
    """

    device: str
    patches: frozenset[str]
    fault: str | None = None
    eager: bool = False


@dataclass(frozen=True)
class Expected:
    """What a run is held against.

    Args:
        brief: In the two or three words that a table has room for.
        why, measured: Whole sentences without their full stop.
    """

    expectations: tuple[Expectation, ...]
    brief: str
    why: str
    measured: str

    @property
    def text(self) -> str:
        """Return what is expected, in a few words."""
        return "; ".join(one.text for one in self.expectations)


def with_own_patches(cell: Cell, device: str) -> Expected:
    """Return what is expected on a GPU with the cell's own patches, CUDA graphs on and nothing injected."""
    # Of those that mtp-v2 brings, the one that matters here.
    patches = {_V2, _SWAP} if cell.mtp.id == "v2" else set()
    return expected(cell, Situation(device, frozenset(patches)))


def expected(cell: Cell, situation: Situation) -> Expected:
    """Return what the cell is expected to do there."""
    fixed = _SWAP in situation.patches
    # Patches decide, whatever the cell is called: --patches may have left out the worker of a V2 cell.
    v1 = cell.mtp.drafts and _V2 not in situation.patches
    if v1 and cell.backend.id == "hybrid" and not fixed:
        return _hybrid_draft(cell)
    if v1 and situation.eager and _EAGER not in situation.patches and not released_with(_EAGER):
        return Expected(
            (Dies(("RuntimeError", "TrappedViolation")),),
            "dies",
            "without CUDA graphs a V1 draft copies more slots than its batch has (sizes 29 and 30); "
            f"{_EAGER} repairs it",
            f"measured on an H200 with toys or small random weights; {_NOT_REAL}",
        )
    if situation.fault == SEED_FAULT and cell.mtp.drafts and cell.backend.decodes_with_trtllm and not fixed:
        return _seed_bug(cell, situation.device)
    return _serves(cell, situation)


def _hybrid_draft(cell: Cell) -> Expected:
    why = (
        "the draft gets a hybrid backend whose children keep the assistant's dummy pool, and a layer id of the target "
        f"is past its end; {_SWAP} repairs it"
    )
    if cell.bounds:
        return Expected(
            (Dies(("TrappedViolation",), at_start=True), LeavesDump("geometry")),
            "trapped at start",
            why,
            f"measured on the CPU engine (tests/engine/test_geometry_live.py); {_NOT_REAL}",
        )
    return Expected(
        (Dies(("IndexError",)),),
        "IndexError",
        why,
        f"measured on an H200 with toys or small random weights (tests/gpu/test_graph_guards.py); {_NOT_REAL}",
    )


def _seed_bug(cell: Cell, device: str) -> Expected:
    why = f"{SEED_FAULT} is injected: sliding layers of the draft read with page ids of the full pool"
    if cell.bounds:
        return Expected(
            (LeavesDump("page-table-bounds"),),
            "trapped",
            f"{why}, and the probe dumps that first; then the server ends, or inside CUDA graphs the requests do",
            f"measured on the CPU engine and on an H200 with toys or small random weights; {_NOT_REAL}",
        )
    if device == "sm100":
        return Expected(
            (Dies(_ILLEGAL),),
            "illegal address",
            f"{why}, and an id past the end is an illegal address",
            f"measured on the CPU engine; published for B200; {_NOT_REAL}",
        )
    return Expected(
        (Answered(),),
        "serves, drafts wrong",
        f"{why}; this device reads what lies there and raises nothing: only the accept length falls",
        f"measured on the CPU engine's sm90 model and on an H200 with toys or small random weights; {_NOT_REAL}",
    )


def _serves(cell: Cell, situation: Situation) -> Expected:
    checks: tuple[Expectation, ...] = (Answered(), LeavesNoDump()) if cell.bounds else (Answered(),)
    if situation.fault is not None and cell.mtp.drafts and _SWAP in situation.patches:
        why = f"{_SWAP} holds against the injected fault"
    elif situation.fault is not None:
        why = "the injected fault does not reach this cell's draft"
    elif cell.backend.id == "triton":
        why = "Triton attention translates page ids through the pool that it reads at that moment"
    elif cell.mtp.drafts:
        why = "this release takes the draft's SWA state from the allocator; the publication crashed on an older one"
    else:
        why = "the published crash needs drafts, and this cell makes none"
    on_h200 = cell.backend.id != "trtllm" and situation.device == "sm90" and not cell.bounds
    where = f"{_CPU} and on an H200 with toys or small random weights" if on_h200 else _CPU
    return Expected(checks, "serves", why, f"{where}; {_NOT_REAL}")
