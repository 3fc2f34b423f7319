"""How an incident's server was started, as words that start it again: from dumps, manifests, files or its log."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from gemma4_dumps.redaction import REDACTED
from gemma4_triage.diagnose.compare_log import commands_of, devices_of, is_sglang_serve
from gemma4_triage.diagnose.incident import Incident

ANY_MODEL = "--model-path MODEL"
_LAUNCHERS = ("launch_server.py", "sglang.launch_server")
_KEY = '"$API_KEY"'
# SGLang's own default of each argument that a log's server_args says; what is left at it is no part of the line.
_DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "model_path": (),
    "attention_backend": ("None",),
    "prefill_attention_backend": ("None",),
    "decode_attention_backend": ("None",),
    "page_size": ("None", "1"),
    "tp_size": ("1",),
    "dp_size": ("1",),
    "pp_size": ("1",),
    "dtype": ("auto",),
    "quantization": ("None",),
    "kv_cache_dtype": ("auto",),
    "context_length": ("None",),
    "mem_fraction_static": ("None",),
    "max_total_tokens": ("None",),
    "max_running_requests": ("None",),
    "swa_full_tokens_ratio": ("0.8",),
    "chunked_prefill_size": ("None",),
    "speculative_algorithm": ("None",),
    "speculative_draft_model_path": ("None",),
    "speculative_num_steps": ("None",),
    "speculative_eagle_topk": ("None",),
    "speculative_num_draft_tokens": ("None",),
    "disable_cuda_graph": ("False",),
    "disable_overlap_schedule": ("False",),
    "disable_radix_cache": ("False",),
    "trust_remote_code": ("False",),
    "enable_multimodal": ("None", "False"),
    "reasoning_parser": ("None",),
    "tool_call_parser": ("None",),
}
# What SGLang turns into its own name of it, and does not take back.
_ALGORITHMS = {"FROZEN_KV_MTP": "NEXTN", "FROZEN_KV_MTP_V2": "NEXTN"}


def server_arguments(incident: Incident) -> str:
    """Return SGLang's arguments of the incident's server, quoted for a shell; ANY_MODEL alone if nothing says them.

    A log says the values that hold, from which those at SGLang's defaults are left out. A key that was redacted is a
    variable to set.
    """
    for command in (*commands_of(incident), *(one.identity.command for one in incident.readings)):
        words = _after_launcher(command)
        if words:
            return " ".join(_KEY if word == REDACTED else shlex.quote(word) for word in words)
    given = [facts.settings for facts in incident.logs if facts.settings]
    given += [one.identity.settings for one in incident.readings if one.identity.settings]
    words = list(_of_settings(given[0])) if given else []
    if not words:
        return ANY_MODEL
    model = [] if words[0] == "--model-path" else [ANY_MODEL]
    return " ".join([*model, shlex.join(words)])


def settings_of(incident: Incident) -> dict[str, str]:
    """Return the arguments of the incident's server by name, as far as anything says them."""
    found: dict[str, str] = {}
    for facts in incident.logs:
        found |= facts.settings
    for reading in incident.readings:
        found |= {name: value for name, value in reading.identity.settings.items() if name not in found}
    words = shlex.split(server_arguments(incident).replace(_KEY, "KEY"))
    for at, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else "True"
            found.setdefault(name.replace("-", "_"), value if equals else following)
    return {name: value for name, value in found.items() if value not in ("None", "MODEL")}


def on_host_engine(incident: Incident) -> bool:
    """Return whether the server ran on the CPU engine, by its dumps, manifests or batch lines."""
    devices = devices_of(incident)
    return "cpu" in devices or (not devices and any(facts.device == "cpu" for facts in incident.logs))


def _after_launcher(command: Sequence[str]) -> list[str]:
    """Return the words behind those of launch_server or `sglang serve`; empty for any other command."""
    for at, word in enumerate(command):
        if word.endswith(_LAUNCHERS):
            return list(command[at + 1 :])
        if is_sglang_serve(command[at : at + 2]):
            return list(command[at + 2 :])
    return []


def _of_settings(settings: Mapping[str, str]) -> Iterator[str]:
    for name, defaults in _DEFAULTS.items():
        value = settings.get(name)
        if value is None or value in defaults:
            continue
        if value == "True":
            yield f"--{name.replace('_', '-')}"
        elif value != "False":
            yield f"--{name.replace('_', '-')}"
            yield _ALGORITHMS.get(value, value) if name == "speculative_algorithm" else value
