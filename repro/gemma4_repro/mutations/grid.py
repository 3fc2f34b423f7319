"""Which mutations exist: for each structure its defects and phases, and why the others are left out.

A cell is a structure, a defect and a phase. A structure's cells are all pairs of its defects and phases; whatever is
not among them stands in `left_out` or `phases_left_out` with its reason, and `tests/unit/test_mutation_grid.py` holds
the grid to that. The grid was written before any rule of the diagnosis was changed for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.releases import at_least


class Phase(StrEnum):
    """When in a server's life the entry is changed. BETWEEN: after a step's results, where pages are given back."""

    START = "start"
    PREFILL = "prefill"
    DECODE = "decode"
    DRAFT = "draft"
    VERIFY = "verify"
    BETWEEN = "between steps"
    IDLE = "idle"


class Server(StrEnum):
    """How the server of a mutation differs from one that runs step by step with a prefix cache."""

    STEPWISE = "step by step"
    OVERLAPPED = "overlap"
    """A step is launched before the results of the one before it are looked at."""
    UNCACHED = "no prefix cache"
    HYBRID = "hybrid backends"
    """Triton's attention reads prompts, and trtllm_mha decodes and verifies."""
    UNCHUNKED = "no chunked prefill"
    """A prompt is read in one step, however long it is."""
    EVICTING = "window evicted at each page"
    """What leaves the sliding window is given back as soon as it is a page, while its request decodes."""
    IN_PYTHON = "tree in Python"
    """The prefix cache's tree is in Python, where 0.5.23 has it in Rust unless it is told otherwise."""


@dataclass(frozen=True)
class Cell:
    """One kind of mutation."""

    structure: Structure
    defect: Defect
    phase: Phase

    @property
    def mtp(self) -> bool | None:
        """The server must have MTP (True) or must not (False); None means that either will do."""
        if self.phase in (Phase.DRAFT, Phase.VERIFY) or self.structure is Structure.DRAFT_BINDING:
            return True
        return False if self.phase is Phase.DECODE else None


@dataclass(frozen=True)
class Room:
    """One structure's part of the grid. left_out, phases_left_out: why, as a clause each."""

    defects: tuple[Defect, ...]
    phases: tuple[Phase, ...]
    left_out: Mapping[Defect, str]
    phases_left_out: Mapping[Phase, str]


_D, _P, _S = Defect, Phase, Structure
_IN_A_FORWARD = (_P.PREFILL, _P.DECODE, _P.DRAFT, _P.VERIFY)
_RUNNING = (*_IN_A_FORWARD, _P.BETWEEN)
_SET_UP_LATER = "it is filled when requests come"
_NO_REQUEST = "no request is there"
_MADE_PER_FORWARD = "it is made anew for each forward"
_FIXED_SIZE = "it has a place for every entry, so that one that is lost is zero"
_NOT_GIVEN_BACK = "nothing is given back by it"
_SET_ONCE = "it is set at start, and in range it stays as it is"
_NO_ID = "it holds no ids of a pool"
_AS_FOREIGN = "such a value is another request's or past the end, and these are cells of their own"
_VALUES = (_D.OFF_BY_ONE, _D.STALE, _D.FOREIGN, _D.OTHER_SPACE, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.DUPLICATE)
_OF_ONE_FORWARD = {
    _P.START: _MADE_PER_FORWARD,
    _P.BETWEEN: _MADE_PER_FORWARD,
    _P.IDLE: _MADE_PER_FORWARD,
}
_FREE_LIST = Room(
    (_D.OFF_BY_ONE, _D.FOREIGN, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.DUPLICATE, _D.LOST),
    (_P.PREFILL, _P.DECODE, _P.DRAFT, _P.VERIFY, _P.BETWEEN, _P.IDLE),
    {
        _D.STALE: "a page that was taken off the list is in use, which is FOREIGN",
        _D.OTHER_SPACE: _AS_FOREIGN,
        _D.SWAPPED: "its order means nothing",
        _D.EARLY: "a page on the list that is in use is FOREIGN",
    },
    {_P.START: "a list that is wrong from the start has the same value as one that is wrong later"},
)

