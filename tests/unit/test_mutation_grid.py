"""The grid of mutations is whole, and a draw of it is the same every time."""

from __future__ import annotations

from collections import Counter

import pytest

from gemma4_dumps.structures import Defect, Structure
from gemma4_repro.mutations.draw import draw
from gemma4_repro.mutations.grid import GRID, Phase, Room, cells


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
    assert draw(7, 40) == draw(7, 40)
    assert draw(7, 100)[:40] == draw(7, 40)
    assert draw(7, 40) != draw(8, 40)


def test_structures_take_turns() -> None:
    drawn = Counter(mutation.structure for mutation in draw(3, 4 * len(Structure)))
    assert set(drawn.values()) == {4}


def test_every_cell_comes_before_one_comes_twice() -> None:
    largest = max(len(room.defects) * len(room.phases) for room in GRID.values())
    drawn = [mutation.cell for mutation in draw(11, largest * len(Structure))]
    assert set(drawn) == set(cells())


def test_a_mutation_is_drawn_for_a_server_that_has_its_phase() -> None:
    for mutation in draw(5, 300):
        if mutation.phase in (Phase.DRAFT, Phase.VERIFY) or mutation.structure is Structure.DRAFT_BINDING:
            assert mutation.mtp
        if mutation.phase is Phase.DECODE:
            assert not mutation.mtp


def test_names_say_nothing_of_the_mutation() -> None:
    for mutation in draw(5, 50):
        assert mutation.name == f"run-{mutation.number:04d}"


def test_a_draw_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        draw(1, 0)
