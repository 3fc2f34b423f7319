"""The page-table probe on SGLang's own FlashInfer backend and updaters; only the wrappers, which need CUDA, are not."""

import ast
import importlib.util
from pathlib import Path

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPVerifyInput
from sglang.srt.speculative.spec_info import SpecInputType

from gemma4_dumps.reader import read_dump
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.indices.flashinfer import flashinfer_build
from slot_list_backends import (
    ATTACHED,
    DECODE_USES,
    FULL_SLOTS,
    KEPT,
    PAGE,
    SLIDING,
    SWA_SLOTS,
    WINDOW,
    attention,
    batch,
    capture_batch,
    extend,
    fill,
    flashinfer_backends,
    found_in,
    replay_batch,
    rows_of,
    slots_of,
    uses_of,
)

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def make(swa_allocator, monkeypatch):
    with flashinfer_backends(swa_allocator, monkeypatch) as maker:
        yield maker


def verify(lengths, locations=None):
    forward_batch = batch(lengths, ForwardMode.TARGET_VERIFY, locations=locations)
    forward_batch.spec_info = object.__new__(FrozenKVMTPVerifyInput)
    forward_batch.spec_info.draft_token_num = forward_batch.spec_info.num_tokens_per_req = 4
    forward_batch.spec_info.spec_input_type = SpecInputType.FROZEN_KV_MTP_VERIFY
    forward_batch.spec_info.custom_mask = torch.ones(sum(4 * (length + 4) for length in lengths), dtype=torch.bool)
    return forward_batch


def test_the_installed_flashinfer_keeps_its_plans_where_the_probe_looks():
    """Its source is read: importing its wrappers builds CUDA modules."""
    folder = Path(importlib.util.find_spec("flashinfer").submodule_search_locations[0])
    for file, name, attributes in (
        ("decode.py", "BatchDecodeWithPagedKVCacheWrapper", KEPT[:2]),
        ("prefill.py", "BatchPrefillWithPagedKVCacheWrapper", KEPT),
    ):
        tree = ast.parse((folder / file).read_text())
        (wrapper,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        for method in ("plan", "run"):
            # Overloads stand before it; a later FlashInfer has the body of `plan` in a method that it calls.
            bodies = [
                node
                for node in wrapper.body
                if isinstance(node, ast.FunctionDef) and node.name in (method, f"_{method}_impl")
            ]
            named = {node.attr for body in bodies for node in ast.walk(body) if isinstance(node, ast.Attribute)}
            assert named.issuperset(attributes), (name, method)


class TestEager:
    def test_clean_plans_are_silent(self, attach, make):
        dumps = attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [33, 100])
        new = torch.cat([slots_of(backend, 1, 32), slots_of(backend, 2, 99)])
        backend.init_forward_metadata(batch([33, 100], locations=new))
        backend.init_forward_metadata(extend(backend, 16, 17))
        backend.init_forward_metadata(batch([33, 1], rows=[1, 0]))
        assert found_in(dumps) == []

    def test_it_follows_layers_and_wrappers(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [100])
        forward_batch = batch([100], locations=slots_of(backend, 1, 99))
        backend.init_forward_metadata(forward_batch)
        build = flashinfer_build(backend, forward_batch, "here", False, forward_batch.out_cache_loc)
        assert uses_of(build) == DECODE_USES
        assert build.array("window_kv_indices").indptr.tolist() == [0, WINDOW + 1]
        assert build.page_size == PAGE
        assert build.wrong_uses() == ()

    def test_new_slots_of_an_extend(self, attach, make, mapping):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [60])
        forward_batch = extend(backend, 48, 12)
        forward_batch.out_cache_loc = slots_of(backend, 1, *range(12))
        # Only the list of new slots holds position 3: the window has left it.
        mapping[slots_of(backend, 1, 3)] = SWA_SLOTS
        with pytest.raises(TrappedViolation, match=r"in swa_out_cache_loc\[0, 3\], target layer 0 .* written to"):
            backend.init_forward_metadata(forward_batch)

    def test_contain_neutralises_what_the_kernels_will_read(self, attach, make, mapping):
        attach("contain", *ATTACHED)
        backend = make()
        fill(backend, [100])
        mapping[slots_of(backend, 1, 99)] = SWA_SLOTS
        with pytest.raises(TrappedViolation, match="outside a scheduler step"):
            backend.init_forward_metadata(batch([100]))
        window = backend.decode_wrappers[0]._paged_kv_indices_buf
        assert window[31] == 0
        assert bool((window[:31] != 0).all())

    def test_a_pool_swapped_between_plan_and_dispatch(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [18])
        forward_batch = extend(backend, 16, 2)
        backend.init_forward_metadata(forward_batch)
        query, layer = torch.zeros(2, 2, 8), attention(SLIDING)
        assert backend.forward_extend(query, None, None, layer, forward_batch, False).shape == (2, 16)
        backend.token_to_kv_pool = backend.token_to_kv_pool.full_kv_pool
        with pytest.raises(TrappedViolation, match="swa slots on the full buffer"):
            backend.forward_extend(query, None, None, layer, forward_batch, False)

    def test_a_step_of_a_multi_step_draft_is_left_alone(self, attach, make):
        dumps = attach("trap", *ATTACHED)
        backend = make(is_draft_worker=True)
        forward_batch = batch([33])
        forward_batch.spec_info = type("Lists", (), {"window_kv_indices": None})()
        forward_batch.spec_info.kv_indptr = torch.tensor([0, 2], dtype=torch.int32)
        forward_batch.spec_info.kv_indices = torch.zeros(2, dtype=torch.int32)
        backend.init_forward_metadata(forward_batch)
        assert found_in(dumps) == []


