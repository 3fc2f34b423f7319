"""The GPU or its driver reported a fault of its own."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, remarked
from gemma4_triage.logs.rules import illegal_access, library_kernel
from gemma4_triage.logs.switched_on import features, variables

_XID = pattern(r"Xid(?: \([^)]*\))?: ?(\d+)")
_HARDWARE = pattern(
    r"(?i)fallen off the bus|uncorrectable ECC|ECC error|cudaErrorDevicesUnavailable|system not yet initialized|"
    r"CUDA error: (?:unknown error|hardware|device not ready|all CUDA-capable devices are busy)|GPU is lost"
)
# What ROCm's runtime says before it ends the process.
_ROCM = pattern(
    r"HSA_STATUS_ERROR|Memory access fault by GPU|HSAIL operation resulted in a hardware exception|HIP error"
)
# The GPU is well: it was asked to start a kernel over no rows, or over more than it takes.
_OF_THE_CALL = pattern(r"HIP error: invalid (?:configuration )?argument")
# NVIDIA's list of Xid errors: faults of the program that ran.
_PROGRAM = {"13", "31", "32", "43", "45", "69"}


_NO_SUMS = (
    "once with --disable-custom-all-reduce: RCCL then does the sums; if it holds, a later aiter or image of ROCm mends "
    "the kernel"
)


_OF_A_KERNEL = (
    "a later release or image of the server, in whose notes {0} is mended: the kernel itself left its memory, and to "
    "leave other options out does not cover that; until then another backend of what it computes"
)


def _explains(death: Death) -> bool:
    if "invalid device function" in death.message or _OF_THE_CALL.search(death.message):
        return False
    return bool(_XID.search(death.message) or _HARDWARE.search(death.message) or _ROCM.search(death.message))


_UNLOADED = pattern(r"HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION|illegal shader instruction")
_NO_CODE = (
    "; what ran was no code of a kernel, or none for this GPU: its module was unloaded while it was still to run, or "
    "built for another one"
)
_ITS_MODULES = (
    "a newer aiter (its release notes: caches of compiled kernels), then once with SGLANG_USE_AITER=0, and without "
    "what picks its kernels by the length of a prompt (an indexer of FP4, paged prefills), of which many are compiled"
)
_OF_ITS_FIRST = (
    "its first prefill, with nothing else running, ended it: neither load nor length, but this release's path of this "
    "model on this GPU. A later release or image of ROCm first; until then another --attention-backend (triton, aiter)"
)
_COPIES_DIRECT = (
    "once with --hicache-io-backend direct (--hicache-mem-layout page_first_direct or layer_first), then without "
    "--enable-hierarchical-cache: kernels that copy pages themselves take the host's address of them, and on ROCm such "
    "memory may have another one on the GPU"
)


def _began(facts: LogFacts) -> bool:
    """Say whether the log is of a start whose first prefill, which ran alone, was its last batch."""
    lines = sum(rank.prefill_lines + rank.decode_lines for rank in facts.schedulers)
    alone = all(not (value or 0) for rank in facts.schedulers for value in rank.series.get("running_max", ()))
    return "ready" in facts.remarks and lines == 1 and alone


def _by_what_it_does(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to try first by what the fault is, what copies to the host, and when it came."""
    asked = facts.settings
    on = asked.get("enable_hierarchical_cache") == "True"
    copies = on and facts.arguments.get("hicache_io_backend", "kernel") != "direct"
    return (
        *((_ITS_MODULES,) if _UNLOADED.search(death.message) else ()),
        *((_COPIES_DIRECT,) if copies and "Memory access fault" in death.message else ()),
        *((_OF_ITS_FIRST,) if _began(facts) else ()),
    )


_BATCH = pattern(r"Capturing batches \(bs=(\d+)")
_RIGHT_BELOW = 4  # lines


