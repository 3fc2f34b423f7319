"""One plan for an incident: each command that its findings name, complete and once, in the order in which to do it.

| order | what                                                   | why there                             |
|-------|--------------------------------------------------------|---------------------------------------|
| 1     | look: `dumps show`, `audit DUMP`, `logs`, `collect`    | costs nothing, and is here            |
| 2     | `pools`                                                | sizes, before the server starts again |
| 3     | `serve`, once: as the most certain finding asks        | two starts contradict each other      |
| 4     | `doctor`, `patches`                                    | if that does not start, or to read up |
| 5     | `repro`, `audit --live`                                | takes minutes, and is elsewhere       |

Rules over logs know no launch; here their lines get what log, dump or manifest say: SGLang's arguments behind `--`, and
config, page size and memory of `pools`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma4_dumps.errors import UserError
from gemma4_triage.diagnose.commands import patches_with, path_of
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.launch import ANY_MODEL, left_out, on_host_engine, server_arguments, settings_of
from gemma4_triage.finding import Finding, causes
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import COLLECT
from gemma4_triage.pools.arithmetic import KV_DTYPE_BYTES, token_bytes
from gemma4_triage.pools.model_shape import read_shape

_SERVE, _POOLS, _LATEST = "gemma4-triage serve ", "gemma4-triage pools ", "gemma4-triage audit latest"
_OF_A_DUMP = ("gemma4-triage dumps show ", "gemma4-triage audit ")
_LOOKS = ("dumps", "audit", "known", "logs", "replay", "diagnose", "profile", "collect")
_ORDER = {"pools": 1, "serve": 2, "doctor": 3, "patches": 3, "repro": 4}
_POOL_OPTIONS = (
    ("--page-size", "page_size"),
    ("--tp", "tp_size"),
    ("--kv-dtype", "kv_cache_dtype"),
    ("--chunk", "chunked_prefill_size"),
    ("--draft-tokens", "speculative_num_draft_tokens"),
    ("--context-length", "context_length"),
    ("--max-running-requests", "max_running_requests"),
    ("--ratio", "swa_full_tokens_ratio"),
)


# What a server listens on at every address is asked on its own machine.
_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
_MOST_NAMED = 12
_NO_PATCHES = " --patches none "
_GUESSES = ("--kv-mem 40GiB", "--gpu-mem 80GiB", "--weights 20GiB", "--workload 64x8000+1000")


@dataclass(frozen=True)
class Step:
    """One command of a plan, and the rules whose findings ask for it."""

    command: str
    rules: tuple[str, ...]


def completed(findings: Iterable[Finding], incident: Incident) -> tuple[Finding, ...]:
    """Return the findings with commands that can be pasted, as far as the incident says what belongs into them."""
    found = []
    fix = ""
    for finding in findings:
        lines = [command.replace(_NO_PATCHES, _patches(fix)) for command in finding.next_commands]
        commands = [line for command in lines if (line := _complete(command, incident))]
        fix = fix or finding.fix or ""
        asked = tuple(said for line in commands if (said := _asks(line)))
        asked += _lacks(commands, incident)
        asked += tuple(said for line in lines if (said := _bring(line, incident)))
        update = {"next_commands": tuple(dict.fromkeys(commands)), "advice": (*finding.advice, *asked)}
        found.append(finding.model_copy(update=update))
    return tuple(found)


def _patches(fix: str) -> str:
    """Return what a start without patches becomes where a cause before it has a fix: that is not left out again."""
    return f" --patches {patches_with(fix)} " if fix else _NO_PATCHES


def _asks(command: str) -> str:
    """Return what a line still needs of its reader; "" if it is complete."""
    if not command.startswith(_POOLS):
        return ""
    named = ["CONFIG (the model's config.json)"] if "--config CONFIG" in command else []
    named += [guess for guess in _GUESSES if guess in command]
    return f"the line of pools needs your own: {', '.join(named)}" if named else ""


def _lacks(commands: Iterable[str], incident: Incident) -> tuple[str, ...]:
    """Return what to add by hand to a line of `serve`, which a log says and a command line cannot."""
    names = left_out(incident) if any(command.startswith(_SERVE) for command in commands) else ()
    if not names:
        return ()
    said = ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else "")
    return (f"the line of serve leaves out what the log says of {said}: add what you had set",)


def plan(findings: Sequence[Finding]) -> tuple[Step, ...]:
    """Return what to run for completed findings; of notes only where there is nothing else."""
    rules: dict[str, list[str]] = {}
    for finding in causes(findings) or findings:
        for command in finding.next_commands:
            rules.setdefault(command, []).append(finding.rule)
    serves = [command for command in rules if command.startswith(_SERVE)]
    kept = [command for command in rules if command not in serves[1:]]
    return tuple(Step(command, tuple(dict.fromkeys(rules[command]))) for command in sorted(kept, key=_place))


def first_step(findings: Sequence[Finding]) -> str:
    """Return what to run first: for the first cause, and complete, if there is such a command; "" if there is none."""
    steps = plan(findings)
    complete = [step for step in steps if not _asks(step.command)]
    of_the_first = [step for step in complete if findings[0].rule in step.rules]
    return next((step.command for step in (*of_the_first, *complete, *steps)), "")


def _place(command: str) -> int:
    verb = command.split()[1] if len(command.split()) > 1 else ""
    if "--live" in command:
        return _ORDER["repro"]
    return 0 if verb in _LOOKS else _ORDER.get(verb, 0)


def _complete(command: str, incident: Incident) -> str:
    """Return the command with what the incident knows; "" for one that would find nothing."""
    if command == _LATEST:
        leak = incident.first(rule="leak-audit")
        return "" if leak is None else f"gemma4-triage audit {path_of(leak)}"
    if command.startswith(_OF_A_DUMP):
        return _of_a_dump(command, incident)
    if command == COLLECT:
        return _collect(incident)
    if command.startswith(_POOLS):
        return _pools(command, incident)
    if command.startswith(_SERVE) and command.endswith(ANY_MODEL):
        command = command.removesuffix(ANY_MODEL) + server_arguments(incident)
    if command.startswith(_SERVE) and on_host_engine(incident) and "--host-engine" not in command:
        command = command.replace(_SERVE, f"{_SERVE}--host-engine ", 1)
    return command


def _of_a_dump(command: str, incident: Incident) -> str:
    """Return the command for the dump where it lies; a log names it by where it lay. "" for one that is not here."""
    verb, place = next((verb, command.removeprefix(verb)) for verb in _OF_A_DUMP if command.startswith(verb))
    if place.startswith("--") or any(place == path_of(dump) for dump in incident.dumps):
        return command
    (path, *_) = shlex.split(place)
    dump = incident.dump(os.path.basename(path))
    if dump is not None:
        return f"{verb}{path_of(dump)}"
    return command if os.path.lexists(path) else ""


def _bring(command: str, incident: Incident) -> str:
    """Return where a dump is that a command wants and that is not here; "" for any other command."""
    if command == _LATEST or not command.startswith(_OF_A_DUMP) or _complete(command, incident):
        return ""
    return f"the dump is on the server's machine: {shlex.split(command)[-1]}; name a copy of it beside the log"


def _collect(incident: Incident) -> str:
    """Return what asks the server, at the address that its arguments say, and adds its log."""
    settings = settings_of(incident)
    host, port = settings.get("host", "127.0.0.1"), settings.get("port", "30000")
    host = _LOCAL.get(host, f"[{host}]" if ":" in host else host)
    url = f"http://{host}:{port}" if settings and port.isdecimal() else "URL"
    logs = [shlex.quote(facts.name) for facts in incident.logs if os.path.isfile(facts.name)]
    return " ".join(("gemma4-triage collect", shlex.quote(url), *(f"--log {name}" for name in logs)))


def _pools(command: str, incident: Incident) -> str:
    settings = settings_of(incident)
    model = settings.get("model_path", "")
    local = model if model.startswith(("/", ".")) or os.path.isdir(model) else ""
    line = command.replace("--config CONFIG", f"--config {shlex.quote(local)}") if local else command
    memory = _memory(incident, local, settings)
    if memory:
        for guess in ("--kv-mem 40GiB", "--gpu-mem 80GiB --weights 20GiB"):
            line = line.replace(guess, f"--kv-mem {memory}")
    elif "--gpu-mem 80GiB" in line and (sizes := _loaded(incident)):
        line = line.replace("--gpu-mem 80GiB --weights 20GiB", sizes)
    if workload := _workload(incident, settings):
        line = line.replace("--workload 64x8000+1000", f"--workload {workload}")
    for option, name in _POOL_OPTIONS:
        value = settings.get(name, "")
        if option not in line and (_is_size(value) or (name == "kv_cache_dtype" and value in KV_DTYPE_BYTES)):
            line += f" {option} {value}"
    share = settings.get("mem_fraction_static", "")
    line += f" --mem-fraction {share}" if "--gpu-mem" in line and _is_size(share) else ""
    return line + (" --disable-radix-cache" if settings.get("disable_radix_cache") == "True" else "")


def _is_size(value: str) -> bool:
    """Return whether a setting is a number above 0."""
    return value.replace(".", "", 1).isdecimal() and float(value) > 0


def _memory(incident: Incident, config: str, settings: dict[str, str]) -> str:
    """Return what both pools had, from the tokens that the log says and the model's config; "" if one is not there."""
    tokens = next((facts.pool_tokens for facts in incident.logs if len(facts.pool_tokens) == 2), None)
    if tokens is None or not config:
        return ""
    try:
        kv_bytes = KV_DTYPE_BYTES.get(settings.get("kv_cache_dtype", "auto"), 2)
        cell = token_bytes(read_shape(Path(config)), kv_bytes, int(settings.get("tp_size", "1")))
    except (UserError, ValueError):
        return ""
    return f"{max(1, round((tokens['full'] * cell.full + tokens['swa'] * cell.swa) / 2**20))}MiB"


def _loaded(incident: Incident) -> str:
    """Return the memory of the device before its weights, and what they took, as the log's first rank says it."""
    for facts in incident.logs:
        before, after = (facts.remarks.get(f"first_{when}_weights") for when in ("before", "after"))
        free = None if before is None else number_in(before.text, "avail mem")
        used = None if after is None else number_in(after.text, "mem usage")
        if free and used and free > used:
            return f"--gpu-mem {free:.1f}GiB --weights {used:.1f}GiB"
    return ""


def _workload(incident: Incident, settings: dict[str, str]) -> str:
    """Return how many requests ran at once, by the average length of the log's prompts; answers are a guess."""
    ranks = [rank for facts in incident.logs for rank in facts.ranks if rank.new_requests]
    requests = settings.get("max_running_requests", "")
    if not ranks or not requests.isdecimal():
        return ""
    prompt = sum(rank.new_tokens + rank.cached_tokens for rank in ranks) // sum(rank.new_requests for rank in ranks)
    return f"{requests}x{max(1, prompt)}+{min(1000, max(1, prompt))}"
