"""A quantised layer cannot be computed: the flag, the shape or the GPU does not fit its kernel."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.looked_at_first import served_by_a_generic_class
from gemma4_triage.logs.rule import of_death, of_failure, of_settings
from gemma4_triage.logs.rules import library_kernel, wheels_do_not_fit
from gemma4_triage.logs.rules.draft_model import quantised_on_load

_QUANTISED = pattern(
    r"(?:w?8a8|fp[48]\w*|mxfp[48]\w*|nvfp4\w*|modelopt\w*|awq\w*|gptq\w*|marlin\w*|int[48]\w*|flashinfer_trtllm|"
    r"compressed_tensors\w*|modelslim\w*|quark\w*|torchao\w*|moe_wna16|bitsandbytes|gguf|auto_round|unquant|"
    r"quant\w*)\.py:|.* \w*(?:fp[48]|process_weights_after_loading|scaled_mm|mxfp4)\w*$"
)
_TOO_OLD = pattern(r"(?i)min(?:imum)? capability: ?(\d+)\.? current capability: ?(\d+)")
OF_A_SPLIT = pattern(r"not divisible by weight quantization block_[nk]")
_ALIGNED = pattern(r"(?i)multiple of \d+|must be (?:a )?(?:multiple|divisible)|alignment|not divisible")
_NEEDS_PADDING = pattern(r"(?i)padding|padded|intermediate[_ ]size")
_TOWER = pattern(r"(?:\w*_)?(?:vision|vit|siglip|clip|audio)\w*\.py:")
OF_A_WEIGHT = pattern(r"(?i)size of tensor a|split_with_sizes|shape mismatch|size mismatch|start \(\d+\) \+ length")
_LOADS = pattern(r"(?:post_)?load_weights$|weight_loader")
_INNER = 6  # frames
_QUOTED = 120  # characters


_CREATES = pattern(r".* (?:create_weights|get_quant_method|process_weights_after_loading|create_moe_runner)$")


# A layer that was made for a packed format has packed parameters alone.
_NO_PARAMETER = pattern(
    r"'\w*(?:Linear|Head|Embedding|MoE|Experts?)\w*' object has no attribute "
    r"'(?:weight\w*|qweight|qzeros|scales|w\d+_\w+|w\d+|input_scale|\w+_scale\w*)'"
)


# A layer of experts that asks a method's config for what only another method has.
_OTHER_METHOD = pattern(
    r"'(\w*(?:AWQ|Awq|GPTQ|Gptq|Marlin|Fp8|FP8|Fp4|FP4|CompressedTensors|ModelOpt|W8A8|W4A|Quark|BitsAndBytes|WNA16)"
    r"\w*(?:Config|LinearMethod|MoEMethod))' object has no attribute "
    r"'(?!runner|moe_runner)(\w+)'"
)
# What the model's own loader asks of a scale or weight that another method made.
_OF_A_SCALE = pattern(r"'(\w+(?:Parameter|Scale)\w*)' object has no attribute '(?!weight_loader)(\w+)'")
_LOADER = pattern(r".* \w*(?:load_weights|process_weights\w*|weight_loader\w*)$")
# A package that is of another release, which wheels_do_not_fit.py tells.
_OF_A_MODULE = pattern(r"^module '[\w.]+' has no attribute")
_OF_EXPERTS = pattern(r"layers/moe/|experts?")
_NO_EP = "without --enable-ep-moe, --enable-deepep-moe or --moe-a2a-backend: those layers of experts take FP8 alone"
_NOT_HERE = pattern(r"(?i)not (?:available|supported) on this (?:device|gpu|hardware|platform)")
_OTHER_FORMAT = (
    "the same model in a quantisation that this GPU has kernels for (AWQ, GPTQ, int4, int8), or in bfloat16",
    "a later GPU: FP8 begins at 8.9 (Ada), NVFP4 at 10.0 (Blackwell)",
)
_OF_THE_METHOD = (
    "the release before, if this one is new: a line that was put into the model's loader for another method fails with "
    "{0}; or another method that reads the same checkpoint (of W4AFP8 --quantization w4afp8)"
)
_OF_CUTLASS = (
    "a later release of SGLang with its sgl-kernel: CUTLASS refused the product outright, as where the wheel has no "
    "kernel for this GPU (of 12.x, RTX 50 and RTX PRO, FP8 came late); until then Triton's (--fp8-gemm-backend triton)"
)
_RUNNER = "another --moe-runner-backend: flashinfer_cutlass for NVFP4 on consumer Blackwell, triton for most else"


def _of_a_scale(death: Death) -> tuple[str, str] | None:
    """Return which kind of parameter lacks what, where a model's loader asks for what only other methods set."""
    found = _OF_A_SCALE.search(death.message) if death.type_name == "AttributeError" else None
    return found.groups() if found and any(map(_LOADER.match, death.frames[-2:])) else None  # type: ignore[return-value]