def _captured(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where the fault came as the graph of a large batch was captured; empty if it did not."""
    said = facts.remarks.get("captures")
    size = _BATCH.search(said.text) if said is not None else None
    if said is None or size is None or not 0 < death.place.line - said.place.line <= _RIGHT_BELOW:
        return ()
    backend = facts.settings.get("attention_backend", "None")
    than = f" than {backend}" if backend != "None" else ""
    half = max(int(size[1]) // 4, 1)
    return (
        f"once with --cuda-graph-max-bs {half}, in place of {size[1]}, and a smaller --context-length: buffers of a "
        "step are as large as both together, and kernels (attention in Triton, with the splits of each request's "
        "keys) have counted places in them in 32 bits; then a later release, which counts in 64",
        f"once with another --attention-backend{than}",
    )


def _as_it_captured(facts: LogFacts, death: Death) -> bool:
    """Say whether ROCm refused a call as a graph was captured, by the fault's words or by a line right before it."""
    said = facts.remarks.get("capture_refused")
    return "captur" in death.message or (said is not None and 0 < death.place.line - said.place.line <= _RIGHT_BELOW)


def _of_rocm(facts: LogFacts, death: Death) -> Finding:
    if _as_it_captured(facts, death):
        return Finding(
            rule=RULE.id,
            cause="ROCm refused a call while a HIP graph was captured: a thread beside the capture asked for an event.",
            confidence=Confidence.LIKELY,
            evidence=(
                *remarked(facts, "capture_refused", "the call that was refused"),
                *of_failure(facts, death, "what ROCm reported"),
                *remarked(facts, "of_rocm", "the release of ROCm"),
            ),
            ruled_out_if=("it dies alike with --disable-cuda-graph",),
            advice=(
                "a newer image of ROCm: 7.2.1 and later are reported to capture beside such a thread",
                "until then --disable-custom-all-reduce, SGLANG_USE_AITER_AR=0 or --disable-cuda-graph",
            ),
            upstream=("SGLang 24011",),
        )
    if "device_assert" in facts.remarks:
        sums = facts.settings.get("tp_size", "1") not in ("1", "None") and (
            facts.settings.get("disable_custom_all_reduce") != "True"
        )
        return Finding(
            rule=RULE.id,
            cause="An assertion in a kernel ended the process on an AMD GPU; PyTorch's own one is that of sampling, "
            "that probabilities are finite and not negative."
            + (
                " What made them NaN is not in the log: sums over the GPUs (custom, quick and aiter's all-reduce) that "
                "read what another GPU has not written yet have, and kernels of attention and of FP8."
                if sums
                else ""
            ),
            confidence=Confidence.POSSIBLE,
            evidence=(
                *of_failure(facts, death, "what ROCm reported"),
                *remarked(facts, "device_assert", "the kernel that asserted"),
            ),
            ruled_out_if=("--enable-nan-detection reports nothing before the same end",),
            advice=(
                *((_NO_SUMS,) if sums else ()),
                "--enable-nan-detection names the step; then once with --kv-cache-dtype auto, once with "
                "--attention-backend triton, once with SGLANG_USE_AITER=0",
                *(() if sums else ("once with --disable-custom-all-reduce",)),
            ),
        )
    frames = [frame for alarm in facts.alarms if alarm.kind == "signalled" for frame in alarm.more if ".py:" in frame]
    reduces = next((frame for frame in frames if "all_reduce" in frame), "")
    cause = "A kernel faulted on an AMD GPU, and ROCm ended the process"
    kernel = facts.remarks.get("faulted_kernel")
    part = library_kernel.part_named(kernel.text) if kernel is not None and not reduces else None
    cause += f"; it is one of {part.what}, by its name" if part else ""
    captured = bool(_captured(facts, death))
    cause += "; it had just begun to capture the graph of its largest batch" * (captured and not reduces)
    cause += _NO_CODE * bool(_UNLOADED.search(death.message))
    cause += f"; the process was in a custom all-reduce, {reduces.split()[0]}." if reduces else "."
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY if reduces or part else Confidence.POSSIBLE,
        evidence=(
            *of_failure(facts, death, "what ROCm reported"),
            *remarked(facts, "faulted_kernel", "the kernel that faulted"),
            *of_settings(facts, "attention_backend", "speculative_algorithm"),
        ),
        ruled_out_if=("the same GPU faults under other programs too",),
        advice=(
            *_captured(facts, death),
            *(() if reduces or part else _by_what_it_does(facts, death)),
            *((part.look,) if part else ("once with --disable-custom-all-reduce",)),
            *(f"once {one.without}" for one in features(facts)[:2] if part or not reduces),
            "once with SGLANG_USE_AITER=0; then a newer image of ROCm and aiter",
            *(() if reduces or part else ("AMD_SERIALIZE_KERNEL=3 names the kernel that faulted",)),
        ),
    )


def _tell(facts: LogFacts, death: Death) -> Finding:
    if _ROCM.search(death.message):
        return _of_rocm(facts, death)
    xid = _XID.search(death.message)
    if xid is not None and xid[1] in _PROGRAM:
        cause = f"The driver reports Xid {xid[1]}: a kernel of a process did something that the GPU refused."
        kernel, line = illegal_access.dumped(facts)
        cause += f" Line {line} names it: {kernel}." * bool(kernel)
        advice = (
            *((_OF_A_KERNEL.format(kernel),) if kernel else ()),
            *((part.look,) if kernel and (part := library_kernel.part_named(kernel)) else ()),
            *(f"once without {one} in its environment" for one in variables(facts)[:3]),
            "the exception of the server at that time says more; CUDA_LAUNCH_BLOCKING=1 names the kernel",
            *(f"once {one.without}" for one in features(facts)[:3]),
        )
    else:
        cause = "The GPU or its driver failed" + (f" (Xid {xid[1]})" if xid else "") + ", and not the server."
        advice = (
            "dmesg -T | grep -i xid and nvidia-smi -q: which GPU; look the number up in NVIDIA's list of Xid errors",
            "take that GPU out (CUDA_VISIBLE_DEVICES), reset it or the host; dcgmi diag tests it",
        )
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=tuple(of_failure(facts, death, "what was reported")),
        ruled_out_if=("dmesg shows no Xid at that time, and the same GPU runs other work",),
        advice=advice,
        next_commands=("gemma4-triage doctor",),
    )


RULE = of_death("device-fault", "the GPU or its driver failed", _explains, _tell, alarms=("device",))
