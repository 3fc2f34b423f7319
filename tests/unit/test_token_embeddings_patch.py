"""`token-embeddings` in SGLang's own toy-e4b: what its layers are given, and when SGLang's own lines look ids up."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models.gemma3_causal import Gemma3TextScaledWordEmbedding
from sglang.srt.models.gemma4_causal import Gemma4ForCausalLM

import vision_world
from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.fusion.paths import PATHS, REFERENCE
from gemma4_runtime.optimisations.token_embeddings import OP
from text_layers import sessions

# It is not ported, as no layer op is.
pytestmark = pytest.mark.releases("0.5.13.post1")


@pytest.fixture(scope="module", params=["toy-e4b", "toy-26b"])
def rank(request):
    with ExitStack() as stack:
        yield stack.enter_context(vision_world.one_rank(toy_path(request.param)))


class Given(torch.nn.Module):
    """Stands for the processor of logits, and gives back what it is given."""

    def forward(self, ids, hidden, head, batch, captured):
        return ids, hidden, head, captured


@pytest.fixture
def model(rank, monkeypatch):
    """Return a multimodal model without layers; `seen` is what its text model begins with."""
    made = vision_world.load_model(rank)
    text, seen = made.language_model, []
    monkeypatch.setattr(text, "start_layer", 0)
    monkeypatch.setattr(text, "end_layer", 0)
    text.norm = torch.nn.Identity()
    projected = type(text).project_per_layer_inputs

    def project(embeds, per_layer=None):
        seen.append((embeds, per_layer))
        return projected(text, embeds, per_layer)

    text.project_per_layer_inputs = project
    made.logits_processor = Given()
    made.seen = seen
    return made


@pytest.fixture
def start(monkeypatch, tmp_path, model):
    with sessions(monkeypatch, tmp_path, model.language_model, lambda: None) as begin:
        yield begin


def ids_of(model):
    config, text = model.config, model.language_model
    last = text.vocab_size - 1
    special = [config.image_token_id, config.video_token_id, config.audio_token_id, config.text_config.pad_token_id]
    known = [one for one in special if one is not None and one <= last]
    assert len(known) >= 3
    return torch.tensor([0, last, text.vocab_size_per_layer_input - 1, *known, 65])


def batch_of(mode=ForwardMode.DECODE, **changes):
    return SimpleNamespace(
        **{"forward_mode": mode, "input_embeds": None, "mm_inputs": None, "contains_mm_inputs": lambda: False}
        | {"contains_image_inputs": lambda: False}
        | changes
    )


@torch.no_grad()
def forward(model, batch=None, ids=None, **named):
    """(what the processor was given, what the text model's layers begin with, positions)."""
    ids = ids_of(model) if ids is None else ids
    positions = torch.arange(len(ids))
    model.seen.clear()
    answer = model.forward(ids, positions, batch or batch_of(), **named)
    ((embeds, per_layer),) = model.seen
    return answer, embeds, per_layer, positions


def text_only(model):
    """Return a text-only model of the same text model."""
    made = Gemma4ForCausalLM.__new__(Gemma4ForCausalLM)
    torch.nn.Module.__init__(made)
    made.config, made.pp_group, made.capture_aux_hidden_states = model.config.text_config, model.pp_group, False
    made.model, made.lm_head, made.logits_processor = model.language_model, model.lm_head, model.logits_processor
    return made


def same(one, other):
    assert (one is None) == (other is None)
    assert one is None or torch.equal(one, other)


def paths():
    return PATHS.document().get(OP, {})


@pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_layers_begin_with_the_same_bits(model, start, mode, dtype):
    model.language_model.embed_tokens.to(dtype)
    if model.language_model.embed_tokens_per_layer is not None:
        model.language_model.embed_tokens_per_layer.to(dtype)
        model.language_model.project_per_layer_inputs = lambda e, p=None: model.seen.append((e, p))
    (_, hidden, head, captured), embeds, per_layer, positions = forward(model, batch_of(mode))
    start(OP)
    (_, found, its_head, its_captured), rows, its_per_layer, moved = forward(model, batch_of(mode))
    assert paths() == {REFERENCE: 1}
    same(rows, embeds)
    same(its_per_layer, per_layer)
    same(found, hidden)
    assert embeds.float().std() > 0.1
    assert its_head is head
    assert its_captured is captured is None
    assert torch.equal(moved, positions)


def test_positions_are_moved_in_place_or_not_as_sglang_does(model, start):
    start(OP)
    assert forward(model)[-1].tolist()[:3] == [1, 2, 3]
    with envs.SGLANG_GEMMA_OUT_OF_PLACE_POSITION_MUTATION.override(True):
        assert forward(model)[-1].tolist()[:3] == [0, 1, 2]


def test_captured_hidden_states_are_handed_on(model, start):
    model.capture_aux_hidden_states = True
    model.language_model.layers_to_capture = [model.language_model.config.num_hidden_layers]
    (*_, captured), embeds, *_ = forward(model)
    start(OP)
    (*_, found), *_ = forward(model)
    assert torch.equal(found[0], captured[0])
    assert torch.equal(captured[0], embeds)


def test_a_text_model_alone_is_given_what_it_would_look_up(model, start):
    text = text_only(model)

    def alone():
        model.seen.clear()
        _, hidden, *_ = text.forward(ids_of(model), torch.arange(5), batch_of())
        return *model.seen[0], hidden

    plain = alone()
    start(OP)
    for one, other in zip(alone(), plain, strict=True):
        same(one, other)
    assert paths() == {REFERENCE: 1}


@pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.MIXED, ForwardMode.IDLE])
def test_a_prefill_is_sglangs_and_not_recorded(model, start, mode):
    plain = forward(model, batch_of(mode))
    start(OP)
    same(forward(model, batch_of(mode))[1], plain[1])
    assert paths() == {}


