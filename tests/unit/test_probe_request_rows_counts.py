"""`request-rows` on counts of requests and batches: lengths, tokens, what is allocated, what overlap has in flight."""

from array import array
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import COMMITS_WHAT_IS_ACCEPTED, held, set_swa_evicted
from gemma4_runtime.rows.counts import check_counters
from gemma4_runtime.rows.seen import note_counts, seen_of
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence
from request_rows_server import PROMPT, Server, named, trapped, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


def launch(server, accepted=None):
    """Launch a decode of all requests, or a verification that accepts so many tokens, and look at no result of it."""
    scheduler, requests = server.scheduler, server.world.requests
    scheduler.enable_overlap = True
    if accepted is not None:
        scheduler.spec_algorithm = SpeculativeAlgorithm.FROZEN_KV_MTP
    for request in requests:
        request.output_ids = array("q", [7])
        request.origin_input_ids = array("q", range(held(request).kv_committed_len - (accepted is None)))
    lengths = torch.tensor([held(request).kv_committed_len for request in requests])
    note_counts(seen_of(scheduler), requests, lengths=lengths.tolist())
    result = SimpleNamespace(accept_lens=None if accepted is None else torch.full((len(requests),), accepted))
    result.copy_done = None
    scheduler.result_queue = [(SimpleNamespace(reqs=requests, forward_mode=ForwardMode.DECODE), result)]
    return lengths


ACCEPTED = [
    pytest.param(None, id="plain"),
    pytest.param(
        3,
        id="drafts",
        marks=pytest.mark.skipif(not COMMITS_WHAT_IS_ACCEPTED, reason="what is in flight is counted otherwise there"),
    ),
]


@pytest.mark.parametrize("accepted", ACCEPTED)
@pytest.mark.parametrize("by", [0, -1])
def test_with_overlap_a_count_is_held_against_tokens_and_batch_with_what_is_in_flight(server, accepted, by):
    lengths = launch(server, accepted)
    record = held(server.world.requests[0])
    record.kv_committed_len += by
    with pytest.raises(TrappedViolation) if by else nullcontext():
        server.check_between_steps(lengths)
    dumps = [read_dump(entry.path) for entry in DumpStore(server.dumps).list()]
    assert len(dumps) == -by
    for dump in dumps:
        said = dump.manifest.scalars
        assert (said["structure"], said["defect"]) == ("request counters", "off by one")
        assert (said["value"], said["expected"], said["account"]) == (lengths[0] - 1, lengths[0], "committed")
        assert conclude(Incident((dump,)))[0].confidence is Confidence.CERTAIN


@pytest.mark.parametrize("by", [0, 1])
def test_with_overlap_a_batchs_length_is_held_against_count_and_tokens(server, by):
    lengths = launch(server)
    lengths[0] += by
    with pytest.raises(TrappedViolation) if by else nullcontext():
        server.check_between_steps(lengths)
    said = [read_dump(entry.path).manifest.scalars for entry in DumpStore(server.dumps).list()]
    assert [(one["structure"], one["account"]) for one in said] == [("batch lengths", "batch")] * by


@pytest.mark.skipif(not COMMITS_WHAT_IS_ACCEPTED, reason="what is in flight is counted otherwise there")
@pytest.mark.parametrize("by", [0, 1])
def test_with_overlap_a_drafts_length_is_what_waits_to_be_accepted_further_on(server, by):
    launch(server, accepted=3)

    def change(made):
        made.seq_lens.add_(3)
        made.positions.add_(3)
        made.seq_lens[0] += by
        made.positions[0] += by

    with pytest.raises(TrappedViolation) if by else nullcontext():
        server.draft(change)
    found = [conclude(Incident((read_dump(entry.path),)))[0] for entry in DumpStore(server.dumps).list()]
    # Count and tokens go by the same accepted tokens, so that they may be wrong together.
    said = [(one.structure, one.defect, one.confidence) for one in found]
    assert said == [(Structure.BATCH_LENGTHS, Defect.OFF_BY_ONE, Confidence.LIKELY)] * by


@pytest.mark.parametrize("unknown", ["twice", "mixed", "grammar", "accepted"])
def test_with_overlap_nothing_is_compared_where_what_is_in_flight_is_not_known(server, unknown):
    launch(server)
    if unknown == "twice":
        server.scheduler.result_queue *= 2
    elif unknown == "mixed":
        server.scheduler.result_queue[0][0].forward_mode = ForwardMode.MIXED
    elif unknown == "grammar":
        for request in server.world.requests:
            request.grammar = object()
    else:
        server.scheduler.spec_algorithm = SpeculativeAlgorithm.FROZEN_KV_MTP

    def change(made):
        server.world.requests[0].origin_input_ids = array("q", range(3))

    server.forward(change)
    assert list(DumpStore(server.dumps).list()) == []


