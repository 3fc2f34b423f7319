"""Which prefills the short cross-decoder refuses, each for its reason; then SGLang's own forward runs, once."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.compilation import piecewise_context_manager
from sglang.srt.compilation.compilation_config import CompilationConfig
from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_executor.piecewise_cuda_graph_runner import PiecewiseCudaGraphRunner
from sglang.srt.models.gemma4_causal import Gemma4TextModel
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from gemma4_runtime import current
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.optimisations import yoco_prefill
from gemma4_runtime.yoco import attention_view, eligible

# yoco is not ported: it needs new bodies over the prefill graph runner and layers/layer_boundary.
pytestmark = pytest.mark.releases("0.5.13.post1")

LENGTHS = [300, 2]
ROWS = sum(LENGTHS)
LEAST = 256


def of_class(cls):
    """Return a backend that plans nothing here: only what it is counts."""
    return cls.__new__(cls)


def hybrid(prefill, decode):
    made = of_class(HybridAttnBackend)
    made.prefill_backend, made.decode_backend = of_class(prefill), of_class(decode)
    return made


def batch(**changes):
    made = ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=2,
        input_ids=torch.zeros(ROWS, dtype=torch.int64),
        req_pool_indices=torch.tensor([1, 2]),
        seq_lens=torch.tensor([310, 2]),
        seq_lens_cpu=torch.tensor([310, 2]),
        out_cache_loc=torch.arange(ROWS),
        seq_lens_sum=312,
        extend_seq_lens=torch.tensor(LENGTHS),
        extend_seq_lens_cpu=list(LENGTHS),
        extend_logprob_start_lens_cpu=list(LENGTHS),
        capture_hidden_mode=CaptureHiddenMode.NULL,
        spec_algorithm=SpeculativeAlgorithm.NONE,
        rids=["a", "b"],
    )
    return replace(made, **changes)


def model(**changes):
    return SimpleNamespace(
        config=SimpleNamespace(num_kv_shared_layers=2, num_hidden_layers=5),
        pp_group=SimpleNamespace(world_size=1),
        layers_to_capture=[],
        **changes,
    )


@pytest.fixture
def server(attach, monkeypatch):
    """Return a function that sets this process's server arguments by name, with yoco attached."""
    attach("off", "yoco")
    arguments = SimpleNamespace(
        enable_lora=False,
        enable_dp_attention=False,
        enable_deterministic_inference=False,
        rl_on_policy_target=None,
    )
    monkeypatch.setattr("gemma4_runtime.yoco.eligible.get_global_server_args", lambda: arguments)
    return arguments


def reason(backend=TritonAttnBackend, rows=ROWS, of=None, **changes):
    with forward_context(ForwardContext(of_class(backend) if isinstance(backend, type) else backend)):
        return eligible.reason(of or model(), batch(**changes), rows, LEAST)


@pytest.mark.parametrize(
    "backend",
    [
        TritonAttnBackend,
        TRTLLMHAAttnBackend,
        hybrid(TritonAttnBackend, TRTLLMHAAttnBackend),
        hybrid(TorchNativeAttnBackend, TritonAttnBackend),
    ],
)
def test_a_long_prefill_is_taken(server, backend):
    assert reason(backend) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec_algorithm": SpeculativeAlgorithm.EAGLE}, "speculation"),
        ({"spec_algorithm": SpeculativeAlgorithm.EAGLE3}, "speculation"),
        ({"spec_algorithm": SpeculativeAlgorithm.DFLASH}, "speculation"),
        ({"spec_info": object()}, "speculation"),
        ({"capture_hidden_mode": CaptureHiddenMode.FULL}, "hidden states of all tokens"),
        ({"return_hidden_states_before_norm": True}, "hidden states before the norm"),
        ({"return_pooled_hidden_states": True}, "hidden states before the norm"),
        ({"multi_item_delimiter_indices": []}, "multi-item scoring"),
        ({"extend_seq_lens_cpu": None}, "lengths"),
        ({"seq_lens_cpu": None}, "lengths"),
        ({"extend_seq_lens": None}, "lengths"),
        ({"return_logprob": True, "extend_logprob_start_lens_cpu": [300, 1]}, "log probabilities"),
        ({"tbo_split_seq_index": 1}, "a batch that is split"),
        ({"tbo_children": [1]}, "a batch that is split"),
        ({"attn_cp_metadata": object()}, "a batch that is split"),
        ({"rows": ROWS + 2}, "padded rows"),
        ({"padded_static_len": 4}, "padded rows"),
        ({"extend_seq_lens_cpu": [200, 2], "rows": 202}, "fewer than 256 rows"),
        ({"backend": TorchNativeAttnBackend}, "the attention backend TorchNativeAttnBackend"),
        ({"backend": hybrid(TorchNativeAttnBackend, TorchNativeAttnBackend)}, "the attention backend HybridAttn"),
    ],
)
def test_a_batch_that_it_cannot_serve(server, changes, said):
    assert said in reason(**changes)


