"""What a frame is counted as, against what SGLang's tower really takes; and what there is for it."""

import pytest
import torch
from sglang.srt.models.gemma4_vision import Gemma4VisionEncoder, Gemma4VisionPatchEmbedder
from torch.profiler import ProfilerActivity, profile
from transformers import Gemma4VisionConfig

from gemma4_repro.toys.vision import vision_config
from gemma4_runtime.vision import budget
from gemma4_runtime.vision.budget import MIB, frame_bytes
from gemma4_runtime.vision.encode import encode_padded
from gemma4_runtime.vision.packed import encode_packed
from vision_world import one_rank

# vision-batching is not ported: 0.5.23 embeds pictures in managers/mm_schedule.py.
pytestmark = pytest.mark.releases("0.5.13.post1")

WIDTH = 3 * 16 * 16
# Every layer takes the same, one after the other.
E2B = Gemma4VisionConfig(num_hidden_layers=1, position_embedding_size=256)
CONFIGS = {"toy": vision_config(), "e2b": E2B}


@pytest.fixture(scope="module")
def rank(vision_toy):
    with one_rank(vision_toy), torch.no_grad():
        yield


def grid(frames, patches):
    """[F, P, 2]: a frame of 9 patches a side less than all that there is place for, then padding."""
    side = int((patches * 0.9) ** 0.5) // 3 * 3
    found = torch.full((frames, patches, 2), -1)
    found[:, : side * side] = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(-1)
    return found


def peak_bytes(run):
    """Return the most that `run` holds at one time on a CPU, of what it has allocated itself."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("encode", [encode_padded, encode_packed])
@pytest.mark.parametrize(
    ("name", "patches", "dtype"),
    [
        ("toy", 630, torch.bfloat16),
        ("toy", 2520, torch.float32),
        ("e2b", 630, torch.float32),
        pytest.param("e2b", 2520, torch.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_a_frame_takes_no_more_than_it_is_counted_as(rank, attach, name, patches, dtype, encode):
    attach("off", "vision-batching", "vision-hf-exact")
    tower = Gemma4VisionEncoder(CONFIGS[name]).to(dtype)

    def run(frames):
        """Do as `features` does: frames are stacked for the call."""
        pixels, positions = torch.zeros(patches, WIDTH), grid(frames, patches)
        return peak_bytes(lambda: encode(tower, torch.stack([pixels] * frames).to(dtype), positions))

    each = (run(3) - run(1)) / 2
    counted = frame_bytes(tower.config, patches, WIDTH, dtype.itemsize, masked=True)
    print(f"{name} {patches} {dtype} {encode.__name__}: {each / MIB:.1f} MiB, counted as {counted / MIB:.1f}")
    assert each <= counted
    assert encode is encode_packed or counted < 3 * each


def test_a_one_hot_of_positions_would_not_fit(rank, attach):
    """What the count leaves out because it is not there: int64 and the table's dtype, 10240 wide, for x and for y."""
    positions, wide = grid(1, 630), 2048
    padding = (positions == -1).all(-1)
    config = Gemma4VisionConfig(**(vision_config().to_dict() | {"position_embedding_size": wide}))
    embedder = Gemma4VisionPatchEmbedder(config)
    one_hot = 630 * 2 * wide * (8 + 4)
    assert peak_bytes(lambda: embedder._position_embeddings(positions, padding)) > one_hot
    attach("off", "vision-batching")
    assert peak_bytes(lambda: embedder._position_embeddings(positions, padding)) < one_hot / 20


class TestWhatThereIs:
    CPU = torch.device("cpu")

    @pytest.mark.parametrize(("available", "total", "found"), [(10, 100, 5), (90, 100, 10)])
    def test_half_of_what_is_free_and_a_tenth_of_all(self, attach, monkeypatch, available, total, found):
        class Memory:
            pass

        Memory.available, Memory.total = available * MIB, total * MIB
        attach("off", "vision-batching")
        monkeypatch.setattr(budget.psutil, "virtual_memory", Memory)
        assert budget.budget_bytes(self.CPU) == found * MIB

    def test_cuda_counts_what_its_allocator_holds_as_free(self, attach, monkeypatch):
        attach("off", "vision-batching")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * MIB, 100 * MIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 9 * MIB)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 5 * MIB)
        assert budget.budget_bytes(torch.device("cuda")) == 3 * MIB

    def test_a_setting_goes_before_both(self, attach, monkeypatch):
        monkeypatch.setenv("GEMMA4_TRIAGE_VISION_BUDGET_MB", "7")
        attach("off", "vision-batching")
        assert budget.budget_bytes(self.CPU) == 7 * MIB
