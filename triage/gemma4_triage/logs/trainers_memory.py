"""A trainer that shares a GPU with a server ran out of its memory: what the server kept, and not its activations."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_TRAINER = pattern(
    r"(?:param_and_grad_buffer|distrib_optimizer|distributed_data_parallel|fully_sharded\w*|_fully_shard\w*|"
    r"_fsdp\w*|zero_optimizer|stage_?[123]|stage_1_and_2|adamw?|optimizer|grad_scaler|actor|fsdp_workers|"
    r"megatron_\w+)\.py:"
)
_HOLDS = pattern(r"Process (\d+) has (\d+\.\d+) GiB memory in use")
_INNER = 3  # frames
_RELEASES = pattern(r"release_memory_occupation")
_WITHOUT = pattern(r"\bEngine\((?![^)]*enable_memory_saver)[^)]*\)")
_SAVER = (
    "start it with enable_memory_saver=True (--enable-memory-saver) and torch_memory_saver installed (pip install "
    "torch-memory-saver); nvidia-smi before and behind the call then shows what it gave back",
    "until then end the engine before the step that needs the GPU, or a smaller --mem-fraction-static that leaves it "
    "the room",
)


def of_a_release(facts: LogFacts) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where memory was to be released by an engine that was started without the saver."""
    said = " ".join(one.text for name in ("notes", "commanded") if (one := facts.remarks.get(name)) is not None)
    off = facts.settings.get("enable_memory_saver") == "False" and facts.starts > 0
    if not _RELEASES.search(said) or not (off or _WITHOUT.search(said)):
        return None
    return (
        "The memory that was to be released (release_memory_occupation) was not: the engine was started without "
        "enable_memory_saver, and that call then gives back nothing of weights and pools, without an error. What asks "
        "for the GPU behind it finds it as full as before.",
        _SAVER,
    )


def of_a_trainer(facts: LogFacts, death: Death) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where a trainer's own code ran out of memory, beside a server of SGLang; else None."""
    beside = facts.settings.get("enable_memory_saver") == "True"
    if not beside or death.caller or not any(map(_TRAINER.match, death.frames[-_INNER:])):
        return None
    most = max(((float(used), process) for process, used in _HOLDS.findall(death.message)), default=None)
    holds = f", of which process {most[1]} holds {most[0]:.1f} GiB" if most else ""
    cause = "The trainer, not the server, found no memory on a GPU that both share"
    cause += f"{holds}. Is that the server's, --enable-memory-saver did not release its pools" if holds else ""
    windows = bool(facts.pool_tokens.get("swa")) and facts.settings.get("disable_hybrid_swa_memory") != "True"
    return (
        f"{cause}.",
        (
            *(
                (
                    "--disable-hybrid-swa-memory, or a later release: some keep the pool of a model with sliding "
                    "windows when they are asked to release (nvidia-smi before and behind it shows whether it goes)",
                )
                if windows
                else ()
            ),
            "release the KV pool and the weights before the trainer starts (release_memory_occupation, "
            "--enable-memory-saver), and hold nvidia-smi before it against that behind it: what stays is what is short",
            "GPUs of their own for server and trainer; a lower --mem-fraction-static only makes what stays smaller",
        ),
    )
