"""The page-table probe on both backends that read lists of slots: what is the same on Triton and FlashInfer."""

import pytest

from gemma4_dumps.reader import read_dump
from gemma4_runtime.errors import TrappedViolation
from slot_list_backends import ATTACHED, FULL, FULL_SLOTS, KINDS, SWA_SLOTS, batch, fill, found_in, rows_of, slots_of

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.fixture
def make(kind, swa_allocator, monkeypatch):
    with kind.backends(swa_allocator, monkeypatch) as maker:
        yield maker


def test_a_slot_beyond_the_full_buffer(attach, kind, make):
    attach("trap", *ATTACHED)
    backend = make()
    # Short of the window's list: only the full list holds the slot.
    fill(backend, [33, 100])
    rows_of(backend)[2, 50] = FULL_SLOTS
    with pytest.raises(TrappedViolation, match=rf"slot {FULL_SLOTS} of {FULL_SLOTS} in kv_indices\[1, 50\]") as got:
        backend.init_forward_metadata(batch([33, 100]))
    found = read_dump(got.value.dump).manifest
    assert (found.verdict, found.backend, found.role, found.step) == ("out_of_range", kind.name, "target", 41)
    assert (found.layer.id, found.offences[0].request_slot) == (FULL, 2)
    assert found.extents["slots_in_buffer"] == FULL_SLOTS


def test_a_slot_beyond_the_swa_buffer(attach, kind, make, mapping):
    attach("trap", *ATTACHED)
    backend = make()
    fill(backend, [100])
    mapping[slots_of(backend, 1, 99)] = SWA_SLOTS
    place = rf"window_kv_indices\[0, {kind.window_keys - 1}\]"
    with pytest.raises(TrappedViolation, match=rf"slot {SWA_SLOTS} of {SWA_SLOTS} in {place}"):
        backend.init_forward_metadata(batch([100]))


def test_what_the_window_has_left_may_have_no_swa_slot(attach, make, swa_allocator):
    dumps = attach("trap", *ATTACHED)
    backend = make()
    fill(backend, [100])
    swa_allocator.free_swa(slots_of(backend, 1, *range(64)))
    backend.init_forward_metadata(batch([100]))
    assert found_in(dumps) == []


def test_a_window_that_was_freed_is_a_finding_in_a_decode_without_overlap(attach, make, swa_allocator):
    dumps = attach("trap", *ATTACHED)
    backend = make()
    fill(backend, [100])
    swa_allocator.free_swa(slots_of(backend, 1, *range(64, 80)))
    with pytest.raises(TrappedViolation, match=r"slot 0 of 1040 in window_kv_indices\[0, 0\]"):
        backend.init_forward_metadata(batch([100]))
    # With overlap the request may have ended meanwhile.
    backend.kept_runner.server_args.disable_overlap_schedule = False
    backend.init_forward_metadata(batch([100]))
    assert len(found_in(dumps)) == 1