def _no_support(death: Death) -> bool:
    """Say whether the code that makes a quantised layer's parameters lacks something of this model's layers."""
    if death.type_name == "AttributeError" and any(one.search(death.message) for one in (_NO_PARAMETER, _OTHER_METHOD)):
        return True
    if _of_a_scale(death) is not None:
        return True
    if _OF_A_MODULE.search(death.message):
        return False
    lacks = death.type_name in ("KeyError", "TypeError", "AttributeError", "NotImplementedError")
    inner = death.frames[-3:]
    return lacks and any(_QUANTISED.match(frame) and _CREATES.match(frame) for frame in inner)


def _explains(death: Death) -> bool:
    if _no_support(death):
        return True
    if death.package == "aiter":
        # Its kernels and tables have to be of one release, which the rule of libraries says.
        return False
    if death.type_name not in ("AssertionError", "IndexError", "RuntimeError", "ValueError", "NotImplementedError"):
        return False
    said = f"{death.type_name}: {death.message}"
    if (
        "CUDA error" in said
        or "CUDA_ERROR" in said
        or "HIP error" in said
        or "out of memory" in said
        or "Quantization method" in said
        or "not compiled with CUDA" in said
    ):
        return False
    # A width that ranks divide below a block is told as that.
    if OF_A_SPLIT.search(said):
        return False
    if _TOO_OLD.search(said):
        return True
    # What a compiler or another package refuses is told as that.
    if wheels_do_not_fit.RULE.explains(death):
        return False
    # A weight that does not fit its place is told as that.
    frames = [frame.partition(" ")[2] for frame in death.frames]
    if OF_A_WEIGHT.search(said) and any(map(_LOADS.match, frames)) and "process_weights_after_loading" not in frames:
        return False
    return any(_QUANTISED.match(frame) for frame in death.frames[-_INNER:])


