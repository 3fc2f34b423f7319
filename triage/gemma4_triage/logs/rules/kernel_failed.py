"""A kernel or a library of CUDA failed in a way that names no table and no buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Wording, of_wordings, pattern
from gemma4_triage.logs.rules import graph_capture
from gemma4_triage.logs.suspects import switched_on

_ON_THE_DEVICE = "A kernel failed on the device. It is noticed later: the frame is not the place."
_WORDINGS = (
    Wording(
        pattern(r"(?:CUBLAS|CUDNN)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
        "A library of CUDA got no memory for its workspace: the pools took all.",
        "lower --mem-fraction-static by 0.03 to 0.05",
    ),
    Wording(
        pattern(r"(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_INTERNAL_ERROR"),
        "A library of CUDA failed inside, for want of memory, for an earlier kernel's error, or for a release of it "
        "that does not fit this torch or GPU.",
        "lower --mem-fraction-static by 0.05; CUDA_LAUNCH_BLOCKING=1 shows whether an earlier kernel failed; the "
        "nvidia-cublas that torch pins, and no LD_LIBRARY_PATH that puts another before it",
    ),
    Wording(
        pattern(r"(?:CUBLAS|CUDNN)_STATUS_(?:NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH)"),
        "A library of CUDA was asked for a product that it does not have for these sizes or types.",
        "another --dtype or backend of the quantised GEMM; the frame names the layer",
    ),
    Wording(
        pattern(r"AlignedAllocator|[Ii]ncrease the workspace buffer size"),
        "FlashInfer's workspace is too small for the plan of this batch: its prefill is too long at once. The GPU's "
        "memory is not full.",
        "a --chunked-prefill-size (not -1) that cuts long prompts; SGLANG_FLASHINFER_WORKSPACE_SIZE in bytes, above "
        "what the line asked for; or --attention-backend triton",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"AclNN_Parameter_Error|EZ1001|error code is 161\d{3}"),
        "An operator of Ascend's refused what it was given (sizes, dimensions or a type): the model's code in this "
        "release asks for something that the NPU does not serve.",
        "a later release and image of SGLang for NPUs, or a model of its list for NPUs; once without images, drafts "
        "and graphs (--disable-cuda-graph): the operator that is named says which of them it is of",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"current working operator name is (?P<operator>\w+)"),
        "A kernel of Ascend's failed on the NPU, mostly as it read outside of its memory. It names the operator: "
        "{operator}.",
        "the operator that is named says which part it is: of attention, fewer requests at once and shorter contexts "
        "(--max-running-requests, --chunked-prefill-size) until a later image for NPUs; ASCEND_LAUNCH_BLOCKING=1 "
        "names the place",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"NPU function error|\baclInit\b|\baclnn\w+ failed|ERR\d{5} (?:PTA|OPS|GRAPH)"),
        "Ascend's runtime (CANN) refused a call: CANN, the driver, torch_npu and SGLang's kernels for NPUs do not fit "
        "each other or this NPU, or the container lacks its devices or memory.",
        "SGLang's image for this NPU (910b, a3) and the CANN that it names; every /dev/davinci device and the driver's "
        "folder in the container, with memory for its compiler; ASCEND_GLOBAL_LOG_LEVEL=1 says more",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"\[torch_memory_saver\.cpp\].{0,80}error"),
        "The memory saver could not give or take back GPU memory behind addresses that stay: on a resume mostly since "
        "somebody else, such as the trainer, took it meanwhile.",
        "release the trainer's memory before resume_memory_occupation (nvidia-smi then), a lower "
        "--mem-fraction-static; one engine per process that preloads the saver; its release as SGLang pins it",
    ),
    Wording(
        pattern(
            r"misaligned address|unspecified launch failure|CUBLAS_STATUS_EXECUTION_FAILED|illegal instruction|"
            r"CUDA_EXCEPTION"
        ),
        _ON_THE_DEVICE,
        "CUDA_LAUNCH_BLOCKING=1 and --disable-cuda-graph name the kernel; then try another backend",
    ),
    Wording(
        pattern(r"error code invalid configuration argument|CUDA error: invalid configuration"),
        "A kernel was launched over no blocks, or over more than there can be: a batch of no tokens, as an empty input "
        "gives, or one that is too large for it.",
        "look at the last Prefill line before it: #new-token: 0 is an empty input (an embedding of ''), which the "
        "client must not send; else CUDA_LAUNCH_BLOCKING=1 names the launch, and a smaller --chunked-prefill-size; a "
        "later release",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(
            r"CUDA error: invalid (?:argument|configuration|resource handle|device ordinal)|"
            r"too many resources requested"
        ),
        "A kernel was launched with sizes that this GPU does not take, or on a GPU that the process does not see.",
        "CUDA_LAUNCH_BLOCKING=1 names the launch; check CUDA_VISIBLE_DEVICES against --tp and --base-gpu-id",
    ),
)


_PREFILL_GRAPH = pattern(r"(?:piecewise|prefill|breakable)_?cuda_graph\w*\.py:|.* warmup_compile$")
_WITHOUT_GRAPH = (
    "once without the graph of prefills, in whose warmup or capture it stands (--cuda-graph-backend-prefill=disabled; "
    "earlier --disable-piecewise-cuda-graph): it runs sizes that a short --context-length or a full GPU has no room "
    "for"
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    # What fails in the exchange of a capture's handles has no sizes that are wrong.
    if not any(graph_capture.RULE.explains(death) for death in facts.failures):
        graphs = any(map(_PREFILL_GRAPH.match, (frame for death in facts.failures for frame in death.frames)))
        for found in _OF_WORDINGS.find(facts):
            apart = switched_on(facts) if found.cause == _ON_THE_DEVICE else ()
            yield found.model_copy(update={"advice": (*(_WITHOUT_GRAPH,) * graphs, *apart, *found.advice)})


_OF_WORDINGS = of_wordings(
    "kernel-failed",
    "a kernel or a library of CUDA failed",
    _WORDINGS,
    Confidence.POSSIBLE,
    settings=("attention_backend", "quantization", "kv_cache_dtype"),
    next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    advice=("the first rank and the first such line count: later ones follow from it",),
    alarms=("device", "signalled"),
)
RULE = replace(_OF_WORDINGS, find=_find)
