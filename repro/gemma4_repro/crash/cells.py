"""The cells of the crash matrix: model x attention backend x MTP x probes, and the server flags of each.

A cell's id is `MODEL_BACKEND_MTP`, with `_bounds` behind it where the probes are on: `e4b_trtllm_v1_bounds`. The short
ids `e4b` and `e4b_bounds` name the configuration that crashed first in public: trtllm_mha with MTP V1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from gemma4_dumps.wording import names_near
from gemma4_repro.errors import UnknownName
from gemma4_repro.toys.locate import ASSISTANT_NAME, EXPERTS_ASSISTANT_NAME, EXPERTS_NAME, TARGET_NAME


@dataclass(frozen=True)
class Model:
    """A Gemma-4 model. No server flag depends on it.

    Args:
        id: The key of its shape in gemma4_repro.step_bench.model_sizes.
        text_parameters: How many its text model has, without the image encoder.
        toy: The checkpoint that stands in for it with `--toy`, and the assistant of that.
        toy_note: What the toy has and lacks of the model; it is said on the screen.
    """

    id: str
    title: str
    text_parameters: int
    toy: str
    toy_assistant: str
    toy_note: str

    @property
    def weights_bytes(self) -> int:
        """What the text model's weights take in bfloat16."""
        return 2 * self.text_parameters


@dataclass(frozen=True)
class Backend:
    """Which attention backends the server gets.

    Args:
        interprets_triton: With `--toy`, Triton's interpreter runs attention kernels, which takes seconds per step.
    """

    id: str
    title: str
    arguments: Mapping[str, Any]
    interprets_triton: bool

    @property
    def decodes_with_trtllm(self) -> bool:
        return self.id != "triton"


@dataclass(frozen=True)
class Mtp:
    """Whether drafts are made, and by which worker. patches: the value of GEMMA4_TRIAGE_PATCHES for it."""

    id: str
    title: str
    drafts: bool
    patches: str


MODELS = (
    Model("e2b", "Gemma-4 E2B", 4_628_569_344, TARGET_NAME, ASSISTANT_NAME, "toy-e4b stands in for E2B's kind"),
    Model("e4b", "Gemma-4 E4B", 7_463_013_376, TARGET_NAME, ASSISTANT_NAME, "toy-e4b stands in"),
    Model("26b", "Gemma-4 26B-A4B", 25_334_067_200, EXPERTS_NAME, EXPERTS_ASSISTANT_NAME, "toy-26b stands in"),
    Model(
        "31b",
        "Gemma-4 31B",
        31_468_048_640,
        TARGET_NAME,
        ASSISTANT_NAME,
        "toy-e4b stands in: dense as 31B is, but with per-layer embeddings and shared KV, which 31B has not",
    ),
)

# Pages of 64: trtllm_mha takes 16, 32 and 64, and SGLang changes any other size to 64 itself.
BACKENDS = (
    Backend("triton", "Triton attention", {"attention_backend": "triton"}, True),
    Backend("trtllm", "trtllm_mha attention", {"attention_backend": "trtllm_mha", "page_size": 64}, False),
    # Target verification stays with the prefill backend, SGLang's default: Hopper's XQA refuses it without a mask.
    Backend(
        "hybrid",
        "Triton prefill and trtllm_mha decode",
        {"prefill_attention_backend": "triton", "decode_attention_backend": "trtllm_mha", "page_size": 64},
        True,
    ),
)

AS_SHIPPED = "none"
MTPS = (
    Mtp("off", "no MTP", False, AS_SHIPPED),
    # From 0.5.14 on what is shipped is the one worker that is left, and overlaps.
    Mtp("v1", "MTP V1", True, AS_SHIPPED),
    # The release has no worker for it; the patch brings one, and the fixes that it cannot do without.
    Mtp("v2", "MTP V2 (overlap)", True, "none,+mtp-v2"),
)

DRAFT_STEPS = 3
_SPECULATION = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": DRAFT_STEPS,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": DRAFT_STEPS + 1,
}

# Pools so small that the toy load fills them, as scenarios have them; `serve --host-engine` adds what a CPU needs.
_TOY_ARGUMENTS = {
    "page_size": 16,
    "max_total_tokens": 2560,
    "swa_full_tokens_ratio": 0.4,
    "max_running_requests": 8,
    "skip_server_warmup": True,
    # The interpreter may take minutes for one step, which is no hang.
    "watchdog_timeout": 600,
}
# A CPU has no CUDA graphs, and the eager MTP of releases before 0.5.15 dies of that before anything else could show.
_TOY_FIX = "eager-out-cache-loc"


def released_with(patch_id: str) -> bool:
    """Say whether the installed SGLang has a fix itself.

    Args:
        patch_id: Of the fix.
    """
    from gemma4_runtime.catalog import CATALOG
    from gemma4_runtime.releases import installed_or_base
    from gemma4_runtime.standing import is_absorbed

    return any(is_absorbed(patch, installed_or_base()) for patch in CATALOG if patch.id == patch_id)


@dataclass(frozen=True)
class Cell:
    """One server configuration. bounds: whether the probes are on (SGLANG_TRTLLM_MHA_DEBUG=1)."""

    model: Model
    backend: Backend
    mtp: Mtp
    bounds: bool

    @property
    def id(self) -> str:
        return f"{self.model.id}_{self.backend.id}_{self.mtp.id}{'_bounds' if self.bounds else ''}"

    @property
    def title(self) -> str:
        probes = "probes on" if self.bounds else "probes off"
        return f"{self.model.title}, {self.backend.title}, {self.mtp.title}, {probes}"

    def patches(self, toy: bool) -> str:
        """Return what GEMMA4_TRIAGE_PATCHES is unless the user says otherwise."""
        needs_fix = toy and self.mtp.drafts and not released_with(_TOY_FIX)
        return f"{self.mtp.patches},+{_TOY_FIX}" if needs_fix else self.mtp.patches

    def server_arguments(self, target: str, assistant: str | None, port: int, toy: bool = False) -> dict[str, Any]:
        """Return SGLang's arguments in the order in which they are shown.

        Args:
            target: The path of the checkpoint.
            assistant: The path of its MTP assistant; unused where the cell drafts nothing.
            port: Where the server listens, on loopback only.
            toy: Whether the CPU engine serves a toy.
        """
        arguments = {"model_path": target, "host": "127.0.0.1", "port": port, **self.backend.arguments}
        if self.mtp.drafts:
            arguments |= {"speculative_draft_model_path": assistant, **_SPECULATION}
        return arguments | _TOY_ARGUMENTS if toy else arguments


CELLS = tuple(
    Cell(model, backend, mtp, bounds) for model, backend, mtp, bounds in product(MODELS, BACKENDS, MTPS, (False, True))
)

SHORT_IDS = {f"{model.id}{end}": f"{model.id}_trtllm_v1{end}" for model, end in product(MODELS, ("", "_bounds"))}


def find_cell(name: str) -> Cell:
    """Return the cell of an id or a short id.

    Raises:
        UnknownName: No cell has it; the hint names the nearest ones.
    """
    wanted = SHORT_IDS.get(name, name)
    for cell in CELLS:
        if cell.id == wanted:
            return cell
    known = [*SHORT_IDS, *(cell.id for cell in CELLS)]
    raise UnknownName(
        f"there is no cell {name!r}", names_near(name, known, "gemma4-triage repro crash --matrix lists all")
    )
