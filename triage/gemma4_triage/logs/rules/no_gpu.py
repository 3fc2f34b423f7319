"""The process can use no GPU: it sees none, or the driver is older than torch's CUDA."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.other_platform import machine, platform
from gemma4_triage.logs.rule import Rule, of_failure, of_settings, remarked, says

_NONE = pattern(
    r"No (?:CUDA|HIP) GPUs are available|0 active drivers|could not select device driver|"
    r"no CUDA-capable device is detected|"
    r"No accelerator \(.*\)(?: or platform plugin)? is available|Torch not compiled with CUDA enabled|"
    r"Failed to infer device type|nvidia-container-cli: (?:initialization|mount|device) error|Found no NVIDIA driver|"
    r"CUDA driver initialization failed"
)
_DRIVER = pattern(
    r"CUDA driver version is insufficient|driver on your system is too old|cudaErrorInsufficientDriver|"
    r"cudaErrorSystemDriverMismatch|system has unsupported display driver|forward compatibility was attempted|"
    r"provided PTX was compiled with an unsupported toolchain|unsatisfied condition: cuda"
)
_FOUND = pattern(r"found version (\d+)")
_PARTS = 1000  # CUDA 12.2 is version 12020

_TWICE = pattern(r"CUDA_VISIBLE_DEVICES'\)='(?:[^']*,)?(\w+),(?:[^']*,)?\1[,']")


def _explains(death: Death) -> bool:
    return says(_NONE)(death) or says(_DRIVER)(death)


def _find(facts: LogFacts) -> Iterator[Finding]:
    death = next(filter(_explains, facts.failures), None)
    if death is None:
        return
    if "active drivers" in death.message and facts.settings.get("device") not in (None, "None", "cuda"):
        yield _triton_without_gpu(facts, death)
        return
    # torch for AMD's GPUs has them as CUDA's.
    if platform(facts) not in ("", "rocm") and _OF_TORCH.search(death.message):
        yield _code_of_cuda(facts, death)
        return
    if says(_DRIVER)(death) or "old_driver" in facts.remarks:
        yield _old_driver(facts, death)
        return
    visible = facts.remarks.get("visible")
    if visible is not None and _TWICE.search(visible.text):
        yield Finding(
            rule=RULE.id,
            cause="A GPU stands twice in CUDA_VISIBLE_DEVICES, and CUDA then shows none.",
            confidence=Confidence.LIKELY,
            evidence=(*of_failure(facts, death, "what the start said"), *remarked(facts, "visible", "the list")),
            advice=("each GPU once; where a trainer makes the list, one list for each of its servers",),
        )
        return
    if "not compiled with CUDA" in death.message:
        yield _build_without_cuda(facts, death)
        return
    yield Finding(
        rule=RULE.id,
        cause="The process can use no GPU: it sees none, or its torch is a build without CUDA.",
        confidence=Confidence.CERTAIN,
        evidence=tuple(of_failure(facts, death, "what the start said")),
        advice=(
            *((_OF_GKE,) if "libraries_of_gke" in facts.remarks else ()),
            *((_OF_AMD,) if "HIP" in death.message or platform(facts) == "rocm" else ()),
            "docker: --gpus all and the NVIDIA container toolkit; CUDA_VISIBLE_DEVICES; nvidia-smi in the same "
            "container",
            "python -c 'import torch; print(torch.version.cuda)': None is a build of torch for the CPU",
        ),
        next_commands=("gemma4-triage doctor",),
    )


_OF_GKE = (
    "GKE's device plugin mounts the driver's libraries and tools under /usr/local/nvidia, and not by the container "
    "toolkit: LD_LIBRARY_PATH=/usr/local/nvidia/lib64:$LD_LIBRARY_PATH and PATH=/usr/local/nvidia/bin:$PATH in the "
    "pod's environment, or a later image, which has both; ls there says whether the node has them"
)
_OF_TORCH = pattern(r"not compiled with CUDA|No CUDA GPUs|no CUDA-capable device|Found no NVIDIA driver")
_FOR_CUDA_ALONE = (
    "a later release of SGLang, whose code of that step may know {0}, or an earlier one with which this model ran "
    "here: no driver, container or variable changes what that line calls",
    "an issue with this traceback: the call wants a check of the device before it",
)

_ANOTHER_FORMAT = ("until then the same model in bfloat16, or in a format that this release serves on that device",)


def _place_of(death: Death) -> str:
    """Return SGLang's own file that asked for CUDA, as " in x.py"; the innermost frame's where none is SGLang's."""
    file = death.caller or death.frame.partition(":")[0]
    return f" in {file}" if file else ""


