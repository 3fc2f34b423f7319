"""Python packages that do not fit each other, the model or the GPU: one is missing, too old, or built for others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.other_platform import without_cuda
from gemma4_triage.logs.packages_apart import of_a_new_name, of_two
from gemma4_triage.logs.rule import at, of_wordings, remarked, written
from gemma4_triage.logs.rules.no_kernel_image import JIT_ARCHITECTURE
from gemma4_triage.logs.tracebacks import TORN

_TYPES = (
    "",
    "Exception",
    "PackageNotFoundError",
    "AcceleratorError",
    "InductorError",
    "ImportError",
    "ModuleNotFoundError",
    "NameError",
    "NotImplementedError",
    "OSError",
    "FileNotFoundError",
    "TypeError",
    "CalledProcessError",
    "AssertionError",
    "AmbiguousGlobalPerLayerAttributeError",
    "PTXASError",
    "NoTritonConfigsError",
    "CompilationError",
    "KeyError",
    "ValueError",
    "ValidationError",
    "AttributeError",
    "RuntimeError",
)

_OF_WORDINGS = of_wordings(
    "wheels-do-not-fit",
    "packages do not fit each other, the model or the GPU",
    "wheels_do_not_fit.toml",
    Confidence.LIKELY,
    types=_TYPES,
    ruled_out_if=("python -c 'import sgl_kernel, flashinfer' works in the server's own environment",),
    next_commands=("gemma4-triage doctor",),
    alarms=("device", "library"),
)


_NOT_IMPORTED = (
    "if an 'Ignore import error' line above is of the model's own file, the release has it, and that line says which "
    "name or package it lacks: mend that first (packages of SGLang's pyproject in a fresh environment, or its image)"
)


_OWN_MODULE = pattern(r"when loading \S*?(?:models|processors)\.(\w+): (.{1,200})")
_CLASS = pattern(r"\['?(\w+)'?")
_OF_A_GPU = pattern(r"(?i)\bsm_?\d{2}|\bFA[34]\b|capability|only supported on|built for")
_FOR_ANOTHER_GPU = (
    "the line names kernels that this GPU has not, and the model's file asks for them as it is imported, whatever "
    "backend is chosen: a later release, whose import does without, or that import moved into the function that needs "
    "it; no other packages, transformers or arguments help",
)
_LACKS_A_NAME = (
    "mend what that line says first: the packages of SGLang's pyproject in a fresh environment, or its image; then a "
    "later release, whose import does without",
)


def _not_imported(facts: LogFacts, finding: Finding) -> dict[str, Any] | None:
    """Return what to say where SGLang's own file of the model was left out, since its import failed; None if not so."""
    said, named = facts.remarks["not_imported"].text, _CLASS.search(str(finding.evidence[0].value))
    module = _OWN_MODULE.search(said)
    if module is None or named is None or not named[1].lower().startswith(module[1].replace("_", "").lower()):
        return None
    return {
        "cause": f"This release has code for {named[1]}, and its file {module[1]} could not be imported: {module[2]}. "
        "That the architecture is not supported follows from it alone.",
        "advice": _FOR_ANOTHER_GPU if _OF_A_GPU.search(module[2]) else _LACKS_A_NAME,
    }


_OF_THE_CHECKPOINT = pattern(r"dynamic_module_utils\.py:")
_ASKED_OF = pattern(r"cannot import name '(\w+)' from '(transformers)")


def _of_its_code(facts: LogFacts, finding: Finding) -> dict[str, Any] | None:
    """Return what to say where code that the checkpoint brings asks transformers for what it has no more; else None."""
    raised = (one for one in facts.failures if f"line {one.place.line}" == finding.evidence[0].field)
    death = next((one for one in raised if any(map(_OF_THE_CHECKPOINT.match, one.frames))), None)
    asked = _ASKED_OF.search(death.message) if death is not None else None
    if death is None or asked is None:
        return None
    return {
        "cause": f"The checkpoint's own code ({death.frame.partition(':')[0]}), which --trust-remote-code runs, asks "
        f"the installed transformers for {asked[1]}, which that has no more. The server is whole.",
        "advice": (
            "without --trust-remote-code: where the server has the model built in, it needs none of that code",
            "else an earlier transformers, which the model's card names, in an environment of its own, or that import "
            "taken out of the checkpoint's file",
        ),
    }