class TestGraphs:
    def capture(self, backend, make_batch, per_row=1):
        backend.init_cuda_graph_state(4, 16)
        for size in (4, 1):
            captured = make_batch([1] * size, locations=torch.zeros(size * per_row, dtype=torch.int64))
            captured.req_pool_indices = torch.zeros(size, dtype=torch.int64)
            captured.positions = torch.zeros(size * per_row, dtype=torch.int64)
            capture_batch(backend, captured)

    def test_replay_checks_the_buckets_own_buffers(self, attach, make, mapping):
        dumps = attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [60, 100])
        self.capture(backend, batch)
        new = torch.cat([slots_of(backend, 1, 59), slots_of(backend, 2, 99), torch.zeros(2, dtype=torch.int64)])
        padded = batch([60, 100, 1, 1], rows=[1, 2, 0, 0], locations=new)
        replay_batch(backend, padded)
        assert found_in(dumps) == []
        mapping[slots_of(backend, 2, 95)] = SWA_SLOTS
        with pytest.raises(TrappedViolation, match=r"slot 1040 of 1040 in window_kv_indices\[1, 27\]") as got:
            replay_batch(backend, padded)
        found = read_dump(got.value.dump).manifest
        assert (found.graph.captured, found.graph.bucket, found.forward_mode) == (True, 4, "DECODE")

    def test_a_verify_without_a_window(self, attach, make):
        dumps = attach("trap", *ATTACHED)
        backend = make(window=None)
        fill(backend, [60])
        self.capture(backend, verify, per_row=4)
        replayed = verify([56], slots_of(backend, 1, *range(56, 60)))
        replay_batch(backend, replayed)
        assert found_in(dumps) == []
        rows_of(backend)[1, 58] = FULL_SLOTS
        with pytest.raises(TrappedViolation, match=r"slot 2576 of 2576 in kv_indices\[0, 58\]") as got:
            replay_batch(backend, replayed)
        assert read_dump(got.value.dump).manifest.forward_mode == "TARGET_VERIFY"
