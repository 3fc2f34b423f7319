"""The vision tower without padding against transformers', on the same weights and pictures, in fp32 on a CPU."""

import pytest
import torch
from transformers import AutoModelForImageTextToText

from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.releases import BASE, installed_or_base
from vision_world import image_item, processed, video_item

ID, BATCHING = "vision-hf-exact", "vision-batching"
SIZES = [(300, 200), (320, 320), (100, 400), (64, 64)]
# Soft tokens are of the order of 1; other orders of summation give some 1e-6.
TOLERANCE = 2e-5
IS_BASE = installed_or_base() == BASE
# vision-batching attaches to the base release alone.
TOGETHER = [(BATCHING,)] if IS_BASE else []
WAYS = [(ID,), *((ID, *ids) for ids in TOGETHER)]

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture(scope="module")
def transformers_model(vision_toy):
    return AutoModelForImageTextToText.from_pretrained(vision_toy, dtype=torch.float32).eval().model


@pytest.fixture(autouse=True)
def nothing_counted():
    PATHS.__init__()
    yield
    PATHS.__init__()


def of_transformers(model, items):
    with torch.no_grad():
        return [joined(model.get_image_features(item.feature, item.image_position_ids)) for item in items]


def joined(features):
    """Return the soft tokens of all pictures or frames: a later transformers has them one by one."""
    found = features.pooler_output
    return found if torch.is_tensor(found) else torch.cat(tuple(found))


def furthest(found, wanted):
    return (found - wanted).abs().max().item()


@pytest.mark.parametrize("ids", [(), *TOGETHER])
def test_without_it_the_first_soft_token_of_each_picture_is_another(
    vision_model, vision_toy, transformers_model, attach, ids
):
    items = processed(vision_toy, SIZES)
    attach("off", *ids)
    wanted = of_transformers(transformers_model, items)
    found = vision_model.get_image_feature(items).split([len(tokens) for tokens in wanted])
    for mine, theirs in zip(found, wanted, strict=True):
        assert furthest(mine[0], theirs[0]) > 0.5
        assert furthest(mine[1:], theirs[1:]) < TOLERANCE


@pytest.mark.parametrize("ids", WAYS)
def test_with_it_they_are_those_of_transformers(
    vision_model, vision_toy, transformers_model, attach, vision_calls, ids
):
    items = [*processed(vision_toy, SIZES), *processed(vision_toy, SIZES[:2], max_soft_tokens=280)]
    attach("off", *ids)
    found = vision_model.get_image_feature(items)
    assert furthest(found, torch.cat(of_transformers(transformers_model, items))) < TOLERANCE
    assert vision_calls == ({"tower": 2, "embedder": 1} if BATCHING in ids else {"tower": 6, "embedder": 1})
    assert PATHS.document()[ID].keys() == {"padding left out"}


@pytest.mark.slow
@pytest.mark.parametrize("ids", WAYS)
def test_frames_of_a_video(vision_model, vision_toy, transformers_model, attach, ids):
    frames = processed(vision_toy, SIZES[:3])
    pixels = torch.cat([frame.feature for frame in frames])[None]
    positions = torch.cat([frame.image_position_ids for frame in frames])[None]
    attach("off", *ids)
    found = vision_model.get_video_feature([video_item(pixels, positions)])
    # A later transformers takes the frames of all videos in a row, and how many each has.
    given = (pixels, positions) if IS_BASE else (pixels[0], positions[0], torch.tensor([len(frames)]))
    with torch.no_grad():
        wanted = joined(transformers_model.get_video_features(*given))
    assert furthest(found, wanted) < TOLERANCE


@pytest.mark.parametrize("ids", WAYS)
def test_what_is_no_picture(vision_model, vision_toy, transformers_model, attach, ids):
    (item,) = processed(vision_toy, SIZES[:1])
    embedded = torch.randn(3, vision_model.config.text_config.hidden_size)
    attach("off", *ids)
    found = vision_model.get_image_feature([image_item(embedded, None), item])
    assert torch.equal(found[:3], embedded)
    assert furthest(found[3:], of_transformers(transformers_model, [item])[0]) < TOLERANCE
    assert vision_model.get_image_feature([]).shape == (0, embedded.shape[1])
    with pytest.raises(ValueError, match="no matching image_position_ids"):
        vision_model.get_image_feature([image_item(item.feature, None)])


@pytest.mark.slow
@pytest.mark.parametrize("ids", WAYS)
def test_in_bf16_pooling_is_in_fp32(vision_model, vision_toy, transformers_model, attach, ids):
    """Held against fp32, beside transformers' own bf16."""
    items = processed(vision_toy, SIZES)
    wanted = torch.cat(of_transformers(transformers_model, items))
    weights = {name: value.clone() for name, value in vision_model.state_dict().items()}
    transformers_model.to(torch.bfloat16)
    vision_model.to(torch.bfloat16)
    try:
        theirs = torch.cat(of_transformers(transformers_model, items)).float()
        attach("off", *ids)
        found = vision_model.get_image_feature(items).float()
    finally:
        transformers_model.to(torch.float32)
        vision_model.to(torch.float32).load_state_dict(weights)
    error, own = ((one - wanted).pow(2).mean().sqrt().item() for one in (found, theirs))
    assert 0 < own < 0.1
    assert error < 1.2 * own


@pytest.mark.slow
def test_attention_that_takes_no_bounds_is_sglangs(vision_model, vision_toy, attach, monkeypatch, vision_calls):
    class VisionOther(torch.nn.Module):
        """What an SDPA backend is not."""

        def __init__(self, own):
            super().__init__()
            self.flatten_batch, self.forward = False, own

    items = processed(vision_toy, SIZES[:2])
    plain = vision_model.get_image_feature(items)
    attention = vision_model.vision_tower.encoder.layers[0].self_attn
    own = attention.qkv_backend
    attention.qkv_backend = VisionOther(own.forward)
    try:
        for ids in WAYS:
            attach("off", *ids)
            PATHS.__init__()
            own.flatten_batch = BATCHING not in ids
            assert torch.equal(vision_model.get_image_feature(items), plain)
            assert PATHS.document()[ID].keys() == {"attention by VisionOther"}
    finally:
        attention.qkv_backend, own.flatten_batch = own, True