def _of_packages(facts: LogFacts, finding: Finding) -> dict[str, Any] | None:
    """Return what to say where a package asks for another by what its release has not; None else."""
    raised = (one for one in facts.failures if f"line {one.place.line}" == finding.evidence[0].field)
    death = next(raised, None)
    return None if death is None else of_two(death) or of_a_new_name(facts, death)


# Those of CUDA, torch and what lies beside them are the general case.
_HEADER = pattern(
    r"fatal error: ((?!cu|nv|nccl|thrust|torch|ATen|c10|cooperative|device_|flashinfer|tvm)[\w./+-]+): No such file"
)
_HEADER_LACKS = "Code is compiled on this machine, and a header of the system, {0}, is missing: no wheel brings it."
_NO_HEADER = (
    "install {1}, which has {0}, with the system's package manager, in the image that the server runs in; or take "
    "SGLang's image; once without what asked for it, as the frames say"
)
_PACKAGE_OF = {
    "Python.h": "build-essential and python3-dev (of the very Python that runs the server, as python3.11-dev: python "
    "-V; of a venv the one that it was made of)",
    "openssl/sha.h": "libssl-dev",
    "numa.h": "libnuma-dev",
    "infiniband/verbs.h": "libibverbs-dev",
}


def _without_header(name: str) -> str:
    """Return what to install where a header of the system lacks."""
    return _NO_HEADER.format(name, _PACKAGE_OF.get(name, f"the package (apt-file search {name} says which)"))


_A_SOURCE = pattern(
    r"\.(?:cuh?|hip|cpp|cc|cxx|h|hpp|c)[:(]\d+|CMake Error|undefined reference|"
    r"\b(?:ptxas|cc1plus|clang|gcc|hipcc|ld)\b|\b[gc]\+\+:|nvcc: not found"
)


_NO_COMPILER = pattern(r"/(?:nvcc|hipcc)['\"]?: (?:(?:command )?not found|No such file)|directory: '\S*/hipcc'")
_QUOTED = 200  # characters


def _said_by_compiler(facts: LogFacts) -> tuple[Remark, str, str] | None:
    """Return the first thing that a compiler says of a source, what it means, and what to do; None if it says none."""
    for name in ("first_compiler", "compiler"):
        said = facts.remarks.get(name)
        if said is None or not _A_SOURCE.search(said.text):
            continue
        if missing := _HEADER.search(said.text):
            return said, _HEADER_LACKS.format(missing[1]), _without_header(missing[1])
        if one := next((one for one in written("compilers.toml") if one.words.search(said.text)), None):
            found = one.words.search(said.text)
            named = {what: text or "" for what, text in found.groupdict().items()} if found else {}
            return said, one.cause.format_map(named), one.advice
    # What ninja printed stands within the exception.
    for death in facts.deaths:
        one = next((one for one in written("compilers.toml") if one.words.search(death.message)), None)
        if one is not None and _NO_COMPILER.search(death.message):
            return Remark(death.place, death.rank, death.message[-_QUOTED:]), one.clause(death.message), one.advice
    return None


def _of_a_source(facts: LogFacts) -> Iterator[Finding]:
    """Yield what a compiler said of a source, of a server that never came up and of which nothing else tells more."""
    said = _said_by_compiler(facts)
    if said is None or facts.served or {"ready", "http_ready"} & facts.remarks.keys() or "answer" in facts.understood:
        return
    yield Finding(
        rule=RULE.id,
        cause=said[1],
        confidence=Confidence.LIKELY,
        evidence=(at(facts, said[0].place, said[0].text, "what the compiler said first"),),
        ruled_out_if=("a later line says that the kernel was built",),
        advice=(said[2],),
        next_commands=("gemma4-triage doctor",),
    )


_PIP = pattern(r"pip3? install (?:-U |--upgrade )?[\w.-]+(?:\[[\w,]+\])?(?:[=<>~!]=?[\w.*]+)?")


_TRITON_KERNELS: dict[str, Any] = {
    "cause": "triton_kernels' product of experts (MXFP4, gpt-oss) was compiled for this GPU to code that its "
    "assembler, ptxas, refuses: the package's kernels have instructions that GPUs of 12.x lack, or that ptxas is older "
    "than the GPU.",
    "advice": (
        "another --moe-runner-backend than triton_kernel (flashinfer_mxfp4, marlin, triton), or a later release of "
        "SGLang with the triton_kernels that it pins, which serves such GPUs (SGLang 19718; pip install triton_kernels "
        "--no-deps)",
        "only if other Triton kernels fail alike: TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas of a toolkit that knows "
        "the GPU (12.8 for sm_120, 13.0 for sm_121)",
    ),
}
_MATMULS = pattern(r"(?:\S+ )?_?p?_?matmul_ogs$|matmul_ogs\.py:|triton_kernels\w*\.py:")