def test_answers_logprobs_alone_are_no_reason(server):
    assert reason(return_logprob=True) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("enable_lora", True, "LoRA"),
        ("enable_dp_attention", True, "attention data parallelism"),
        ("enable_deterministic_inference", True, "deterministic"),
        ("rl_on_policy_target", "fsdp", "rl_on_policy_target"),
    ],
)
def test_a_server_that_it_cannot_serve(server, name, value, said):
    setattr(server, name, value)
    assert said in reason()


def test_the_names_of_server_arguments_are_sglangs():
    from sglang.srt.server_args import ServerArgs

    names = ("enable_lora", "enable_dp_attention", "enable_deterministic_inference", "rl_on_policy_target")
    assert all(name in ServerArgs.__dataclass_fields__ for name in names)


def test_a_model_that_it_cannot_serve(server):
    captured = SimpleNamespace(**vars(model()) | {"layers_to_capture": [3]})
    assert reason(of=captured) == "hidden states of layers are captured"
    pipeline = SimpleNamespace(**vars(model()) | {"pp_group": SimpleNamespace(world_size=2)})
    assert reason(of=pipeline) == "pipeline parallelism"


def test_piecewise_graphs_take_sglangs_own_lines(server, monkeypatch):
    with monkeypatch.context() as captured:
        captured.setattr(piecewise_context_manager, "_in_piecewise_cuda_graph", True)
        assert reason() == "a piecewise CUDA graph"
    # A prefill that replays one has its context, and is asked outside the capture.
    assert reason() is None
    monkeypatch.setattr(piecewise_context_manager, "_forward_context", object())
    assert reason() == "a piecewise CUDA graph"


def test_without_a_forward_context_there_is_no_attention_to_plan(server):
    assert eligible.reason(model(), batch(), ROWS, LEAST) == "no forward context"


def test_a_trace_has_sglangs_own_lines_alone(server, monkeypatch):
    """torch.compile of a whole prefill: asking about the batch would be traced, and its answer kept for all others."""
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    PATHS.__init__()
    forward_batch, asked = batch(), model()

    def own(model, input_ids, positions, forward_batch, input_embeds, per_layer_inputs, **_):
        return input_embeds * 2

    @torch.compile(fullgraph=True, backend="eager")
    def traced(embeds, positions):
        return yoco_prefill.around_text_forward(own, asked, None, positions, forward_batch, embeds)

    # By its own patch: what monkeypatch puts back, no later test can read.
    with torch._dynamo.config.patch(disable=False), forward_context(ForwardContext(of_class(TritonAttnBackend))):
        assert traced(torch.ones(ROWS, 4), torch.arange(ROWS)).tolist() == [[2.0] * 4] * ROWS
    assert PATHS.document() == {}


@pytest.mark.parametrize("mode", [m for m in ForwardMode if m not in (ForwardMode.EXTEND, ForwardMode.MIXED)])
def test_other_modes_are_not_even_recorded(server, mode):
    called = []
    PATHS.__init__()
    answer = yoco_prefill.around_text_forward(
        lambda *args, **kwargs: called.append((args, kwargs)) or "own",
        model(),
        "ids",
        "positions",
        batch(forward_mode=mode),
    )
    assert (answer, len(called), PATHS.document()) == ("own", 1, {})


def test_what_is_refused_goes_to_sglangs_own_forward_as_it_came(server):
    called = []
    PATHS.__init__()
    forward_batch, asked, embeds = batch(spec_info=object()), model(), torch.zeros(ROWS, 4)
    inputs = None, torch.arange(ROWS), forward_batch, embeds, None
    answer = yoco_prefill.around_text_forward(
        lambda *args, **kwargs: called.append((args, kwargs)) or "own", asked, *inputs, pp_proxy_tensors="pp", more=1
    )
    assert answer == "own"
    assert called == [((asked, *inputs), {"pp_proxy_tensors": "pp", "more": 1})]
    assert [list(paths) for paths in PATHS.document().values()] == [["speculation by SpeculativeAlgorithm.NONE"]]