GRID: Mapping[Structure, Room] = {
    _S.REQUEST_ROW: Room(
        (*_VALUES, _D.SWAPPED),
        _RUNNING,
        {_D.LOST: _FIXED_SIZE, _D.EARLY: _NOT_GIVEN_BACK},
        {_P.START: _SET_UP_LATER, _P.IDLE: _NO_REQUEST},
    ),
    _S.FULL_TABLE: Room(
        (*_VALUES, _D.SWAPPED), _IN_A_FORWARD, {_D.LOST: _FIXED_SIZE, _D.EARLY: _NOT_GIVEN_BACK}, _OF_ONE_FORWARD
    ),
    _S.SWA_TABLE: Room(
        (*_VALUES, _D.SWAPPED), _IN_A_FORWARD, {_D.LOST: _FIXED_SIZE, _D.EARLY: _NOT_GIVEN_BACK}, _OF_ONE_FORWARD
    ),
    _S.SWA_MAPPING: Room(
        (*_VALUES, _D.SWAPPED),
        (*_RUNNING, _P.IDLE),
        {_D.LOST: _FIXED_SIZE, _D.EARLY: _NOT_GIVEN_BACK},
        {_P.START: _SET_UP_LATER},
    ),
    _S.FULL_FREE_LIST: _FREE_LIST,
    _S.SWA_FREE_LIST: _FREE_LIST,
    _S.ALLOCATION: Room(
        (_D.OFF_BY_ONE, _D.STALE, _D.FOREIGN, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.DUPLICATE),
        (_P.PREFILL, _P.DECODE, _P.VERIFY),
        {
            _D.OTHER_SPACE: _AS_FOREIGN,
            _D.LOST: "its length is asked for, and SGLang would write it to rows of that length",
            _D.SWAPPED: "two pages of one hand-out may come in any order",
            _D.EARLY: _NOT_GIVEN_BACK,
        },
        {
            _P.START: "nothing is handed out",
            _P.DRAFT: "a frozen draft writes no keys",
            _P.BETWEEN: "nothing is handed out",
            _P.IDLE: "nothing is handed out",
        },
    ),
    _S.FREE_CALL: Room(
        (_D.OFF_BY_ONE, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.DUPLICATE, _D.LOST, _D.EARLY),
        (_P.BETWEEN,),
        {
            _D.STALE: "a page that was given back before is DUPLICATE",
            _D.FOREIGN: "a page that another request uses is EARLY",
            _D.OTHER_SPACE: _AS_FOREIGN,
            _D.SWAPPED: "its order means nothing",
        },
        {
            _P.START: "nothing is given back",
            _P.PREFILL: "what it gives back differs from a step's end in its caller only",
            _P.DECODE: "what it gives back differs from a step's end in its caller only",
            _P.DRAFT: "a draft gives nothing back",
            _P.VERIFY: "what it gives back differs from a step's end in its caller only",
            _P.IDLE: "nothing is given back",
        },
    ),
    _S.WRITE_LOCATIONS: Room(
        (*_VALUES, _D.SWAPPED),
        (_P.PREFILL, _P.DECODE, _P.VERIFY),
        {_D.LOST: "a forward checks its length, and the crash names it", _D.EARLY: _NOT_GIVEN_BACK},
        {**_OF_ONE_FORWARD, _P.DRAFT: "a frozen draft writes no keys"},
    ),
    _S.KERNEL_LENGTHS: Room(
        (_D.OFF_BY_ONE, _D.STALE, _D.FOREIGN, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.SWAPPED),
        _IN_A_FORWARD,
        {
            _D.OTHER_SPACE: _NO_ID,
            _D.DUPLICATE: "a request has one length; another's is FOREIGN",
            _D.LOST: _FIXED_SIZE,
            _D.EARLY: _NOT_GIVEN_BACK,
        },
        _OF_ONE_FORWARD,
    ),
    _S.BATCH_LENGTHS: Room(
        (_D.OFF_BY_ONE, _D.FOREIGN, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.SWAPPED),
        (_P.DECODE, _P.DRAFT, _P.BETWEEN),
        {
            _D.STALE: "the length of the step before is OFF_BY_ONE",
            _D.OTHER_SPACE: _NO_ID,
            _D.DUPLICATE: "a request has one length; another's is FOREIGN",
            _D.LOST: _FIXED_SIZE,
            _D.EARLY: _NOT_GIVEN_BACK,
        },
        {
            _P.START: _SET_UP_LATER,
            _P.PREFILL: "a prefill has them twice more, as lists that the forward holds against each other",
            _P.VERIFY: "the draft before it has read them, which is the cell of DRAFT",
            _P.IDLE: _NO_REQUEST,
        },
    ),
    _S.POSITIONS: Room(
        (_D.OFF_BY_ONE, _D.FOREIGN, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.SWAPPED),
        _IN_A_FORWARD,
        {
            _D.STALE: "the position of the step before is OFF_BY_ONE, or its accepted tokens before",
            _D.OTHER_SPACE: _NO_ID,
            _D.DUPLICATE: "two tokens of a request at one position are OFF_BY_ONE",
            _D.LOST: _FIXED_SIZE,
            _D.EARLY: _NOT_GIVEN_BACK,
        },
        _OF_ONE_FORWARD,
    ),
    _S.ROW_INDICES: Room(
        (_D.OFF_BY_ONE, _D.STALE, _D.FOREIGN, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.SWAPPED),
        (_P.PREFILL, _P.DECODE, _P.VERIFY),
        {
            _D.OTHER_SPACE: _NO_ID,
            _D.DUPLICATE: "a request has one row; another's is FOREIGN",
            _D.LOST: _FIXED_SIZE,
            _D.EARLY: _NOT_GIVEN_BACK,
        },
        {**_OF_ONE_FORWARD, _P.DRAFT: "the draft takes them from the batch that the verify before it made"},
    ),
    _S.TREE_NODE: Room(
        (_D.OFF_BY_ONE, _D.STALE, _D.FOREIGN, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.DUPLICATE, _D.LOST, _D.SWAPPED),
        (_P.BETWEEN, _P.IDLE),
        {_D.OTHER_SPACE: _AS_FOREIGN, _D.EARLY: "pages that a node holds and that are free are FREE_CALL, EARLY"},
        {
            _P.START: _SET_UP_LATER,
            **dict.fromkeys(_IN_A_FORWARD, "the tree is read and written between forwards only"),
        },
    ),
    _S.TREE_LOCK: Room(
        (_D.OFF_BY_ONE, _D.ZERO, _D.NEGATIVE),
        (_P.BETWEEN,),
        {
            _D.STALE: "what it was a request earlier is OFF_BY_ONE",
            _D.FOREIGN: "it is a count",
            _D.OTHER_SPACE: _NO_ID,
            _D.PAST_END: "it is a count, and has no end",
            _D.DUPLICATE: "a request that holds a node twice is OFF_BY_ONE",
            _D.LOST: "a node that nobody holds is ZERO",
            _D.SWAPPED: "the counts of two nodes of one path are alike",
            _D.EARLY: "a hold that ends early is ZERO where one request has it",
        },
        {
            _P.START: _SET_UP_LATER,
            _P.IDLE: "nothing is held at idle, and no step reads it",
            **dict.fromkeys(_IN_A_FORWARD, "the tree is read and written between forwards only"),
        },
    ),
    _S.REQUEST_COUNTERS: Room(
        (_D.OFF_BY_ONE, _D.FOREIGN, _D.ZERO, _D.NEGATIVE, _D.PAST_END),
        (_P.BETWEEN,),
        {
            _D.STALE: "what it was a page earlier is OFF_BY_ONE",
            _D.OTHER_SPACE: _NO_ID,
            _D.DUPLICATE: "a request has one of each",
            _D.LOST: "a request without a counter is no request",
            _D.SWAPPED: "two counters exchanged are two entries that are wrong",
            _D.EARLY: _NOT_GIVEN_BACK,
        },
        {
            _P.START: _SET_UP_LATER,
            _P.IDLE: _NO_REQUEST,
            **dict.fromkeys(_IN_A_FORWARD, "no forward reads them"),
        },
    ),
    _S.DRAFT_BINDING: Room(
        (_D.OFF_BY_ONE, _D.FOREIGN, _D.OTHER_SPACE, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.SWAPPED),
        (_P.START,),
        {
            _D.STALE: "a layer is bound once",
            _D.DUPLICATE: "two draft layers of one kind read the same layer of the target by design",
            _D.LOST: "an unbound layer has no layer id that the pool knows, which is PAST_END",
            _D.EARLY: _NOT_GIVEN_BACK,
        },
        dict.fromkeys((*_RUNNING, _P.IDLE), _SET_ONCE),
    ),
    _S.WINDOW_EVICTION: Room(
        (_D.OFF_BY_ONE, _D.FOREIGN, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.DUPLICATE, _D.LOST, _D.EARLY),
        (_P.DECODE, _P.VERIFY),
        {
            _D.STALE: "a page of the request that was evicted before is DUPLICATE, and any other that is free FOREIGN",
            _D.OTHER_SPACE: "it is given slots of the full pool, and the map makes the other pool's of them",
            _D.SWAPPED: "its order means nothing",
        },
        {
            _P.START: _NO_REQUEST,
            _P.PREFILL: "without a prefix cache alone, and no chunk of the load's prompts begins behind a window",
            _P.DRAFT: "a frozen draft gives nothing back",
            _P.BETWEEN: "what is evicted as a request is put into the prefix cache is of that call's making",
            _P.IDLE: _NO_REQUEST,
        },
    ),
    _S.FREE_GROUP: Room(
        (_D.OFF_BY_ONE, _D.ZERO, _D.NEGATIVE, _D.PAST_END, _D.DUPLICATE, _D.LOST),
        (_P.BETWEEN,),
        {
            _D.STALE: "a page that is free already is FREE_CALL, DUPLICATE",
            _D.FOREIGN: "a page that another request uses is FREE_CALL, EARLY",
            _D.OTHER_SPACE: _AS_FOREIGN,
            _D.SWAPPED: "its order means nothing",
            _D.EARLY: "a page that another request uses is FREE_CALL, EARLY",
        },
        {
            **dict.fromkeys((_P.START, *_IN_A_FORWARD), "no group is open then"),
            _P.IDLE: "no group is open then",
        },
    ),
    _S.POOL_SIZE: Room(
        (_D.OFF_BY_ONE, _D.OTHER_SPACE),
        (_P.START,),
        {
            _D.ZERO: "a pool without pages serves nothing",
            _D.NEGATIVE: "a pool without pages serves nothing",
            _D.PAST_END: "a page too many is OFF_BY_ONE",
            _D.EARLY: _NOT_GIVEN_BACK,
            **dict.fromkeys(
                (_D.STALE, _D.FOREIGN, _D.DUPLICATE, _D.LOST, _D.SWAPPED),
                "there are two of them, and each is set once: another one is the other pool's, OTHER_SPACE",
            ),
        },
        dict.fromkeys((*_RUNNING, _P.IDLE), _SET_ONCE),
    ),
    _S.KV_SCALE: Room(
        (_D.OFF_BY_ONE, _D.ZERO, _D.NEGATIVE),
        (_P.START,),
        {
            _D.OTHER_SPACE: _NO_ID,
            _D.PAST_END: "it is a factor, and has no end",
            _D.EARLY: _NOT_GIVEN_BACK,
            **dict.fromkeys(
                (_D.STALE, _D.FOREIGN, _D.DUPLICATE, _D.LOST, _D.SWAPPED),
                "the CPU engine's pools are fp32, so all of them are 1",
            ),
        },
        dict.fromkeys((*_RUNNING, _P.IDLE), _SET_ONCE),
    ),
}

