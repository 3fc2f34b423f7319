"""What a log and an incident say of their servers: where they agree, and where they contradict each other.

| fact             | of the log                          | of the incident                                             |
|------------------|-------------------------------------|-------------------------------------------------------------|
| page size        | server_args                         | its dumps                                                   |
| pool sizes       | "Use sliding window memory pool"    | the extents of its dumps                                    |
| arguments        | server_args                         | what its dumps and guard manifests say the server was       |
|                  |                                     | started with, where that is a launch_server's command line  |
| backend          | server_args                         | dumps of the target: the backend whose call it was          |
| device           | "cpu graph" or "cuda graph"         | the GPU, or the host engine, in dumps and guard manifests   |
| release          | where a line names it               | the versions in dumps and guard manifests                   |
| model            | server_args                         | the launch command                                          |
| injected faults  | FAULT INJECTED                      | guard manifests                                             |
| processes        | guard manifests that it names, and  | its dumps and guard manifests; of a scheduler whose rank    |
|                  | ids that it or a collector gives    | the log says, the dumps of that rank                        |
| ranks            | server_args                         | its dumps                                                   |
| dumps            | what its probes' lines name         | a server names every dump that it writes                    |
| time             | first and last stamp, in any zone   | when dumps were written and processes started               |

Several dumps may say different things of one fact, a draft's pool being another one: the log has to fit one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from typing import Any

from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import PROCESS_END, Incident
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rules.probe_stopped import dump_names

NEAR_S = 300.0
"""How far from a log's lines a dump may be written, or a process started."""
START_S = 10.0
"""How far a log's first line may be from the start of a process of its server."""
LAST_LINES_S = 10.0
"""What a killed server wrote last may be missing from its log."""
# Of the zones in use, by their offset in quarters of an hour; a log does not say its own.
_ZONES_S = tuple(900 * quarters for quarters in (*range(-48, 57, 4), -38, -14, 14, 18, 22, 23, 26, 35, 38, 42, 51))
ARGUMENTS = (
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "tp_size", "dp_size"),
    *("max_total_tokens", "swa_full_tokens_ratio", "kv_cache_dtype", "speculative_num_steps", "port"),
)
_OTHER_NAMES = {
    "tp_size": ("--tensor-parallel-size", "--tp"),
    "dp_size": ("--data-parallel-size", "--dp"),
    "model_path": ("--model",),
}
"""What SGLang takes besides, by itself or as argparse's short forms."""
_OF_A_MANIFEST = re.compile(r"_p(\d{1,10})\.json$")
_HOSTS_NAMESPACE = "pid:[4026531836]"
"""Linux has one number for the process ids of a host itself, on every host."""
_MOST_NAMED = 4
FEWEST_AGREEMENTS = 3
"""In how many facts that tell a server from most others a file agrees which names nothing of an incident."""
_EVERYONES = ("both have device ", "both have SGLang ", "both have injected faults: none")
"""What most servers have in common."""
_BACKENDS = ("trtllm_mha", "triton", "flashinfer")


@dataclass(frozen=True)
class Comparison:
    """What a log and an incident have in common, and what parts them.

    Attributes:
        agreements: a clause each.
        contradictions: a clause each.
        away_s: how far apart in time both are if the log is in UTC, None if one of them has no times.
        together: the log begins with a process of the incident, before its dumps, and ends with them.
        same_process: both name one process of one machine, at one time.
        telling: how many of the agreements tell one server from most others.
    """

    agreements: tuple[str, ...]
    contradictions: tuple[str, ...]
    away_s: float | None
    together: bool
    same_process: bool = False
    telling: int = 0


def compare(facts: LogFacts, incident: Incident) -> Comparison:
    """Hold a log that names no dump of `incident` against it."""
    agreements, contradictions = compare_facts(facts, incident)
    contradictions += _unnamed(facts, incident)
    away = _away_s(facts, incident.times_s)
    in_zones = (_away_s(facts, incident.times_s, zone) for zone in _ZONES_S)
    if away is not None and not any(gap is not None and gap <= NEAR_S for gap in in_zones):
        contradictions.append(f"in no time zone are they within {NEAR_S / 60:.0f} minutes of each other")
    # Containers number their processes alike, and a number comes again after hours.
    is_of_one_host = bool(incident.guards) and all(map(_is_of_the_host, incident.guards))
    is_near = away is not None and (away <= NEAR_S or len(agreements) > 1)
    same_process = is_of_one_host and is_near and facts.starts <= 1 and bool(_shared_processes(facts, incident))
    return Comparison(
        agreements=tuple(agreements),
        contradictions=tuple(contradictions),
        away_s=away,
        together=_together(facts, incident),
        same_process=same_process,
        telling=sum(not clause.startswith(_EVERYONES) for clause in agreements),
    )


