"""Draws mutations by a seed: the same seed gives the same mutations, and a longer draw begins with the shorter one."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from pydantic import BaseModel, ConfigDict

from gemma4_dumps.structures import Defect, Structure
from gemma4_repro.mutations.grid import (
    ADDED_LAST,
    ADDED_LATER,
    OF_THE_TREE,
    SERVERS_ADDED_LAST,
    SERVERS_ADDED_LATER,
    Cell,
    Phase,
    Server,
    cells,
    servers_of,
    structures_of,
)
from gemma4_runtime.releases import at_least

OLDER_SEEDS = frozenset({2411, 2412, 2413, 2414, 2415, 2417, 2420, 2421, 2701, 2702, 2801, 2802, 2803, 2900, 3000})
"""Their rows were committed while every server ran step by step with a prefix cache, and before grid.ADDED_LATER.

They draw what they drew then.
"""
SEEDS_BEFORE_SERVERS = frozenset({3101, 3102, 3103, 3104})
"""They were drawn before grid.SERVERS_ADDED_LATER."""
SEEDS_BEFORE_EVICTION = frozenset({3201, 3301, 3407, 3511, 4001})
"""They were drawn before grid.ADDED_LAST and grid.SERVERS_ADDED_LAST."""
SEEDS_BEFORE_TREES = frozenset(
    {3607, 3701, 3801, 3901, 4003, 4007, 4009, 4011, 4013, 4107, 4301, 4402, 4603, 4811, 5021, 6021, 7129}
)
"""They, and all of the others, were drawn before grid.OF_THE_TREE was on 0.5.23, and before Server.IN_PYTHON."""
_HYBRID_SHARE = 0.04
"""Under Triton's interpreter such a load takes 40 s and not 5."""
_AFTER_THE_FIRST = (Server.OVERLAPPED, Server.UNCACHED, Server.HYBRID)
_MOST_SKIPPED = {Phase.START: 0, Phase.PREFILL: 3, Phase.IDLE: 0}
_MOST_SKIPPED_ELSEWHERE = 12
_MOST_SKIPPED_UNCHUNKED = 1
"""A load has few prefills where they are not in chunks."""
_MOST_SKIPPED_OF = {Structure.FREE_CALL: 3, Structure.FREE_GROUP: 1, Structure.WINDOW_EVICTION: 1}
"""Requests give pages back when they end, which is seldom in a short load, and seldom in two calls of one group.

A page leaves a request's window seldom, too.
"""


class Mutation(BaseModel):
    """One corruption, as drawn. The entry itself is chosen in the engine, of what is live there, by `entry_seed`.

    Attributes:
        number: Counted from 1 in its draw.
        structure: What is corrupted.
        defect: In which way.
        phase: When.
        mtp: Whether the server has MTP.
        server: How else it is started.
        skipped: How many opportunities pass before it acts, so that it strikes early in one run and late in another.
        entry_seed: Chooses the entry and the value.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    structure: Structure
    defect: Defect
    phase: Phase
    mtp: bool
    skipped: int
    entry_seed: int
    server: Server = Server.STEPWISE

    @property
    def cell(self) -> Cell:
        """The cell is the kind of mutation that it is."""
        return Cell(self.structure, self.defect, self.phase)

    @property
    def started(self) -> str:
        """How its server is started, in words."""
        return f"{self.server}, {'MTP' if self.mtp else 'no MTP'}"

    @property
    def when(self) -> str:
        """In which phase it acts, and what is not usual in its server."""
        unusual = ("",) if self.server is Server.STEPWISE else ("", self.server.value)
        return self.phase.value + ", ".join(unusual) + ("" if self.mtp else ", no MTP")

    @property
    def name(self) -> str:
        """The name of its folder says nothing of what is corrupted, because a diagnosis sees it."""
        return f"run-{self.number:04d}"


def draw(seed: int, count: int, release: str) -> tuple[Mutation, ...]:
    """Draw `count` mutations, the structures in turn and a structure's cells in an order of the seed's.

    Args:
        seed: Chooses the order, and all that is drawn.
        count: How many.
        release: Of SGLang, which says what can be mutated at all: see grid.left_out_on.

    Raises:
        ValueError: count is below 1.
    """
    if count < 1:
        raise ValueError(f"a draw has at least one mutation, not {count}")
    structures, servers = _added_since(seed, release)
    return tuple(
        _mutation(random.Random(f"{seed}/{number}"), number, cell, release, servers)
        for number, cell in enumerate(islice(_in_turn(seed, release, structures), count), start=1)
    )


def _added_since(seed: int, release: str) -> tuple[set[Structure], set[Server]]:
    """Return the structures and servers that a seed does not draw, since they were added after its rows were made."""
    structures: set[Structure] = set()
    servers: set[Server] = set()
    if seed in OLDER_SEEDS:
        structures.update(ADDED_LATER)
        servers.update(_AFTER_THE_FIRST)
    if seed in OLDER_SEEDS | SEEDS_BEFORE_SERVERS:
        servers.update(SERVERS_ADDED_LATER)
    if seed in (before := OLDER_SEEDS | SEEDS_BEFORE_SERVERS | SEEDS_BEFORE_EVICTION):
        structures.update(ADDED_LAST)
        servers.update(SERVERS_ADDED_LAST)
    if seed in before | SEEDS_BEFORE_TREES and at_least(release, "0.5.23"):
        structures.update(OF_THE_TREE)
        servers.add(Server.IN_PYTHON)
    return structures, servers


def _in_turn(seed: int, release: str, but: Collection[Structure]) -> Iterator[Cell]:
    """Yield cells without end: one of each structure, then the next of each; a structure's begin again when used up.

    Args:
        seed: Of the draw.
        release: Of SGLang.
        but: Structures that are left out.
    """
    order = random.Random(f"{seed}/order")
    left: dict[Structure, list[Cell]] = {one: [] for one in structures_of(release, but)}
    while True:
        turn = list(left)
        order.shuffle(turn)
        for structure in turn:
            if not left[structure]:
                left[structure] = [cell for cell in cells(release) if cell.structure is structure]
                order.shuffle(left[structure])
            yield left[structure].pop()


def _mutation(chance: random.Random, number: int, cell: Cell, release: str, left_out: Collection[Server]) -> Mutation:
    """Draw one.

    Args:
        chance: Makes every choice.
        number: Of the mutation.
        cell: Its kind.
        release: Whose servers there are to choose from.
        left_out: Servers that are none of them.
    """
    either = chance.random() < 0.5
    most = _MOST_SKIPPED.get(cell.phase, _MOST_SKIPPED_ELSEWHERE)
    if cell.structure in _MOST_SKIPPED_OF:
        most = _MOST_SKIPPED_OF[cell.structure]
    mtp = either if cell.mtp is None else cell.mtp
    skipped, entry_seed = chance.randint(0, most), chance.getrandbits(32)
    server = _server(chance, [one for one in servers_of(release, cell, mtp) if one not in left_out])
    if server is Server.UNCHUNKED and cell.phase is Phase.PREFILL:
        skipped = min(skipped, _MOST_SKIPPED_UNCHUNKED)
    return Mutation(
        number=number,
        structure=cell.structure,
        defect=cell.defect,
        phase=cell.phase,
        mtp=mtp,
        skipped=skipped,
        entry_seed=entry_seed,
        server=server,
    )


def _server(chance: random.Random, servers: Sequence[Server]) -> Server:
    quick = [server for server in servers if server is not Server.HYBRID]
    seldom = chance.random() < _HYBRID_SHARE and Server.HYBRID in servers
    return Server.HYBRID if seldom else chance.choice(quick)