NOT_MUTATED: Mapping[str, str] = {
    "logits mask": "greedy loads without a grammar have none, and a wrong one changes no page",
    "page size 1": "trtllm_mha has pages of 16, 32 and 64, and beside it SGLang serves Gemma-4 on a CPU with Triton's "
    "attention alone, in decodes too: under its interpreter three prompts of 40 tokens with 20 tokens of answers took "
    "120 s, and 240 s with MTP, where the load takes 5 s",
}
"""What else memory safety rests on, and why no cell is about it."""


def left_out_on(release: str) -> Mapping[Structure, str]:
    """Return which structures are not mutated on a release of SGLang, and why not.

    Args:
        release: As PyPI names it.
    """
    if at_least(release, "0.5.23"):
        return {}
    return {
        _S.POSITIONS: "the draws on this release began before a probe looked at them, and stay what they were",
        _S.FREE_GROUP: "what a group holds is given back there by one free, which is FREE_CALL",
        _S.WINDOW_EVICTION: "an eviction stays a page behind the window there, and the load's answers are too short",
    }


OF_THE_TREE = (_S.TREE_NODE, _S.TREE_LOCK)
"""A tree in Rust can be read from outside, and not written: on 0.5.23 these are drawn with Server.IN_PYTHON alone."""
ADDED_LATER = (_S.FREE_GROUP, _S.POOL_SIZE, _S.KV_SCALE)
"""Older seeds draw none of these: see draw.OLDER_SEEDS."""
SERVERS_ADDED_LATER = (Server.UNCHUNKED,)
"""Neither do those, nor the seeds behind them, draw these: see draw.SEEDS_BEFORE_SERVERS."""
ADDED_LAST, SERVERS_ADDED_LAST = (_S.WINDOW_EVICTION,), (Server.EVICTING,)
"""And these are drawn by none of them, nor by the seeds behind: see draw.SEEDS_BEFORE_EVICTION."""


