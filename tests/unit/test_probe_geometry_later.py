"""The geometry probe while a server serves: what layers are bound to, changed one thing at a time."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from gemma4_dumps.draft import DumpDraft
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime import current
from gemma4_runtime.checks.bindings import check_unchanged
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.probes import geometry_later as later
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.finding import Confidence
from slot_list_backends import FULL, SLIDING
from trtllm_world import STAND_INS, batch, build, dispatch, fill, trtllm_backend

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

# The pools of the fixture `swa_allocator`: layers 0 and 1 sliding, 2 full. A draft's layers read 1 and 2.
OF_DRAFT = (1, 2)


def layers(*ids):
    windows = {0: 31, 1: 31}
    return torch.nn.ModuleList(
        RadixAttention(4, 8, 1.0, num_kv_heads=2, layer_id=one, sliding_window_size=windows.get(one)) for one in ids
    )


@pytest.fixture
def scheduler(swa_allocator):
    """Return a scheduler with a target and a frozen draft that reads the target's pool."""
    pool = swa_allocator.get_kvcache()

    def runner(model):
        return SimpleNamespace(
            model=model,
            kv_cache_dtype=torch.float32,
            token_to_kv_pool=pool,
            token_to_kv_pool_allocator=swa_allocator,
            model_config=SimpleNamespace(context_len=4096),
            page_size=16,
        )

    made = object.__new__(Scheduler)
    made.tp_worker = SimpleNamespace(model_runner=runner(layers(0, 1, 2)))
    made.draft_worker = SimpleNamespace(
        draft_model_runner=runner(layers(*OF_DRAFT)), kv_context=SimpleNamespace(target_token_to_kv_pool=pool)
    )
    made.forward_ct = 40
    return made


@pytest.fixture
def serve(attach, scheduler):
    """Return what starts a server, changes it in its fifth step, and returns its dumps and whether it was stopped."""

    def run(mode, change, steps=later.EVERY_STEPS):
        folder = attach(mode, "geometry")
        later.after_model_workers(None, scheduler)
        stopped = False
        for step in range(steps):
            if step == 4:
                change(scheduler)
            try:
                later.before_next_batch(scheduler)
            except TrappedViolation:
                stopped = True
                break
        return [read_dump(entry.path) for entry in reversed(DumpStore(folder).list())], stopped

    return run


def pool_of(scheduler):
    return scheduler.tp_worker.model_runner.token_to_kv_pool


def layer(scheduler, role, number):
    owner = scheduler.draft_worker.draft_model_runner if role == "draft" else scheduler.tp_worker.model_runner
    return owner.model[number]


def swap_buffers(scheduler):
    keys = pool_of(scheduler).swa_kv_pool.k_buffer
    keys[0], keys[1] = keys[1], keys[0]


def another_buffer(scheduler):
    values = pool_of(scheduler).full_kv_pool.v_buffer
    values[0] = values[0].clone()


def looks_up_the_next(scheduler):
    pool = pool_of(scheduler)
    original = pool.get_kv_buffer
    pool.get_kv_buffer = lambda layer: (original(layer)[0], original({0: 1}.get(layer, layer))[1])


def another_pool(scheduler):
    runner = scheduler.tp_worker.model_runner
    runner.token_to_kv_pool = MHATokenToKVPool(64, 16, torch.float32, 2, 8, 3, "cpu", False)


