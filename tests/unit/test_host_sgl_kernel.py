"""The host engine's `sgl_kernel`: operators that later releases of SGLang import on a CPU, against plain loops."""

import os

import pytest
import torch

from gemma4_repro.engine.host_environment import hermetic_environment
from gemma4_runtime import host_environment
from gemma4_runtime.host.stand_ins import sgl_kernel
from gemma4_runtime.releases import BASE

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

ROWS, WIDTH = 4, 12
RANGES = [(2, 1, 4), (0, 0, 0), (3, 5, 12)]
INDICES, STARTS, ENDS = (torch.tensor(column) for column in zip(*RANGES, strict=True))
SLOTS = torch.arange(100, 100 + sum(end - start for _, start, end in RANGES))


def test_slots_are_written_to_rows_and_read_back():
    table = torch.zeros(ROWS, WIDTH, dtype=torch.int32)
    sgl_kernel.assign_req_to_token_pool_cpu(INDICES, table, STARTS, ENDS, SLOTS, WIDTH)
    expected = torch.zeros(ROWS, WIDTH, dtype=torch.int32)
    slots = iter(SLOTS.tolist())
    for row, start, end in RANGES:
        for column in range(start, end):
            expected[row, column] = next(slots)
    assert torch.equal(table, expected)
    read = torch.zeros_like(SLOTS)
    sgl_kernel.assign_extend_cache_locs_cpu(INDICES, table, STARTS, ENDS, read, WIDTH)
    assert torch.equal(read, SLOTS)


def test_the_slots_of_drafts_lie_behind_the_sequence():
    table = torch.arange(ROWS * WIDTH).view(ROWS, WIDTH)
    read = torch.zeros(8, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor([1, 3]), table, torch.tensor([5, 2]), read, WIDTH, 2, 2
    )
    assert read.tolist() == [17, 18, 19, 20, 38, 39, 40, 41]


def test_the_last_accepted_token_and_the_slots_of_all_accepted_ones():
    bonus = torch.zeros(2, dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(torch.tensor([7, 8, 9, 4, 0, 0]), torch.tensor([2, 1]), bonus, 3)
    assert bonus.tolist() == [8, 4]
    moved = torch.full((6,), -7)
    index = torch.tensor([[0, 2, -1], [3, -1, -1]])
    sgl_kernel.fill_accept_out_cache_loc_cpu(index, torch.arange(10, 16), moved)
    assert moved.tolist() == [10, 12, 13, -7, -7, -7]


@pytest.mark.parametrize(("places", "expected"), [(None, [2, 3, 9, 5, 8]), (torch.tensor([1, 4]), [2, 9, 3, 5, 8])])
def test_tokens_move_up_by_one(places, expected):
    tokens = torch.tensor([1, 2, 3, 4, 5])
    sgl_kernel.rotate_input_ids_cpu(tokens, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([9, 8]), places)
    assert tokens.tolist() == expected


def test_rows_of_every_buffer_are_read_before_one_is_written():
    buffers = [torch.arange(12, dtype=torch.float32).view(6, 2), torch.arange(18, dtype=torch.int64).view(6, 3)]
    before = [buffer.clone() for buffer in buffers]
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers])
    strides = torch.tensor([buffer[0].nbytes for buffer in buffers])
    sgl_kernel.copy_all_layer_kv_cache_cpu(addresses, strides, torch.tensor([1, 2]), torch.tensor([0, 1]))
    for buffer, was in zip(buffers, before, strict=True):
        assert torch.equal(buffer[:3], was[[0, 0, 1]])
        assert torch.equal(buffer[3:], was[3:])


def test_trees_are_built_and_verified_by_the_same_code_as_on_the_base_release():
    trees = {name: torch.full((1, 2), -1) for name in ("index", "next", "sibling")}
    mask, positions = torch.zeros(2 * 7, dtype=torch.bool), torch.zeros(2, dtype=torch.int64)
    parents, chosen, lengths = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[0]]), torch.tensor([5])
    index, following, sibling = trees["index"], trees["next"], trees["sibling"]
    sgl_kernel.build_tree_kernel_efficient_cpu(
        parents, chosen, lengths, mask, positions, index, following, sibling, 1, 1, 2, 0
    )
    assert positions.tolist() == [5, 6]
    accepted, taken, count = torch.full((2,), -1), torch.full((1, 2), -1), torch.zeros(1, dtype=torch.int64)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=accepted,
        accept_index=taken,
        accept_token_num=count,
        candidates=torch.tensor([[11, 12]]),
        retrive_index=trees["index"],
        retrive_next_token=trees["next"],
        retrive_next_sibling=trees["sibling"],
        target_predict=torch.tensor([[12, 13]]),
    )
    assert (accepted.tolist(), taken.tolist(), count.tolist()) == ([12, 13], [[0, 1]], [1])


def test_only_a_release_that_imports_it_gets_it_ahead_on_the_path(monkeypatch):
    monkeypatch.setattr(host_environment, "installed_or_base", lambda: BASE)
    assert host_environment.with_stand_ins({"PYTHONPATH": "/a"}) == {}
    monkeypatch.setattr(host_environment, "installed_or_base", lambda: "0.5.23")
    folder = str(host_environment.STAND_INS)
    assert host_environment.with_stand_ins({}) == {"PYTHONPATH": folder}
    once = host_environment.with_stand_ins({"PYTHONPATH": "/a:/b"})
    assert once == {"PYTHONPATH": os.pathsep.join([folder, "/a", "/b"])} == host_environment.with_stand_ins(once)
    assert hermetic_environment({"PYTHONPATH": "/a"})["PYTHONPATH"] == os.pathsep.join([folder, "/a"])
    monkeypatch.setenv("PYTHONPATH", "/a")
    assert f"PYTHONPATH={folder}:/a" in host_environment.missing_from_environment()