def _tell(facts: LogFacts, death: Death) -> Finding:
    tower = next((frame for frame in reversed(death.frames) if _TOWER.match(frame)), "")
    ranks = facts.settings.get("tp_size", "1")
    aligned = _ALIGNED.search(death.message) is not None or (
        ranks not in ("1", "None") and _NEEDS_PADDING.search(death.message) is not None
    )
    # Where parameters are packed the checkpoint is quantised, whatever its name says.
    packed = _NO_PARAMETER.search(death.message) is not None
    wrong_flag = "" if packed else quantised_on_load(facts)
    backend = facts.settings.get("moe_runner_backend", "auto")
    advice: tuple[str, ...]
    unsupported = _no_support(death)
    old = _TOO_OLD.search(death.message)
    if _NOT_HERE.search(death.message):
        old = _NOT_HERE.search(death.message)
        said = " ".join(death.message.split())
        cause = f"This GPU has no kernel for the checkpoint's format; it says: {said[:_QUOTED]}."
        advice = _OTHER_FORMAT
    elif old:
        cause = f"This quantisation needs a GPU of compute capability {old[1]}, and this one has {old[2]}."
        advice = _OTHER_FORMAT
    elif unsupported and not wrong_flag:
        what = (death.caller.rpartition("/")[2] or death.frame).partition(".py")[0] or "its code"
        cause = "This release does not serve the model's layers in this quantisation: "
        other = _OTHER_METHOD.search(death.message)
        scale = _of_a_scale(death)
        method = facts.settings.get("quantization", "None")
        by = f"--quantization {method}" if method != "None" else "this checkpoint's method"
        cause += (
            f"{what} reads {scale[1]} of a {scale[0]}, which parameters of {by} do not have. "
            if scale
            else f"{what} asks {other[1]} for {other[2]}, which only another method has. "
            if other
            else f"{what} asks a layer for a parameter that it has only where nothing is packed. "
            if packed
            else f"{what}, which makes their parameters, is not given or has not what it needs. "
        )
        cause += "The weights are not at fault."
        advice = (
            *((_OF_THE_METHOD.format(by),) if scale else ()),
            *((_NO_EP,) if other and _OF_EXPERTS.search(f"{death.path} {death.caller}") else ()),
            *((_RUNNER,) if "runner" in f"{death.message} {death.frame}" else ()),
            "a later release of SGLang (and of vLLM, if the file is vLLM's)",
            "GPTQ and AWQ of a MoE model: --quantization moe_wna16; else the model in FP8, another format or bfloat16",
        )
    elif wrong_flag:
        cause = f"--quantization {wrong_flag} was asked for a checkpoint that is not quantised so, by its name: "
        cause += "the layer has not the scales that its kernel reads."
        advice = (f"leave --quantization {wrong_flag} out, or serve a checkpoint that was made with it",)
    elif aligned:
        cause = "A quantised layer's width does not fit its kernel, which takes multiples only"
        cause += f"; the layer is of the image or audio tower, in {tower.split()[0]}" if tower else ""
        cause += f"; --tp {ranks} divides that width." if ranks not in ("1", "None") else "."
        advice = (
            *(("--tp 1, or one that leaves a width that the kernel takes",) if ranks not in ("1", "None") else ()),
            "a checkpoint quantised by its publisher leaves such layers out"
            + (", above all the image tower" if tower else ""),
            "or serve it in bfloat16, or take a release that leaves the tower out of --quantization",
        )
    else:
        said = " ".join(death.message.split())
        part = library_kernel.part_of(death) if library_kernel.RULE.explains(death) else None
        cause = "The kernel of a quantised layer failed, or does not take this model's shapes, or not on this GPU"
        cause += f"; it computes {part.what}" if part is not None else ""
        cause += f"; it says: {said[:_QUOTED]}." if said else "."
        advice = (
            *((_OF_CUTLASS,) if "cutlass::Status" in death.message else ()),
            *served_by_a_generic_class(facts),
            *((part.look,) if part is not None and backend in ("auto", "None") else ()),
            f"another --moe-runner-backend than {backend}, if it is a MoE layer; else another --fp4-gemm-backend or "
            "--fp8-gemm-backend"
            if backend not in ("auto", "None")
            else "name another backend: --moe-runner-backend triton for MoE layers, --fp8-gemm-backend or "
            "--fp4-gemm-backend for others",
            "the publisher's own checkpoint in bfloat16 says whether the model itself runs here",
        )
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY
        if old or wrong_flag or aligned or unsupported or backend not in ("auto", "None")
        else Confidence.POSSIBLE,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "quantization", "model_path", "tp_size", "moe_runner_backend"),
        ),
        ruled_out_if=(
            "the same server with a checkpoint that is not quantised, and without --quantization, dies alike",
        ),
        advice=advice,
    )


RULE = of_death("quantised-kernel", "a quantised layer cannot be computed", _explains, _tell)