CHANGES = {
    "draft window": (
        lambda s: setattr(layer(s, "draft", 0), "sliding_window_size", 32),
        ("draft", "window_left", 32, "31, as at the start"),
        (Structure.DRAFT_BINDING, Defect.OFF_BY_ONE),
    ),
    "draft window zero": (
        lambda s: setattr(layer(s, "draft", 0), "sliding_window_size", 0),
        ("draft", "window_left", 0, "31, as at the start"),
        (Structure.DRAFT_BINDING, Defect.ZERO),
    ),
    "draft scale": (
        lambda s: setattr(layer(s, "draft", 1), "scaling", 0.0),
        ("draft", "scaling", "0", "1, as at the start"),
        (Structure.DRAFT_BINDING, Defect.ZERO),
    ),
    "draft layer": (
        lambda s: setattr(layer(s, "draft", 0), "layer_id", 0),
        ("draft", "layer_id", 0, "1, as at the start"),
        (Structure.DRAFT_BINDING, Defect.ZERO),
    ),
    "target scale of keys": (
        lambda s: setattr(layer(s, "target", 2), "k_scale_float", -1.0),
        ("target", "kv_scales", "-1 and 1", "1 and 1, as at the start"),
        (Structure.KV_SCALE, Defect.NEGATIVE),
    ),
    "two layers' buffers": (
        swap_buffers,
        ("target", "kv_buffer", "exchanged with that of layer 1", "its own, as at the start"),
        (None, Defect.SWAPPED),
    ),
    "the next layer's values": (
        looks_up_the_next,
        ("target", "kv_buffer", "that of layer 1", "its own, as at the start"),
        (None, Defect.DUPLICATE),
    ),
    "a buffer of no layer": (
        another_buffer,
        ("target", "kv_buffer", "one of no layer", "its own, as at the start"),
        (None, None),
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("mode", ["log", "contain", "trap"])
def test_a_change_is_a_dump_and_its_cause_is_named(serve, mode, name):
    change, told, cause = CHANGES[name]
    dumps, stopped = serve(mode, change)
    first = dumps[0].manifest
    assert (first.verdict, first.step, stopped) == ("geometry_mismatch", 40, mode == "trap")
    assert (first.role, *(first.scalars[key] for key in ("what", "found", "expected"))) == told
    (incident,) = group(dumps)
    found = conclude(incident)[0]
    assert (found.rule, found.confidence) == ("parts-disagree", Confidence.CERTAIN)
    assert (found.structure, found.defect) == cause


@pytest.mark.parametrize("name", ["sliding_window_size", "full_window_pages"])
def test_a_window_of_the_prefix_cache_is_the_one_that_it_was_made_with(serve, scheduler, name):
    part = SimpleNamespace(sliding_window_size=31, full_window_pages=2)
    scheduler.tree_cache = SimpleNamespace(components={1: part}, sliding_window_size=31)
    assert serve("trap", lambda _: None) == ([], False)
    was = getattr(part, name)
    (dump,), stopped = serve("trap", lambda _: setattr(part, name, 1))
    assert stopped
    (incident,) = group([dump])
    found = conclude(incident)[0]
    assert (found.rule, found.confidence) == ("parts-disagree", Confidence.CERTAIN)
    assert f"SimpleNamespace.{name} is 1, and was {was}" in found.cause


@pytest.mark.parametrize("mode", ["log", "contain", "trap"])
def test_what_stays_as_it_was_is_silent(serve, mode):
    assert serve(mode, lambda scheduler: None) == ([], False)


def test_a_change_is_told_once_where_the_server_goes_on(serve):
    dumps, _ = serve("contain", CHANGES["draft window"][0], steps=200)
    assert len(dumps) == 1


def test_another_pool_is_told_of_every_layer_that_reads_it(serve):
    dumps, _ = serve("log", another_pool)
    assert [(dump.manifest.scalars["what"], dump.manifest.scalars["layers"]) for dump in dumps] == [("pool", "0,1,2")]


def test_an_idle_server_is_looked_at_too(attach, scheduler):
    folder = attach("log", "geometry")
    later.after_model_workers(None, scheduler)
    later.before_idle(scheduler)
    assert DumpStore(folder).list() == []
    layer(scheduler, "draft", 0).sliding_window_size = 5
    later._KNOWN.get(scheduler).idle_again = 0.0
    later.before_idle(scheduler)
    (entry,) = DumpStore(folder).list()
    assert read_dump(entry.path).manifest.site == "Scheduler.on_idle (window_left)"


@pytest.mark.parametrize("changed", [True, False])
def test_before_the_dump_of_another_violation_it_is_looked_at_too(attach, scheduler, changed):
    folder = attach("trap", "geometry")
    later.after_model_workers(None, scheduler)
    if changed:
        layer(scheduler, "draft", 0).sliding_window_size += 16
    draft = DumpDraft(rule="page-table-bounds", verdict="null_page_live", site="here", summary="page 0", step=40)
    with pytest.raises(TrappedViolation):
        current.guard().report(Violation("null_page_live", (), 0), "page-table-bounds", "here", lambda: draft)
    dumps = [read_dump(entry.path) for entry in reversed(DumpStore(folder).list())]
    assert [dump.manifest.rule for dump in dumps] == [*(["geometry"] if changed else []), "page-table-bounds"]
    (incident,) = group(dumps)
    first, *others = conclude(incident)
    told = ("parts-disagree", Structure.DRAFT_BINDING, Defect.OFF_BY_ONE)
    assert ((first.rule, first.structure, first.defect) == told, others == []) == (changed, True)


def test_scales_of_a_pool_that_is_quantised_may_change(serve, scheduler):
    for worker in (scheduler.tp_worker.model_runner, scheduler.draft_worker.draft_model_runner):
        worker.kv_cache_dtype = torch.float8_e4m3fn
    assert serve("trap", CHANGES["target scale of keys"][0]) == ([], False)


def test_a_scheduler_that_was_not_seen_to_start_is_left_alone():
    later.before_next_batch(object.__new__(Scheduler))
    later.before_idle(object.__new__(Scheduler))


def test_equal_sides_are_no_finding():
    assert list(check_unchanged((), ())) == []


# Only 0.5.23 has a function of its own around a decode's kernel.
@pytest.mark.releases("0.5.23")
class TestWhatAKernelIsGiven:
    """Window and scale: what trtllm_mha gives a decode's kernel, through its own forward_decode."""

    def decode(self, attach, swa_allocator, mode, **more):
        backend = trtllm_backend(swa_allocator)
        runner = backend.kept_runner
        runner.token_to_kv_pool, runner.token_to_kv_pool_allocator = swa_allocator.get_kvcache(), swa_allocator
        runner.model_config, runner.page_size = SimpleNamespace(context_len=256), 16
        folder = attach(mode, "geometry", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        made = batch([33, 100])
        build(backend, made)
        kernel = backend._run_fixed_q_len_decode
        backend._run_fixed_q_len_decode = lambda *args, **named: kernel(*args, **{**named, **more})
        for layer in (SLIDING, FULL, SLIDING):
            dispatch(backend, layer, made)
        return folder

    def test_silent_where_it_is_the_layers(self, attach, swa_allocator):
        assert list(DumpStore(self.decode(attach, swa_allocator, "trap")).list()) == []

    def test_one_that_is_left_out_is_told_once(self, attach, swa_allocator):
        (entry,) = DumpStore(self.decode(attach, swa_allocator, "log", window_left=-1)).list()
        found = read_dump(entry.path)
        assert (found.manifest.verdict, found.manifest.layer.id) == ("geometry_mismatch", SLIDING)
        assert (found.manifest.scalars["found"], found.manifest.scalars["expected"]) == (-1, "31, as the layer has it")
        (finding,) = conclude(next(iter(group([found]))))
        assert (finding.rule, finding.confidence) == ("parts-disagree", Confidence.CERTAIN)
        assert "another window than the layer of the target has" in finding.cause

    def test_another_scale_is_told(self, attach, swa_allocator):
        (entry,) = DumpStore(self.decode(attach, swa_allocator, "log", bmm1_scale=0.0625)).list()
        found = read_dump(entry.path)
        assert (found.manifest.verdict, found.manifest.scalars["what"]) == ("geometry_mismatch", "kernel_scale")
        assert found.manifest.scalars["found"] == "0.0625"
        (finding,) = conclude(next(iter(group([found]))))
        assert (finding.rule, finding.confidence) == ("parts-disagree", Confidence.CERTAIN)
        assert "another scale of its scores than the layer of the target has" in finding.cause

    def test_in_trap_before_the_kernel(self, attach, swa_allocator):
        with pytest.raises(TrappedViolation, match="kernel_window"):
            self.decode(attach, swa_allocator, "trap", window_left=32)