def compare_facts(facts: LogFacts, incident: Incident) -> tuple[list[str], list[str]]:
    """Return what a log and an incident say alike of the server, and what they say otherwise; of time nothing."""
    agreements: list[str] = []
    contradictions: list[str] = []
    for what, theirs, ours in _facts(facts, incident):
        if not ours or theirs is None:
            continue
        if theirs in ours:
            agreements.append(f"both have {what} {theirs}")
        else:
            contradictions.append(f"the log has {what} {theirs}, {_who(incident)} {' or '.join(map(str, ours))}")
    if facts.starts <= 1 and (shared := _shared_processes(facts, incident)):
        agreements.append(f"both have process {_listed_ids(shared)}")
    if facts.starts == 1:
        if others := _other_processes(facts, incident):
            ours = sorted(_processes_of(incident))
            named = f"the log names process {_listed_ids(others)}, {_who(incident)} {_listed_ids(ours)}"
            contradictions.append(named)
        else:
            contradictions += _other_ranks(facts, incident)
    return agreements, contradictions


def _who(incident: Incident) -> str:
    return "the dump" if len(incident.dumps) == 1 else "the dumps" if incident.dumps else "the guarded run"


def _facts(facts: LogFacts, incident: Incident) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield what is compared: the log's value, None where it says nothing, and those of the incident."""
    page = _number(facts.settings.get("page_size"))
    # Of several starts in one log, only the last one's settings are known.
    if facts.starts == 1:
        yield "page size", page, _once(dump.manifest.page_size for dump in incident.dumps)
        for pool in ("full", "swa"):
            yield f"{pool} pool tokens", facts.pool_tokens.get(pool), _pool_tokens(incident, pool)
        for name in ARGUMENTS:
            given = _once(value for command in commands_of(incident) if (value := argument(command, name)) is not None)
            yield f"--{name.replace('_', '-')}", plain_setting(facts.settings.get(name)), given
        yield "attention backend", *_backend(facts, incident)
        yield "model", facts.settings.get("model_path"), models_of(incident)
        yield "SGLang", facts.release or None, releases_of(incident)
    yield "device", facts.device or None, devices_of(incident)
    if facts.starts:
        told = [guards.faults for guards in incident.guards if "settings" in guards.fields]
        yield "injected faults:", _listed(facts.faults), _once(map(_listed, told))


def _other_processes(facts: LogFacts, incident: Incident) -> list[int]:
    """Return the processes of a log of one start where none of them is the incident's, though one would have to be.

    One process alone proves nothing: a log may name the launcher, and a dump a scheduler of the same launch. So one
    side has to be whole. Whoever names guard manifests names those of all workers, and who names a scheduler for each
    rank names all; three processes with their manifests are a launch. What a collector says is the host's number,
    which says nothing of a container's.
    """
    ours = _processes_of(incident)
    beside = [guards for guards in incident.guards if not guards.prefix]
    is_whole = len(ours) > 2 and bool(beside)
    workers = [int(found[1]) for name in facts.named_files if (found := _OF_A_MANIFEST.search(name))]
    named = {*workers, *facts.pids.get("scheduler", ()), *facts.pids.get("other", ())}
    told = workers or _names_every_scheduler(facts)
    if named and not named & ours and (is_whole or (told and incident.dumps)):
        return sorted(named)
    outside = set(facts.pids.get("outside", ()))
    if outside and is_whole and not outside & ours and all(map(_is_of_the_host, beside)):
        return sorted(outside)
    return []


def _shared_processes(facts: LogFacts, incident: Incident) -> list[int]:
    """Return the processes of the incident that a log names; what it says of threads may be a process' first one."""
    named = {pid for what, pids in facts.pids.items() if what != "outside" for pid in pids}
    if incident.guards and all(map(_is_of_the_host, incident.guards)):
        named |= set(facts.pids.get("outside", ()))
    return sorted(named & _processes_of(incident))