def test_a_request_that_counts_wrongly_is_told_from_its_batch(server):
    def change(made):
        held(server.world.requests[0]).kv_committed_len -= 2

    said = trapped(server, change)
    assert said.scalars["structure"] == "request counters"


def test_a_request_whose_row_was_given_back_is_in_no_batch(server):
    said = trapped(server, lambda made: setattr(held(server.world.requests[0]), "req_pool_idx", None))
    assert (said.scalars["structure"], said.scalars["defect"]) == ("row indices", "stale")


@pytest.mark.parametrize(("ended", "found"), [("", True), ("finished", False), ("retracted", False)])
def test_a_request_that_runs_on_without_its_row_is_found_before_the_next_step(server, ended, found):
    server.next_batch()
    first, requests = server.world.requests[0], server.world.requests
    slots = torch.tensor([held(request).req_pool_idx for request in requests])
    held(first).req_pool_idx = None
    first.is_retracted = ended == "retracted"
    if ended == "finished":
        first.finished_reason = object()
    server.scheduler.running_batch = SimpleNamespace(reqs=requests, req_pool_indices=slots)
    with pytest.raises(TrappedViolation) if found else nullcontext():
        request_rows.before_next_batch(server.scheduler)
    assert [read_dump(one.path).manifest.verdict for one in DumpStore(server.dumps).list()] == ["row_index"] * found


def test_two_running_requests_with_one_row_are_found_before_its_entries_are(server):
    first, second = server.world.requests[:2]
    server.next_batch()
    held(second).req_pool_idx = held(first).req_pool_idx
    said = trapped_by(server, server.next_batch)
    assert (said.scalars["structure"], said.scalars["defect"]) == ("row indices", "duplicate")
    (entry,) = DumpStore(server.dumps).list()
    finding = conclude(Incident((read_dump(entry.path),)))[0]
    assert finding.cause.startswith("Two running requests have one row")


def test_a_batch_that_names_another_row_is_found_before_the_next_step_allocates_by_it(server):
    server.next_batch()
    slots = [held(request).req_pool_idx for request in server.world.requests]
    numbers = torch.tensor([slots[2], *slots[1:]])
    server.scheduler.running_batch = SimpleNamespace(reqs=server.world.requests, req_pool_indices=numbers)
    said = trapped_by(server, lambda: request_rows.before_next_batch(server.scheduler))
    assert (said.verdict, said.site) == ("row_index", "Scheduler.get_next_batch_to_run")
    assert (said.scalars["structure"], said.scalars["defect"]) == ("row indices", "foreign")
    assert (said.scalars["value"], said.scalars["expected"]) == (slots[2], slots[0])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("the batch", (Confidence.CERTAIN, Structure.ROW_INDICES, Defect.FOREIGN)),
        ("two of the batch", (Confidence.LIKELY, Structure.ROW_INDICES, Defect.SWAPPED)),
        ("the request", (Confidence.LIKELY, Structure.REQUEST_COUNTERS, None)),
        ("two requests", (Confidence.LIKELY, Structure.REQUEST_COUNTERS, Defect.SWAPPED)),
        ("the batch, of a new request", (Confidence.LIKELY, Structure.ROW_INDICES, Defect.FOREIGN)),
    ],
)
def test_a_batch_and_its_request_that_differ_are_told_apart_by_where_the_request_was(server, wrong, said):
    world = server.world
    if wrong != "the batch, of a new request":
        server.forward()
    slots = [held(request).req_pool_idx for request in world.requests]
    numbers = slots
    if wrong == "the request":
        held(world.requests[0]).req_pool_idx = world.rows.free_slots[0]
    elif wrong == "two requests":
        held(world.requests[0]).req_pool_idx, held(world.requests[1]).req_pool_idx = slots[1], slots[0]
    elif wrong == "two of the batch":
        numbers = [slots[1], slots[0], *slots[2:]]
    else:
        numbers = [slots[2], *slots[1:]]
    server.scheduler.running_batch = SimpleNamespace(reqs=world.requests, req_pool_indices=torch.tensor(numbers))
    trapped_by(server, lambda: request_rows.before_next_batch(server.scheduler))
    (entry,) = DumpStore(server.dumps).list()
    (finding,) = conclude(Incident((read_dump(entry.path),)))
    assert (finding.confidence, finding.structure, finding.defect) == said
    # Whose it is: the one that had the slot, whatever its record says now.
    assert next(piece.value for piece in finding.evidence if piece.field == "scalars.request_slot") == slots[0]


