"""The geometry probe on SGLang's own pools, layers, backends and frozen worker, hooked where a server hooks it."""

import json
import logging
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend
from sglang.srt.layers.attention.triton_backend import TritonMultiStepDraftBackend
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.models.gemma4_causal import Gemma4Attention

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime import geometry_facts as facts
from gemma4_runtime.errors import SettingsError, TrappedViolation
from gemma4_runtime.probes import geometry
from gemma4_runtime.probes.geometry import after_model_workers
from published import IN_A_CONTEXT, published

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

if IN_A_CONTEXT:
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker as FrozenWorker
else:
    from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker as FrozenWorker

W = 32
# The pools of the fixture `swa_allocator`: layers 0 and 1 sliding, 2 full, 2 heads of 8.
SLIDING, FULL = 1, 2


class Gemma4Layers(torch.nn.Module):
    """Hold SGLang's attention layers without their projections, which want a process group.

    bound: [(type, bound id), ...]; shared: how many of them, the last, own no keys.
    """

    def __init__(self, *bound: tuple[str, int], window_left: int = W - 1, shared: int = 0):
        super().__init__()
        self.layers = torch.nn.ModuleList()
        config = SimpleNamespace(
            layer_types=[f"{kind}_attention" for kind, _ in bound], sliding_window=W, num_kv_shared_layers=shared
        )
        for index, (kind, layer_id) in enumerate(bound):
            layer = Gemma4Attention.__new__(Gemma4Attention)
            torch.nn.Module.__init__(layer)
            layer.config, layer.layer_id = config, index
            window = window_left if kind == "sliding" else None
            layer.attn = RadixAttention(4, 8, 1, num_kv_heads=2, layer_id=layer_id, sliding_window_size=window)
            self.layers.append(layer)


def trtllm(pool, swa_pool=None):
    made = object.__new__(TRTLLMHAAttnBackend)
    names = {"prefill_backend": "fa2", "decode_backend": "fa2"}
    vars(made).update(names | {"token_to_kv_pool": pool, "_swa_kv_pool": swa_pool, "page_size": 16})
    return made


def runner(allocator, pool, model, table, **changes):
    fields = {
        "token_to_kv_pool_allocator": allocator,
        "req_to_token_pool": table,
        "token_to_kv_pool": pool,
        "page_size": 16,
        "kv_cache_dtype": torch.float32,
        "sliding_window_size": W - 1,
        "model_config": SimpleNamespace(context_len=4096),
        "model": model,
        "attn_backend": None,
        "tp_rank": 0,
    }
    return SimpleNamespace(**fields | changes)


@pytest.fixture
def dummy_pool():
    return MHATokenToKVPool(64, 16, torch.float32, 2, 8, 1, "cpu", False)


@pytest.fixture(autouse=True)
def rank():
    """Say which rank this process is and how its drafts attend, where SGLang asks a context."""
    with published(SimpleNamespace(speculative_attention_mode="prefill")):
        yield


@pytest.fixture
def worker(swa_allocator, dummy_pool, monkeypatch):
    """Return the frozen draft's worker as it stands when it begins to capture; its constructor wants checkpoints."""
    if IN_A_CONTEXT:
        # It enters groups of processes before it returns at once.
        monkeypatch.setattr(FrozenWorker, "init_cuda_graphs", lambda self: None)
    pool, table = swa_allocator.get_kvcache(), SimpleNamespace()
    target = runner(swa_allocator, pool, Gemma4Layers(("sliding", 0), ("sliding", 1), ("full", 2)), table)
    draft = runner(swa_allocator, dummy_pool, Gemma4Layers(("sliding", SLIDING), ("full", FULL)), table)
    made = object.__new__(FrozenWorker)
    vars(made).update(
        target_worker=SimpleNamespace(model_runner=target),
        _model_runner=draft,
        kv_context=SimpleNamespace(target_token_to_kv_pool=pool),
        # The release resolves the SWA state from the shared allocator.
        draft_attn_backend=trtllm(dummy_pool, pool),
        # `init_cuda_graphs` returns at once.
        server_args=SimpleNamespace(disable_cuda_graph=True),
    )
    return made


