"""Probe request-rows on the locks of requests in the prefix cache."""

import pytest
from sglang.srt.mem_cache.base_prefix_cache import DecLockRefParams

from gemma4_dumps.reader import read_dump
from gemma4_dumps.structures import Structure
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows import counts
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence
from request_rows_server import Server, trapped

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


def test_a_request_that_runs_without_a_lock_on_its_nodes(server):
    server.forward()
    # On 0.5.23 others may have locked them too; before, only what is locked at all is counted.
    request = server.world.requests[1]
    assert held(request).cache_protected_len
    kept = hasattr(request, "lock")
    if kept:
        request.lock = None
    else:
        server.world.tree.dec_lock_ref(request.last_node, DecLockRefParams(swa_uuid_for_lock=request.swa_uuid_for_lock))
    said = trapped(server)
    assert (said.verdict, said.scalars["structure"]) == ("lock_missing", "radix tree lock")
    assert said.scalars["defect"] == ("lost" if kept else "early")
    assert said.scalars["request_slot"] == (held(request).req_pool_idx if kept else None)


@pytest.mark.releases("0.5.23")  # Before, no request keeps its lock.
def test_requests_whose_locks_are_on_other_nodes_than_their_last(server):
    server.forward()
    for request in server.world.requests:
        server.world.tree.unlock(request.lock)
        request.lock.node = None
    said = trapped(server)
    assert (said.verdict, said.scalars["locked_elsewhere"]) == ("lock_missing", len(server.world.requests))
    finding = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))[0]
    assert "the lock is on another node than its last" in finding.cause
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.releases("0.5.23")  # Before, no request keeps its lock.
def test_a_request_that_carries_anothers_lock(server):
    server.forward()
    one, other, *_ = server.world.requests
    one.lock = other.lock
    said = trapped(server)
    assert (said.verdict, said.scalars["why"], said.scalars["defect"]) == ("lock_missing", "another's lock", "foreign")
    assert {said.scalars["request_slot"], said.scalars["value"]} == {held(one).req_pool_idx, held(other).req_pool_idx}
    finding = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))[0]
    assert said.scalars["whose_is_known"] == (one.last_node != other.last_node)
    assert ("that one will be given back twice" in finding.cause) == said.scalars["whose_is_known"]


@pytest.mark.releases("0.5.23")  # Before, a lock has no receipt.
def test_the_receipt_of_a_lock_is_the_one_that_the_lock_was_given(server):
    server.forward()
    locked = [one for one in server.world.requests if one.lock is not None]
    assert locked
    server.forward()
    stamps = locked[-1].lock.receipt.component_lock_uuids
    part = next(iter(stamps))
    stamps[part] = (stamps[part] or 0) + 7000
    said = trapped(server)
    slot = held(locked[-1]).req_pool_idx
    assert (said.verdict, said.scalars["why"], said.scalars["request_slot"]) == ("lock_missing", "receipt", slot)
    finding = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))[0]
    assert (finding.structure, finding.confidence) == (Structure.TREE_LOCK, Confidence.LIKELY)
    assert "has another stamp than as the nodes were locked" in finding.cause


# 0.5.13.post1 has no receipts.
@pytest.mark.releases("0.5.23")
@pytest.mark.parametrize("is_left_out", [True, False])
def test_the_receipt_of_a_lock_has_the_parts_that_were_left_out(server, is_left_out):
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

    request = next(one for one in server.world.requests if one.lock is not None)
    receipt, skipped = request.lock.receipt, (ComponentType.SWA,)
    receipt.skipped_lock_components = () if is_left_out else skipped
    server.forward()
    # A lock's part that this project knows nothing of may be given back alone.
    receipt.skipped_lock_components += (ComponentType.MAMBA,)
    server.forward()
    receipt.skipped_lock_components = skipped if is_left_out else ()
    said = trapped(server)
    assert (said.scalars["lock_part"], said.scalars["part_left_out"]) == ("SWA", is_left_out)
    finding = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))[0]
    assert (finding.structure, finding.confidence) == (Structure.TREE_LOCK, Confidence.LIKELY)
    assert (
        "its release leaves that lock" if is_left_out else "its release gives back locks of others"
    ) in finding.cause


@pytest.mark.releases("0.5.23")  # Before, no request keeps its lock.
@pytest.mark.parametrize("is_given_back", [True, False])
def test_a_lock_that_is_marked_as_given_back_may_be_there_still(server, monkeypatch, is_given_back):
    server.forward()
    monkeypatch.setattr(counts, "retain_window", lambda cache: 64)
    request = server.world.requests[1]
    if is_given_back:
        server.world.tree.release_swa(request.lock)
    else:
        request.lock.swa_released = True
    said = trapped(server)
    assert (said.scalars["why"], said.scalars["window_is_locked"], said.scalars["held_by_others"]) == (
        *("window unlocked", not is_given_back),
        0,
    )
    finding = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))[0]
    assert finding.structure is Structure.TREE_LOCK
    assert ("the mark was set without a release" in finding.cause) is not is_given_back
    assert "has given back the lock" in finding.cause or not is_given_back


@pytest.mark.releases("0.5.23")  # Before, no request keeps its lock.
def test_a_lock_that_was_given_back_without_its_mark(server):
    server.forward()
    request = server.world.requests[1]
    server.world.tree.release_swa(request.lock)
    request.lock.swa_released = False
    said = trapped(server)
    assert (said.scalars["why"], said.scalars["defect"]) == ("window not locked", "early")
    assert said.scalars["request_slot"] == held(request).req_pool_idx
    finding = conclude(Incident((read_dump(next(server.dumps.glob("*request-rows*"))),)))[0]
    assert (finding.structure, "given back without the mark" in finding.cause) == (Structure.TREE_LOCK, True)
