"""torch's flight recorder: which collective each rank had begun when its group gave up.

`TORCH_NCCL_DUMP_ON_TIMEOUT` leaves a pickle for each rank (`/tmp/nccl_trace_rank_3`), and torch can print the same as
JSON: entries with their group, number within the group, operation and state. Pickles are read by opcodes. Sources:
torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, torch/distributed/flight_recorder/components.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.safe_file import read_regular
from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.rule import COLLECT
from gemma4_triage.readers.opcodes import read_pickle
from gemma4_triage.readers.reading import MAX_FACTS, Moment, NotThis, Reading, cut

KIND = "flight-recorder"
RULE = "collective-timeout"
MAX_JSON_BYTES = 16 * 1024**2
"""An entry has half a KiB and a recorder 2000 of them. Parsed, hostile JSON takes thirty times its size in memory."""
MAX_RANKS = 256
_RANK = re.compile(r"(\d{1,6})(?:\.\w+)?$")
_NS = 10**9
# In a pickle a value may hold another one twice, and that one again: what is written out has an end.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxtuple, _SHORT.maxlist = 3, 32, 32


@dataclass(frozen=True)
class Last:
    """The last collective of one rank in one group.

    Attributes:
        number: within the group.
        operation: as torch names it.
        state: "scheduled", "started" or "completed".
        sizes: of its inputs.
        time_s: when it was scheduled, since the epoch.
        frame: where it was called from.
    """

    number: int
    operation: str
    state: str
    sizes: str
    time_s: float | None
    frame: str


@dataclass(frozen=True)
class _Rank:
    path: Path
    rank: int
    groups: dict[str, Last]
    problem: str


def takes(head: bytes) -> bool:
    """Return whether a file begins as a flight recorder's does, pickled or in JSON."""
    if head[:1] == b"{":
        return b'"collective_seq_id"' in head or (b'"entries"' in head and b'"pg_config"' in head)
    return head[:1] == b"\x80" and b"server_args" not in head and any(mark in head for mark in _MARKS)


_MARKS = (b"pg_config", b"collective_seq_id", b"comm_lib_version", b"nccl_version")


def read(paths: Sequence[Path]) -> Iterator[Reading]:
    """Yield one reading of all ranks of a folder. Raises NotThis, DumpUnreadable."""
    ranks = [_rank(path, at) for at, path in enumerate(paths[:MAX_RANKS])]
    known = [rank for rank in ranks if rank.groups]
    problem = "; ".join(f"{rank.path.name} {rank.problem}" for rank in ranks if rank.problem)
    if not known:
        if problem:
            raise DumpUnreadable(cut(problem))
        raise NotThis
    name = str(paths[0] if len(paths) == 1 else paths[0].parent)
    times = [last.time_s for rank in known for last in rank.groups.values() if last.time_s is not None]
    yield Reading(
        name=name,
        kind=KIND,
        title=f"torch's flight recorder of {len(known)} rank{'s' * (len(known) != 1)}",
        moments=(Moment(max(times), "the last collective that a rank began"),) if times else (),
        facts=tuple(_facts(known)),
        findings=tuple(_findings(name, known)),
        problem=problem,
    )


def _rank(path: Path, at: int) -> _Rank:
    fields, problem = _fields(path)
    entries = fields.get("entries")
    groups: dict[str, Last] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or entry.get("is_p2p") is True:
            continue
        number = entry.get("collective_seq_id", entry.get("seq_id"))
        if not isinstance(number, int):
            continue
        group = _group(entry)
        if group not in groups or number >= groups[group].number:
            groups[group] = _last(number, entry)
    match = _RANK.search(path.name)
    rank = fields.get("rank")
    return _Rank(path, rank if isinstance(rank, int) else int(match[1]) if match else at, groups, problem)


def _fields(path: Path) -> tuple[dict[Any, Any], str]:
    with open(path, "rb") as file:
        is_json = file.read(1) == b"{"
    if is_json:
        # Of another rank's file nothing is lost with this one.
        try:
            value, problem = from_json(read_regular(path, MAX_JSON_BYTES), allow_inf_nan=False), ""
        except ValueError as error:
            value, problem = None, f"is damaged: {error}"
    else:
        unpickled = read_pickle(path)
        value, problem = unpickled.value, unpickled.problem
    return (value if isinstance(value, dict) else {}), problem


