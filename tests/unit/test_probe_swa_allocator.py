"""The allocator probe on SGLang's own allocator: silent on every clean history, loud at the first bad hand-out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.faults import allocators

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

PAGE = 16


class Requests:
    """Requests that live on an allocator: extend, decode, free; what SGLang's scheduler does, without the engine."""

    def __init__(self, allocator):
        self.allocator = allocator
        self.slots = []

    def extend(self, request, tokens):
        slots = self.slots[request]
        prefix, seq = len(slots), len(slots) + tokens
        last = slots[-1] if slots else -1
        lens = [torch.tensor([x], dtype=torch.int64) for x in (prefix, prefix, seq, seq, last)]
        new = self.allocator.alloc_extend(*lens, tokens)
        if new is not None:
            slots.extend(new.tolist())
        return new

    def start(self, tokens):
        self.slots.append([])
        return self.extend(len(self.slots) - 1, tokens)

    def decode(self):
        live = [slots for slots in self.slots if slots]
        if not live:
            return None
        seq = torch.tensor([len(slots) + 1 for slots in live])
        new = self.allocator.alloc_decode(seq, seq, torch.tensor([slots[-1] for slots in live]))
        if new is not None:
            for slots, slot in zip(live, new.tolist(), strict=True):
                slots.append(slot)
        return new

    def finish(self, request):
        slots, self.slots[request] = self.slots[request], []
        if slots:
            self.allocator.free(torch.tensor(slots))


actions = st.tuples(st.sampled_from(["start", "extend", "decode", "finish"]), st.integers(1, 70))


def test_silent_on_clean_histories(attach, swa_allocator):
    dumps = attach("trap", "swa-allocator", "host-alloc-kernels")

    @settings(max_examples=100, deadline=None)
    @given(st.lists(actions, max_size=30))
    def run(history):
        swa_allocator.clear()
        live(Requests(swa_allocator), history)

    run()
    assert DumpStore(dumps).list() == []


def live(requests, history):
    for action, number in history:
        if action == "start":
            requests.start(number)
        elif action == "decode":
            requests.decode()
        elif requests.slots:
            request = number % len(requests.slots)
            if action == "finish":
                requests.finish(request)
            elif requests.slots[request]:
                requests.extend(request, number)
    held = sum(-(-len(slots) // PAGE) for slots in requests.slots)
    assert requests.allocator.full_available_size() // PAGE == 160 - held


def test_the_fault_is_caught_at_the_very_call(attach, swa_allocator):
    dumps = attach("trap", "swa-allocator", "swa-alloc-oob", "host-alloc-kernels")
    requests = Requests(swa_allocator)
    requests.start(20)
    for _ in range(allocators.HEALTHY_CALLS):
        assert requests.decode() is not None
    with pytest.raises(TrappedViolation, match=r"swa slot 1040, legal are 16 to 1039") as caught:
        requests.decode()
    manifest = read_dump(caught.value.dump).manifest
    assert (manifest.rule, manifest.verdict, manifest.pool_kind) == ("swa-alloc-range", "alloc_out_of_range", "swa")
    assert [offence.value for offence in manifest.offences] == [1040]
    assert manifest.action == "trapped"
    assert len(DumpStore(dumps).list()) == 1


def test_the_fault_without_the_probe_goes_unnoticed_by_the_allocator(attach, swa_allocator):
    attach("off", "swa-alloc-oob", "host-alloc-kernels")
    requests = Requests(swa_allocator)
    requests.start(20)
    for _ in range(allocators.HEALTHY_CALLS + 1):
        assert requests.decode() is not None


def test_log_mode_goes_on_and_thins_out(attach, swa_allocator, caplog):
    dumps = attach("log", "swa-allocator", "host-alloc-kernels")
    requests = Requests(swa_allocator)
    full = requests.start(32)
    swa_allocator.full_to_swa_index_mapping[full[3]] = 5
    for _ in range(5):
        swa_allocator.set_full_to_swa_mapping(full[3:4], torch.tensor([5]))
    seen = sorted(read_dump(entry.path).manifest.scalars["seen"] for entry in DumpStore(dumps).list())
    assert seen == [1, 2, 4]
    assert "swa slot 5" in caplog.text


@pytest.mark.parametrize(("prefix", "legal"), [(0, True), (PAGE, False)])
def test_minus_one_is_legal_only_without_a_prefix(attach, swa_allocator, prefix, legal):
    attach("trap", "swa-allocator", "host-alloc-kernels")
    lens = [torch.tensor([x]) for x in (prefix, prefix, prefix + 4, prefix + 4, -1)]
    if legal:
        assert swa_allocator.alloc_extend(*lens, 4) is not None
    else:
        with pytest.raises(TrappedViolation, match="continue from slot -1"):
            swa_allocator.alloc_extend(*lens, 4)


def test_decode_from_minus_one_is_trapped(attach, swa_allocator):
    attach("trap", "swa-allocator", "host-alloc-kernels")
    with pytest.raises(TrappedViolation, match="alloc_decode was asked to continue from slot -1"):
        swa_allocator.alloc_decode(torch.tensor([5]), torch.tensor([5]), torch.tensor([-1]))


def test_only_the_tail_needs_a_swa_peer(attach, swa_allocator):
    attach("trap", "swa-allocator", "host-alloc-kernels")
    lens = [torch.tensor([x]) for x in (0, 0, 40, 40, -1)]
    full = swa_allocator.alloc_extend_swa_tail(*lens, 40, 24)
    assert (swa_allocator.full_to_swa_index_mapping[full[:16]] == 0).all()
    assert (swa_allocator.full_to_swa_index_mapping[full[16:]] >= PAGE).all()
    swa_allocator.free(full)


def test_the_trap_survives_an_unwritable_store(attach, swa_allocator, tmp_path):
    (tmp_path / "dumps").write_text("a file where the folder should be")
    attach("trap", "swa-allocator", "host-alloc-kernels")
    with pytest.raises(TrappedViolation, match="no dump was written"):
        swa_allocator.alloc_decode(torch.tensor([5]), torch.tensor([5]), torch.tensor([-1]))