def _of_triton_kernels(death: Death) -> bool:
    """Say whether the package of kernels of MXFP4 experts stands among a failure's innermost frames."""
    return death.package == "triton_kernels" or any(map(_MATMULS.match, death.frames[-3:]))


_OF_NVRTC = pattern(r"libnvrtc[\w-]*\.so\.(\d+)\S*: cannot open shared object file")
_NO_TOOLKIT = pattern(
    r"(?i)\bruntime (?:container|image)|\b(?:no|without(?: an?)?) (?:cuda )?(?:nvcc|toolkit)|nvcc: not found"
)


def _without_toolkit(facts: LogFacts, finding: Finding) -> dict[str, Any] | None:
    """Return what to say where the compiler at run time is not found, and notes have no toolkit here; None else."""
    found, notes = _OF_NVRTC.search(str(finding.evidence[0].value)), facts.remarks.get("notes")
    if found is None or notes is None or not _NO_TOOLKIT.search(notes.text):
        return None
    return {
        "cause": f"libnvrtc of CUDA {found[1]}, which compiles kernels at run time, is not where the loader looks: no "
        "toolkit is installed here, and pip's own copy lies in a folder that the loader does not search.",
        "advice": (
            "export LD_LIBRARY_PATH with the folder that has it, before the start: site-packages/nvidia/cuda_nvrtc/lib "
            f"(CUDA 13: nvidia/cu13/lib), or lib64 of a toolkit of {found[1]} with its bin in PATH; or install that "
            f"toolkit. If torch.version.cuda is not {found[1]}: the wheels or the image of torch's CUDA",
        ),
    }


def _find(facts: LogFacts) -> Iterator[Finding]:
    found = list(_OF_WORDINGS.find(facts))
    # A traceback that is cut off says less than what stands above it.
    if not found and all(death.message == TORN for death in facts.deaths):
        found = list(_of_a_source(facts))
    for finding in found:
        compiler = remarked(facts, "compiler", "what the compiler said last") if "compile" in finding.cause else []
        lacks = any("No processor registered" in str(one.value) for one in finding.evidence)
        unknown = "no code for the model's architecture" in finding.cause and "not_imported" in facts.remarks
        lacking = remarked(facts, "not_imported", "what could not be imported") if lacks or unknown else []
        missing = _HEADER.search(str(compiler[0].value)) if compiler else None
        shown = [one for one in compiler if all(one.field != known.field for known in finding.evidence)]
        update: dict[str, Any] = {"evidence": (*finding.evidence, *shown, *lacking)}
        if asked := _PIP.search(str(finding.evidence[0].value)) if "as the line says" in finding.advice[0] else None:
            known = asked[0].strip() in finding.advice[0]
            said = finding.advice[0] if known else f"{asked[0].strip()}, which the line asks for: {finding.advice[0]}"
            update["advice"] = (said, *finding.advice[1:])
        if unknown:
            update |= _not_imported(facts, finding) or {"advice": (_NOT_IMPORTED, *finding.advice)}
        update |= _of_its_code(facts, finding) or _of_packages(facts, finding) or _without_toolkit(facts, finding) or {}
        if missing:
            update["cause"] = _HEADER_LACKS.format(missing[1])
            update["advice"] = (_without_header(missing[1]),)
        elif "compile" in finding.cause and (said := _said_by_compiler(facts)) is not None:
            first = at(facts, said[0].place, said[0].text, "what the compiler said first")
            update |= {"cause": said[1], "advice": (said[2],), "evidence": (*finding.evidence, first)}
        elif "did not compile" in finding.cause and (of := facts.remarks.get("compiled_for")) is not None:
            update["advice"] = (JIT_ARCHITECTURE, *finding.advice)
            update["evidence"] = (*finding.evidence, at(facts, of.place, of.text, "what it was compiled for"))
        if "assembler ptxas ended" in finding.cause and any(map(_of_triton_kernels, facts.deaths)):
            update |= _TRITON_KERNELS
        update |= without_cuda(facts, str(finding.evidence[0].value)) or {}
        yield finding.model_copy(update=update)


RULE = replace(_OF_WORDINGS, find=_find)
