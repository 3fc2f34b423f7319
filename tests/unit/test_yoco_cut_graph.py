"""Graphs that are cut before the KV-shared layers, compiled by SGLang; `Piece` replays in a CUDA graph's stead."""

import importlib
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from sglang.srt.compilation.compilation_config import CompilationConfig
from sglang.srt.compilation.compile import install_torch_compiled
from sglang.srt.compilation.piecewise_context_manager import (
    enable_piecewise_cuda_graph,
    set_forward_context,
    set_pcg_capture_stream,
)
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context, get_attn_backend
from sglang.srt.model_executor.piecewise_cuda_graph_runner import PiecewiseCudaGraphRunner
from sglang.srt.models.gemma4_causal import Gemma4TextModel

from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.optimisations import yoco_prefill
from gemma4_runtime.yoco import attention_view, eligible
from gemma4_runtime.yoco.cut_graph import cut
from gemma4_runtime.yoco.short_prefill import UnfinishedChunk
from trtllm_world import graph_attention_on_cpu

# yoco is not ported: it needs new bodies over the prefill graph runner and layers/layer_boundary.
pytestmark = pytest.mark.releases("0.5.13.post1")

SIZES = (4, 8, 32)
WIDTH, PLE, LAYERS, FIRST = 8, 4, 5, 3
SLOTS = 64


class Piece:
    """Stands for SGLang's CUDA graphs of one run of operations, and computes as they do.

    What a graph reads and writes is where it was at its capture, whatever it is called with. Before the first piece of
    a replay, all that other captures have written is spoilt, as by memory that they share.
    """

    every: ClassVar[list["Piece"]] = []
    capturing: ClassVar[bool] = False

    def __init__(self, graph, config, inductor, pool, index, count, symbols, compiled, backend):
        self.compiled, self.symbols, self.index = compiled, symbols, index
        self.captured, self.replays = {}, Counter()
        Piece.every.append(self)

    def __call__(self, *args):
        size = args[self.symbols[0]]
        if Piece.capturing or size not in self.captured:
            given = self.compiled(*args)
            if Piece.capturing:
                self.captured[size] = (args, given)
            return given
        read, written = self.captured[size]
        if self.index == 0:
            spoil(size)
        found = self.compiled(*read)
        for there, value in zip(many(written), many(found), strict=True):
            if isinstance(there, torch.Tensor):
                there.copy_(value)
        self.replays[size] += 1
        return written


def many(values):
    return values if isinstance(values, (tuple, list)) else [values]


def spoil(size):
    for piece in Piece.every:
        for other, (_, written) in piece.captured.items():
            for value in many(written):
                if other != size and isinstance(value, torch.Tensor):
                    value.fill_(torch.nan)


class Attention:
    """Attention over all keys of a request up to its row's position, in plain lines."""

    def __init__(self, table):
        self.table = table
        self.keys = torch.zeros(LAYERS, SLOTS, WIDTH)
        self.values = torch.zeros(LAYERS, SLOTS, WIDTH)
        self.seen = []

    def forward(self, q, k, v, layer, batch, save_kv_cache, **_):
        owner = min(layer.layer_id, FIRST - 1)
        if save_kv_cache:
            self.keys[owner, batch.out_cache_loc] = k.view(-1, WIDTH)
            self.values[owner, batch.out_cache_loc] = v.view(-1, WIDTH)
        self.seen.append((layer.layer_id, len(q), batch.forward_mode))
        result, lengths = torch.empty_like(q), batch.extend_seq_lens_cpu or [1] * batch.batch_size
        row = 0
        for request, length, end in zip(batch.req_pool_indices, lengths, batch.seq_lens_cpu.tolist(), strict=True):
            for position in range(end - length, end):
                slots = self.table[request, : position + 1]
                scores = self.keys[owner, slots] @ q[row]
                result[row] = scores.softmax(0) @ self.values[owner, slots]
                row += 1
        return result


