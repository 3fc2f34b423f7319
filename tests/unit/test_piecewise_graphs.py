"""Piecewise CUDA graphs for multimodal models, on a CPU: the rule, who may use a graph, the buffer."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from sglang.srt import server_args as sglang_arguments
from sglang.srt.compilation.piecewise_context_manager import enable_piecewise_cuda_graph
from sglang.srt.model_executor.breakable_cuda_graph_runner import BreakableCudaGraphRunner
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.model_executor.piecewise_cuda_graph_runner import PiecewiseCudaGraphRunner
from sglang.srt.models.gemma4_causal import Gemma4TextModel
from sglang.srt.models.gemma4_mm import Gemma4ForConditionalGeneration
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.fusion.paths import FUSED, PATHS
from gemma4_runtime.optimisations.piecewise_multimodal import SIZES
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings

# piecewise-multimodal is not ported: a list of models in configs/model_config.py decides there.
pytestmark = pytest.mark.releases("0.5.13.post1")

OP = "piecewise-multimodal"


def disabled(monkeypatch, **arguments):
    return decided(monkeypatch, **arguments).disable_piecewise_cuda_graph


def chosen(monkeypatch, **arguments):
    made = decided(monkeypatch, **arguments)
    return made.piecewise_cuda_graph_tokens, made.piecewise_cuda_graph_max_tokens


def decided(monkeypatch, **arguments):
    """Return SGLang's rules applied to these arguments, for a multimodal Gemma-4 on a CUDA device."""
    for other in ("is_hip", "is_npu", "is_cpu", "is_mps", "is_xpu"):
        monkeypatch.setattr(sglang_arguments, other, lambda: False)
    made = object.__new__(ServerArgs)
    for field in dataclasses.fields(ServerArgs):
        if field.default is not dataclasses.MISSING:
            setattr(made, field.name, field.default)
    for name, value in ({"model_path": str(toy_path("toy-e4b")), "dtype": "float32"} | arguments).items():
        setattr(made, name, value)
    made._handle_piecewise_cuda_graph()
    made._handle_other_validations()
    assert made.get_model_config().is_multimodal
    return made


def test_the_multimodal_rule_is_lifted(monkeypatch, attach):
    assert disabled(monkeypatch) is True
    attach("off", OP)
    assert disabled(monkeypatch) is False


@pytest.mark.parametrize(
    "other",
    [{"enable_torch_compile": True}, {"enable_lora": True}, {"pp_size": 2}, {"disable_piecewise_cuda_graph": True}],
    ids=str,
)
def test_no_other_rule_is(monkeypatch, attach, other):
    attach("off", OP)
    assert disabled(monkeypatch, **other) is True


BREAKABLE = {"enable_breakable_cuda_graph": True}
ENFORCED = {"enforce_piecewise_cuda_graph": True}


def test_a_server_of_breakable_graphs_is_left_as_it_is(monkeypatch, attach):
    attach("off", OP)
    assert disabled(monkeypatch, **BREAKABLE) is True


def test_another_models_breakable_graphs_are_no_concern(monkeypatch, attach):
    attach("off", OP)
    others = SimpleNamespace(is_multimodal=True, hf_config=SimpleNamespace(architectures=["Qwen3VLForCausalLM"]))
    assert disabled(monkeypatch, **BREAKABLE, **ENFORCED, model_config=others) is False


def test_so_many_sizes_as_the_server_can_hold(monkeypatch, attach):
    assert chosen(monkeypatch) == (None, None)
    attach("off", OP)
    assert chosen(monkeypatch) == (list(SIZES), 4096)
    assert chosen(monkeypatch, chunked_prefill_size=512, max_total_tokens=8192)[0] == [
        size for size in SIZES if size <= 512
    ]
    assert chosen(monkeypatch, context_length=20) == ([20], 20)
    assert chosen(monkeypatch, chunked_prefill_size=-1) == (list(SIZES), 4096)


@pytest.mark.parametrize(
    "asked",
    [
        {"piecewise_cuda_graph_tokens": [64]},
        {"piecewise_cuda_graph_max_tokens": 4096},
        {"disable_piecewise_cuda_graph": True},
        ENFORCED,
    ],
    ids=str,
)
def test_sizes_that_a_user_asks_for_stay(monkeypatch, attach, asked):
    attach("off", OP)
    assert chosen(monkeypatch, **asked) == (
        asked.get("piecewise_cuda_graph_tokens"),
        asked.get("piecewise_cuda_graph_max_tokens"),
    )


def test_of_a_multimodal_gemma_sglang_makes_no_breakable_graphs(caplog):
    """The refusal says so; without the patch, enforced, none is needed, because every prefill stays eager."""
    text = object.__new__(Gemma4TextModel)
    torch.nn.Module.__init__(text)
    text.layers = torch.nn.ModuleList()
    arguments = SimpleNamespace(piecewise_cuda_graph_tokens=[4, 16], enable_return_hidden_states=False)
    made = BreakableCudaGraphRunner(
        SimpleNamespace(
            device="cpu",
            model=SimpleNamespace(language_model=text),
            server_args=arguments,
            model_config=SimpleNamespace(hidden_size=8),
            dtype=torch.float32,
            is_multimodal=True,
            is_generation=True,
            is_draft_worker=False,
            spec_algorithm=None,
            req_to_token_pool=SimpleNamespace(size=1),
            attn_backend=SimpleNamespace(use_captured_forward_metadata_for_breakable_cuda_graph=False),
            attention_layers=[],
            moe_layers=[],
            moe_fusions=[],
        )
    )
    assert made.graphs == {}
    assert made.can_run(batch(ForwardMode.EXTEND, False)) is False
    assert "Could not resolve inner layer_model on Gemma4TextModel" in caplog.text


