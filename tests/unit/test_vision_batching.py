"""The batched vision encoder against SGLang's own, on the real model and pictures through the real processor."""

import pytest
import torch
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem

from gemma4_repro.toys.vision import PATCHES
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.vision import budget
from vision_world import image_item, processed, video_item

# vision-batching is not ported: 0.5.23 embeds pictures in managers/mm_schedule.py.
pytestmark = pytest.mark.releases("0.5.13.post1")

ID = "vision-batching"
SAME = [(300, 200), (320, 320), (100, 400), (64, 64), (500, 120), (200, 300)]


@pytest.fixture
def batching(attach):
    """Have it in force until the test ends, and nothing counted yet."""
    attach("off", ID)
    PATHS.__init__()
    yield
    PATHS.__init__()


def larger(vision_toy, sizes):
    """Items of 280 soft tokens: four times the patches."""
    return processed(vision_toy, sizes, max_soft_tokens=280)


def paths():
    return {op: set(taken) for op, taken in PATHS.document().items()}


class TestSameBits:
    @pytest.mark.parametrize("sizes", [SAME[:1], SAME, [*SAME, *SAME]])
    def test_pictures_of_one_shape(self, vision_model, vision_toy, attach, sizes):
        items = processed(vision_toy, sizes)
        plain = vision_model.get_image_feature(items)
        attach("off", ID)
        assert torch.equal(vision_model.get_image_feature(items), plain)
        assert plain.std() > 0.5

    def test_two_shapes_in_turn(self, vision_model, vision_toy, attach):
        large = larger(vision_toy, SAME[:2])
        items = [large[0], *processed(vision_toy, SAME[:2]), large[1]]
        plain = vision_model.get_image_feature(items)
        attach("off", ID)
        assert torch.equal(vision_model.get_image_feature(items), plain)

    def test_whatever_the_budget(self, vision_model, vision_toy, attach, monkeypatch):
        items = processed(vision_toy, SAME)
        plain = vision_model.get_image_feature(items)
        attach("off", ID)
        for most in range(1, 7):
            monkeypatch.setattr(budget, "asked_budget_bytes", lambda most=most: most * frame_of(vision_model) + 5)
            assert torch.equal(vision_model.get_image_feature(items), plain)

    def test_many_pictures_in_one_item(self, vision_model, vision_toy, attach):
        apart = processed(vision_toy, SAME[:3])
        listed = image_item([item.feature for item in apart], [item.image_position_ids for item in apart])
        plain = vision_model.get_image_feature([listed])
        attach("off", ID)
        assert torch.equal(vision_model.get_image_feature([listed]), plain)
        stacked = image_item(
            torch.cat([item.feature for item in apart]), torch.cat([item.image_position_ids for item in apart])
        )
        assert torch.equal(vision_model.get_image_feature([stacked]), plain)

    def test_a_picture_without_its_batch_dimension(self, vision_model, vision_toy, attach):
        (item,) = processed(vision_toy, SAME[:1])
        flat = image_item(item.feature[0], item.image_position_ids[0])
        plain = vision_model.get_image_feature([flat])
        attach("off", ID)
        assert torch.equal(vision_model.get_image_feature([flat]), plain)

    def test_frames_of_videos(self, vision_model, vision_toy, attach, vision_calls):
        """SGLang's SDPA asserts one frame per call, so frame by frame is what it can be held against."""
        frames = processed(vision_toy, SAME[:5])
        pixels = torch.cat([frame.feature for frame in frames])
        positions = torch.cat([frame.image_position_ids for frame in frames])
        single = [video_item(pixels[i : i + 1], positions[i : i + 1]) for i in range(5)]
        plain = vision_model.get_video_feature(single)
        # Two videos, as the processor gives one and as a list of two.
        whole = [video_item(pixels[None, :3], positions[None, :3]), video_item([pixels[3:]], [positions[3:]])]
        with pytest.raises(AssertionError, match="bsz must be 1"):
            vision_model.get_video_feature(whole)
        attach("off", ID)
        vision_calls.clear()
        assert torch.equal(vision_model.get_video_feature(whole), plain)
        assert vision_calls == {"tower": 1, "embedder": 1}

    def test_positions_that_are_no_whole_grid(self, vision_model, vision_toy, attach):
        (item,) = processed(vision_toy, SAME[:1])
        positions = item.image_position_ids.clone()
        # A cell with one patch less, one that is empty, and padding between patches.
        positions[0, 5] = -1
        positions[0, (positions[0] // 3 == torch.tensor([2, 1])).all(-1)] = -1
        items = [image_item(item.feature, positions), item]
        plain = vision_model.get_image_feature(items)
        assert len(plain) < 2 * len(vision_model.get_image_feature([item]))
        attach("off", ID)
        assert torch.equal(vision_model.get_image_feature(items), plain)

    def test_in_bf16(self, vision_model, vision_toy, attach):
        items = processed(vision_toy, SAME)
        weights = {name: value.clone() for name, value in vision_model.state_dict().items()}
        vision_model.to(torch.bfloat16)
        try:
            plain = vision_model.get_image_feature(items)
            attach("off", ID)
            assert plain.dtype is torch.bfloat16
            assert torch.equal(vision_model.get_image_feature(items), plain)
        finally:
            vision_model.to(torch.float32).load_state_dict(weights)

    def test_negative_zeros_in_the_table(self, vision_model, attach):
        embedder = vision_model.vision_tower.patch_embedder
        table = embedder.position_embedding_table
        before = table.clone()
        table[:, :3] = -0.0
        try:
            positions = torch.randint(-1, 12, (2, 40, 2))
            padding = (positions == -1).all(-1)
            plain = embedder._position_embeddings(positions, padding)
            attach("off", ID)
            found = embedder._position_embeddings(positions, padding)
            assert torch.equal(found.view(torch.int32), plain.view(torch.int32))
        finally:
            table.copy_(before)


class TestCalls:
    def test_without_it_one_of_each_per_picture(self, vision_model, vision_toy, vision_calls):
        vision_model.get_image_feature(processed(vision_toy, SAME))
        assert vision_calls == {"tower": 6, "embedder": 6}

    def test_six_of_one_shape_are_one_and_one(self, vision_model, vision_toy, vision_calls, batching):
        vision_model.get_image_feature(processed(vision_toy, SAME))
        assert vision_calls == {"tower": 1, "embedder": 1}
        assert paths() == {ID: {"batched"}}

    def test_two_shapes_are_two_and_one(self, vision_model, vision_toy, vision_calls, batching):
        vision_model.get_image_feature([*larger(vision_toy, SAME[:2]), *processed(vision_toy, SAME[:4])])
        assert vision_calls == {"tower": 2, "embedder": 1}

    def test_a_low_budget_makes_three_and_one(self, vision_model, vision_toy, vision_calls, batching, monkeypatch):
        monkeypatch.setattr(budget, "asked_budget_bytes", lambda: 2 * frame_of(vision_model) + 1)
        vision_model.get_image_feature(processed(vision_toy, SAME))
        assert vision_calls == {"tower": 3, "embedder": 1}

    def test_no_budget_is_too_low_for_one(self, vision_model, vision_toy, vision_calls, batching, monkeypatch):
        monkeypatch.setattr(budget, "asked_budget_bytes", lambda: 1)
        vision_model.get_image_feature(processed(vision_toy, SAME[:2]))
        assert vision_calls == {"tower": 2, "embedder": 1}


class TestWhatIsNotForTheTower:
    def test_embedded_ones_keep_their_place(self, vision_model, vision_toy, attach, vision_calls):
        first, last = processed(vision_toy, SAME[:2])
        embedded = torch.randn(7, vision_model.config.text_config.hidden_size)
        items = [
            first,
            image_item(embedded, None),
            last,
            image_item([embedded[:2], last.feature], [None, last.image_position_ids]),
        ]
        plain = vision_model.get_image_feature(items)
        attach("off", ID)
        vision_calls.clear()
        assert torch.equal(vision_model.get_image_feature(items), plain)
        assert vision_calls == {"tower": 1, "embedder": 1}

    def test_only_embedded_ones(self, vision_model, vision_calls, batching):
        embedded = torch.randn(7, vision_model.config.text_config.hidden_size)
        assert torch.equal(vision_model.get_image_feature([image_item(embedded, None)] * 2), torch.cat([embedded] * 2))
        assert vision_calls == {}

    @pytest.mark.parametrize("feature", ["get_image_feature", "get_video_feature"])
    def test_nothing(self, vision_model, batching, feature):
        found = getattr(vision_model, feature)([])
        assert found.shape == (0, vision_model.config.text_config.hidden_size)
        assert found.dtype is torch.float32

    def test_pixels_without_positions_meet_sglangs_error(self, vision_model, vision_toy, batching):
        (item,) = processed(vision_toy, SAME[:1])
        for positions in (None, [None]):
            with pytest.raises(ValueError, match="no matching image_position_ids"):
                vision_model.get_image_feature([image_item(item.feature, positions)])
        assert paths() == {ID: {"pixels without positions"}}

    def test_audio_is_left_alone(self, vision_model, batching):
        with pytest.raises(ValueError, match="does not have an audio tower"):
            vision_model.get_audio_feature([MultimodalDataItem(modality=Modality.AUDIO)])


class TestWhatIsLeftToSglang:
    """The same bits, SGLang's vision_calls, and the reason on record."""

    def left(self, vision_model, items, vision_calls):
        vision_calls.clear()
        found = vision_model.get_image_feature(items)
        assert vision_calls == {"tower": len(items), "embedder": len(items)}
        ((reason,),) = paths().values()
        return found, reason

    def test_a_deterministic_server(self, vision_model, vision_toy, vision_calls, attach, monkeypatch):
        from sglang.srt.server_args import get_global_server_args

        items = processed(vision_toy, SAME[:2])
        plain = vision_model.get_image_feature(items)
        attach("off", ID)
        PATHS.__init__()
        monkeypatch.setattr(get_global_server_args(), "enable_deterministic_inference", True)
        found, reason = self.left(vision_model, items, vision_calls)
        assert torch.equal(found, plain)
        assert "deterministic" in reason

    def test_ranks_that_would_each_measure_their_own_memory(
        self, vision_model, vision_toy, vision_calls, batching, monkeypatch
    ):
        from gemma4_runtime.vision import eligible

        monkeypatch.setattr(eligible, "attention_ranks", lambda: 2)
        items = processed(vision_toy, SAME[:2])
        _, reason = self.left(vision_model, items, vision_calls)
        assert reason == "tensor parallel ranks without GEMMA4_TRIAGE_VISION_BUDGET_MB"
        monkeypatch.setattr(eligible, "asked_budget_bytes", lambda: 1 << 30)
        vision_calls.clear()
        vision_model.get_image_feature(items)
        assert vision_calls == {"tower": 1, "embedder": 1}

    def test_a_tower_without_pooling(self, vision_model, vision_toy, vision_calls, batching, monkeypatch):
        monkeypatch.setattr(vision_model.vision_tower, "pooling_kernel_size", 1)
        items = processed(vision_toy, SAME[:2])
        found, reason = self.left(vision_model, items, vision_calls)
        assert reason == "no pooling: SGLang and transformers return the padding alone"
        padding = sum(int((item.image_position_ids == -1).all(-1).sum()) for item in items)
        assert len(found) == padding

    def test_a_cuda_graph_of_the_tower(self, vision_model, vision_toy, vision_calls, batching, monkeypatch):
        monkeypatch.setenv("SGLANG_VIT_ENABLE_CUDA_GRAPH", "1")
        _, reason = self.left(vision_model, processed(vision_toy, SAME[:1]), vision_calls)
        assert reason == "SGLANG_VIT_ENABLE_CUDA_GRAPH"


def test_taken_off_the_model_is_sglangs_again(vision_model, vision_toy, attach, vision_calls):
    attach("off", ID)
    attach("off")
    backend = vision_model.vision_tower.encoder.layers[0].self_attn.qkv_backend
    assert backend.flatten_batch
    vision_model.get_image_feature(processed(vision_toy, SAME))
    assert vision_calls == {"tower": 6, "embedder": 6}


def frame_of(model):
    """Say what one picture of 630 patches is counted as."""
    return budget.frame_bytes(model.vision_tower.config, PATCHES, 768, element_size=4, masked=True)
