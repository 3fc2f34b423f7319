"""A fault that cannot act on a server is refused or named, by SGLang's own arguments; one that acts is counted."""

import json
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.server_args import ServerArgs

from gemma4_repro.corpus.faults import FAULTS as FAULT_CASES
from gemma4_repro.corpus.on_release import fitted, reason_absent
from gemma4_runtime import injections
from gemma4_runtime.catalog.faults import FAULTS
from gemma4_runtime.errors import NotServed
from gemma4_runtime.faults import allocators
from gemma4_runtime.faults.needs import NEEDS
from gemma4_runtime.patch import Kind, Patch
from gemma4_runtime.release.arguments import decodes_in_graphs
from gemma4_runtime.releases import installed_or_base
from gemma4_runtime.standing import State, standing
from published import IN_A_CONTEXT
from swa_pools import make_swa_allocator
from toy_arguments import ENGINE, ENGINE_26B, MTP

if IN_A_CONTEXT:
    from sglang.srt.arg_groups.validation_hook import check_server_args

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

HOST = ("host-sm100-check",) if IN_A_CONTEXT else ("host-sm100-check", "host-cpu-config")
ATTACHES = {fault.id for fault in FAULTS if standing(fault, installed_or_base()).state is State.ATTACHES}
# The fault acts on what later releases no longer have, or on a patch that is not ported.
BASE_ALONE = pytest.mark.releases("0.5.13.post1")
"""Of a fault that is not ported, or that acts on mtp-v2."""
# trtllm_mha has no pages of one token.
SINGLE_SLOTS = {"page_size": 1, "attention_backend": "triton"}
V2 = MTP | {"disable_overlap_schedule": False}


def settled_arguments(given):
    """Return SGLang's arguments as a server has them, all checks done."""
    arguments = ServerArgs(**given)
    if IN_A_CONTEXT:
        arguments.resolve_once()
        check_server_args(arguments)
    return arguments


@pytest.fixture
def start(attach):
    """Return a function that settles SGLang's arguments with a fault and other patches attached."""

    def settle(fault, *others, **changes):
        attach("off", fault, *others, *HOST)
        return settled_arguments(ENGINE | changes)

    return settle


def test_every_need_is_known_and_some_fault_has_it():
    assert {name for fault in FAULTS for name in fault.needs} == set(NEEDS)


def test_a_fault_that_says_nothing_of_its_needs_is_no_record():
    hooks = FAULTS[0].attachments
    with pytest.raises(ValueError, match="does not say what it needs"):
        Patch("f", Kind.FAULT, "t", "o", "u", hooks)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fault", "others", "changes", "said"),
    [
        ("swa-alloc-oob", (), MTP, "decode allocations, and a server with speculation makes none. Serve without MTP"),
        ("alloc-on-one-pool", (), MTP, "decode allocations"),
        ("alloc-on-one-pool", (), SINGLE_SLOTS, "pages of several tokens. Set --page-size above 1"),
        pytest.param(
            "finish-inside-forward",
            (),
            MTP,
            "overlap scheduling. Choose mtp-v2, and leave --disable-overlap-schedule",
            marks=BASE_ALONE,
        ),
        pytest.param(
            "finish-inside-forward",
            ("mtp-v2",),
            MTP | {"disable_overlap_schedule": True},
            "overlap scheduling",
            marks=BASE_ALONE,
        ),
        pytest.param("unmergeable-spec-info", ("mtp-v2",), V2, "MTP without spec v2", marks=BASE_ALONE),
        pytest.param(
            "yoco-stale-cache-loc", (), ENGINE_26B, "layers that read the keys of layers before", marks=BASE_ALONE
        ),
        ("page-over-count", (), {"disable_radix_cache": True}, "the prefix cache"),
        (
            "negative-page",
            (),
            MTP | {"device": "cuda", "disable_cuda_graph": False},
            "verifications outside CUDA graphs. Set --disable-cuda-graph, or leave",
        ),
        (
            "stale-mapping",
            (),
            {"disable_hybrid_swa_memory": True},
            "a KV pool of its own for the sliding layers. Leave",
        ),
    ],
)
def test_a_start_at_which_a_fault_cannot_act_is_refused(start, fault, others, changes, said):
    with pytest.raises(NotServed) as caught:
        start(fault, *others, **changes)
    text = str(caught.value)
    assert text.startswith(f"the fault {fault} cannot act on this server: it needs {said}"), text
    assert text.endswith(f"or leave {fault} out of GEMMA4_TRIAGE_FAULTS."), text


