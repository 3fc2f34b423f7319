"""What `bench serving` calls in a server: weights drawn and moved, the encoder timed. On SGLang's vision toy."""

import json

import pytest
import torch

from gemma4_repro.serving_bench import draw, encoder
from gemma4_repro.serving_bench.agree import difference
from gemma4_repro.serving_bench.loads import ENCODER_FILE, LOADS
from gemma4_repro.serving_bench.plan import LOADERS

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

VISION = ("vision_tower", "embed_vision")


@pytest.fixture
def kept(vision_model):
    """Yield the model, whose weights are put back."""
    before = {name: parameter.detach().clone() for name, parameter in vision_model.named_parameters()}
    buffers = {name: buffer.detach().clone() for name, buffer in vision_model.named_buffers()}
    yield vision_model
    with torch.no_grad():
        for name, parameter in vision_model.named_parameters():
            parameter.copy_(before[name])
        for name, buffer in vision_model.named_buffers():
            buffer.copy_(buffers[name])


@pytest.fixture
def encode(kept, monkeypatch, tmp_path):
    monkeypatch.setenv(ENCODER_FILE, str(tmp_path / "lines"))

    def run():
        encoder.encode_6(kept, [])
        return json.loads((tmp_path / "lines").read_text().splitlines()[-1])

    return run


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_every_weight_is_drawn_and_the_same_each_time(kept):
    before = weights(kept)
    draw.draw(kept, [])
    first = weights(kept)
    assert not [name for name in first if torch.equal(first[name], before[name])]
    draw.move_norms(kept, [])
    moved = weights(kept)
    changed = {name for name in moved if not torch.equal(moved[name], first[name])}
    assert changed
    assert all("norm" in name for name in changed)
    assert any(name.startswith(VISION) for name in changed)
    assert any(not name.startswith(VISION) for name in changed)
    draw.draw(kept, [])
    assert all(torch.equal(value, first[name]) for name, value in weights(kept).items())


@pytest.mark.slow
def test_an_encoders_line(encode):
    line = encode()
    assert (line["pictures"], line["soft_tokens"]) == (6, 6 * 266)
    assert len(line["seconds"]) == 5
    assert min(line["seconds"]) > 0
    assert len(line["values"]) == 512
    assert encode()["values"] == line["values"]


@pytest.mark.slow
def test_its_values_tell_a_weight_that_has_moved(encode, kept):
    draw.draw(kept, [])
    drawn = encode()["values"]
    draw.move_norms(kept, [])
    assert 0 < difference([encode()["values"]], [drawn]) < 0.1


def test_servers_can_find_what_they_are_to_call():
    found = [*LOADERS.values(), *(shape.encoder for load in LOADS.values() for shape in load.shapes if shape.encoder)]
    assert len(found) == 5
    for path in found:
        module, _, name = path.rpartition(".")
        assert callable(getattr({"draw": draw, "encoder": encoder}[module.rpartition(".")[2]], name))