def _other_ranks(facts: LogFacts, incident: Incident) -> Iterator[str]:
    """Say which dumps cannot be of the ranks of a log of one start, by their processes or by how many ranks it has."""
    count = _rank_count(facts)
    dumped: dict[int, set[int]] = {}
    for dump in incident.dumps:
        # A launcher or a detokenizer has an end too, and no rank.
        if dump.manifest.rule != PROCESS_END:
            dumped.setdefault(dump.manifest.host.rank, set()).add(dump.manifest.host.pid)
    beyond = sorted(rank for rank in dumped if count is not None and rank >= count)
    if beyond:
        yield f"the log is of {number_of(count or 0, 'rank')}, {_who(incident)} of rank {_listed_ids(beyond)}"
        return
    # With several nodes or data parallel groups a scheduler's number is not its rank.
    if all(facts.settings.get(name, "1") == "1" for name in ("dp_size", "nnodes")):
        for rank, pid in sorted(facts.rank_pids.items()):
            if pid not in dumped.get(rank, {pid}):
                ours = _listed_ids(sorted(dumped[rank]))
                yield f"the log has process {pid} as scheduler {rank}, {_who(incident)} of that rank {ours}"
                return
    schedulers = set(facts.pids.get("scheduler", ()))
    strangers = sorted(set().union(*dumped.values()) - schedulers)
    if strangers and _names_every_scheduler(facts):
        named = _listed_ids(sorted(schedulers))
        yield f"the log's schedulers are process {named}, {_who(incident)} also of {_listed_ids(strangers)}"


def _rank_count(facts: LogFacts) -> int | None:
    """Return how many schedulers a server of these arguments has at most; None if they cannot be read."""
    sizes = [facts.settings.get(name, "1") for name in ("tp_size", "dp_size", "pp_size")]
    return prod(map(int, sizes)) if all(re.fullmatch(r"[1-9]\d{0,5}", size) for size in sizes) else None


def _names_every_scheduler(facts: LogFacts) -> bool:
    """Return whether a log of one start names as many schedulers as its server has."""
    count, schedulers = _rank_count(facts), set(facts.pids.get("scheduler", ()))
    return bool(schedulers) and count is not None and len(schedulers) >= count


def _processes_of(incident: Incident) -> set[int]:
    """Return the ids of the processes that an incident's dumps and guard manifests are of."""
    pids = {dump.manifest.host.pid for dump in incident.dumps}
    return pids | {guards.pid for guards in incident.guards if guards.pid is not None}


def _is_of_the_host(guards: Guards) -> bool:
    process = guards.fields.get("process")
    return isinstance(process, dict) and process.get("pid_namespace") == _HOSTS_NAMESPACE


def _listed_ids(pids: Sequence[int]) -> str:
    return " or ".join(map(str, pids[:_MOST_NAMED])) + (", …" if len(pids) > _MOST_NAMED else "")


def _pool_tokens(incident: Incident, pool: str) -> tuple[int, ...]:
    """Sizes that a dump's extents give a pool, without the dummy page that some of them count."""
    found: list[int] = []
    for dump in incident.dumps:
        page, extents = dump.manifest.page_size or 0, dump.manifest.extents
        handed_out = extents.get("handed_out_full" if pool == "full" else "handed_out_sliding")
        pages, slots = extents.get(f"pages_{pool}_pool"), extents.get(f"slots_{pool}_pool")
        found += [] if handed_out is None else [handed_out]
        found += [] if pages is None or not page else [(pages - 1) * page, pages * page]
        found += [] if slots is None else [slots - page, slots]
    return _once(found)


def _backend(facts: LogFacts, incident: Incident) -> tuple[str | None, tuple[str, ...]]:
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    asked = _once(value for name in names if (value := facts.settings.get(name)) in _BACKENDS)
    used = _once(
        dump.manifest.backend
        for dump in incident.dumps
        if dump.manifest.backend in _BACKENDS and dump.manifest.role != "draft"
    )
    both = [name for name in asked if name in used]
    return (both or list(asked) or [None])[0], used


def devices_of(incident: Incident) -> tuple[str, ...]:
    """Return on what the incident's processes ran, cuda or cpu, as its dumps and guard manifests say."""
    manifests = [(dump.manifest.gpu, dump.manifest.guards) for dump in incident.dumps]
    manifests += [(guards.fields.get("gpu"), guards.fields) for guards in incident.guards]
    found = []
    for gpu, guards in manifests:
        settings = guards.get("settings")
        on_host = isinstance(settings, dict) and settings.get("host_engine") in ("on", "force")
        found += ["cuda"] if gpu else ["cpu"] if on_host else []
    return _once(found)


def releases_of(incident: Incident) -> tuple[str, ...]:
    """Return the releases of SGLang that an incident's dumps and guard manifests name."""
    named = [dump.manifest.versions.get("sglang") for dump in incident.dumps]
    versions = (guards.fields.get("versions") for guards in incident.guards)
    named += [one.get("sglang") for one in versions if isinstance(one, dict)]
    return _once(str(name) for name in named if name)