def test_a_batch_that_was_filtered_to_other_rows_is_found_before_the_next_step_allocates_by_it(server):
    server.forward()
    slots = [held(request).req_pool_idx for request in server.world.requests]
    batch = SimpleNamespace(reqs=server.world.requests, req_pool_indices=torch.tensor(slots))
    request_rows.after_batch_changes(None, batch)
    batch.req_pool_indices[0] = slots[2]
    said = trapped_by(server, lambda: request_rows.after_batch_changes(None, batch))
    assert (said.scalars["structure"], said.scalars["request_slot"]) == ("row indices", slots[0])


@pytest.mark.parametrize("between_chunks", [True, False])
def test_a_retracted_request_that_is_read_again_in_chunks_has_more_tokens_than_keys(server, between_chunks):
    server.next_batch()
    request = server.world.requests[0]
    request.output_ids = array("q", range(9))
    server.scheduler.chunked_req = request if between_chunks else None
    with nullcontext() if between_chunks else pytest.raises(TrappedViolation):
        server.check_between_steps()


def test_more_tokens_than_were_allocated_are_told_by_the_batchs_length(server):
    server.scheduler.spec_algorithm = SpeculativeAlgorithm.FROZEN_KV_MTP
    server.next_batch()
    request = server.world.requests[0]
    record, right = held(request), held(request).kv_committed_len
    record.kv_committed_len += 40
    request.origin_input_ids = array("q", range(len(request.origin_input_ids) + 40))
    lengths = {id(one): held(one).kv_committed_len for one in server.world.requests} | {id(request): right}
    with pytest.raises(TrappedViolation):
        check_counters(server.scheduler, server.world.requests, lengths)
    (entry,) = DumpStore(server.dumps).list()
    (bad, *_) = read_dump(entry.path).manifest.offences
    assert (bad.value, bad.lower) == (right + 40, right)


@pytest.mark.parametrize("drafts", [False, True])
def test_a_length_of_another_request_is_found_before_the_next_batch_is_chosen_where_there_are_no_drafts(server, drafts):
    if drafts:
        server.scheduler.spec_algorithm = SpeculativeAlgorithm.FROZEN_KV_MTP
    server.world.start(range(200, 230))
    for _ in range(2):
        server.forward(mode=ForwardMode.TARGET_VERIFY if drafts else ForwardMode.DECODE)
    lengths = torch.tensor([held(request).kv_committed_len for request in server.world.requests])
    for request, length in zip(server.world.requests, lengths.tolist(), strict=True):
        request.output_ids = array("q", [1])
        request.origin_input_ids = array("q", range(length))
    server.check_between_steps(lengths)
    lengths[0] = lengths[-1]
    if drafts:
        server.check_between_steps(lengths)
        return
    said = trapped_by(server, lambda: server.check_between_steps(lengths))
    assert (said.verdict, said.scalars["structure"], said.scalars["defect"]) == (
        "length_differs",
        "batch lengths",
        "foreign",
    )


def test_a_length_that_is_wrong_as_a_draft_begins(server):
    said = trapped_by(server, lambda: server.draft(lambda made: made.seq_lens[:1].fill_(1 << 20)))
    assert (said.verdict, said.scalars["structure"], said.scalars["defect"]) == (
        "length_differs",
        "batch lengths",
        "past the end",
    )
    assert (said.role, said.site) == ("draft", "set_frozen_kv_positions")


def _told_fewer_tokens(request, by):
    request.origin_input_ids = array("q", range(len(request.origin_input_ids) - by))


def test_a_length_that_is_wrong_from_the_second_step_of_a_draft_on(server):
    server.draft()
    made = request_rows._running.draft
    made.seq_lens = made.seq_lens - 1
    said = trapped_by(server, lambda: request_rows.after_set_positions(None, object(), made))
    assert (said.scalars["structure"], said.scalars["defect"]) == ("batch lengths", "off by one")


@pytest.mark.parametrize(
    ("of_batch", "of_tokens", "account", "structure"),
    [
        (1, 0, "batch", "batch lengths"),
        (0, 1, "tokens", "request counters"),
        (1, 1, "none", "batch lengths"),
    ],
)
def test_of_three_accounts_of_a_length_two_outvote_the_third(server, of_batch, of_tokens, account, structure):
    def change(made):
        made.seq_lens[0] += of_batch
        _told_fewer_tokens(server.world.requests[0], of_tokens)

    said = trapped(server, change)
    assert (said.scalars["account"], said.scalars["structure"]) == (account, structure)


def test_a_length_of_the_forward_before_is_stale(server):
    server.forward()
    before = held(server.world.requests[0]).kv_committed_len
    for _ in range(3):
        # Nothing is looked at in a draft model's.
        server.forward(draft=True)
    said = trapped(server, lambda made: made.given.select(0, 0).fill_(before))
    assert (said.scalars["structure"], said.scalars["defect"]) == ("kernel lengths", "stale")


