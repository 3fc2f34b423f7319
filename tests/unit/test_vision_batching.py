"""The batched vision encoder against SGLang's own, on the real model and pictures through the real processor."""

from collections import Counter

import pytest
import torch
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem

from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.vision import budget
from vision_toy import PATCHES, make_toy
from vision_world import image_item, load_model, one_rank, processed, video_item

ID = "vision-batching"
SAME = [(300, 200), (320, 320), (100, 400), (64, 64), (500, 120), (200, 300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("vision-toy"))


@pytest.fixture(scope="module")
def model(folder):
    with one_rank(folder) as config, torch.no_grad():
        yield load_model(config)


@pytest.fixture
def batching(attach):
    """In force until the test ends, and nothing counted yet."""
    attach("off", ID)
    PATHS.__init__()
    yield
    PATHS.__init__()


@pytest.fixture
def calls(model):
    """How often the tower and the embedder have run."""
    counted = Counter()
    handles = [
        module.register_forward_hook(lambda *_, name=name: counted.update([name]))
        for name, module in (("tower", model.vision_tower), ("embedder", model.embed_vision))
    ]
    yield counted
    for handle in handles:
        handle.remove()


def larger(folder, sizes):
    """Items of 280 soft tokens: four times the patches."""
    return processed(folder, sizes, max_soft_tokens=280)


def paths():
    return {op: set(taken) for op, taken in PATHS.document().items()}


def one_by_one(model, items):
    return torch.cat([model.get_image_feature([item]) for item in items])


class TestSameBits:
    @pytest.mark.parametrize("sizes", [SAME[:1], SAME, [*SAME, *SAME]])
    def test_pictures_of_one_shape(self, model, folder, attach, sizes):
        items = processed(folder, sizes)
        plain = model.get_image_feature(items)
        attach("off", ID)
        assert torch.equal(model.get_image_feature(items), plain)
        assert plain.std() > 0.5

    def test_two_shapes_in_turn(self, model, folder, attach):
        large = larger(folder, SAME[:2])
        items = [large[0], *processed(folder, SAME[:2]), large[1]]
        plain = model.get_image_feature(items)
        attach("off", ID)
        assert torch.equal(model.get_image_feature(items), plain)

    def test_whatever_the_budget(self, model, folder, attach, monkeypatch):
        items = processed(folder, SAME)
        plain = model.get_image_feature(items)
        attach("off", ID)
        for most in range(1, 7):
            monkeypatch.setattr(budget, "asked_budget_bytes", lambda most=most: most * frame_of(model) + 5)
            assert torch.equal(model.get_image_feature(items), plain)

    def test_many_pictures_in_one_item(self, model, folder, attach):
        apart = processed(folder, SAME[:3])
        listed = image_item([item.feature for item in apart], [item.image_position_ids for item in apart])
        plain = model.get_image_feature([listed])
        attach("off", ID)
        assert torch.equal(model.get_image_feature([listed]), plain)
        stacked = image_item(
            torch.cat([item.feature for item in apart]), torch.cat([item.image_position_ids for item in apart])
        )
        assert torch.equal(model.get_image_feature([stacked]), plain)

    def test_a_picture_without_its_batch_dimension(self, model, folder, attach):
        (item,) = processed(folder, SAME[:1])
        flat = image_item(item.feature[0], item.image_position_ids[0])
        plain = model.get_image_feature([flat])
        attach("off", ID)
        assert torch.equal(model.get_image_feature([flat]), plain)

    def test_frames_of_videos(self, model, folder, attach, calls):
        """SGLang's SDPA asserts one frame per call, so frame by frame is what it can be held against."""
        frames = processed(folder, SAME[:5])
        pixels = torch.cat([frame.feature for frame in frames])
        positions = torch.cat([frame.image_position_ids for frame in frames])
        single = [video_item(pixels[i : i + 1], positions[i : i + 1]) for i in range(5)]
        plain = model.get_video_feature(single)
        # Two videos, as the processor gives one and as a list of two.
        whole = [video_item(pixels[None, :3], positions[None, :3]), video_item([pixels[3:]], [positions[3:]])]
        with pytest.raises(AssertionError, match="bsz must be 1"):
            model.get_video_feature(whole)
        attach("off", ID)
        calls.clear()
        assert torch.equal(model.get_video_feature(whole), plain)
        assert calls == {"tower": 1, "embedder": 1}

    def test_positions_that_are_no_whole_grid(self, model, folder, attach):
        (item,) = processed(folder, SAME[:1])
        positions = item.image_position_ids.clone()
        # A cell with one patch less, one that is empty, and padding between patches.
        positions[0, 5] = -1
        positions[0, (positions[0] // 3 == torch.tensor([2, 1])).all(-1)] = -1
        items = [image_item(item.feature, positions), item]
        plain = model.get_image_feature(items)
        assert len(plain) < 2 * len(model.get_image_feature([item]))
        attach("off", ID)
        assert torch.equal(model.get_image_feature(items), plain)

    def test_in_bf16(self, model, folder, attach):
        items = processed(folder, SAME)
        model.to(torch.bfloat16)
        try:
            plain = model.get_image_feature(items)
            attach("off", ID)
            assert plain.dtype is torch.bfloat16
            assert torch.equal(model.get_image_feature(items), plain)
        finally:
            model.to(torch.float32)
            model.load_weights(weights_of(folder))

    def test_negative_zeros_in_the_table(self, model, attach):
        embedder = model.vision_tower.patch_embedder
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
    def test_without_it_one_of_each_per_picture(self, model, folder, calls):
        model.get_image_feature(processed(folder, SAME))
        assert calls == {"tower": 6, "embedder": 6}

    def test_six_of_one_shape_are_one_and_one(self, model, folder, calls, batching):
        model.get_image_feature(processed(folder, SAME))
        assert calls == {"tower": 1, "embedder": 1}
        assert paths() == {ID: {"batched"}}

    def test_two_shapes_are_two_and_one(self, model, folder, calls, batching):
        model.get_image_feature([*larger(folder, SAME[:2]), *processed(folder, SAME[:4])])
        assert calls == {"tower": 2, "embedder": 1}

    def test_a_low_budget_makes_three_and_one(self, model, folder, calls, batching, monkeypatch):
        monkeypatch.setattr(budget, "asked_budget_bytes", lambda: 2 * frame_of(model) + 1)
        model.get_image_feature(processed(folder, SAME))
        assert calls == {"tower": 3, "embedder": 1}

    def test_no_budget_is_too_low_for_one(self, model, folder, calls, batching, monkeypatch):
        monkeypatch.setattr(budget, "asked_budget_bytes", lambda: 1)
        model.get_image_feature(processed(folder, SAME[:2]))
        assert calls == {"tower": 2, "embedder": 1}


class TestWhatIsNotForTheTower:
    def test_embedded_ones_keep_their_place(self, model, folder, attach, calls):
        first, last = processed(folder, SAME[:2])
        embedded = torch.randn(7, model.config.text_config.hidden_size)
        items = [
            first,
            image_item(embedded, None),
            last,
            image_item([embedded[:2], last.feature], [None, last.image_position_ids]),
        ]
        plain = model.get_image_feature(items)
        attach("off", ID)
        calls.clear()
        assert torch.equal(model.get_image_feature(items), plain)
        assert calls == {"tower": 1, "embedder": 1}

    def test_only_embedded_ones(self, model, calls, batching):
        embedded = torch.randn(7, model.config.text_config.hidden_size)
        assert torch.equal(model.get_image_feature([image_item(embedded, None)] * 2), torch.cat([embedded] * 2))
        assert calls == {}

    @pytest.mark.parametrize("feature", ["get_image_feature", "get_video_feature"])
    def test_nothing(self, model, batching, feature):
        found = getattr(model, feature)([])
        assert found.shape == (0, model.config.text_config.hidden_size)
        assert found.dtype is torch.float32

    def test_pixels_without_positions_meet_sglangs_error(self, model, folder, batching):
        (item,) = processed(folder, SAME[:1])
        for positions in (None, [None]):
            with pytest.raises(ValueError, match="no matching image_position_ids"):
                model.get_image_feature([image_item(item.feature, positions)])
        assert paths() == {ID: {"pixels without positions"}}

    def test_audio_is_left_alone(self, model, batching):
        with pytest.raises(ValueError, match="does not have an audio tower"):
            model.get_audio_feature([MultimodalDataItem(modality=Modality.AUDIO)])


class TestWhatIsLeftToSglang:
    """The same bits, SGLang's calls, and the reason on record."""

    def left(self, model, items, calls):
        calls.clear()
        found = model.get_image_feature(items)
        assert calls == {"tower": len(items), "embedder": len(items)}
        ((reason,),) = paths().values()
        return found, reason

    def test_a_deterministic_server(self, model, folder, calls, attach, monkeypatch):
        from sglang.srt.server_args import get_global_server_args

        items = processed(folder, SAME[:2])
        plain = model.get_image_feature(items)
        attach("off", ID)
        PATHS.__init__()
        monkeypatch.setattr(get_global_server_args(), "enable_deterministic_inference", True)
        found, reason = self.left(model, items, calls)
        assert torch.equal(found, plain)
        assert "deterministic" in reason

    def test_ranks_that_would_each_measure_their_own_memory(self, model, folder, calls, batching, monkeypatch):
        from gemma4_runtime.vision import eligible

        monkeypatch.setattr(eligible, "get_attention_tp_size", lambda: 2)
        items = processed(folder, SAME[:2])
        _, reason = self.left(model, items, calls)
        assert reason == "tensor parallel ranks without GEMMA4_TRIAGE_VISION_BUDGET_MB"
        monkeypatch.setattr(eligible, "asked_budget_bytes", lambda: 1 << 30)
        calls.clear()
        model.get_image_feature(items)
        assert calls == {"tower": 1, "embedder": 1}

    def test_a_tower_without_pooling(self, model, folder, calls, batching, monkeypatch):
        monkeypatch.setattr(model.vision_tower, "pooling_kernel_size", 1)
        items = processed(folder, SAME[:2])
        found, reason = self.left(model, items, calls)
        assert reason == "no pooling: SGLang and transformers return the padding alone"
        padding = sum(int((item.image_position_ids == -1).all(-1).sum()) for item in items)
        assert len(found) == padding

    def test_a_cuda_graph_of_the_tower(self, model, folder, calls, batching, monkeypatch):
        monkeypatch.setenv("SGLANG_VIT_ENABLE_CUDA_GRAPH", "1")
        _, reason = self.left(model, processed(folder, SAME[:1]), calls)
        assert reason == "SGLANG_VIT_ENABLE_CUDA_GRAPH"


def test_taken_off_the_model_is_sglangs_again(model, folder, attach, calls):
    attach("off", ID)
    attach("off")
    backend = model.vision_tower.encoder.layers[0].self_attn.qkv_backend
    assert backend.flatten_batch
    model.get_image_feature(processed(folder, SAME))
    assert calls == {"tower": 6, "embedder": 6}


def frame_of(model):
    """What one picture of 630 patches is counted as."""
    return budget.frame_bytes(model.vision_tower.config, PATCHES, 768, element_size=4, masked=True)


def weights_of(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors").items()