def models_of(incident: Incident) -> tuple[str, ...]:
    """Return the models that an incident's launch commands name."""
    return _once(name for command in commands_of(incident) if (name := argument(command, "model_path")))


def log_times_s(facts: LogFacts) -> tuple[float, ...]:
    """Return when a log begins and ends, as if its clock were in UTC; empty if it has no times."""
    return tuple(time for time in (seconds_of(facts.first_time), seconds_of(facts.last_time)) if time is not None)


def zone_of(facts: LogFacts, incident: Incident) -> float:
    """Return by how many seconds a log's clock is ahead of UTC, if only so it is near the incident; else 0."""
    away = _away_s(facts, incident.times_s)
    if away is None or away <= NEAR_S:
        return 0.0
    gaps = [(gap, zone) for zone in _ZONES_S if (gap := _away_s(facts, incident.times_s, zone)) is not None]
    gap, zone = min(gaps)
    return float(zone) if gap <= NEAR_S else 0.0


def commands_of(incident: Incident) -> list[Sequence[str]]:
    """Return the command lines of SGLang's server that an incident's dumps and guard manifests have."""
    commands: list[Sequence[str]] = [dump.manifest.launch_args for dump in incident.dumps]
    for guards in incident.guards:
        command = guards.fields.get("command")
        commands += [[str(word) for word in command]] if isinstance(command, list) else []
    return [one for one in commands if one and (one[0].endswith("launch_server.py") or is_sglang_serve(one))]


def is_sglang_serve(command: Sequence[str]) -> bool:
    """Return whether a command line begins with `sglang serve`, however the program's path is."""
    return len(command) > 1 and command[0].rpartition("/")[2] == "sglang" and command[1] == "serve"


def argument(command: Sequence[str], name: str) -> str | None:
    """Return the value of an option on a command line as it compares, the last one if it is given twice."""
    options = (f"--{name.replace('_', '-')}", *_OTHER_NAMES.get(name, ()))
    value = None
    for at, word in enumerate(command):
        option, equals, said = word.partition("=")
        if option not in options:
            continue
        if equals:
            value = said
        elif at + 1 < len(command):
            value = command[at + 1]
    return plain_setting(value)


def _unnamed(facts: LogFacts, incident: Incident) -> Iterator[str]:
    """Say why the log should name the incident's dumps, and does not."""
    named = dump_names(facts)
    if named:
        yield f"the log names another dump, {named[0]}"
        return
    first, last = seconds_of(facts.first_time), seconds_of(facts.last_time)
    if first is None or last is None or facts.guard_count > len(facts.guards):
        return
    inside = [dump for dump in incident.dumps if first <= dump.manifest.created_utc.timestamp() < last]
    if inside:
        yield f"the log goes on past {inside[0].manifest.dump_id} and does not name it, as its server would"


def _together(facts: LogFacts, incident: Incident) -> bool:
    first, last = seconds_of(facts.first_time), seconds_of(facts.last_time)
    started = [guards.started_utc.timestamp() for guards in incident.guards if guards.started_utc]
    if first is None or last is None or not started or facts.starts != 1:
        return False
    dumps = [dump.manifest.created_utc.timestamp() for dump in incident.dumps]
    # A server writes its first line before any dump: a log that begins after one may be that of its restart.
    begins = min(abs(first - at) for at in started) <= START_S and first <= min(dumps, default=first)
    # A log that ended before every process began is of an earlier server; its stamps are whole seconds.
    return begins and last + 1 >= min(started) and max(dumps, default=last) <= last + LAST_LINES_S


def _away_s(facts: LogFacts, times: Sequence[float], zone_s: float = 0.0) -> float | None:
    """Seconds between the log's lines and the incident, 0 if they overlap."""
    first, last = seconds_of(facts.first_time), seconds_of(facts.last_time)
    if first is None or last is None or not times:
        return None
    return max(0.0, min(times) - (last - zone_s), (first - zone_s) - max(times))


def seconds_of(time: str) -> float | None:
    """Return the seconds of a stamp as if it were in UTC; None for no stamp."""
    try:
        return datetime.fromisoformat(time).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def plain_setting(value: str | None) -> str | None:
    """Return a setting as it compares: 0.40 as 0.4; None for what was left to SGLang."""
    if value is None or value in ("None", "auto"):
        return None
    number = _number(value)
    return value if number is None else str(number)


def _number(text: str | None) -> int | float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


def _listed(faults: Iterable[str]) -> str:
    return ", ".join(sorted(faults)) or "none"


def _once(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None))