def test_writes_of_an_earlier_forward_are_stale(server):
    for _ in range(3):
        server.forward()
    # Behind the prompt, which another request has too.
    earlier = int(server.world.rows.req_to_token[held(server.world.requests[0]).req_pool_idx, len(PROMPT)])

    def change(made):
        made.out_cache_loc[0] = earlier

    assert trapped(server, change).scalars["defect"] == "stale"


@pytest.mark.parametrize(
    ("by", "defect"), [(16, "off by one"), (5, None), (-1000, "negative"), (1 << 20, "past the end")]
)
def test_a_request_that_counts_other_tokens_as_the_caches_than_its_nodes_have(server, by, defect):
    server.forward()
    held(server.world.requests[0]).cache_protected_len += by
    said = trapped(server)
    assert (said.verdict, said.scalars["structure"], said.scalars["defect"]) == (
        "counter_wrong",
        "request counters",
        defect,
    )


def test_a_request_that_counts_more_tokens_than_its_row_has_columns(server):
    server.forward()
    held(server.world.requests[0]).kv_allocated_len = 1 << 20
    said = trapped(server)
    assert (said.verdict, said.scalars["defect"]) == ("counter_wrong", "past the end")


def test_a_request_that_counts_more_tokens_than_it_has(server):
    server.forward()
    server.next_batch()
    held(server.world.requests[0]).kv_committed_len += 5
    with pytest.raises(TrappedViolation):
        server.check_between_steps()
    (entry,) = DumpStore(server.dumps).list()
    said = read_dump(entry.path).manifest
    # Behind its tokens the row has nothing, which is not what is wrong.
    assert (said.verdict, said.scalars["structure"]) == ("counter_wrong", "request counters")


def test_a_request_that_has_less_allocated_than_it_has_committed(server):
    server.forward()
    held(server.world.requests[0]).kv_allocated_len -= 1
    said = trapped(server)
    assert (said.verdict, said.scalars["defect"]) == ("counter_wrong", "off by one")


@pytest.mark.parametrize("name", ["kv_committed_len", "kv_allocated_len"])
def test_with_overlap_counts_are_held_against_what_they_were_before_the_forward(server, name):
    server.scheduler.enable_overlap = True
    # What it will give them is not known.
    launched = SimpleNamespace(reqs=server.world.requests, forward_mode=ForwardMode.MIXED)
    server.scheduler.result_queue = [(launched, None)]
    server.forward()
    record = held(server.world.requests[0])
    server.check_between_steps()
    server.forward()
    record.kv_allocated_len += 1
    setattr(record, name, getattr(record, name) + (name == "kv_committed_len"))
    with pytest.raises(TrappedViolation):
        server.check_between_steps()
    (entry,) = DumpStore(server.dumps).list()
    said = read_dump(entry.path).manifest
    assert (said.verdict, said.scalars["structure"]) == ("counter_wrong", "request counters")


@pytest.mark.parametrize(("more", "is_wrong"), [(0, False), (2, True), (3, False), (4, True)])
def test_with_drafts_what_was_allocated_is_kept_or_taken_off_whole_after_the_forward(server, more, is_wrong):
    server.scheduler.spec_algorithm = SpeculativeAlgorithm.FROZEN_KV_MTP
    record = held(server.world.requests[0])
    record.kv_allocated_len = record.kv_committed_len + 3
    note_counts(seen_of(server.scheduler), server.world.requests)
    record.kv_allocated_len = record.kv_committed_len + more
    with pytest.raises(TrappedViolation) if is_wrong else nullcontext():
        check_counters(server.scheduler, server.world.requests)
    if is_wrong:
        (entry,) = DumpStore(server.dumps).list()
        assert read_dump(entry.path).manifest.scalars["expected"] == record.kv_committed_len + 3


@pytest.mark.parametrize("given_back", [False, True])
def test_a_count_of_evicted_tokens_that_has_grown_says_whether_their_slots_are_there(server, given_back):
    """The count is wrong for certain only if they are; else the window was given back at another time."""
    server.forward()
    request, page = server.world.requests[0], server.world.page
    begin = held(request).cache_protected_len
    set_swa_evicted(request, begin + page)
    if given_back:
        row = server.world.rows.req_to_token[held(request).req_pool_idx, begin : begin + page]
        server.world.allocator.full_to_swa_index_mapping[row.long()] = 0
    said = trapped_by(server, server.next_batch)
    assert (said.verdict, said.scalars["counter"]) == ("counter_wrong", "swa_evicted_seqlen")
    told = said.scalars["own_left"], said.scalars["own_kept"]
    assert told[0] > 0
    assert told[1] == (0 if given_back else told[0])
    finding = named(server)
    assert finding.confidence is (Confidence.LIKELY if given_back else Confidence.CERTAIN)
    assert ("count is true" in finding.cause) is given_back
