"""Pictures and video frames through the real engine, with and without the batched vision encoder."""

import pytest

import vision_load
from engine_records import FILE
from gemma4_repro.toys.vision import picture

# Of vision-batching, which is not ported; test_diff_later_release_live.py holds pictures on 0.5.23.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

ID, EXACT = "vision-batching", "vision-hf-exact"
SIZES = [(300, 200), (320, 320), (100, 400), (64, 64), (500, 120), (200, 300), (240, 240)]
# A picture of 630 patches is counted as 12.3 MiB: two fit, and not a third.
BUDGET = {"GEMMA4_TRIAGE_VISION_BUDGET_MB": "30"}
ARMS = {
    "none": {"GEMMA4_TRIAGE_PATCHES": "none"},
    "batched": {"GEMMA4_TRIAGE_PATCHES": ID},
    "exact, in chunks": {"GEMMA4_TRIAGE_PATCHES": f"{ID},{EXACT}"} | BUDGET,
}
WORDS = "bal bel bil bol"
NEW_TOKENS = 4


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    found = [folder / f"{number}.png" for number in range(len(SIZES))]
    for seed, (path, size) in enumerate(zip(found, SIZES, strict=True)):
        picture(*size, seed).save(path)
    return [str(path) for path in found]


def batches(paths):
    image = "<|image|>"
    return {
        "one, two and no picture": [
            {"text": f"{WORDS} {image} bal", "images": paths[:1]},
            {"text": f"{image} {WORDS} {image}", "images": paths[1:3]},
            {"text": f"{WORDS} {WORDS}"},
        ],
        "in the cache": [
            {"text": f"bel {image} {image}", "images": paths[1:3]},
            {"text": f"bul {image} {WORDS}", "images": paths[3:4]},
        ],
        "processor_output": [{"text": f"{image} {WORDS} {image}", "images": paths[4:6], "as": "processor_output"}],
        "precomputed_embedding": [{"text": f"bol {image}", "images": paths[6:], "as": "precomputed_embedding"}],
        "frames of a video": [{"text": "<|video|> bal", "video": [paths[0]]}],
    }


@pytest.fixture(scope="module")
def ran(engine_forks, tmp_path_factory, vision_toy, paths, engine_arguments):
    """Return what came out, by arm and batch."""
    results = {}
    for arm, environment in ARMS.items():
        asked = batches(paths)
        if arm != "none":
            # SGLang's attention on a CPU asserts one frame per call, and its scheduler would be gone.
            asked["more frames"] = [{"text": "<|video|> bal", "video": [paths[6]] * 3}]
        folder = tmp_path_factory.mktemp("engine")
        spec = vision_load.spec_of(engine_arguments | {"model_path": str(vision_toy)}, asked.values(), NEW_TOKENS)
        done = engine_forks.run(folder, environment | {FILE: str(folder / "calls")}, 240, spec)
        assert done.returncode == 0, done.log[-4000:]
        results[arm] = vision_load.read(asked, done.outputs[0])
    return results


NAMES = list(batches([""] * 7))


@pytest.mark.parametrize("name", NAMES)
def test_tokens_and_logprobs_are_those_without_it(ran, name):
    """They are equal to the bit, because both arms prefill a batch's requests in one order: see `prefill_together`."""
    plain, ours = ran["none"][name]["answers"], ran["batched"][name]["answers"]
    assert all("tokens" in answer for answer in plain), plain
    assert ours == plain
    assert all(len(answer["tokens"]) == NEW_TOKENS for answer in ours)


def test_pictures_change_what_is_said(ran):
    """Else none of this would show anything."""
    exact, plain = (ran[arm]["one, two and no picture"]["answers"] for arm in ("exact, in chunks", "none"))
    assert [a["logprobs"] == b["logprobs"] for a, b in zip(exact, plain, strict=True)] == [False, False, True]


def test_the_tower_is_called_for_the_batch(ran):
    calls = {arm: {name: ran[arm][name]["calls"] for name in NAMES} for arm in ARMS}
    assert list(calls["none"].values()) == [[1, 1, 1], [1], [1, 1], [], [1]]
    assert list(calls["batched"].values()) == [[3], [1], [2], [], [1]]
    # Packed: two pictures are one row, and the third another.
    assert list(calls["exact, in chunks"].values()) == [[1, 1], [1], [1], [], [1]]


def test_frames_of_a_video_are_a_batch(ran):
    assert ran["batched"]["more frames"]["calls"] == [3]
    (answer,) = ran["batched"]["more frames"]["answers"]
    assert len(answer["tokens"]) == NEW_TOKENS


def test_which_path_was_taken_is_on_record(ran):
    assert ran["none"]["paths"] == {}
    assert ran["batched"]["paths"].keys() == {ID}
    assert ran["batched"]["paths"][ID].keys() == {"batched"}
    assert ran["exact, in chunks"]["paths"][EXACT].keys() == {"padding left out"}
