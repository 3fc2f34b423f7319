"""`capped-logits` in SGLang's own LogitsProcessor: whose lines end with it, and what they give."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers import logits_processor
from sglang.srt.layers.logits_processor import LogitsProcessor

import vision_world
from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.fusion.capped_logits import OP
from gemma4_runtime.fusion.paths import PATHS, REFERENCE
from gemma4_runtime.host.torch_forms import softcap_inplace
from text_layers import sessions

# 0.5.23 has it itself.
pytestmark = pytest.mark.releases("0.5.13.post1")
VOCABULARY, WIDTH, ROWS = 96, 16, 5


@pytest.fixture(scope="module")
def rank():
    with ExitStack() as stack:
        yield stack.enter_context(vision_world.one_rank(toy_path("toy-e4b")))


@pytest.fixture
def processor(rank, monkeypatch):
    # The interpreter has no libdevice.tanh, which the host engine stands in for.
    monkeypatch.setattr(logits_processor, "fused_softcap", softcap_inplace)
    return LogitsProcessor(SimpleNamespace(vocab_size=VOCABULARY, final_logit_softcapping=30.0))


@pytest.fixture
def start(monkeypatch, tmp_path):
    with sessions(monkeypatch, tmp_path, SimpleNamespace(layers=[]), lambda: None) as begin:
        yield begin


@torch.no_grad()
def logits(processor, dtype=torch.bfloat16, buffer=None, padding=0):
    random = torch.Generator().manual_seed(1)
    head = SimpleNamespace(weight=(torch.randn(VOCABULARY + padding, WIDTH, generator=random) * 9).to(dtype))
    hidden = torch.randn(ROWS, WIDTH, generator=random).to(dtype)
    return processor._get_logits(hidden, head, SimpleNamespace(next_token_logits_buffer=buffer))


def paths():
    return PATHS.document().get(OP, {})


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_bits_are_those_of_the_copy_and_the_cap(processor, start, dtype, padding):
    plain = logits(processor, dtype, padding=padding)
    assert 20 < plain.abs().max() < 30.001
    start(OP)
    found = logits(processor, dtype, padding=padding)
    assert torch.equal(found, plain)
    assert found.dtype == torch.float32
    assert found.shape == (ROWS, VOCABULARY)
    assert paths() == {REFERENCE: 1}


def test_the_buffer_of_a_graph_is_filled_and_returned(processor, start):
    plain, buffer = logits(processor), torch.full((ROWS, VOCABULARY), torch.nan)
    start(OP)
    assert logits(processor, buffer=buffer) is buffer
    assert torch.equal(buffer, plain)


@pytest.mark.parametrize("cap", [None, 0.0])
def test_a_model_without_a_cap_is_not_recorded(processor, start, cap):
    processor.final_logit_softcapping = cap
    plain = logits(processor)
    start(OP)
    assert torch.equal(logits(processor), plain)
    assert paths() == {}


def test_logits_of_fp32_are_capped_in_place_by_sglang(processor, start):
    plain = logits(processor, torch.float32)
    start(OP)
    assert torch.equal(logits(processor, torch.float32), plain)
    assert paths() == {"logits that are fp32 already": 1}


def test_a_buffer_of_another_shape_is_sglangs_to_fill(processor, start):
    buffer = torch.zeros(1, ROWS, VOCABULARY)
    plain = logits(processor, buffer=buffer.clone())
    start(OP)
    assert torch.equal(logits(processor, buffer=buffer), plain)
    assert set(paths()) == {f"a buffer of [1, {ROWS}, {VOCABULARY}] for logits of [{ROWS}, {VOCABULARY}]"}


def test_a_server_that_must_not_take_it(processor, start, monkeypatch):
    plain = logits(processor)
    start(OP)
    monkeypatch.setattr("gemma4_runtime.fusion.eligible.on_host_engine", lambda: False)
    assert torch.equal(logits(processor), plain)
    assert paths() == {"hidden states on cpu": 1}


def test_with_it_nothing_is_capped_twice_and_without_it_sglang_caps(processor, start, monkeypatch):
    asked = []
    monkeypatch.setattr(logits_processor, "fused_softcap", lambda *given: asked.append(1) or softcap_inplace(*given))
    start(OP)
    logits(processor)
    assert asked == []
    start()
    logits(processor)
    assert asked == [1]