def structures_of(release: str, but: Collection[Structure] = ()) -> tuple[Structure, ...]:
    """Return the structures that are mutated on a release of SGLang, in the grid's order.

    Args:
        release: As PyPI names it.
        but: Those that are left out.
    """
    left_out = {*left_out_on(release), *but}
    return tuple(structure for structure in GRID if structure not in left_out)


def servers_of(release: str, cell: Cell, mtp: bool) -> tuple[Server, ...]:
    """Return which servers a cell can be drawn with.

    Args:
        release: Of SGLang.
        cell: The kind of mutation.
        mtp: Whether the server has MTP.
    """
    if cell.structure is _S.WINDOW_EVICTION:
        # The others seldom evict while a request of the load decodes, or never.
        return (Server.EVICTING,)
    if cell.structure in OF_THE_TREE and at_least(release, "0.5.23"):
        return (Server.IN_PYTHON,)
    left_out = set()
    if not at_least(release, "0.5.23"):
        left_out |= {Server.EVICTING, Server.IN_PYTHON}
    if mtp and not at_least(release, "0.5.23"):
        # Its MTP worker does not overlap; the patch mtp-v2 brings another one.
        left_out.add(Server.OVERLAPPED)
    if cell.structure in OF_THE_TREE:
        left_out.add(Server.UNCACHED)
    if cell.phase is _P.PREFILL and cell.structure in (_S.FULL_TABLE, _S.SWA_TABLE, _S.KERNEL_LENGTHS):
        # Triton has lists of slots in the place of these.
        left_out.add(Server.HYBRID)
    return tuple(server for server in Server if server not in left_out)


def cells(release: str | None = None) -> tuple[Cell, ...]:
    """Return every cell of a release of SGLang, of the whole grid if none is named, by structure in its order."""
    drawn = GRID if release is None else structures_of(release)
    return tuple(
        Cell(structure, defect, phase)
        for structure, room in GRID.items()
        if structure in drawn
        for defect in room.defects
        for phase in room.phases
    )
