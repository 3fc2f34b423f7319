"""How an incident's server was started, as words that start it again: from dumps, manifests, files or its log."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gemma4_dumps.redaction import REDACTED, redact_launch_args
from gemma4_triage.diagnose.compare_log import commands_of, devices_of, is_sglang_serve, releases_of
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.logs.known_arguments import known_arguments
from gemma4_triage.logs.start_line import CUT

ANY_MODEL = "--model-path MODEL"
_LAUNCHERS = ("launch_server.py", "sglang.launch_server")
_KEY = '"$API_KEY"'
_ADAPTER = re.compile(r"lora_name'?[=:] ?'([^']{1,200})', '?lora_path'?[=:] ?'([^']{1,500})'")
_LONGEST_LIST = 8
_PLAIN = str | int | float
# What SGLang turns into its own name of it, and does not take back.
_ALGORITHMS = {"FROZEN_KV_MTP": "NEXTN", "FROZEN_KV_MTP_V2": "NEXTN"}


def server_arguments(incident: Incident) -> str:
    """Return SGLang's arguments of the incident's server, quoted for a shell; ANY_MODEL alone if nothing says them.

    A log says the values that hold, from which those at the defaults of its release are left out. A key that was
    redacted is a variable to set.
    """
    for command in (*commands_of(incident), *(one.identity.command for one in incident.readings)):
        words = _after_launcher(command)
        if words:
            return " ".join(_KEY if word == REDACTED else shlex.quote(word) for word in words)
    words, _ = _from_log(incident)
    if not words:
        return ANY_MODEL
    model = [] if words[0] == "--model-path" else [ANY_MODEL]
    return " ".join([*model, *(_KEY if word == REDACTED else shlex.quote(word) for word in words)])


def left_out(incident: Incident) -> tuple[str, ...]:
    """Return which arguments that a log says server_arguments has not, as it cannot say them on a command line."""
    commands = (*commands_of(incident), *(one.identity.command for one in incident.readings))
    return () if any(map(_after_launcher, commands)) else tuple(_from_log(incident)[1])


def _from_log(incident: Incident) -> tuple[list[str], list[str]]:
    """Return the arguments that a log or another file says as words, and the names of those that are left out."""
    given = [facts.arguments or facts.settings for facts in incident.logs if facts.settings]
    given += [one.identity.settings for one in incident.readings if one.identity.settings]
    if not given:
        return [], []
    named = [facts.release for facts in incident.logs] + list(releases_of(incident))
    named += [one.identity.release for one in incident.readings]
    return _of_settings(given[0], named, on_host_engine(incident))


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


def _arguments_of(settings: Mapping[str, str], releases: Sequence[str]) -> dict[str, list[Any]]:
    """Return the arguments of the release that is named; else of the one that has most of these names."""
    known = known_arguments()
    named = next((known[release] for release in releases if release in known), None)
    return named or max(known.values(), key=lambda arguments: len(arguments.keys() & settings.keys()))


def _of_settings(settings: Mapping[str, str], releases: Sequence[str], on_host: bool) -> tuple[list[str], list[str]]:
    words: list[str] = []
    lacking: list[str] = []
    known = _arguments_of(settings, releases)
    # model_path first: the line reads as one that somebody typed.
    for name in sorted(settings, key=lambda name: name != "model_path"):
        value = settings[name]
        if _says_nothing(name, value, settings, on_host):
            continue
        if name not in known:
            # What is no option was never typed; of a release that is not known nobody knows what its options are.
            if releases and not any(release in known_arguments() for release in releases) and not name.startswith("_"):
                lacking.append(name)
            continue
        form, defaults, *renamed = known[name]
        # A switch that is off was not given: no word turns it off.
        if value in defaults or (form == "switch" and value == "False" and "True" not in defaults):
            continue
        option = renamed[0] if renamed else f"--{name.replace('_', '-')}"
        said = _words(option, form, _ALGORITHMS.get(value, value) if name == "speculative_algorithm" else value)
        if said is None or (REDACTED in " ".join(redact_launch_args(said)) and option != "--api-key"):
            lacking.append(name)
        else:
            words += said
    return words, lacking


def _says_nothing(name: str, value: str, settings: Mapping[str, str], on_host: bool) -> bool:
    """Return whether a value is none, or what SGLang makes of other arguments."""
    if value in ("None", "[]", "{}", "<redacted>"):
        return True
    if name in ("tokenizer_path", "served_model_name"):
        return value == settings.get("model_path")
    if name == "device":
        return value == "cuda" or on_host
    return "cuda_graph_" in name and not name.startswith("disable") and settings.get("disable_cuda_graph") == "True"


def _words(option: str, form: str, value: str) -> list[str] | None:
    """Return an argument as words of a command line; None if they cannot say its value."""
    if form in ("switch", "both"):
        if value == "True":
            return [option]
        return None if form == "switch" or value != "False" else [f"--no-{option[2:]}"]
    if form == "adapters":
        pairs = [f"{name}={path}" for name, path in _ADAPTER.findall(value)]
        return [option, *pairs] if pairs else None
    if value == CUT or form == "none":
        return None
    if form == "many":
        try:
            each = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        # A long one is what SGLang works out itself, such as the sizes of its graphs.
        plain = isinstance(each, list) and len(each) <= _LONGEST_LIST and all(isinstance(one, _PLAIN) for one in each)
        return [option, *map(str, each)] if plain else None
    if value.startswith(("[", "{", "(", "<")) and value != REDACTED and not value.startswith('{"'):
        return None
    return [f"{option}={value}"] if value.startswith("-") else [option, value]
