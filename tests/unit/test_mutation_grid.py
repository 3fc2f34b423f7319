"""The grid of mutations is whole, and a draw of it is the same every time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gemma4_dumps.structures import Defect, Structure
from gemma4_repro.mutations.draw import OLDER_SEEDS, SEEDS_BEFORE_SERVERS, draw
from gemma4_repro.mutations.grid import (
    ADDED_LATER,
    GRID,
    OF_THE_TREE,
    SERVERS_ADDED_LAST,
    SERVERS_ADDED_LATER,
    Phase,
    Room,
    Server,
    cells,
    left_out_on,
    servers_of,
    structures_of,
)
from gemma4_repro.mutations.load import LOAD, Probes, engine_arguments, settings
from gemma4_repro.mutations.rows_file import RowsFile
from gemma4_runtime.releases import BASE

RELEASES = (BASE, "0.5.23")


def test_every_structure_has_a_room() -> None:
    assert set(GRID) == set(Structure)


@pytest.mark.parametrize("structure", Structure)
def test_each_defect_is_a_cell_or_left_out_with_a_reason(structure: Structure) -> None:
    room = GRID[structure]
    assert sorted([*room.defects, *room.left_out]) == sorted(Defect)
    assert sorted([*room.phases, *room.phases_left_out]) == sorted(Phase)
    assert all(_reasons(room))


def _reasons(room: Room) -> list[str]:
    return [reason.strip() for reason in (*room.left_out.values(), *room.phases_left_out.values())]


def test_each_cell_stands_once() -> None:
    assert max(Counter(cells()).values()) == 1


def test_a_draw_is_the_same_every_time_and_a_longer_one_begins_with_it() -> None:
    assert draw(7, 40, BASE) == draw(7, 40, BASE)
    assert draw(7, 100, BASE)[:40] == draw(7, 40, BASE)
    assert draw(7, 40, BASE) != draw(8, 40, BASE)


@pytest.mark.parametrize("release", RELEASES)
def test_a_draw_has_every_server_that_its_cells_can_have(release: str) -> None:
    drawn = draw(5, 400, release)
    not_here = {Server.EVICTING, Server.IN_PYTHON} if release == BASE else set()
    assert {mutation.server for mutation in drawn} == set(Server) - not_here
    assert all(one.server in servers_of(release, one.cell, one.mtp) for one in drawn)
    hybrid = sum(one.server is Server.HYBRID for one in drawn)
    assert 0 < hybrid < 40, "under the interpreter one takes as long as eight others"


@pytest.mark.parametrize("seed", sorted(OLDER_SEEDS))
def test_older_seeds_draw_what_their_rows_have(seed: int) -> None:
    assert {one.server for one in draw(seed, 100, BASE)} == {Server.STEPWISE}
    assert not {one.structure for one in draw(seed, 100, BASE)}.intersection(ADDED_LATER)


@pytest.mark.parametrize("seed", sorted(SEEDS_BEFORE_SERVERS))
def test_seeds_before_later_servers_draw_what_their_rows_have(seed: int) -> None:
    drawn = {one.server for one in draw(seed, 200, "0.5.23")}
    assert drawn == set(Server) - {*SERVERS_ADDED_LATER, *SERVERS_ADDED_LAST, Server.IN_PYTHON}


COMMITTED = sorted(path.parent for path in (Path(__file__).parents[2] / "docs" / "mutations").glob("[0-9]*/*.jsonl"))


@pytest.mark.parametrize("folder", COMMITTED, ids=[folder.name for folder in COMMITTED])
def test_a_committed_seed_draws_what_its_rows_have(folder: Path) -> None:
    file = RowsFile(folder, int(folder.name))
    file.read()
    drawn = {one.number: one for one in draw(int(folder.name), max(file.rows), file.sglang_version)}
    unlike = [number for number, row in file.rows.items() if row.mutation != drawn[number]]
    assert unlike == []


def test_the_window_of_a_request_is_evicted_where_evictions_are_drawn() -> None:
    usual, evicting = (settings(Probes.TRAP, server) for server in (Server.STEPWISE, Server.EVICTING))
    added = dict(evicting.items() - usual.items())
    assert added == {"SGLANG_SWA_EVICTION_INTERVAL": "1"}
    assert {one.server for one in draw(5, 400, "0.5.23") if one.structure is Structure.WINDOW_EVICTION} == {
        Server.EVICTING
    }


def test_nodes_and_locks_are_drawn_where_the_tree_can_be_written() -> None:
    usual, python = (settings(Probes.TRAP, server) for server in (Server.STEPWISE, Server.IN_PYTHON))
    assert dict(python.items() - usual.items()) == {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
    of_trees = [one for one in draw(5, 400, "0.5.23") if one.structure in OF_THE_TREE]
    assert of_trees
    assert {one.server for one in of_trees} == {Server.IN_PYTHON}


def test_the_load_is_read_in_chunks_where_they_are_not_switched_off() -> None:
    usual, at_once = (engine_arguments({}, False, server) for server in (Server.STEPWISE, Server.UNCHUNKED))
    stages = zip(LOAD.stage_of(), LOAD.prompts(), strict=True)
    assert 0 < usual["chunked_prefill_size"] < sum(len(prompt) for stage, prompt in stages if stage == 1)
    assert at_once["chunked_prefill_size"] == -1


@pytest.mark.parametrize("release", RELEASES)
def test_structures_take_turns(release: str) -> None:
    drawn = Counter(mutation.structure for mutation in draw(3, 4 * len(structures_of(release)), release))
    assert dict(drawn) == dict.fromkeys(structures_of(release), 4)


@pytest.mark.parametrize("release", RELEASES)
def test_every_cell_comes_before_one_comes_twice(release: str) -> None:
    largest = max(len(room.defects) * len(room.phases) for room in GRID.values())
    drawn = [mutation.cell for mutation in draw(11, largest * len(structures_of(release)), release)]
    assert set(drawn) == set(cells(release))


def test_what_a_release_cannot_have_is_left_out_with_a_reason() -> None:
    for release in RELEASES:
        left_out = left_out_on(release)
        assert all(left_out.values())
        assert {*structures_of(release), *left_out} == set(GRID)
        assert not {cell.structure for cell in cells(release)} & set(left_out)
    assert [len(cells()) - len(cells(release)) > 0 for release in (BASE, "0.5.23")] == [True, False]


def test_a_mutation_is_drawn_for_a_server_that_has_its_phase() -> None:
    for mutation in draw(5, 300, BASE):
        if mutation.phase in (Phase.DRAFT, Phase.VERIFY) or mutation.structure is Structure.DRAFT_BINDING:
            assert mutation.mtp
        if mutation.phase is Phase.DECODE:
            assert not mutation.mtp


def test_names_say_nothing_of_the_mutation() -> None:
    for mutation in draw(5, 50, BASE):
        assert mutation.name == f"run-{mutation.number:04d}"


def test_a_draw_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        draw(1, 0, BASE)