def test_embeddings_that_are_given_are_taken(model, start):
    start(OP)
    given = torch.randn(5, model.language_model.config.hidden_size)
    model.seen.clear()
    text_only(model).forward(None, torch.arange(5), batch_of(), given)
    assert model.seen == [(given, None)]
    # A buffer that a graph reads is SGLang's to fill.
    buffer = torch.zeros(len(ids_of(model)), model.language_model.config.hidden_size)
    forward(model, batch_of(input_embeds=buffer))
    assert buffer.std() > 0.1
    assert paths() == {}


class Wrapped(Gemma3TextScaledWordEmbedding):
    """Stands for an embedding that LoRA or a quantiser put there."""


def wrap(model):
    model.language_model.embed_tokens.__class__ = Wrapped


def another_dtype(model):
    table = model.language_model.embed_tokens_per_layer or pytest.skip("it has one embedding")
    table.to(torch.float64)
    model.language_model.project_per_layer_inputs = lambda e, p=None: model.seen.append((e, p))


def pipeline(model):
    model.language_model.pp_group = SimpleNamespace(world_size=2, is_first_rank=True, is_last_rank=True)


def watch(model):
    model.language_model.embed_tokens.register_forward_hook(lambda *_: None)


def scale_in_a_tensor(model):
    model.language_model.embed_tokens.embed_scale = torch.tensor(8.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (wrap, "an embedding of the type Wrapped"),
        (scale_in_a_tensor, "an embedding of the type Gemma3TextScaledWordEmbedding"),
        (another_dtype, "embeddings of different dtypes, or on another device than the ids"),
        (pipeline, "several pipeline ranks"),
        (watch, "an embedding that hooks watch"),
    ],
)
def test_what_takes_sglangs_own_lines_and_is_told(model, start, change, reason):
    change(model)
    plain = forward(model)
    start(OP)
    found = forward(model)
    same(found[1], plain[1])
    same(found[2], plain[2])
    assert paths() == {reason: 1}


def test_a_server_that_must_not_take_it(model, start, monkeypatch):
    start(OP)
    monkeypatch.setattr("gemma4_runtime.fusion.eligible.on_host_engine", lambda: False)
    forward(model)
    assert paths() == {"hidden states on cpu": 1}


def test_without_it_ids_are_looked_up_by_sglang(model, start, monkeypatch):
    """What the others see is the op's doing: switched off, SGLang's own module is asked."""
    asked = []
    monkeypatch.setattr(
        Gemma3TextScaledWordEmbedding,
        "forward",
        lambda table, ids, own=Gemma3TextScaledWordEmbedding.forward: asked.append(1) or own(table, ids),
    )
    start(OP)
    forward(model)
    assert asked == []
    start()
    forward(model)
    assert len(asked) in (1, 2)
