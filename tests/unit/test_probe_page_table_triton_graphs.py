"""The page-table probe on SGLang's own Triton backend under CUDA graphs."""

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_runtime.errors import TrappedViolation
from published import in_capture_mode
from slot_list_backends import (
    ATTACHED,
    FULL_SLOTS,
    SWA_SLOTS,
    batch,
    capture_batch,
    fill,
    found_in,
    replay_batch,
    slots_of,
    triton_backends,
)

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def make(swa_allocator, monkeypatch):
    with triton_backends(swa_allocator, monkeypatch) as maker:
        yield maker


class TestGraphs:
    """The host side of CUDA graphs: lists are static buffers, and `forward_metadata` stays what a capture left."""

    def capture(self, backend, mode=ForwardMode.DECODE):
        for size in (4, 1):
            tokens = size * (4 if mode.is_target_verify() else 1)
            captured = batch([1] * size, mode, rows=[0] * size, locations=torch.zeros(tokens, dtype=torch.int64))
            capture_batch(backend, captured)

    @pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY])
    def test_replay_checks_the_static_lists(self, attach, make, mapping, mode):
        dumps = attach("trap", *ATTACHED)
        backend = make()
        per_row = 4 if mode.is_target_verify() else 1
        fill(backend, [60, 100])
        backend.init_cuda_graph_state(4, 16)
        self.capture(backend, mode)
        new = torch.zeros(4 * per_row, dtype=torch.int64)
        new[: 2 * per_row] = slots_of(backend, 1, *range(60 - 2 * per_row, 60))
        # Two live requests, two rows of padding; the last capture was of one row.
        padded = batch([56, 96, 1, 1], mode, rows=[1, 2, 0, 0], locations=new)
        replay_batch(backend, padded)
        assert backend.forward_metadata.kv_indptr.shape == (2,)
        assert found_in(dumps) == []
        mapping[slots_of(backend, 2, 95)] = SWA_SLOTS
        with pytest.raises(TrappedViolation, match=r"slot 1040 of 1040 in window_kv_indices\[1, 30\]") as got:
            replay_batch(backend, padded)
        found = read_dump(got.value.dump).manifest
        assert (found.graph.captured, found.graph.bucket, found.forward_mode) == (True, 4, mode.name)
        mapping[slots_of(backend, 2, 95)] = 32
        backend.req_to_token[2, 7] = FULL_SLOTS
        with pytest.raises(TrappedViolation, match=r"slot 2576 of 2576 in kv_indices\[1, 7\]"):
            replay_batch(backend, padded)

    def test_writes_in_a_graph(self, attach, make, mapping):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [60])
        backend.init_cuda_graph_state(4, 16)
        self.capture(backend)
        # A slot that the lists of keys do not hold: 59 of request 1, read up to 50.
        mapping[slots_of(backend, 1, 59)] = SWA_SLOTS
        with pytest.raises(TrappedViolation, match=r"slot 1040 of 1040 in swa_out_cache_loc\[0, 0\]"):
            replay_batch(backend, batch([50], locations=slots_of(backend, 1, 59)))

    def test_contain_neutralises_in_the_graphs_buffer(self, attach, make):
        attach("contain", *ATTACHED)
        backend = make()
        fill(backend, [60])
        backend.init_cuda_graph_state(4, 16)
        self.capture(backend)
        backend.req_to_token[1, 7] = FULL_SLOTS
        with pytest.raises(TrappedViolation, match="outside a scheduler step"):
            replay_batch(backend, batch([60]))
        assert backend.cuda_graph_kv_indices[6:9].tolist() == [
            int(backend.req_to_token[1, 6]),
            0,
            int(backend.req_to_token[1, 8]),
        ]

    def test_capture_stays_silent_about_a_capture_batch(self, attach, make):
        dumps = attach("trap", *ATTACHED)
        backend = make()
        backend.init_cuda_graph_state(4, 16)
        with in_capture_mode():
            self.capture(backend)
        assert found_in(dumps) == []