def test_what_sglang_raises_leaves_the_model_as_it_is(monkeypatch, attach):
    attach("off", OP)
    monkeypatch.setattr(sglang_arguments, "check_gguf_file", lambda path: 1 / 0)
    made = []
    original = ServerArgs.get_model_config
    monkeypatch.setattr(ServerArgs, "get_model_config", lambda self: made.append(original(self)) or made[-1])
    with pytest.raises(ZeroDivisionError):
        disabled(monkeypatch)
    assert all(config.is_multimodal for config in made)


def test_the_knob_alone_attaches_it(monkeypatch):
    monkeypatch.setenv("SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM", "1")
    assert [patch.id for patch in select(read_settings())] == ["piecewise-ple", OP]
    assert not read_settings().wants_nothing
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", f"default,{OP},-piecewise-ple")
    assert "piecewise-ple" not in [patch.id for patch in select(read_settings())]
    monkeypatch.delenv("GEMMA4_TRIAGE_PATCHES")
    monkeypatch.setenv("SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM", "0")
    assert select(read_settings()) == ()
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", OP)
    assert select(read_settings()) == ()


def runner(capture_mode=None):
    made = object.__new__(PiecewiseCudaGraphRunner)
    made.capture_hidden_mode, made.max_num_tokens = capture_mode, 2048
    made.model_runner = SimpleNamespace(model=SimpleNamespace(model=None))
    return made


def batch(mode, images, algorithm=None):
    return SimpleNamespace(
        forward_mode=mode,
        input_embeds=None,
        capture_hidden_mode=None,
        replace_embeds=None,
        return_logprob=False,
        input_ids=torch.zeros(100),
        contains_image_inputs=lambda: images,
        spec_algorithm=algorithm,
    )


@pytest.mark.parametrize(
    ("mode", "images", "runs"),
    [
        (ForwardMode.EXTEND, True, True),
        (ForwardMode.EXTEND, False, True),
        (ForwardMode.MIXED, False, True),
        (ForwardMode.MIXED, True, False),
    ],
)
def test_a_mixed_batch_with_images_is_not_for_a_graph(attach, mode, images, runs):
    assert runner().can_run(batch(mode, images))
    attach("off", OP)
    before = PATHS.document().get(OP, {})
    assert runner().can_run(batch(mode, images)) is runs
    path = FUSED if runs else "a mixed batch with images"
    assert PATHS.document()[OP][path] == before.get(path, 0) + 1


def test_what_sglang_refuses_stays_refused(attach):
    attach("off", OP)
    assert not runner(capture_mode="full").can_run(batch(ForwardMode.EXTEND, False))


@pytest.mark.parametrize(("algorithm", "runs"), [("FROZEN_KV_MTP", True), ("EAGLE3", False)])
def test_hidden_states_for_an_mtp_draft_come_out_of_the_graph(attach, algorithm, runs):
    asking = batch(ForwardMode.EXTEND, False, SpeculativeAlgorithm[algorithm])
    asking.capture_hidden_mode = CaptureHiddenMode.FULL
    captured = runner(CaptureHiddenMode.NULL)
    assert not captured.can_run(asking)
    attach("off", OP)
    assert captured.can_run(asking) is runs
    assert captured.capture_hidden_mode is CaptureHiddenMode.NULL


class Language(torch.nn.Module):
    """Per-layer inputs [T, 2 layers, 3] that tell of their token."""

    def get_per_layer_inputs(self, ids):
        return ids[:, None, None].float().expand(-1, 2, 3).contiguous()


def multimodal():
    model = object.__new__(Gemma4ForConditionalGeneration)
    torch.nn.Module.__init__(model)
    model.language_model = Language()
    return model


@pytest.fixture
def sizes(monkeypatch):
    found = SimpleNamespace(piecewise_cuda_graph_tokens=[4, 16])
    monkeypatch.setattr("gemma4_runtime.fixes.piecewise_ple.get_global_server_args", lambda: found)


def test_graphs_find_this_prefills_inputs_at_the_address_of_their_capture(attach, sizes):
    model = multimodal()
    with enable_piecewise_cuda_graph():
        shipped = [model.get_per_layer_inputs(torch.full((4,), value)) for value in (1, 2)]
    assert shipped[0].data_ptr() != shipped[1].data_ptr()
    attach("off", "piecewise-ple")
    with enable_piecewise_cuda_graph():
        captured = model.get_per_layer_inputs(torch.zeros(16))
        small = model.get_per_layer_inputs(torch.tensor([5, 6, 7, 0]))
    assert small.data_ptr() == captured.data_ptr()
    assert small.is_contiguous()
    assert captured[:4, 1, 2].tolist() == [5, 6, 7, 0]


def test_an_eager_prefill_has_sglangs_own_tensor(attach, sizes):
    model = multimodal()
    attach("off", "piecewise-ple")
    with enable_piecewise_cuda_graph():
        in_graph = model.get_per_layer_inputs(torch.tensor([1, 2, 3, 4]))
    eager = model.get_per_layer_inputs(torch.tensor([9, 9]))
    assert in_graph[:2, 0, 0].tolist() == [1, 2]
    assert eager[:, 0, 0].tolist() == [9, 9]


def test_a_model_without_per_layer_inputs_has_none(attach, sizes, monkeypatch):
    attach("off", "piecewise-ple")
    monkeypatch.setattr(Language, "get_per_layer_inputs", lambda self, ids: None)
    with enable_piecewise_cuda_graph():
        assert multimodal().get_per_layer_inputs(torch.zeros(4)) is None