def hybrid(pool, swa_pool):
    stub = SimpleNamespace(
        kv_cache_dtype=torch.float32,
        token_to_kv_pool=pool,
        req_to_token_pool=None,
        kv_index_translator=None,
        model_config=SimpleNamespace(context_len=4096),
    )
    return HybridAttnBackend(stub, trtllm(pool, swa_pool), trtllm(pool, swa_pool))


def dumps_in(folder):
    return [read_dump(entry.path).manifest for entry in reversed(DumpStore(folder).list())]


def findings(folder):
    (path,) = (folder / "guards").glob("*.json")
    (row,) = [row for row in json.loads(path.read_text())["patches"] if row["id"] == "geometry"]
    return row.get("findings")


class TestTheFrozenDraft:
    def test_one_that_fits_is_silent_and_the_manifest_says_that_it_was_looked_at(self, attach, worker):
        folder = attach("log", "geometry")
        assert findings(folder) is None
        worker.init_cuda_graphs()
        assert dumps_in(folder) == []
        assert findings(folder) == []
        assert worker.draft_attn_backend.token_to_kv_pool is worker.draft_model_runner.token_to_kv_pool

    def test_its_own_small_pool_is_no_finding_because_no_node_reads_it_inside_the_swaps(self, worker, dummy_pool):
        nodes = facts.frozen_nodes(worker)
        assert {node.site for node in nodes} == {"frozen_kv_target_view", "target_kv_pool_view"}
        assert {node.pool.name for node in nodes} == {facts.name_of(worker.kv_context.target_token_to_kv_pool)}
        assert {node.pool.name for node in facts.backend_nodes(worker.draft_attn_backend, "outside")} == {
            facts.name_of(dummy_pool)
        }

    def test_without_the_fix_a_hybrid_backend_is_reported_with_both_pools(self, attach, worker, dummy_pool):
        worker.draft_attn_backend = hybrid(dummy_pool, worker.kv_context.target_token_to_kv_pool)
        folder = attach("log", "geometry")
        worker.init_cuda_graphs()
        (found,) = dumps_in(folder)
        assert (found.rule, found.verdict, found.action) == ("geometry", "geometry_mismatch", "logged")
        assert (found.role, found.scalars["what"], found.scalars["severity"]) == ("draft", "pool", "fatal")
        assert found.scalars["found"].startswith(facts.name_of(dummy_pool) + " (64 slots) on HybridAttnBackend.")
        for place in ("decode_backend", "prefill_backend", "frozen_kv_target_view", "target_kv_pool_view"):
            assert place in found.scalars["found"]
        assert found.scalars["expected"].startswith("SWAKVPool@")
        assert "(1024 + 2560 slots)" in found.scalars["expected"]
        assert "left this behind" in found.provenance.explanation
        assert (found.extents["handed_out_full"], found.extents["slots_all"]) == (2560, 64)
        assert [entry["severity"] for entry in findings(folder)] == ["fatal"]

    def test_with_the_fix_a_hybrid_backend_is_silent(self, attach, worker, dummy_pool):
        worker.draft_attn_backend = hybrid(dummy_pool, worker.kv_context.target_token_to_kv_pool)
        folder = attach("trap", "geometry", "swa-state-swap")
        worker.init_cuda_graphs()
        assert dumps_in(folder) == []

    def test_trap_ends_the_process_with_1_and_says_why(self, attach, worker, dummy_pool, capfd):
        worker.draft_attn_backend = hybrid(dummy_pool, None)
        folder = attach("1", "geometry")
        with pytest.raises(SystemExit) as ended:
            worker.init_cuda_graphs()
        assert ended.value.code == 1
        assert isinstance(ended.value.__cause__, TrappedViolation)
        (found,) = dumps_in(folder)
        assert (found.mode, found.action) == ("trap", "trapped")
        said = capfd.readouterr().err
        assert "TrappedViolation: geometry: draft pool: found MHATokenToKVPool@" in said
        assert found.dump_id in said
        assert "does not start" in said

    def test_contain_goes_on_with_a_dump(self, attach, worker):
        worker.draft_model_runner.page_size = 1
        folder = attach("contain", "geometry")
        worker.init_cuda_graphs()
        assert [(found.mode, found.action) for found in dumps_in(folder)] == [("contain", "logged")]

    @pytest.mark.parametrize(
        ("what", "value"),
        [
            ("page_size", 1),
            ("kv_cache_dtype", torch.bfloat16),
            ("sliding_window_size", W),
            ("model_config", SimpleNamespace(context_len=2048)),
            ("req_to_token_pool", SimpleNamespace()),
            ("token_to_kv_pool_allocator", SimpleNamespace(size=2560)),
        ],
    )
    def test_any_one_difference_to_its_target(self, attach, worker, what, value):
        setattr(worker.draft_model_runner, what, value)
        folder = attach("log", "geometry")
        worker.init_cuda_graphs()
        (found,) = dumps_in(folder)
        names = {
            "kv_cache_dtype": "kv_dtype",
            "sliding_window_size": "sliding_window",
            "model_config": "context_length",
            "req_to_token_pool": "request_table",
            "token_to_kv_pool_allocator": "allocator",
        }
        assert (found.verdict, found.scalars["what"]) == ("geometry_mismatch", names.get(what, what))
        assert found.site == f"FrozenKVMTPWorker.init_cuda_graphs ({names.get(what, what)})"

    @pytest.mark.parametrize(
        ("bound", "what"), [(("full", SLIDING), "sub_pool"), (("sliding", FULL), "sub_pool"), (("full", 9), "layer_id")]
    )
    def test_a_layer_bound_to_the_wrong_id(self, attach, worker, bound, what):
        worker.draft_model_runner.model = Gemma4Layers(bound)
        folder = attach("log", "geometry")
        worker.init_cuda_graphs()
        assert [found.scalars["what"] for found in dumps_in(folder)] == [what]

    @pytest.mark.parametrize("shared", [0, 1])
    def test_a_layer_bound_to_another_of_its_type(self, attach, worker, shared):
        target, folder = worker.target_worker.model_runner, attach("log", "geometry")
        kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"][: 3 + shared]
        target.model_config = SimpleNamespace(
            context_len=4096, hf_text_config=SimpleNamespace(layer_types=kinds, num_kv_shared_layers=shared)
        )
        if shared:
            # A layer without KV of its own, bound to the last sliding one that has some.
            target.model = Gemma4Layers(("sliding", 0), ("sliding", 1), ("full", 2), ("sliding", 1))
        worker.init_cuda_graphs()
        assert dumps_in(folder) == []
        worker.draft_model_runner.model = Gemma4Layers(("sliding", 0), ("full", FULL))
        worker.init_cuda_graphs()
        (found,) = dumps_in(folder)
        assert (found.scalars["what"], found.scalars["found"], found.role) == ("bound_layer", 0, "draft")
        assert found.scalars["expected"] == "1, whose KV the target's last sliding layer reads"

    def test_the_stale_swa_state_is_advice_and_stops_nothing(self, attach, worker, dummy_pool):
        worker.draft_attn_backend = trtllm(dummy_pool)
        folder = attach("trap", "geometry")
        worker.init_cuda_graphs()
        assert dumps_in(folder) == []
        assert [entry["verdict"] for entry in findings(folder)] == ["swa_state"]


