"""Failures whose words alone leave one cause: what SGLang, or a library that it calls, says.

Each is an entry of a file in known_issues/records/words/: told_by_words.toml has what neither the words nor their place
in the code say how to mend, of packages, arguments, a checkpoint or a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.features_gone import by_its_server
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.other_platform import machine
from gemma4_triage.logs.rendezvous_port import by_its_start
from gemma4_triage.logs.rule import of_wordings

_OF_FAILURES = of_wordings(
    "told-by-words",
    "its words leave one cause",
    "told_by_words.toml",
    Confidence.LIKELY,
    ruled_out_if=("an earlier line tells of another failure: this one may then follow from it",),
    settings=("attention_backend", "kv_cache_dtype", "lora_paths"),
    alarms=("answered-500",),
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    """Yield what a process ended of, else what a request failed of that the server answered with a status of 500."""
    found = list(_OF_FAILURES.find(facts))
    if not found and any(alarm.kind == "answered-500" for alarm in facts.alarms):
        found = list(_OF_FAILURES.find(replace(facts, deaths=facts.errors, alarms=())))
    for finding in found:
        yield by_its_server(facts, _of_its_backend(facts, _of_its_platform(facts, finding)))


def _of_its_backend(facts: LogFacts, finding: Finding) -> Finding:
    """Return a finding of sizes of a kernel in Triton with the backend first that the start names, without drafts."""
    given = facts.arguments.get("attention_backend", "None")
    drafts = facts.arguments.get("speculative_algorithm", "None") != "None"
    if "takes only powers of two" not in finding.cause or given in ("None", "auto", "triton") or drafts:
        return finding
    advice = (
        f"without --attention-backend {given}, which the start names: another (triton), or the release's own choice"
    )
    return finding.model_copy(update={"advice": (advice, *finding.advice)})


def _of_its_platform(facts: LogFacts, finding: Finding) -> Finding:
    """Return a finding of a kernel that is not there with what to do on a machine without CUDA, where it is one."""
    where = machine(facts)
    if not where or not finding.cause.startswith(_LACKS_A_KERNEL):
        return finding
    advice = _OF_THAT_BUILD.format(where)
    return finding.model_copy(update={"advice": (advice, *finding.advice[1:])})


_LACKS_A_KERNEL = "The installed sgl_kernel has no kernel"
_OF_THAT_BUILD = (
    "the log speaks of {0}, whose build of sgl-kernel has some of CUDA's kernels alone: the image of that platform, of "
    "a later release of SGLang, or of the last one with which this model ran; until then another --quantization, or "
    "the model without, if the kernel is of its format. The wheel that pip brings is for CUDA, and does not help"
)


RULE = replace(_OF_FAILURES, find=_find)

EXPERT_TRANSPORT = of_wordings(
    "expert-transport",
    "GPUs cannot reach each other, for experts or for sums",
    "expert_transport.toml",
    Confidence.LIKELY,
    settings=("moe_a2a_backend", "ep_size", "tp_size", "nnodes"),
    ruled_out_if=("it dies alike with --moe-a2a-backend none --disable-custom-all-reduce",),
    alarms=("nvshmem", "device"),
)
HOST_LIMITS = of_wordings(
    "host-limits",
    "the host lets a process have no more files, threads or locked memory",
    "host_limits.toml",
    Confidence.LIKELY,
    ruled_out_if=("cat /proc/PID/limits and free -g show much room while it happens",),
)
LORA_REFUSED = of_wordings(
    "lora-refused",
    "a LoRA adapter does not fit the server",
    "lora_refused.toml",
    Confidence.LIKELY,
    settings=("max_lora_rank",),
    ruled_out_if=("the same adapter loads with PEFT and its names are those of the server's modules",),
    advice=("once without the adapter: the base model has to start",),
    alarms=("adapter",),
)
_OF_STARTS = of_wordings(
    "start-refused",
    "the server refused its arguments or its port",
    "start_refused.toml",
    Confidence.CERTAIN,
    what="what the start said",
    alarms=("no-start",),
)


def _find_starts(facts: LogFacts) -> Iterator[Finding]:
    for finding in _OF_STARTS.find(facts):
        yield by_its_start(facts, finding)


START_REFUSED = replace(_OF_STARTS, find=_find_starts)
_OF_WEIGHTS = of_wordings(
    "weights-missing",
    "the checkpoint cannot be read",
    "weights_missing.toml",
    Confidence.LIKELY,
    ruled_out_if=("another process of the same user reads the same path",),
    alarms=("no-start", "panic"),
)
_NO_TYPE = pattern(r"Unrecognized model in (\S+?)\.? Should have")


def _find_weights(facts: LogFacts) -> Iterator[Finding]:
    """Yield what the words say, and of a folder that is the draft's that it is the draft, in another's format."""
    draft = facts.settings.get("speculative_draft_model_path", "None")
    for finding in _OF_WEIGHTS.find(facts):
        named = next((found[1] for death in facts.failures if (found := _NO_TYPE.search(death.message))), "")
        if named.rstrip("/") != draft.rstrip("/"):
            yield finding
            continue
        form = "speculators" in facts.remarks or "peculator" in named
        yield finding.model_copy(
            update={
                "cause": "The config.json of the draft names no type of model that transformers knows"
                f"{': it is in the format of speculators, which vLLM reads' if form else ''}.",
                "advice": (
                    "a draft that was made for this target in SGLang's own format (EAGLE3 of SpecForge: "
                    "LlamaForCausalLMEagle3 among its architectures), or this one converted: a flat config.json with "
                    "model_type, and weights named so; without --speculative-algorithm meanwhile",
                    *finding.advice[:1],
                ),
            }
        )


WEIGHTS_MISSING = replace(_OF_WEIGHTS, find=_find_weights)
