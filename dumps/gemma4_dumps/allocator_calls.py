"""The calls of a full and SWA allocator pair as a dump of the probe `swa-allocator` holds them.

A line of events.jsonl is one call, an `AllocatorCall`. START_LISTS and START_MAPPING hold the state before the first
call; FIRST_CALL is its number, which tells a cut history.

Many slots are few runs: [start, count] stands for start, start + 1, ..., and [value, count, 0] for one value repeated.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field, StrictBool, StrictInt, ValidationError

from .errors import DumpUnreadable
from .reader import Dump
from .schema import Record

FIRST_CALL = "first_call"
NEED_SORT = "need_sort"
START_LISTS = ("start_free_full", "start_released_full", "start_free_swa", "start_released_swa")
"""int64 [runs, 3] each: page ids in the order of the lists."""
START_MAPPING = "start_mapping"
"""int64 [entries, 2]: full slot and SWA slot, where it leads somewhere."""
FREES = ("free", "free_segment", "free_full", "free_full_segment")
"""What gives back full slots, and the SWA slots that the mapping has for them."""
SWA_FREES = ("free_swa", "free_swa_segment")
"""What gives back SWA slots alone."""
SEGMENTS = ("free_segment", "free_full_segment", "free_swa_segment")
"""Those of both that name a run of a row, whose pages are listed in the row's order."""
GIVE_EACH_PAGE = ("free_segment", "free_swa_segment")
"""Those that give an SWA page back for each page that they name."""
MAX_CALLS = 4096

_FARTHEST = 2**62


def runs_of(values: np.ndarray) -> list[list[int]]:
    """Return the runs that stand for `values`, int64 [n]."""
    if values.size == 0:
        return []
    begins = np.flatnonzero(np.diff(values, prepend=values[0]) != 1)
    heads, counts = values[begins], np.diff(begins, append=values.size)
    again = np.zeros(begins.size, bool)
    again[1:] = (heads[1:] == heads[:-1]) & (counts[1:] == 1) & (counts[:-1] == 1)
    kept = np.flatnonzero(~again)
    repeats = np.diff(kept, append=begins.size)
    return [
        [int(head), int(count)] if repeat == 1 else [int(head), int(repeat), 0]
        for head, count, repeat in zip(heads[kept], counts[kept], repeats, strict=True)
    ]


def _checked(runs: list[list[int]]) -> list[list[int]]:
    for run in runs:
        if not (2 <= len(run) <= 3 and abs(run[0]) < _FARTHEST and 0 < run[1] < _FARTHEST and run[2:] in ([], [0])):
            raise ValueError(f"{run} is no run: [start, count], or [value, count, 0]")
    return runs


Runs = Annotated[list[list[StrictInt]], AfterValidator(_checked)]
Number = Annotated[StrictInt, Field(ge=-_FARTHEST, le=_FARTHEST)]
Count = Annotated[StrictInt, Field(ge=0, le=_FARTHEST)]


class AllocatorCall(Record):
    """One call: what was asked, what it gave or took, and how many tokens were free in both pools before and after it.

    Attributes:
        site: Who asked, if the leak ledger was on.
        step: In which scheduler step, likewise.
        returned: False for the last call of a dump that was written before the allocator did anything.
        full: The slots handed out, None if it gave none; or those given back.
        swa: What the mapping had for them.
        grouped: What is given back waits for `free_group_end`.
        settled: Its SWA slots left the mapping with this call. A `free_group_end` that says so names all of the group,
            with full slot 0 for an SWA slot that went alone.
        left: Full and SWA slots that the mapping still joined: after one of SWA_FREES in the pages that it released,
            before a mapping write in the full pages that had its SWA pages until then; None where nobody looked.
        lists: After a `restore_state`, as START_LISTS.
    """

    number: Count
    call: Literal[
        "alloc",
        "alloc_extend",
        "alloc_extend_swa_tail",
        "alloc_decode",
        "set_full_to_swa_mapping",
        "free",
        "free_segment",
        "free_full",
        "free_full_segment",
        "free_swa",
        "free_swa_segment",
        "free_group_begin",
        "free_group_end",
        "restore_state",
    ]
    site: str | None = None
    step: Number | None = None
    returned: StrictBool = True
    need: Number | None = None
    prefix_lens: list[Number] | None = None
    seq_lens: list[Number] | None = None
    last_loc: list[Number] | None = None
    swa_tail: Number | None = None
    full: Runs | None = None
    swa: Runs | None = None
    grouped: StrictBool = False
    settled: StrictBool = False
    left: tuple[Runs, Runs] | None = None
    lists: tuple[Runs, Runs, Runs, Runs] | None = None
    free_before: tuple[Count, Count]
    free_after: tuple[Count, Count] | None = None


def allocator_calls(dump: Dump) -> Iterator[AllocatorCall]:
    """Return the calls of a dump, oldest first.

    Raises:
        DumpUnreadable: a line is damaged or no call, or there are more than MAX_CALLS.
    """
    for line, event in enumerate(dump.events(), 1):
        if line > MAX_CALLS:
            raise DumpUnreadable(f"events.jsonl has more than {MAX_CALLS} allocator calls")
        try:
            yield AllocatorCall.model_validate(event)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise DumpUnreadable(f"events.jsonl line {line} is no allocator call: {where}: {first['msg']}") from error
