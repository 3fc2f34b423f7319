"""Whether a log shows that a process died as it started: what was pasted may begin anywhere in its life."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_STARTS = pattern(
    r"(?:scheduler|tp_worker|\w*model_runner\w*|engine|core|tokenizer_manager|\w*worker|server_args|loader|"
    r"\w*config\w*|\w*executor\w*)\.py:\S+ (?:__init__|_?init\w*|__post_init__)$|"
    r".* (?:\w*load_model\w*|load_weights|\w*capture\w*|_dummy_run|profile_run|determine_\w+|initialize\w*|"
    r"launch_\w+|_?init_(?:lora|memory|model|attention|torch|cuda_graph|device|cache|tokenizer|weights?|distributed|"
    r"kv|hicache|piecewise|disagg|parallel)\w*)$"
)
_IMPORTS = pattern(r".* <module>$")
_INNER = 2  # frames
_BEGINS = ("groups_begin", "before_weights", "after_weights", "pools_end", "before_graphs", "vllm_start")
_UP = ("ready", "http_ready", "vllm_serves")


def died_as_it_started(facts: LogFacts, death: Death) -> bool:
    """Say whether the log shows a start that its process did not outlive, by its lines or by the code that failed."""
    if any(map(_STARTS.match, death.frames)) or any(map(_IMPORTS.match, death.frames[-_INNER:])):
        return True
    begun = facts.starts > 0 or any(_stands_before(facts, name, death) for name in _BEGINS)
    up = any(_stands_before(facts, name, death) for name in _UP) or "answer" in facts.understood
    asked = any(alarm.kind in ("health", "unhealthy") for alarm in facts.alarms)
    return begun and not (up or asked or facts.served)


def _stands_before(facts: LogFacts, name: str, death: Death) -> bool:
    remark = facts.remarks.get(name)
    return remark is not None and remark.place.line < death.place.line
