"""Images of several requests, through SGLang's own embedding routine and its cache."""

import pytest
import torch
from PIL import Image
from sglang.srt.managers import mm_utils
from sglang.srt.managers.schedule_batch import Modality, MultimodalInputs
from transformers import AutoProcessor

from vision_world import image_item, processed, video_item

# vision-batching is not ported: 0.5.23 embeds pictures in managers/mm_schedule.py.
pytestmark = pytest.mark.releases("0.5.13.post1")

ID = "vision-batching"
SIZES = [(300, 200), (320, 320), (100, 400), (64, 64), (500, 120), (200, 300)]
ROOM = 1 << 26
BETWEEN = 3  # text tokens around each picture


@pytest.fixture
def cache(monkeypatch):
    """Return a new one of SGLang's for each side, with so much room."""

    def make(size=ROOM):
        monkeypatch.setattr(mm_utils, "embedding_cache", mm_utils.MultiModalStaticCache(size))
        return mm_utils.embedding_cache

    make()
    return make


def soft_tokens(item):
    return int((item.image_position_ids != -1).all(-1).sum()) // 9


def request(items):
    """Return the items with placeholders behind each other, and the token ids of the whole prompt."""
    ids: list[int] = []
    for item in items:
        item.set_pad_value()
        ids += [7] * BETWEEN
        item.offsets = [(len(ids), len(ids) + soft_tokens(item) - 1)]
        ids += [item.pad_value] * soft_tokens(item)
    return MultimodalInputs(mm_items=items), [*ids, 7]


def embed(model, requests, chunks=None):
    """[T, H]: input embeddings of the batch. chunks: (prefix, extend) per request; all of it by default."""
    chunks = chunks or [(0, len(ids)) for _, ids in requests]
    ids = torch.tensor(
        [
            one
            for (_, ids), (prefix, extend) in zip(requests, chunks, strict=True)
            for one in ids[prefix : prefix + extend]
        ]
    )
    found, _ = mm_utils.embed_mm_inputs(
        mm_inputs_list=[inputs for inputs, _ in requests],
        extend_prefix_lens=[prefix for prefix, _ in chunks],
        extend_seq_lens=[extend for _, extend in chunks],
        input_ids=ids,
        input_embedding=model.get_input_embeddings(),
        data_embedding_func_mapping={
            Modality.IMAGE: model.get_image_feature,
            Modality.VIDEO: model.get_video_feature,
        },
    )
    return found


def batch(folder):
    """Requests with one, three and two pictures."""
    items = processed(folder, SIZES)
    return [request(items[:1]), request(items[1:4]), request(items[4:])]


def both(model, cache, attach, calls, make_requests, chunks=None, room=ROOM):
    """Embeddings without and with it, each on a new cache, and the calls that each took."""
    sides = []
    for ids in ((), (ID,)):
        attach("off", *ids)
        held = cache(room)
        calls.clear()
        sides.append((embed(model, make_requests(), chunks), dict(calls), held))
    return sides


def test_one_call_for_the_batch(vision_model, vision_toy, cache, attach, vision_calls):
    plain, ours = both(vision_model, cache, attach, vision_calls, lambda: batch(vision_toy))
    assert torch.equal(ours[0], plain[0])
    assert plain[1] == {"tower": 6, "embedder": 6}
    assert ours[1] == {"tower": 1, "embedder": 1}


def test_the_cache_holds_the_same_and_no_whole_batch(vision_model, vision_toy, cache, attach, vision_calls):
    (_, _, plain), (_, _, ours) = both(vision_model, cache, attach, vision_calls, lambda: batch(vision_toy))
    assert list(ours.mm_cache) == list(plain.mm_cache)
    assert ours.current_size == plain.current_size

    def held(one):
        return sum(entry.embedding.untyped_storage().nbytes() for entry in one.mm_cache.values())

    assert all(torch.equal(ours.mm_cache[key].embedding, plain.mm_cache[key].embedding) for key in ours.mm_cache)
    assert held(ours) == ours.current_size
    assert held(plain) > plain.current_size  # views, each of which is counted alone


def test_a_second_batch_finds_them_there(vision_model, vision_toy, cache, attach, vision_calls):
    attach("off", ID)
    first = embed(vision_model, batch(vision_toy))
    vision_calls.clear()
    assert torch.equal(embed(vision_model, batch(vision_toy)), first)
    assert vision_calls == {}


@pytest.mark.parametrize("room", [0, 20_000, 40_000])
def test_a_cache_without_room(vision_model, vision_toy, cache, attach, vision_calls, room):
    plain, ours = both(vision_model, cache, attach, vision_calls, lambda: batch(vision_toy), room=room)
    assert torch.equal(ours[0], plain[0])
    assert ours[1] == {"tower": 1, "embedder": 1}


def test_what_was_there_and_had_to_go(vision_model, vision_toy, cache, attach, vision_calls):
    """It was found when the batch was looked at, and is gone when SGLang comes to its request."""
    items = processed(vision_toy, SIZES)
    wanted = torch.cat([vision_model.get_image_feature([item]) for item in items])
    attach("off", ID)
    room = max(soft_tokens(item) for item in items) * wanted.shape[1] * 4
    cache(room)
    embed(vision_model, [request(items[5:])])
    found = embed(vision_model, [request(items[:5]), request(items[5:])])
    rows = torch.tensor([one != 7 for _, ids in (request(items[:5]), request(items[5:])) for one in ids])
    assert torch.equal(found[rows], wanted)