def start(worker, draft=None, chunk=512, longest=4000):
    """Do what the hook does with a Scheduler whose workers exist; `init_model_worker` itself loads checkpoints."""
    scheduler = object.__new__(Scheduler)
    vars(scheduler).update(
        tp_worker=worker.target_worker,
        draft_worker=draft,
        server_args=SimpleNamespace(chunked_prefill_size=chunk),
        max_req_input_len=longest,
    )
    after_model_workers(None, scheduler)


def one_buffer(pool, monkeypatch):
    keys = pool.swa_kv_pool.k_buffer
    keys[1] = keys[0]


def looks_up_the_one_before(pool, monkeypatch):
    original = pool.get_kv_buffer
    monkeypatch.setattr(pool, "get_kv_buffer", lambda layer: original({1: 0}.get(layer, layer)))


def stores_for_the_next(pool, monkeypatch):
    swa, original = pool.swa_kv_pool, pool.swa_kv_pool.set_kv_buffer

    def store(layer, place, *args, layer_id_override=None, **kwargs):
        return original(layer, place, *args, layer_id_override={0: 1}.get(layer_id_override, 0), **kwargs)

    monkeypatch.setattr(swa, "set_kv_buffer", store)


def stores_keys_as_values(pool, monkeypatch):
    swa, original = pool.swa_kv_pool, pool.swa_kv_pool.set_kv_buffer
    monkeypatch.setattr(
        swa, "set_kv_buffer", lambda layer, at, k, v, *args, **named: original(layer, at, v, k, *args, **named)
    )