def _code_of_cuda(facts: LogFacts, death: Death) -> Finding:
    quantised = "quantization/" in death.caller
    return Finding(
        rule=RULE.id,
        cause=f"A step{_place_of(death)} asked torch for CUDA, while this server is for {machine(facts)}, as its "
        "command or a note says: this release takes CUDA's way there, and lacks a check of the device. That no GPU of "
        "NVIDIA is found is as it should be.",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death, "what torch said"), *of_settings(facts, "device", "attention_backend")),
        ruled_out_if=("the server was meant for a GPU of NVIDIA",),
        advice=(*(one.format(machine(facts)) for one in _FOR_CUDA_ALONE), *(_ANOTHER_FORMAT if quantised else ())),
    )


def _build_without_cuda(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=f"torch here is a build without CUDA, and code{_place_of(death)} asked it for CUDA.",
        confidence=Confidence.LIKELY,
        evidence=tuple(of_failure(facts, death, "what torch said")),
        ruled_out_if=("python -c 'import torch; print(torch.version.cuda)' names a CUDA",),
        advice=(
            "with a GPU of NVIDIA: torch of SGLang's pyproject, whose wheel is for CUDA (an install after it, or "
            "another index of pip, has put one for the CPU in its place), or SGLang's image with docker --gpus all",
            "with one of AMD: torch's wheel for ROCm, which answers for CUDA there, or the image for ROCm",
            "of a server for another device (--device cpu, xpu, npu): another release of SGLang, since that line of "
            "this one knows CUDA alone",
        ),
        next_commands=("gemma4-triage doctor",),
    )


_OF_AMD = (
    "of AMD: docker --device=/dev/kfd --device=/dev/dri --group-add video, HIP_VISIBLE_DEVICES and "
    "ROCR_VISIBLE_DEVICES (unset once), rocm-smi in the same container"
)


def _triton_without_gpu(facts: LogFacts, death: Death) -> Finding:
    device = facts.settings["device"]
    return Finding(
        rule=RULE.id,
        cause=f"A Triton kernel was called on a server for {device}, for which Triton has no driver: this release has "
        "no other code for that step of this model.",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death, "what Triton said"), *of_settings(facts, "device", "attention_backend")),
        advice=(
            f"a later release of SGLang, whose code for {device} may cover the model; or a GPU",
            "--attention-backend torch_native, if the frames above it are of an attention backend",
        ),
    )


def _old_driver(facts: LogFacts, death: Death) -> Finding:
    remark = facts.remarks.get("old_driver")
    found = _FOUND.search(f"{death.message} {remark.text if remark else ''}")
    has = f" It knows CUDA {int(found[1]) // _PARTS}.{int(found[1]) % _PARTS // 10} at most." if found else ""
    return Finding(
        rule=RULE.id,
        cause="The NVIDIA driver of the host is older than the CUDA that torch was built for, so no GPU can be "
        f"used.{has}",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death, "what the start said"), *remarked(facts, "old_driver", "what torch said")),
        ruled_out_if=("nvidia-smi on the host names a CUDA version of at least torch.version.cuda",),
        advice=(
            "a newer driver on the host: nvidia-smi names the CUDA that it knows, torch.version.cuda the one it needs",
            "or the image or wheels of SGLang for the driver's CUDA; on data-center GPUs the cuda-compat package",
        ),
        next_commands=("gemma4-triage doctor",),
    )


RULE = Rule("no-gpu", "the process can use no GPU", _find, _explains, frozenset({"no-start", "device"}))