@pytest.mark.parametrize(
    ("fault", "others", "changes"),
    [
        ("swa-alloc-oob", (), {}),
        ("swa-alloc-oob", (), MTP | SINGLE_SLOTS),
        pytest.param("finish-inside-forward", ("mtp-v2",), V2, marks=BASE_ALONE),
        pytest.param("unmergeable-spec-info", (), MTP, marks=BASE_ALONE),
        ("negative-page", (), MTP | {"device": "cuda"}),
        ("negative-page", (), MTP | {"disable_cuda_graph": False}),
    ],
)
def test_a_start_at_which_it_can_act_is_not(start, fault, others, changes, capsys):
    start(fault, *others, **changes)
    assert "WITHOUT EFFECT" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if "swa-pool" not in fault.needs and fault.id in ATTACHES], ids=lambda f: f.id
)
def test_a_fault_that_asks_for_no_swa_pool_starts_without_one(start, fault):
    changes = {"disable_hybrid_swa_memory": True} | (MTP if "mtp" in fault.needs or "mtp-v1" in fault.needs else {})
    others = ("mtp-v2",) if "overlap" in fault.needs and not IN_A_CONTEXT else ()
    start(fault.id, *others, **changes | ({"disable_overlap_schedule": False} if "overlap" in fault.needs else {}))


def test_a_fault_of_another_attention_backend_is_named_and_serves_as_a_control(start, capsys):
    start("swa-state-stale", **MTP | {"attention_backend": "triton"})
    said = "FAULT WITHOUT EFFECT: the fault swa-state-stale cannot act on this server: it needs trtllm_mha attention"
    assert said in capsys.readouterr().err
    # So is one of MTP on a server without it.
    start("page-past-the-end")
    assert "the fault page-past-the-end cannot act on this server: it needs MTP" in capsys.readouterr().err
    start("swa-state-stale", **MTP)
    assert "WITHOUT EFFECT" not in capsys.readouterr().err


def test_graphs_are_read_where_a_later_release_settles_them_too():
    device = {"device": "cuda", "disable_cuda_graph": False}
    by_phase = {
        backend: SimpleNamespace(**device, cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(backend=backend)))
        for backend in ("full", "disabled")
    }
    assert {backend: decodes_in_graphs(arguments) for backend, arguments in by_phase.items()} == {
        "full": True,
        "disabled": False,
    }


def test_no_fault_asks_nothing(attach, capsys):
    attach("log", "page-table", *HOST)
    settled_arguments(ENGINE | MTP)
    assert "fault" not in capsys.readouterr().err


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "case",
    [case for case in FAULT_CASES if case.inject and not reason_absent(case, installed_or_base())],
    ids=lambda case: case.id,
)
def test_every_case_of_the_corpus_starts(start, case):
    case = fitted(case, installed_or_base())
    start(*case.inject, *case.along, **(MTP if case.mtp else {}) | dict(case.engine))


class TestCount:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch):
        monkeypatch.setattr(injections, "_counts", type(injections._counts)())

    def server_info(self):
        result = SimpleNamespace(internal_state={})
        injections.after_internal_state(result, None)
        return result.internal_state[injections.KEY]

    def manifest_row(self, folder, fault):
        (path,) = (folder / "guards").glob("*.json")
        return next(row for row in json.loads(path.read_text())["patches"] if row["id"] == fault)

    def test_each_injection_counts_and_the_first_is_in_the_manifest(self, attach):
        folder = attach("off", "swa-alloc-oob", "host-alloc-kernels")
        allocator = make_swa_allocator(640, 320, 1)
        for _ in range(allocators.HEALTHY_CALLS):
            assert allocator.alloc(1) is not None
        assert self.server_info() == {"swa-alloc-oob": 0}
        assert self.manifest_row(folder, "swa-alloc-oob")["injected"] is False
        allocator.alloc(1)
        allocator.alloc(1)
        assert self.server_info() == {"swa-alloc-oob": 1}
        assert self.manifest_row(folder, "swa-alloc-oob")["injected"] is True

    def test_one_that_acts_at_each_call_counts_each(self, attach):
        attach("off", "stale-mapping", "host-alloc-kernels")
        allocator = make_swa_allocator(640, 320, 16)
        slots = allocator.alloc_extend(*_one_request(32))
        allocator.free_swa(slots[:16])
        allocator.free_swa(slots[16:])
        assert self.server_info() == {"stale-mapping": 2}


def _one_request(tokens):
    """Arguments of `alloc_extend` for a request without a prefix."""
    none, ends = torch.tensor([0]), torch.tensor([tokens])
    return none, none, ends, ends, torch.tensor([-1]), tokens
