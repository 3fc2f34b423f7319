"""A Triton kernel asks for more of a GPU's on-chip resources (shared memory, registers, threads) than it has."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, says

WORDS = pattern(
    r"out of resources?: (?:shared memory|threads|registers|tensor memory|\w+)|"
    # Without what Triton says before it.
    r"OutOfResources: (?:shared memory|threads|registers|tensor memory), Required"
)
_NUMBERS = pattern(r"(?:out of resources?: |^)([\w ]+), Required: (\d+), Hardware limit: (\d+)")
_OF_EXPERTS = pattern(r"(?i)moe|-a\d+(?:\.\d+)?b|mixtral|gpt-oss|deepseek-(?:v\d|r1)")
_QUANTISED = pattern(r"(?i)fp8|int8|awq|gptq|nvfp4|w8a8|w4a")
_EXPERTS = pattern(r"(?i).*(?:moe|grouped_gemm|expert)")
_ATTENTION = pattern(r"(?i).*(?:attention|attn|extend_|decode_.*fwd|prefill_.*fwd|_fwd_kernel)")
_OF_IMAGES = pattern(r"(?i).*(?:vision|visual|\bvit)")
_INVARIANT = pattern(r"(?i).*batch_invariant")
_LINEAR = pattern(r"(?i).*(?:fp8|int8|awq|gptq|quant|scaled_mm|matmul)")


def _tell(facts: LogFacts, death: Death) -> Finding:
    numbers = next(filter(None, (_NUMBERS.search(failure.message) for failure in facts.failures)), None)
    cause = "A Triton kernel needs more of the GPU's on-chip resources than it has"
    if numbers is not None:
        cause = f"A Triton kernel needs {numbers[2]} of on-chip {numbers[1]}, and this GPU has {numbers[3]}"
    cause += ": its tiles are made for a larger GPU. That is neither the device's memory nor /dev/shm."
    # The frames of what came first name the kernel; those of a capture that failed for it do not.
    frames = [frame for failure in facts.deaths if says(WORDS)(failure) for frame in failure.frames]
    experts = any(map(_EXPERTS.match, frames))
    attention = not experts and any(map(_ATTENTION.match, frames))
    invariant = any(map(_INVARIANT.match, frames))
    if invariant:
        advice = (
            "without --enable-deterministic-inference: its kernels, which sum alike in every batch, have tiles of one "
            "size for all GPUs; --max-running-requests 1 comes near to it",
        )
    elif experts:
        advice = (
            "another kernel for the experts: --moe-runner-backend, or without --enable-ep-moe or --ep-size (--tp "
            "instead)",
        )
    elif (
        attention
        and (of_images := facts.arguments.get("mm_attention_backend", "None")) != "None"
        and any(map(_OF_IMAGES.match, frames))
    ):
        advice = (
            f"another --mm-attention-backend than {of_images} (sdpa, or none: the release's own), for it is the "
            "attention of the tower of images; --attention-backend does not concern it",
        )
    elif attention:
        given = facts.settings.get("attention_backend", "None")
        than = f" than {given}" if given != "None" else ""
        advice = (f"another --attention-backend{than} that serves this model's head size on this GPU",)
    elif any(map(_LINEAR.match, frames)):
        advice = ("another --fp8-gemm-runner-backend, or a checkpoint that is quantised otherwise",)
    elif _OF_EXPERTS.search(model := facts.settings.get("model_path", "")) and _QUANTISED.search(model):
        advice = (
            "no frame names the kernel, and this model's quantised experts are the likeliest: a release that has tiles "
            "for this GPU (or clamps them), or a tuned configuration of its own with smaller blocks and num_stages "
            "(fused_moe_triton/configs, E=…,N=…,device_name=….json); another --moe-runner-backend. Then another "
            "--attention-backend",
        )
    else:
        advice = ("another --attention-backend, or another --moe-runner-backend for experts",)
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "attention_backend", "moe_runner_backend", "enable_ep_moe", "ep_size", "quantization"),
            *of_settings(facts, "enable_deterministic_inference"),
        ),
        ruled_out_if=("the same kernel runs on another GPU of this name with the same arguments",),
        advice=(
            *advice,
            "a later release, whose tiles are chosen by GPU; or smaller blocks or num_stages in the kernel that the "
            "traceback names",
            "or a GPU with more of it (A100, H100); --mem-fraction-static and --disable-cuda-graph do not help",
        ),
        next_commands=("gemma4-triage doctor",),
        upstream=("SGLang 3370",) if experts else ("SGLang 256",) if attention else (),
    )


RULE = of_death("kernel-too-large", "a Triton kernel is too large for this GPU", says(WORDS), _tell, ("no-memory",))
