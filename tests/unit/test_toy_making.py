"""The commands that make and measure the toys, from the first draw to the model card, with two steps of training."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_repro.toys.locate import ASSISTANT_NAME, EXPERTS_ASSISTANT_NAME, EXPERTS_NAME, TARGET_NAME

# The toys are measured by transformers' assisted generation, whose classes 5.19 has changed.
pytestmark = pytest.mark.releases("0.5.13.post1")

SEED = 5


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the folder in which `make --only` has made every model, each after what it is for, and what it printed."""
    torch = pytest.importorskip("torch", reason="the toys run with torch")
    pytest.importorskip("transformers.models.gemma4", reason="needs a transformers that has Gemma-4")
    from gemma4_repro.toys import make, measure_drafts, measure_target, train_assistant, train_experts, train_target

    output, threads = tmp_path_factory.mktemp("toys"), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for module in (train_target, train_assistant):
            patch.setattr(module.train, "__defaults__", (_short(module.STAGE),))
        (stages,) = train_experts.train.__defaults__
        patch.setattr(train_experts.train, "__defaults__", (tuple(map(_short, stages)),))
        patch.setattr(train_assistant, "EXPERTS_STAGE", _short(train_assistant.EXPERTS_STAGE))
        for module in (measure_target, measure_drafts):
            patch.setattr(module, "NEW_TOKENS", 6)
            patch.setattr(module, "PROMPT_TOKENS", 20)
        patch.setattr(measure_target, "PROMPTS", 2)
        for kind in make.MAKERS:
            patch.setattr("sys.argv", ["make", "--output", str(output), "--only", kind, "--seed", str(SEED)])
            make.main()
        yield output
    torch.set_num_threads(threads)


def _short(stage):
    return replace(stage, steps=2, batch=2, length=40)


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", [TARGET_NAME, ASSISTANT_NAME, EXPERTS_NAME, EXPERTS_ASSISTANT_NAME])
def test_a_folder_has_weights_that_all_may_read_and_says_how_they_were_made(made, name):
    folder = made / name
    (weights,) = folder.glob("*.safetensors")
    assert weights.stat().st_mode & 0o777 == 0o644
    assert not [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pkl")]
    training = read(folder / "training.json")
    assert (training["seed"], training["threads"]) == (SEED, 1)
    assert all(stage["steps"] == 2 for stage in training["stages"])
    assert training["versions"].keys() == {"torch", "transformers", "numpy", "safetensors"}
    card = (folder / "README.md").read_text()
    assert training["command"] in card
    for stage in training["stages"]:
        assert stage["name"] in card


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        (TARGET_NAME, ["target", "assistant"]),
        (ASSISTANT_NAME, ["target", "assistant"]),
        (EXPERTS_NAME, ["target", "routing"]),
        (EXPERTS_ASSISTANT_NAME, ["assistant"]),
    ],
)
def test_its_stages_are_those_that_made_it(made, name, stages):
    assert [stage["name"] for stage in read(made / name / "training.json")["stages"]] == stages


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(TARGET_NAME, "F32"), (ASSISTANT_NAME, "F32"), (EXPERTS_NAME, "BF16"), (EXPERTS_ASSISTANT_NAME, "BF16")],
)
def test_weights_and_configuration_name_one_dtype(made, name, dtype):
    from safetensors import safe_open

    (weights,) = (made / name).glob("*.safetensors")
    with safe_open(str(weights), "pt") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {dtype}  # noqa: SIM118
    config = read(made / name / "config.json")
    assert config["dtype"] == {"F32": "float32", "BF16": "bfloat16"}[dtype]


def test_what_was_measured_stands_beside_both_of_a_pair_in_four_digits(made):
    numbers = read(made / TARGET_NAME / "measured.json")
    assert read(made / ASSISTANT_NAME / "measured.json") == numbers
    assert (numbers["prompts"], numbers["new_tokens"]) == (2, 6)
    shares = [*numbers["next_token_accuracy"].values(), *numbers["accept_length"].values()]
    assert shares == [round(share, 4) for share in shares]
    # Two steps teach nothing: one token of each verification is the target's own, and hardly a draft is right.
    assert all(1 <= length < 1.5 for length in numbers["accept_length"].values())


def test_another_measurement_of_the_same_weights_says_the_same(made, monkeypatch, capsys):
    from gemma4_repro.toys import measure

    path = made / EXPERTS_NAME / "measured.json"
    before = read(path)
    path.unlink()
    monkeypatch.setattr("sys.argv", ["measure", "--toys", str(made), "--only", "26b"])
    measure.main()
    assert read(path) == before
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :]) == before
