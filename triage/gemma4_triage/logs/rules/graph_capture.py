"""CUDA graphs could not be captured at start: memory, or a kernel."""

from __future__ import annotations

from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import adapters_of_experts
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import PLAN_POOLS, of_death, of_failure, of_settings, remarked, says
from gemma4_triage.logs.rules import (
    attention_kernel,
    collective_timeout,
    kernel_too_large,
    library_kernel,
    no_kernel_image,
)
from gemma4_triage.logs.switched_on import features

_FAILED = pattern(r"Capture (?:\w+ )*graph failed: ?(.*)")
_IN_CAPTURE = pattern(
    r"(?i)operation not permitted when stream is capturing|cudaErrorStreamCapture\w+|during CUDA graph capture"
)
# These have a rule of their own, and fail without graphs too.
_OWN_CAUSES = (no_kernel_image.WORDS, kernel_too_large.WORDS)
# device_fault.py tells it: ROCm refuses calls beside a capture.
_OF_ROCM = pattern(r"HIP error: .*captur")
_FAR = 400  # characters
_ALL_REDUCE = pattern(r"\w*custom_all_reduce\w*\.py:|.* register_graph_buffers$")
_SAVER = (
    "--enable-memory-saver replaces the allocations whose handles are exchanged: a later release, or without it, or "
    "--disable-custom-all-reduce"
)
_DEEPEP = pattern(r"(?:deep_?ep|token_dispatcher)\w*\.py:|.* \w*deepep\w*$")
_BUILT = pattern(r"\w*(?:buffer|deep_?ep)\w*\.py:\d+ __init__$|.* get_\w*buffer$")
_WARM = (
    "--disable-cuda-graph (of a prefill server nothing is lost), or another --moe-a2a-backend (the older deepep, or "
    "none)",
    "a later release, which builds that buffer before it captures; NCCL, GIN, InfiniBand and memory need no tuning",
)
_NORMAL = (
    "--deepep-mode auto or low_latency: steps of decode then take the mode that a graph can hold",
    "or --disable-cuda-graph (of a prefill server nothing is lost: prefills are not captured)",
)
_HANDLES = (
    "--disable-custom-all-reduce: NCCL then does the sums",
    "no expandable_segments in PYTORCH_CUDA_ALLOC_CONF: such memory cannot be shared so",
    "containers: --ipc=host, and GPUs that reach each other (nvidia-smi topo -m)",
)


def _explains(death: Death) -> bool:
    if any(says(words)(death) for words in (*_OWN_CAUSES, _OF_ROCM)):
        return False
    if any(rule.explains(death) for rule in (attention_kernel.RULE, collective_timeout.RULE)):
        return False
    if "out of memory" in death.message:
        return bool(_FAILED.search(death.message))
    return bool(_FAILED.search(death.message) or _IN_CAPTURE.search(death.message))


def _tell(facts: LogFacts, death: Death) -> Finding:
    no_memory = "out of memory" in death.message
    failed = _FAILED.search(death.message)
    reason = failed[1] if failed else ""
    handles = any(_ALL_REDUCE.match(frame) for death in facts.deaths for frame in death.frames[-3:])
    deepep = not no_memory and any(_DEEPEP.match(frame) for one in (death, *facts.deaths) for frame in one.frames[-4:])
    built = deepep and any(map(_BUILT.match, (frame for one in facts.deaths for frame in one.frames[-2:])))
    if handles and not no_memory:
        cause = "Graph capture failed in the custom all-reduce, as ranks exchanged handles: memory is not the cause."
    elif built:
        cause = "The buffer that carries tokens to other GPUs' experts was built within the capture, at the first "
        cause += "dispatch, where it may neither allocate nor wait: memory and network are not the cause."
    elif deepep:
        cause = "DeepEP's normal mode, which asks the CPU for the numbers of tokens, was captured into a graph, and it "
        cause += "cannot be: memory is not the cause."
    elif no_memory:
        cause = "Graph capture ran out of memory: the pools took what the graphs' buffers needed."
    else:
        cause = (
            f"Graph capture failed{f': {reason[:120]}' if reason else ''}; the error is the captured "
            "code's, not capture's."
        )
    within = next((one for one in facts.deaths if one is not death and one.frames), death)
    part = library_kernel.part_of(within) if not (handles or deepep or no_memory) else None
    if part is not None:
        cause += f" It computes {part.what}, by its frames, and failed in {within.frame}."
    mine = [one for one in features(facts) if one.words and one.words.search(within.frame)] if part is not None else []
    if mine:
        cause = cause.partition(" It computes")[0] + f" It is code of {mine[0].flag}, in {within.frame}."
        part = None
    saver = (_SAVER,) if facts.settings.get("enable_memory_saver") == "True" else ()
    memory = ("lower --mem-fraction-static by 0.03 to 0.05", "a smaller --cuda-graph-max-bs needs smaller buffers")
    library = library_kernel.of_path(death.message[:_FAR])
    compiled = facts.settings.get("enable_torch_compile") == "True"
    code = (
        *(("once without --enable-torch-compile, which compiles the model as it is captured",) if compiled else ()),
        *adapters_of_experts.apart(facts, within),
        *(f"once {one.without}: its code failed there" for one in mine),
        *((library,) if library else ()),
        *((part.look,) if part is not None and not library else ()),
        "once with --disable-cuda-graph: the same error then comes from an ordinary step, with its own traceback",
        "CUDA_LAUNCH_BLOCKING=1 and another --attention-backend separate the kernel from the capture",
    )
    return Finding(
        rule=_OF_DEATH.id,
        cause=cause,
        # Another rule may know why such code fails.
        confidence=Confidence.LIKELY if handles or no_memory or deepep else Confidence.POSSIBLE,
        evidence=(
            *of_failure(facts, death),
            *remarked(facts, "before_graphs", "memory left before the capture"),
            *of_settings(facts, "mem_fraction_static", "cuda_graph_max_bs", "attention_backend", "enable_memory_saver"),
        ),
        ruled_out_if=("it fails alike with --disable-cuda-graph",)
        if not no_memory
        else ("another process used the device",),
        advice=memory
        if no_memory
        else (*saver, *_HANDLES)
        if handles
        else _WARM
        if built
        else _NORMAL
        if deepep
        else code,
        next_commands=(PLAN_POOLS,) if no_memory else (),
    )


def _accounts_for(death: Death) -> bool:
    return _explains(death) or any(_ALL_REDUCE.match(frame) for frame in death.frames[-3:])


_OF_DEATH = of_death(
    "graph-capture", "CUDA graphs could not be captured", _explains, _tell, alarms=("no-memory", "device")
)
RULE = replace(_OF_DEATH, explains=_accounts_for)