def test_a_model_whose_layers_share_nothing_is_not_concerned(server):
    PATHS.__init__()
    plain = SimpleNamespace(config=SimpleNamespace(num_kv_shared_layers=0))
    assert yoco_prefill.around_text_forward(lambda *args, **kwargs: "own", plain, None, None, batch()) == "own"
    assert PATHS.document() == {}


def test_rows_are_those_that_are_sampled_from():
    rows = attention_view.last_rows(batch())
    assert rows.tolist() == [299, 301]
    made = attention_view.decode_batch(batch(), rows, torch.tensor([309, 1]))
    assert made.forward_mode is ForwardMode.DECODE
    assert made.out_cache_loc.tolist() == [299, 301]
    assert made.seq_lens_sum == 312
    assert made.extend_seq_lens_cpu is made.extend_seq_lens is None


class TestTheBatchIsMade:
    """What ForwardBatch.init_new is asked for."""

    def make(self, **changes):
        one, other = SimpleNamespace(rid="a"), SimpleNamespace(rid="b")
        asked = {
            "forward_mode": ForwardMode.EXTEND,
            "chunked_req": None,
            "reqs": [one],
            "spec_algorithm": SpeculativeAlgorithm.FROZEN_KV_MTP,
            "capture_hidden_mode": CaptureHiddenMode.FULL,
            "return_hidden_states": False,
        }
        asked |= {name: {"one": one, "both": [one, other]}.get(value, value) for name, value in changes.items()}
        schedule_batch, seen = SimpleNamespace(**asked), []

        def original(cls, of, runner):
            seen.append(of.capture_hidden_mode)
            return SimpleNamespace(rids=[request.rid for request in of.reqs])

        made = yoco_prefill.around_batch_init(original, ForwardBatch, schedule_batch, None)
        return seen[0], isinstance(made.rids, yoco_prefill.UnfinishedChunk), list(made.rids)

    def test_mtp_asks_for_the_last_rows(self, server):
        assert self.make() == (CaptureHiddenMode.LAST, False, ["a"])

    @pytest.mark.parametrize(
        "changes",
        [
            {"return_hidden_states": True},
            {"spec_algorithm": SpeculativeAlgorithm.EAGLE},
            {"spec_algorithm": SpeculativeAlgorithm.NONE},
            {"forward_mode": ForwardMode.DECODE},
            {"forward_mode": ForwardMode.TARGET_VERIFY},
        ],
    )
    def test_others_keep_what_they_asked_for(self, server, changes):
        assert self.make(**changes)[0] is CaptureHiddenMode.FULL

    def test_one_chunk_alone_that_goes_on(self, server):
        assert self.make(chunked_req="one")[1]
        assert not self.make(chunked_req="one", reqs="both")[1]
        assert not self.make(chunked_req=None)[1]


class TestBesidePiecewiseGraphs:
    """A prefill that yoco makes shorter than a graph could is kept from the graph."""

    @staticmethod
    def can_run(tokens, shared=2, **changes):
        text = object.__new__(Gemma4TextModel)
        torch.nn.Module.__init__(text)
        for name, value in vars(model()).items():
            setattr(text, name, value)
        text.config.num_kv_shared_layers = shared
        runner = object.__new__(PiecewiseCudaGraphRunner)
        # Without graphs that can be cut.
        runner.compile_config = CompilationConfig([tokens])
        runner.capture_hidden_mode, runner.max_num_tokens = CaptureHiddenMode.NULL, 4096
        runner.model_runner = SimpleNamespace(model=SimpleNamespace(language_model=text, model=text))
        lengths = {"input_ids": torch.zeros(tokens), "extend_seq_lens_cpu": [tokens - 2, 2]}
        with forward_context(ForwardContext(attn_backend=of_class(TritonAttnBackend))):
            return runner.can_run(batch(**lengths | changes))

    def test_a_long_one_is_yocos(self, server):
        assert self.can_run(tokens=2049)
        assert not self.can_run(tokens=2050)

    def test_without_yoco_it_is_the_graphs(self, server):
        current.required().ids = frozenset()
        assert self.can_run(tokens=2050)

    def test_so_is_one_that_yoco_refuses(self, server):
        server.enable_lora = True
        assert self.can_run(tokens=2050)

    def test_and_one_of_a_model_whose_layers_share_nothing(self, server):
        assert self.can_run(tokens=2050, shared=0)

    def test_what_sglang_refuses_stays_refused(self, server):
        assert not self.can_run(tokens=300, capture_hidden_mode=CaptureHiddenMode.FULL)
