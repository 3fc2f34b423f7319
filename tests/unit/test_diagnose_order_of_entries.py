"""What is named where several entries of a list or of the mapping are wrong together, or in another order.

Put into SGLang's own pools, and read by the audit's own dumps.
"""

import pytest
import torch
from sglang.srt.plugins.hook_registry import HookRegistry

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime import current
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.guard import Guard
from gemma4_runtime.leak.ledger import ledger_of
from gemma4_runtime.leak.report import report
from gemma4_runtime.patch import ATTACH_ORDER
from gemma4_runtime.release.requests import held
from gemma4_runtime.session import Session
from gemma4_runtime.settings import Leak, Mode, read_settings
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.finding import Confidence
from pool_world import PoolWorld

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

LATER = 7
"""The step of the audit; everything else was at step 0."""


@pytest.fixture(scope="module", autouse=True)
def attached(tmp_path_factory):
    patches = [patch for patch in CATALOG if patch.id in ("leak-ledger", "host-alloc-kernels")]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMA4_TRIAGE_LEAK", "dump")
        environment.setenv("GEMMA4_TRIAGE_LEAK_EVERY", "1")
        environment.setenv("SGLANG_TRTLLM_MHA_DEBUG", "trap")
        environment.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path_factory.mktemp("attached")))
        session = Session(read_settings(), tuple(sorted(patches, key=lambda patch: ATTACH_ORDER.index(patch.kind))))
        session.start()
        HookRegistry.apply_hooks()
        yield
        session.stop()


@pytest.fixture
def world(monkeypatch):
    """Return pools with two running requests, and what a third one left in the prefix cache."""
    made = PoolWorld(monkeypatch, page_size=16)
    for seed in (1, 2, 3):
        made.start([(seed * 31 + at * at) % 97 for at in range(40)])
    for _ in range(3):
        made.decode()
    made.finish(made.requests[-1])
    assert made.faults() == {}
    return made


@pytest.fixture
def named(world, tmp_path):
    """Return what is named first of what an audit finds after a change, and how many causes there are."""

    def name(change, step=LATER):
        change(world)
        ledger_of(world.allocator).step = step
        found = world.audit()
        report(found, found.findings, "scheduler step", Leak.DUMP, Guard(Mode.OFF, tmp_path, context()))
        (incident,) = group(read_dump(entry.path) for entry in DumpStore(tmp_path).list())
        causes = conclude(incident)
        return causes[0], len(causes)

    return name


def context():
    guard = current.guard()
    return guard._context


def list_of(pool, *changes):
    """Return what puts the entry at the second place of each pair, or a number below 0 as it is, at the first."""

    def change(world):
        inner = getattr(world.allocator, f"{pool}_attn_allocator")
        pages = inner.free_pages.clone()
        for at, other in changes:
            pages[at] = other if other <= 0 else inner.free_pages[other]
        inner.free_pages = pages

    return change


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pool", ["full", "swa"])
@pytest.mark.parametrize(
    ("changes", "defect"),
    [
        (((4, 6), (5, 7)), Defect.DUPLICATE),
        (((4, 6), (5, 6)), Defect.DUPLICATE),
        (((4, 0), (5, -3)), None),
        (((4, 0), (5, 7)), None),
    ],
    ids=["two twice", "one thrice", "no pages", "both"],
)
def test_several_entries_of_a_free_list_have_one_cause(named, pool, changes, defect):
    cause, count = named(list_of(pool, *changes))
    structure = Structure.FULL_FREE_LIST if pool == "full" else Structure.SWA_FREE_LIST
    assert (cause.rule, cause.structure, cause.defect) == ("free-list-entry-wrong", structure, defect)
    assert (cause.confidence, count) == (Confidence.LIKELY, 1)


def test_what_was_given_back_in_the_step_accuses_no_list(named):
    # At step 0 the third request's pages were given back, and they are the first of the list.
    cause, _ = named(list_of("full", (0, 6), (1, 7)), step=0)
    assert (cause.rule, cause.structure, cause.confidence) == ("free-list-entry-wrong", None, Confidence.POSSIBLE)


def turn(*spans):
    """Return what turns the mappings of rows' tokens round by one page: (request, first token, last) each."""

    def change(world):
        rows, mapping = world.rows.req_to_token, world.allocator.full_to_swa_index_mapping
        slots = torch.cat(
            [rows[held(world.requests[number]).req_pool_idx, begin:end].long() for number, begin, end in spans]
        )
        mapping[slots] = mapping[slots.roll(16)]

    return change


@pytest.mark.parametrize(
    "spans", [((0, 0, 32),), ((0, 0, 32), (1, 0, 16)), ((0, 0, 32), (1, 0, 32))], ids=["two", "three", "four"]
)
def test_mappings_in_another_order_are_exchanged_and_not_stale(named, spans):
    cause, _ = named(turn(*spans))
    assert (cause.rule, cause.structure, cause.defect) == ("mapping-differs", Structure.SWA_MAPPING, Defect.SWAPPED)
    assert cause.confidence is Confidence.CERTAIN


def test_of_mappings_that_lead_to_each_others_pages_and_to_nothing_no_way_is_certain(named):
    # The third page is filled in part: its mapping ends in nothing, and goes round as well.
    cause, _ = named(turn((0, 0, 48)))
    assert (cause.rule, cause.structure, cause.defect) == ("mapping-differs", Structure.SWA_MAPPING, None)


SLOTS = {
    "row 0 in another's place": (lambda free, used: free.__setitem__(0, 0), Defect.ZERO),
    "row 0 beside the others": (lambda free, used: free.append(0), Defect.ZERO),
    "a row past the table": (lambda free, used: free.__setitem__(0, 900), Defect.PAST_END),
    "one twice, in another's place": (lambda free, used: free.__setitem__(0, free[1]), Defect.DUPLICATE),
    "one in use, in another's place": (lambda free, used: free.__setitem__(0, used), Defect.FOREIGN),
}


@pytest.mark.parametrize("name", SLOTS)
def test_a_list_of_free_request_slots_has_a_cause(named, name):
    change, defect = SLOTS[name]
    cause, count = named(lambda world: change(world.rows.free_slots, held(world.requests[0]).req_pool_idx))
    assert (cause.rule, cause.defect, cause.confidence) == ("request-slots-listed-wrong", defect, Confidence.LIKELY)
    assert count == 1


def test_a_request_in_row_0_was_not_forgotten(named):
    cause, _ = named(lambda world: setattr(held(world.requests[0]), "req_pool_idx", 0))
    assert (cause.rule, cause.structure, cause.confidence) == ("request-slots-listed-wrong", None, Confidence.POSSIBLE)


def test_an_audit_says_how_many_rows_there_are_and_which_request_has_each(named, world, tmp_path):
    named(list_of("full", (4, 6)))
    manifest = read_dump(DumpStore(tmp_path).list()[0].path).manifest
    assert manifest.extents["rows_of_requests"] == world.rows.req_to_token.shape[0]
    slots = [held(request).req_pool_idx for request in world.requests]
    assert manifest.scalars["generations"] == ",".join(f"{slot}:1" for slot in sorted(slots))


def test_the_next_request_in_the_slot_of_who_lost_pages_does_not_stand_for_it(named):
    def lose(world):
        lost = world.requests.pop(0)
        slot = held(lost).req_pool_idx
        # Its slot alone comes back, and the next request gets it.
        world.rows.free_slots[:] = [slot]
        assert held(world.start(list(range(20)))).req_pool_idx == slot

    cause, _ = named(lose)
    assert cause.rule == "pages-leaked"
    assert "still runs" not in cause.cause