SPOILT = {
    "two layers of one buffer": (one_buffer, "kv_buffer", "the keys of layer 0"),
    "a lookup that is one off": (looks_up_the_one_before, "kv_buffer", "the keys of layer 0"),
    "a store that is one off": (stores_for_the_next, "kv_store", "the keys of layer 1"),
    "a store that exchanges keys and values": (stores_keys_as_values, "kv_store", "the values of layer 0"),
}
"""What mixes up the sliding layers 0 and 1 of a pool, what is told first, and what is said to be found."""


class TestTheTarget:
    def test_one_that_fits_is_silent(self, attach, worker):
        folder = attach("log", "geometry")
        start(worker)
        assert dumps_in(folder) == []
        assert findings(folder) == []

    @pytest.mark.parametrize("mode", ["log", "contain", "trap", "1"])
    def test_the_releases_window_is_a_dump_in_log_and_a_line_elsewhere(self, attach, worker, mode, caplog):
        bound = (("sliding", 0), ("sliding", 1), ("full", 2))
        worker.target_worker.model_runner.model = Gemma4Layers(*bound, window_left=W)
        folder = attach(mode, "geometry")
        with caplog.at_level(logging.WARNING):
            start(worker)
        found = dumps_in(folder)
        assert [one.verdict for one in found] == (["window_width"] if mode == "log" else [])
        lines = [record.message for record in caplog.records if "window_left" in record.message]
        assert len(lines) == 1
        assert "layers 0, 1: found 32, expected 31" in lines[0]
        assert [entry["severity"] for entry in findings(folder)] == ["advice"]
        for one in found:
            assert (one.scalars["found"], one.scalars["expected"]) == (32, "31")

    def test_a_layer_that_shares_the_keys_of_the_wrong_one_stops_the_start(self, attach, worker):
        bound = ("sliding", 0), ("sliding", 1), ("full", 2)
        worker.target_worker.model_runner.model = Gemma4Layers(*bound, ("sliding", 1), ("full", 2), shared=2)
        folder = attach("trap", "geometry")
        start(worker)
        assert dumps_in(folder) == []
        worker.target_worker.model_runner.model = Gemma4Layers(*bound, ("sliding", 0), ("full", 2), shared=2)
        with pytest.raises(SystemExit):
            start(worker)
        (found,) = dumps_in(folder)
        assert (found.role, found.scalars["what"], found.scalars["found"]) == ("target", "bound_layer", 0)

    @pytest.mark.parametrize("wrong", SPOILT)
    def test_a_pool_that_mixes_layers_up_stops_the_start(self, attach, worker, monkeypatch, wrong):
        pool = worker.target_worker.model_runner.token_to_kv_pool
        spoil, what, found = SPOILT[wrong]
        spoil(pool, monkeypatch)
        folder = attach("trap", "geometry")
        with pytest.raises(SystemExit):
            start(worker)
        first = dumps_in(folder)[0]
        assert (first.scalars["what"], first.scalars["found"]) == (what, found)

    def test_nothing_is_stored_in_a_pool_that_lies_by_pages(self, attach, worker):
        pool = worker.target_worker.model_runner.token_to_kv_pool.swa_kv_pool
        for buffers in (pool.k_buffer, pool.v_buffer):
            buffers[:] = [one.unflatten(0, (-1, 16)).transpose(1, 2).contiguous() for one in buffers]
        folder = attach("trap", "geometry")
        start(worker)
        assert dumps_in(folder) == []

    def test_what_page_0_held_is_there_again(self, attach, worker):
        pool = worker.target_worker.model_runner.token_to_kv_pool
        buffers = [*pool.swa_kv_pool.k_buffer, *pool.full_kv_pool.v_buffer]
        for number, buffer in enumerate(buffers):
            buffer[0].fill_(number + 0.5)
        attach("trap", "geometry")
        start(worker)
        assert [float(buffer[0].mean()) for buffer in buffers] == [number + 0.5 for number in range(len(buffers))]

    def test_a_longest_request_that_never_fits_is_a_line_and_no_dump(self, attach, worker, caplog):
        folder = attach("log", "geometry")
        with caplog.at_level(logging.WARNING):
            start(worker, chunk=2048)
        assert dumps_in(folder) == []
        assert "swa_slots: found 1024, expected more than 2064" in caplog.text
        assert [entry["severity"] for entry in findings(folder)] == ["note"]

    def test_an_swa_pool_that_admits_nothing_stops_the_start(self, attach, worker):
        target = worker.target_worker.model_runner
        target.sliding_window_size = 1024
        folder = attach("trap", "geometry")
        with pytest.raises(SystemExit):
            start(worker)
        (found,) = dumps_in(folder)
        assert (found.verdict, found.scalars["found"]) == ("pool_too_small", 1024)
        assert found.scalars["expected"] == "more than 1040 = window 1024 + page 16"