class Model(Gemma4TextModel):
    """A decoder with SGLang's attention layers, whose last two write no keys; layers add into their input."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.config = SimpleNamespace(num_hidden_layers=LAYERS, num_kv_shared_layers=LAYERS - FIRST)
        self.pp_group, self.layers_to_capture = SimpleNamespace(world_size=1), []
        self.layers = [SimpleNamespace(self_attn=SimpleNamespace(sliding_window=None)) for _ in range(LAYERS)]
        self.matrices = torch.nn.ParameterList(torch.randn(WIDTH, WIDTH) * WIDTH**-0.5 for _ in range(3 * LAYERS))
        self.gates = torch.nn.ParameterList(torch.randn(PLE, WIDTH) for _ in range(LAYERS))
        self.attention = torch.nn.ModuleList(RadixAttention(1, WIDTH, 1.0, 1, number) for number in range(LAYERS))

    def forward(self, embeds: torch.Tensor, per_layer: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch):
        hidden = embeds * 1.0
        scale = self.matrices[0].sum() * 0 + 0.5
        per_layer = per_layer * 2
        for number, attention in enumerate(self.attention):
            of_query, of_key, of_value = (self.matrices[3 * number + at] for at in range(3))
            normed = torch.nn.functional.normalize(hidden)
            shared = number >= FIRST
            key, value = (None, None) if shared else (normed @ of_key, normed @ of_value)
            found = attention(normed @ of_query, key, value, batch, save_kv_cache=not shared)
            hidden.add_(found * scale)
            hidden = hidden + per_layer[:, number] @ self.gates[number] + positions[:, None] / 100
        return torch.nn.functional.normalize(hidden)


def batch_of(lengths, prefixes=None):
    prefixes = prefixes or [0] * len(lengths)
    ends = [a + b for a, b in zip(lengths, prefixes, strict=True)]
    return ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=len(lengths),
        input_ids=torch.zeros(sum(lengths), dtype=torch.int64),
        req_pool_indices=torch.arange(len(lengths)),
        seq_lens=torch.tensor(ends),
        seq_lens_cpu=torch.tensor(ends),
        seq_lens_sum=sum(ends),
        out_cache_loc=torch.cat(
            [table()[row, end - length : end] for row, (length, end) in enumerate(zip(lengths, ends, strict=True))]
        ),
        extend_seq_lens=torch.tensor(lengths),
        extend_seq_lens_cpu=list(lengths),
        positions=torch.cat([torch.arange(end - length, end) for length, end in zip(lengths, ends, strict=True)]),
        num_token_non_padded_cpu=sum(lengths),
        capture_hidden_mode=CaptureHiddenMode.NULL,
        rids=[str(number) for number in range(len(lengths))],
    )


def table():
    torch.manual_seed(7)
    return torch.randperm(SLOTS).view(2, -1)


class Server:
    """A model that SGLang has compiled, with its graphs captured, and the static inputs that they read."""

    def __init__(self, monkeypatch):
        torch.manual_seed(0)
        Piece.every, Piece.capturing = [], False
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
        # A CUDA-only leaf, which the graphs of SGLang's own platforms need.
        leaf = SimpleNamespace(weak_ref_tensors=lambda values: values)
        monkeypatch.setitem(sys.modules, "sglang.srt.compilation.weak_ref_tensor", leaf)
        sglang_compiler = importlib.import_module("sglang.srt.compilation.backend")
        # SGLang's own seam for the graphs of another platform.
        platform = SimpleNamespace(is_out_of_tree=lambda: True, get_piecewise_backend_cls=lambda: Piece)
        monkeypatch.setattr(sglang_compiler, "current_platform", platform)
        monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
        self.model, self.backend = Model(), Attention(table())
        self.config = CompilationConfig(list(SIZES))
        self.embeds, self.per_layer = torch.zeros(32, WIDTH), torch.zeros(32, LAYERS, PLE)
        self.positions = torch.zeros(32, dtype=torch.int64)
        self.model = yoco_prefill.around_install(
            install_torch_compiled, self.model, compile_config=self.config, graph_pool=object(), fullgraph=True
        )
        with torch.no_grad(), enable_piecewise_cuda_graph(), forward_context(ForwardContext(self.backend)):
            self.run(batch_of([24]), 32)
            Piece.capturing = True
            with set_pcg_capture_stream(object()):
                for size in reversed(SIZES):
                    for _ in range(2):
                        self.run(batch_of([min(size, 24)]), size)
        Piece.capturing = False
        self.backend.seen.clear()

    def run(self, batch, size):
        inputs = self.embeds[:size], self.per_layer[:size], self.positions[:size]
        with set_forward_context(batch, list(self.model.attention), None, [], []):
            return self.model(*inputs, batch)

    def fill(self, batch, seed):
        torch.manual_seed(seed)
        rows = len(batch.input_ids)
        for there, value in (
            (self.embeds, torch.randn(rows, WIDTH)),
            (self.per_layer, torch.randn(rows, LAYERS, PLE)),
            (self.positions, batch.positions),
        ):
            there.zero_()
            there[:rows] = value

    def eager(self, batch):
        rows = len(batch.input_ids)
        with (
            torch.no_grad(),
            forward_context(ForwardContext(self.backend)),
            set_forward_context(batch, list(self.model.attention), None, [], []),
        ):
            return Model.forward(self.model, self.embeds[:rows], self.per_layer[:rows], self.positions[:rows], batch)

    def replay(self, batch):
        size = min(size for size in SIZES if size >= len(batch.input_ids))
        # As SGLang's runner hands it on: without names of requests.
        with torch.no_grad(), enable_piecewise_cuda_graph():
            return self.run(replace(batch, rids=None), size)


@pytest.fixture(scope="module")
def captured():
    """Yield one server for all tests: what is compiled and captured once is replayed ever after."""
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        graph_attention_on_cpu(),
        torch._dynamo.config.patch(disable=False),
    ):
        monkeypatch.setattr(yoco_prefill, "switched_on", lambda _: True)
        yield Server(monkeypatch)


@pytest.fixture
def server(captured, attach, monkeypatch):
    monkeypatch.setenv("GEMMA4_TRIAGE_YOCO_ROWS", "1")
    attach("off", "yoco")
    captured.backend.seen.clear()
    return captured


@pytest.fixture
def runner(server, monkeypatch):
    """Return SGLang's runner, of which only its hooks run: what it would do between them is the server's."""
    arguments = SimpleNamespace(
        enable_lora=False, enable_dp_attention=False, enable_deterministic_inference=False, rl_on_policy_target=None
    )
    monkeypatch.setattr(eligible, "get_global_server_args", lambda: arguments)
    # Attention in plain lines needs no plan.
    monkeypatch.setattr(attention_view, "_leaf", lambda backend: backend)
    monkeypatch.setattr(attention_view, "cross_decoder_view", lambda batch, window: get_attn_backend())
    made = object.__new__(PiecewiseCudaGraphRunner)
    made.compile_config = server.config
    made.model_runner = SimpleNamespace(model=SimpleNamespace(language_model=server.model))
    return made


LOADS = {
    "one request": ([30], None),
    "two, of which one is cached in part": ([9, 20], [3, 0]),
    "a size that is captured": ([32], None),
    "one token and many": ([1, 13], [6, 0]),
}


def replayed(runner, server, batch):
    with forward_context(ForwardContext(server.backend)):
        return yoco_prefill.around_replay(lambda runner, batch, **_: server.replay(batch), runner, batch)


@pytest.mark.parametrize("load", LOADS)
def test_rows_that_are_sampled_from_are_those_of_all_layers(server, runner, load):
    lengths, prefixes = LOADS[load]
    for seed in (1, 2):
        batch = batch_of(lengths, prefixes)
        server.fill(batch, seed)
        wanted = server.eager(batch)
        server.backend.seen.clear()
        found = replayed(runner, server, batch)
        last = attention_view.last_rows(batch)
        torch.testing.assert_close(found[last], wanted[last])
        rows = [sum(lengths)] * FIRST + [len(lengths)] * (LAYERS - FIRST)
        assert [count for _, count, _ in server.backend.seen] == rows
        assert {mode for number, _, mode in server.backend.seen if number >= FIRST} == {ForwardMode.DECODE}


def rows_per_layer(server):
    return [count for _, count, _ in server.backend.seen]


def test_the_pieces_behind_the_cut_replay_the_graphs_of_a_few_rows(server, runner):
    before = [piece.replays.copy() for piece in Piece.every]
    batch = batch_of([30])
    server.fill(batch, 1)
    replayed(runner, server, batch)
    new = [piece.replays - old for piece, old in zip(Piece.every, before, strict=True)]
    assert [dict(one) for one in new] == [{32: 1}] * (FIRST + 1) + [{4: 1}] * (LAYERS - FIRST)


def test_a_chunk_that_is_not_the_last_runs_the_owners_alone(server, runner):
    batch = batch_of([20])
    batch.rids = UnfinishedChunk(batch.rids)
    server.fill(batch, 1)
    found = replayed(runner, server, batch)
    assert found.shape == (32, WIDTH)
    assert not found.any()
    assert rows_per_layer(server) == [20] * FIRST


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"capture_hidden_mode": CaptureHiddenMode.FULL}, "hidden states of all tokens are asked for"),
        ({"return_logprob": True, "extend_logprob_start_lens_cpu": [0]}, "log probabilities of prompt tokens"),
    ],
)
def test_a_batch_that_needs_every_row_has_the_whole_graphs(server, runner, changes, said):
    batch = batch_of([20])
    for name, value in changes.items():
        setattr(batch, name, value)
    server.fill(batch, 1)
    wanted = server.eager(batch)
    server.backend.seen.clear()
    taken = PATHS.document().get("yoco", {}).get(said, 0)
    torch.testing.assert_close(replayed(runner, server, batch)[:20], wanted)
    assert rows_per_layer(server) == [20] * LAYERS
    assert PATHS.document()["yoco"][said] == taken + 1


def test_a_verification_is_no_prefill(server, runner):
    batch = batch_of([20])
    batch.forward_mode = ForwardMode.TARGET_VERIFY
    made = getattr(server.config, yoco_prefill._CUT)
    with forward_context(ForwardContext(server.backend)):
        assert yoco_prefill.around_replay(lambda *_: made._asked, runner, batch) is None
        batch.forward_mode = ForwardMode.EXTEND
        assert yoco_prefill.around_replay(lambda *_: made._asked, runner, batch) is not None


def test_there_have_to_be_graphs_of_fewer_rows_than_the_prefill_has(server, runner):
    made = getattr(server.config, yoco_prefill._CUT)
    assert [made.serves(2, tokens) for tokens in (4, 5, 32)] == [False, True, True]
    assert made.serves(8, 32)
    assert made.serves(32, 33)
    assert not made.serves(33, 2000)


def test_a_long_prefill_whose_graphs_can_be_cut_is_left_to_them(server, runner):
    batch = batch_of([5])
    batch.input_ids = torch.zeros(4000, dtype=torch.int64)
    with forward_context(ForwardContext(server.backend)):
        assert yoco_prefill.around_can_run(lambda runner, batch: True, runner, batch) is True
        assert yoco_prefill.around_can_run(lambda runner, batch: False, runner, batch) is False


def test_the_state_of_a_replay_is_put_back_after_an_exception(server, runner, monkeypatch):
    batch = batch_of([20])
    server.fill(batch, 1)
    with monkeypatch.context() as broken:
        broken.setattr(Attention, "forward", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            replayed(runner, server, batch)
    wanted = server.eager(batch)
    with forward_context(ForwardContext(server.backend)):
        torch.testing.assert_close(server.replay(batch)[:20], wanted)


def test_a_model_without_layers_that_write_no_keys_is_not_cut():
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert cut(graph) is None
    assert cut(lambda: None) is None