@pytest.mark.parametrize("extend", [1, 40, 66, 70, 130, 190])
def test_chunks_of_a_prefill_encode_what_they_reach(vision_model, vision_toy, cache, attach, vision_calls, extend):
    requests = batch(vision_toy)
    longest = max(len(ids) for _, ids in requests)
    plain, ours = [], []
    for ids, side in (((), plain), ((ID,), ours)):
        attach("off", *ids)
        cache()
        for start in range(0, longest, extend):
            vision_calls.clear()
            chunks = [(min(start, len(ids)), max(0, min(extend, len(ids) - start))) for _, ids in requests]
            side.append((embed(vision_model, requests, chunks), dict(vision_calls)))
    for (mine, my_calls), (theirs, their_calls) in zip(ours, plain, strict=True):
        assert torch.equal(mine, theirs)
        assert my_calls.get("tower", 0) == min(1, their_calls.get("tower", 0))


def test_the_same_picture_in_two_requests_is_encoded_once(vision_model, vision_toy, cache, attach, vision_calls):
    def requests():
        return [request(processed(vision_toy, SIZES[:2])), request(processed(vision_toy, SIZES[:1]))]

    images = []
    hook = vision_model.vision_tower.encoder.register_forward_hook(lambda _, __, out: images.append(len(out)))
    plain, ours = both(vision_model, cache, attach, vision_calls, requests)
    hook.remove()
    assert torch.equal(ours[0], plain[0])
    assert images == [1, 1, 2]


def test_pictures_that_hash_alike_are_each_their_own(vision_model, vision_toy, cache, attach, vision_calls):
    """SGLang hashes pixels without positions: black pictures of any shape are one to it, within a request not yet."""

    def requests():
        found = AutoProcessor.from_pretrained(vision_toy).image_processor(
            [Image.new("RGB", size) for size in ((300, 200), (200, 300), (100, 400))], return_tensors="pt"
        )
        pairs = zip(found["pixel_values"], found["image_position_ids"], strict=True)
        return [request([image_item(pixels[None], positions[None]) for pixels, positions in pairs])]

    plain, ours = both(vision_model, cache, attach, vision_calls, requests)
    assert len({item.hash for inputs, _ in requests() for item in inputs.mm_items}) == 1
    assert torch.equal(ours[0], plain[0])


def test_videos_with_a_placeholder_per_frame(vision_model, vision_toy, cache, attach, vision_calls):
    def requests():
        frames, made = processed(vision_toy, SIZES), []
        for mine in (frames[:2], frames[2:5]):
            video = video_item(
                torch.cat([frame.feature for frame in mine])[None],
                torch.cat([frame.image_position_ids for frame in mine])[None],
            )
            video.set_pad_value()
            ids, video.offsets = [], []
            for frame in mine:
                ids += [7] * BETWEEN
                video.offsets.append((len(ids), len(ids) + soft_tokens(frame) - 1))
                ids += [video.pad_value] * soft_tokens(frame)
            made.append((MultimodalInputs(mm_items=[video]), [*ids, 7]))
        return made

    with pytest.raises(AssertionError, match="bsz must be 1"):
        embed(vision_model, requests())
    frames = torch.cat([vision_model.get_image_feature([frame]) for frame in processed(vision_toy, SIZES[:5])])
    attach("off", ID)
    cache()
    vision_calls.clear()
    made = requests()
    rows = torch.tensor([one != 7 for _, ids in made for one in ids])
    found = embed(vision_model, made)
    assert torch.equal(found[rows], frames)
    assert vision_calls == {"tower": 1, "embedder": 1}
    assert torch.equal(embed(vision_model, made), found)
    assert vision_calls == {"tower": 1, "embedder": 1}


def test_placeholders_that_do_not_fit_meet_sglangs_error(vision_model, vision_toy, cache, attach):
    inputs, ids = request(processed(vision_toy, SIZES[:2]))
    start, end = inputs.mm_items[1].offsets[0]
    inputs.mm_items[1].offsets = [(start, end + 1)]
    ids[-1] = ids[-2]
    errors = []
    for on in ((), (ID,)):
        attach("off", *on)
        cache()
        with pytest.raises(RuntimeError) as caught:
            embed(vision_model, [(inputs, list(ids))])
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_embeddings_that_were_computed_elsewhere(vision_model, vision_toy, cache, attach, vision_calls):
    """SGLang's format precomputed_embedding: no tower at all."""
    (item,) = processed(vision_toy, SIZES[:1])
    inputs, ids = request([item])
    item.precomputed_embeddings, item.feature = torch.randn(soft_tokens(item), 64), None
    attach("off", ID)
    found = embed(vision_model, [(inputs, ids)])
    assert torch.equal(found[BETWEEN:-1], item.precomputed_embeddings)
    assert vision_calls == {}


def test_functions_of_other_models_are_called_as_ever(vision_model, vision_toy, cache, attach):
    requests, asked = batch(vision_toy), []

    def theirs(items):
        asked.append(len(items))
        return torch.ones(sum(soft_tokens(item) for item in items), 64)

    attach("off", ID)
    found = mm_utils.embed_mm_inputs(
        mm_inputs_list=[inputs for inputs, _ in requests],
        extend_prefix_lens=[0] * 3,
        extend_seq_lens=[len(ids) for _, ids in requests],
        input_ids=torch.tensor([one for _, ids in requests for one in ids]),
        input_embedding=vision_model.get_input_embeddings(),
        data_embedding_func_mapping={Modality.IMAGE: theirs},
    )
    assert asked == [1, 3, 2]
    assert found[0].eq(1).all(-1).sum() == sum(soft_tokens(item) for inputs, _ in requests for item in inputs.mm_items)
