"""Conditions that code asserts: on the GPU, where they are noticed late, and of a configuration that was overridden."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts

WHICH_ONE = "CUDA_LAUNCH_BLOCKING=1 says whether it is this condition or an earlier kernel's: the GPU reports late"
_LONGEST = 220  # characters


def asserts_on_the_device(death: Death) -> bool:
    """Say whether the line that failed asserts a condition on the GPU, which is noticed as any kernel's assertion."""
    return death.statement.startswith("torch._assert_async(") and "device-side assert" in death.message


def overridden(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to leave out where a check of the configuration met what the start has put over config.json."""
    given = facts.arguments.get("json_model_override_args", "{}")
    if not death.path.startswith("configs/") or given in ("{}", "None", ""):
        return ()
    return (f"once without --json-model-override-args {given[:_LONGEST]}, by which config.json is not the model's own",)