def _group(entry: dict[Any, Any]) -> str:
    group = entry.get("process_group")
    if isinstance(group, tuple | list) and group:
        return cut(" ".join(_text(part) for part in group[:2]))
    return _text(entry.get("pg_name", entry.get("pg_id", "?")))[:100]


def _text(value: Any) -> str:
    return cut(value if isinstance(value, str) else _SHORT.repr(value))


def _last(number: int, entry: dict[Any, Any]) -> Last:
    time = entry.get("time_created_ns")
    frames = entry.get("frames")
    first = frames[0] if isinstance(frames, list) and frames and isinstance(frames[0], dict) else {}
    # Of a path its last parts tell where it is.
    file = "/".join(_text(first.get("filename")).split("/")[-2:])
    where = f"{file}:{_text(first.get('line'))} {_text(first.get('name'))}" if first else ""
    return Last(
        number=number,
        operation=_text(entry.get("profiling_name", "?")),
        state=_text(entry.get("state", "?")),
        sizes=_text(entry.get("input_sizes", "")),
        time_s=time / _NS if isinstance(time, int | float) and 0 < time < 2**63 else None,
        frame=cut(where),
    )


def _facts(ranks: Sequence[_Rank]) -> Iterator[tuple[str, str]]:
    shown = 0
    for rank in sorted(ranks, key=lambda one: one.rank):
        for group, last in rank.groups.items():
            if shown < MAX_FACTS:
                shown += 1
                where = f", from {last.frame}" if last.frame else ""
                yield f"rank {rank.rank}, group {group}", f"{last.operation} {last.number} {last.state}{where}"


def _findings(name: str, ranks: Sequence[_Rank]) -> Iterator[Finding]:
    """Yield what one group's ranks say together, of the first group that is out of step."""
    groups = list(dict.fromkeys(group for rank in ranks for group in rank.groups))
    for group in groups:
        members = sorted((one.rank, one.groups[group]) for one in ranks if group in one.groups)
        if (found := _of_group(name, group, members)) is not None:
            yield found
            return


def _of_group(name: str, group: str, members: Sequence[tuple[int, Last]]) -> Finding | None:
    if len(members) < 2:
        return None
    furthest = max(last.number for _, last in members)
    behind = [rank for rank, last in members if last.number < furthest]
    same = [(rank, last) for rank, last in members if last.number == furthest]
    if behind:
        cause = f"In group {group} rank {', '.join(map(str, behind[:8]))} never began collective {furthest}, in which "
        cause += f"rank {', '.join(str(rank) for rank, _ in same[:8])} waits."
        advice = "Look at what that rank did instead: its exception or its stack is the cause."
    elif len({last.operation for _, last in same}) > 1:
        cause = f"In group {group} ranks called different operations as collective {furthest}: they left the same path."
        advice = "The ranks chose different batches or branches: compare the frames of that call."
    elif len({last.sizes for _, last in same}) > 1 and "gather" not in same[0][1].operation:
        cause = f"In group {group} ranks called collective {furthest} with tensors of different sizes."
        advice = "Compare what each rank had in its batch at that step."
    elif any(last.state != "completed" for _, last in same) and any(last.state == "completed" for _, last in same):
        slow = [rank for rank, last in same if last.state != "completed"]
        cause = (
            f"In group {group} rank {', '.join(map(str, slow[:8]))} did not finish collective {furthest}; others did."
        )
        advice = "That rank's GPU or its link is stuck: look at nvidia-smi and dmesg there."
    else:
        return None
    return Finding(
        rule=RULE,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=tuple(
            Evidence(
                source=name,
                field=f"rank {rank}, group {group}",
                value=f"{last.operation} {last.number} {last.state}",
                meaning=f"its last collective{', from ' + last.frame if last.frame else ''}",
            )
            for rank, last in members[:8]
        ),
        ruled_out_if=("the files were written at different times",),
        advice=(advice,),
        next_commands=(COLLECT,),
    )