class TestADraftWithAPoolOfItsOwn:
    """EAGLE's way: `draft_worker.draft_worker.draft_runner`, and backends whose steps hold the draft's pool."""

    def eagle(self, worker, slots):
        target = worker.target_worker.model_runner
        pool = MHATokenToKVPool(slots, 16, torch.float32, 2, 8, 1, "cpu", False)
        layers = torch.nn.ModuleList([RadixAttention(4, 8, 1, num_kv_heads=2, layer_id=0)])
        draft = runner(
            target.token_to_kv_pool_allocator, pool, layers, target.req_to_token_pool, sliding_window_size=None
        )
        steps = object.__new__(TritonMultiStepDraftBackend)
        # The release resolves their SWA state from the shared allocator, whatever pool they read.
        steps.attn_backends = [trtllm(pool, target.token_to_kv_pool), trtllm(pool, target.token_to_kv_pool)]
        draft.attn_backend = trtllm(pool)
        inner = SimpleNamespace(draft_runner=draft, draft_attn_backend=steps, draft_extend_attn_backend=None)
        return SimpleNamespace(draft_worker=inner)

    def test_one_as_large_as_the_allocator_is_silent(self, attach, worker):
        folder = attach("trap", "geometry")
        start(worker, self.eagle(worker, 2560))
        assert dumps_in(folder) == []

    def test_a_smaller_one_stops_the_start(self, attach, worker):
        folder = attach("trap", "geometry")
        with pytest.raises(SystemExit):
            start(worker, self.eagle(worker, 2560 - 16))
        (found,) = dumps_in(folder)
        assert (found.verdict, found.role, found.scalars["found"]) == ("pool_too_small", "draft", 2544)
        assert found.scalars["expected"] == "at least 2560, which the allocator hands out"
        assert "17630" in found.provenance.explanation

    def test_a_step_with_another_pool_is_named(self, attach, worker, dummy_pool):
        draft = self.eagle(worker, 2560)
        draft.draft_worker.draft_attn_backend.attn_backends[1].token_to_kv_pool = dummy_pool
        folder = attach("log", "geometry")
        start(worker, draft)
        (found,) = dumps_in(folder)
        assert "TritonMultiStepDraftBackend.attn_backends[1] inside draft_attn_backend" in found.scalars["found"]


def test_a_draft_without_a_model_is_nothing_to_look_at(attach, worker):
    folder = attach("trap", "geometry")
    start(worker, SimpleNamespace())
    assert findings(folder) == []


@pytest.mark.parametrize("arguments", [{}, {"enable_unified_memory": False}, {"enable_unified_memory": True}])
def test_one_memory_of_both_pools_is_refused_and_no_other_start(arguments, monkeypatch):
    monkeypatch.setattr(geometry, "settled", lambda one: one)
    start = SimpleNamespace(**arguments)
    if not arguments.get("enable_unified_memory"):
        geometry.refuse_unknown_pools(start)
        return
    with pytest.raises(SettingsError, match="--enable-unified-memory"):
        geometry.refuse_unknown_pools(start)
