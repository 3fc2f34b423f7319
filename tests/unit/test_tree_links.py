"""How a prefix cache's nodes hang together: SGLang's own trees are silent, and each break has its word."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attached_ledger import attached_ledger, prompt
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.checks.tree_links import Broken, Link, Links, broken_links
from gemma4_runtime.guard import Guard
from gemma4_runtime.leak.report import report
from gemma4_runtime.release.tree_links import Beside, broken_holds, broken_of, links_of, wrong_locks
from gemma4_runtime.settings import Leak, Mode
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from pool_world import PoolWorld

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

# A root, a branch of two nodes, and a node beside it; the request that locks 3 locks 2 too.
TREE = Links(
    [
        Link(2, above=0, parent=0, full=True, window=False, locks=1),
        Link(3, above=2, parent=2, full=True, window=True, locks=1, window_locks=1),
        Link(4, above=0, parent=0, full=True, window=True, locks=0),
    ],
    known={0, 2, 3, 4},
    leaves={4},
    windows={3, 4},
)


def test_a_tree_as_it_should_be_has_nothing_wrong() -> None:
    assert list(broken_links(TREE)) == []


@pytest.mark.parametrize(
    ("node", "change", "found"),
    [
        (3, {"parent": 0}, [(Broken.OTHER_PARENT, 3)]),
        (3, {"parent": None}, [(Broken.OTHER_PARENT, 3)]),
        (3, {"places": 2, "parent": 0}, [(Broken.TWICE, 3)]),
        (2, {"locks": 0}, [(Broken.FEWER_LOCKS, 2)]),
        (2, {"locks": -1}, [(Broken.BELOW_ZERO, 2)]),
        (4, {"locks": 1}, [(Broken.NOT_A_LEAF, 4)]),
        (3, {"window_locks": 2}, [(Broken.WINDOW_LOCKS, 3)]),
        (3, {"window": False}, [(Broken.NO_WINDOW, 3)]),
        (2, {"window": True}, [(Broken.WINDOW_UNLISTED, 2)]),
        (2, {"spare": 16}, [(Broken.MANY_SLOTS, 2)]),
        (4, {"spare": -16}, [(Broken.FEW_SLOTS, 4)]),
        (4, {"unlike": 1}, [(Broken.OTHER_TEXT, 4)]),
        (4, {"unmapped": 16}, [(Broken.OTHER_WINDOW, 4)]),
        (4, {"misfiled": True}, [(Broken.OTHER_KEY, 4)]),
        (4, {"text_twice": True}, [(Broken.SAME_TEXT, 4)]),
        (3, {"full": False}, [(Broken.NO_SLOTS, 3)]),
        (2, {"window": True, "given_up": True}, [(Broken.STALE_WINDOW, 2)]),
        # One that the list has was not given up: what the map lost is told of pages.
        (4, {"given_up": True}, []),
    ],
)
def test_a_node_that_is_wrong_has_its_word(node: int, change: dict, found: list) -> None:
    nodes = [replace(one, **change) if one.name == node else one for one in TREE.nodes]
    assert list(broken_links(replace(TREE, nodes=nodes))) == found


@pytest.mark.parametrize(("parent", "found"), [(0, Broken.NO_CHILD), (2, Broken.NO_CHILD), (7, Broken.CUT_OFF)])
def test_a_node_without_a_place_has_a_parent_in_the_tree_or_not(parent: int, found: Broken) -> None:
    links = replace(TREE, known={0, 2, 3, 4, 5}, parents={5: parent})
    assert list(broken_links(links)) == [(found, 5)]


def test_a_node_that_a_list_passes_by() -> None:
    assert list(broken_links(replace(TREE, off_lists={4}))) == [(Broken.OFF_LIST, 4)]


def test_a_child_that_the_cache_does_not_know_is_one_that_was_removed() -> None:
    assert list(broken_links(replace(TREE, known={0, 2, 3}, leaves=(), windows={3}))) == [(Broken.GONE, 4)]


def test_lists_are_held_against_the_nodes() -> None:
    assert list(broken_links(replace(TREE, leaves={2, 4}))) == [(Broken.NOT_A_LEAF, 2)]
    assert list(broken_links(replace(TREE, leaves=set()))) == [(Broken.UNLISTED, 4)]
    assert list(broken_links(replace(TREE, leaves={4, 9}, windows={3, 4, 8}))) == [(Broken.GHOST, 8), (Broken.GHOST, 9)]
    assert list(broken_links(replace(TREE, nodes=TREE.nodes[:1], leaves={2}, windows=(), known={0, 2, 3}))) == [
        (Broken.CUT_OFF, 3),
        (Broken.NOT_A_LEAF, 2),
    ]


@pytest.fixture(scope="module", autouse=True)
def attached(tmp_path_factory):
    with attached_ledger(tmp_path_factory.mktemp("attached")):
        yield


@pytest.fixture(params=[True, False], ids=["swa", "plain"])
def world(request, monkeypatch):
    # 0.5.23 takes a tree in Rust otherwise, whose links nobody can read or break.
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    return PoolWorld(monkeypatch, 16, hybrid=request.param)


def _grown(world: PoolWorld):
    """Return the node of a branch whose root has two children, and its one child; nobody holds any."""
    shared = prompt(1, 64)
    for rest in (prompt(2, 40), prompt(3, 40)):
        world.finish(world.start([*shared, *rest]))
    root = getattr(world.tree, "tree_core", world.tree).root_node
    (branch,) = root.children.values()
    # The window's edge is a split of its own.
    while len(branch.children) < 2:
        (branch,) = branch.children.values()
    return root, branch, next(iter(branch.children.values()))


actions = st.lists(st.tuples(st.sampled_from("sssdddff"), st.integers(0, 3), st.integers(1, 90)), max_size=20)


def test_sglangs_own_trees_are_silent(world) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(actions)
    def run(history) -> None:
        for what, which, length in history:
            if what == "s":
                world.start(prompt(which, length))
            elif what == "d":
                world.decode()
            elif world.requests:
                world.finish(world.requests[which % len(world.requests)])
            # What stands in front of a node's slots is asked as an audit does; the map is none in plain pools.
            mapping = getattr(world.allocator, "full_to_swa_index_mapping", None)
            assert broken_of(world.tree, Beside(mapping=None if mapping is None else mapping.numpy())) == {}
            assert broken_holds(world.tree, world.requests) == {}
        world.flush()

    run()
    _grown(world)
    assert len(links_of(world.tree).nodes) >= 3


@pytest.mark.releases("0.5.23")  # Before, a request keeps the number of its stamp, and no lock.
def test_a_lock_whose_stamp_was_overwritten_is_found(monkeypatch) -> None:
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    world = PoolWorld(monkeypatch, 16)
    for seed in (1, 2):
        world.finish(world.start(prompt(seed, 120)))
        world.start([*prompt(seed, 100), *prompt(9, 20)])
    assert wrong_locks(world.tree, world.requests) == {}
    stamp = world.requests[0].lock.receipt.component_lock_uuids[1]
    for node in world.tree.tree_core._node_arena.values():
        stamped = node.component_data[1].metadata
        if stamped.get("uuid") == stamp:
            stamped["uuid"] += 100
    assert wrong_locks(world.tree, world.requests) == {Broken.STAMP_GONE: 1}


@pytest.mark.releases("0.5.23")  # Before, a request keeps no lock.
class TestHolds:
    @pytest.fixture
    def held_tree(self, monkeypatch):
        monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
        world = PoolWorld(monkeypatch, 16)
        for seed in (1, 2):
            world.finish(world.start(prompt(seed, 120)))
            world.start([*prompt(seed, 100), *prompt(9, 20)])
        assert broken_holds(world.tree, world.requests) == {}
        return world

    def test_one_node_that_lost_a_lock(self, held_tree):
        lock = held_tree.requests[0].lock
        held_tree.tree.tree_core._node_arena[lock.node].component_data[0].lock_ref -= 1
        assert broken_holds(held_tree.tree, held_tree.requests) == {Broken.NO_HOLDS: 1}
        # Nobody that runs holds it.
        assert broken_holds(held_tree.tree, held_tree.requests[1:]) == {}

    def test_one_that_keeps_some(self, monkeypatch):
        monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
        world = PoolWorld(monkeypatch, 16)
        world.finish(world.start(prompt(1, 48)))
        for seed in (8, 9):
            assert world.start([*prompt(1, 40), *prompt(seed, 10)])
        core = world.tree.tree_core
        shared = next(
            node
            for node in core._node_arena.values()
            if node is not core.root_node and node.component_data[0].lock_ref == 2
        )
        shared.component_data[0].lock_ref -= 1
        assert broken_holds(world.tree, world.requests) == {Broken.FEW_HOLDS: 1}

    def test_one_lock_that_two_requests_carry_is_one(self, held_tree):
        one, other = held_tree.requests[:2]
        one.lock = other.lock
        assert broken_holds(held_tree.tree, held_tree.requests) == {}

    def test_a_key_shorter_than_a_page_has_none_to_be_found_by(self, held_tree):
        root = held_tree.tree.tree_core.root_node
        child = next(iter(root.children.values()))
        child.key = child.key[:3]
        assert Broken.OTHER_KEY not in broken_of(held_tree.tree)

    def test_a_window_that_lost_one(self, held_tree):
        lock = held_tree.requests[1].lock
        held_tree.tree.tree_core._node_arena[lock.node].component_data[1].lock_ref -= 1
        assert broken_holds(held_tree.tree, held_tree.requests) == {Broken.NO_WINDOW_HOLDS: 1}

    def test_a_window_that_was_given_back_is_not_counted(self, held_tree):
        lock = held_tree.requests[1].lock
        held_tree.tree.tree_core._node_arena[lock.node].component_data[1].lock_ref -= 1
        lock.swa_released = True
        assert broken_holds(held_tree.tree, held_tree.requests) == {}

    @pytest.mark.parametrize(("part", "word"), [(0, Broken.COUNTED), (1, Broken.WINDOW_COUNTED)])
    def test_a_count_of_locked_tokens_that_did_not_move(self, held_tree, part, word):
        core = held_tree.tree.tree_core
        (kind,) = (one for one in core.component_types if int(one) == part)
        core.component_protected_size_[kind] += 16
        core.component_evictable_size_[kind] -= 16
        assert broken_of(held_tree.tree) == {word: 16}

    def test_a_lock_that_names_another_node_than_its_receipt(self, held_tree):
        one, other = held_tree.requests[:2]
        one.lock.node = other.lock.node
        # Of which of them it is a hold nobody knows: neither has fewer locks than holders for it.
        assert broken_holds(held_tree.tree, held_tree.requests) == {Broken.LOCK_ELSEWHERE: 1}
        assert wrong_locks(held_tree.tree, held_tree.requests) == {Broken.LOCK_ELSEWHERE: 1}

    def test_a_stamp_that_is_not_on_the_way(self, held_tree):
        one, other = held_tree.requests[:2]
        one.lock.node = one.lock.receipt.node_id = other.lock.node
        assert wrong_locks(held_tree.tree, held_tree.requests) == {Broken.STAMP_ELSEWHERE: 1}

    def test_one_text_in_two_nodes(self, held_tree):
        core = held_tree.tree.tree_core
        one, other = (node for node in core._node_arena.values() if node.parent is core.root_node)
        assert other.component_data[0].value is not None
        other.component_data[0].value = one.component_data[0].value.clone()
        # Other tokens of a page that two were given are told by the page.
        assert Broken.SAME_TEXT not in broken_of(held_tree.tree, Beside())
        other.key = one.key
        assert broken_of(held_tree.tree, Beside())[Broken.SAME_TEXT] == 1
        # Nothing is read of the device where it may have died.
        assert Broken.SAME_TEXT not in broken_of(held_tree.tree)

    def test_a_window_that_came_back(self, held_tree):
        core, mapping = held_tree.tree.tree_core, held_tree.allocator.full_to_swa_index_mapping.numpy().copy()
        (node, *_) = (one for one in core._node_arena.values() if one.component_data[1].value is not None)
        (kind,) = (one for one in core.component_types if int(one) == 1)
        core.lru_lists[kind].remove_node(node)
        mapping[node.component_data[0].value.numpy()] = 0
        assert broken_of(held_tree.tree, Beside(mapping=mapping)) == {Broken.STALE_WINDOW: 1}

    def test_a_child_under_another_key(self, held_tree):
        root = held_tree.tree.tree_core.root_node
        key, child = next(iter(root.children.items()))
        del root.children[key]
        root.children[(*key[:-1], 7777) if isinstance(key, tuple) else ("other", key)] = child
        assert broken_of(held_tree.tree) == {Broken.OTHER_KEY: 1}


def test_a_list_whose_back_links_were_left(world) -> None:
    _grown(world)
    lists = (
        world.tree.tree_core.lru_lists.values()
        if hasattr(world.tree, "tree_core")
        else [getattr(world.tree, name) for name in ("full_lru_list", "swa_lru_list") if hasattr(world.tree, name)]
    )
    (listed, *_) = [one for one in lists if len(one.cache) > 1] or [None]
    if listed is None:
        # A cache without a sliding window evicts by its leaves alone.
        return
    nodes = list(listed.cache.values())
    at = getattr(listed, "_pt", None)
    for one in nodes:
        if at is None:
            setattr(one, listed.prv, nodes[0])
        else:
            one.lru_prev[at] = nodes[0]
    assert Broken.OFF_LIST in broken_of(world.tree)


def _stale_parent(root, branch, leaf, tree) -> None:
    leaf.parent = root


def _child_of_two(root, branch, leaf, tree) -> None:
    (key,) = (key for key, child in branch.children.items() if child is leaf)
    root.children[key] = leaf


def _unlocked_twice(root, branch, leaf, tree) -> None:
    _lock(leaf, -1)


def _lock_left_out_above(root, branch, leaf, tree) -> None:
    _lock(leaf, 1)


def _not_a_child(root, branch, leaf, tree) -> None:
    branch.children = {key: child for key, child in branch.children.items() if child is not leaf}


def _cut_at_another_length(root, branch, leaf, tree) -> None:
    of_both = (branch.component_data[0], leaf.component_data[0]) if hasattr(leaf, "component_data") else (branch, leaf)
    upper, lower = of_both
    upper.value, lower.value = upper.value[:16], torch.cat((upper.value[16:], lower.value))


def _lock(node, by: int) -> None:
    if hasattr(node, "component_data"):
        node.component_data[0].lock_ref += by
    elif hasattr(node, "full_lock_ref"):
        node.full_lock_ref += by
    else:
        node.lock_ref += by


@pytest.mark.parametrize(
    ("change", "broken", "structure"),
    [
        (_stale_parent, Broken.OTHER_PARENT, "radix tree node"),
        (_child_of_two, Broken.TWICE, "radix tree node"),
        (_unlocked_twice, Broken.BELOW_ZERO, "radix tree lock"),
        (_not_a_child, Broken.NO_CHILD, "radix tree node"),
        (_cut_at_another_length, Broken.FEW_SLOTS, "radix tree node"),
        (_lock_left_out_above, Broken.FEWER_LOCKS, "radix tree lock"),
    ],
)
def test_an_audit_tells_it_and_its_dump_is_diagnosed(world, tmp_path, change, broken, structure) -> None:
    change(*_grown(world), world.tree)
    assert Counter(broken_of(world.tree))[broken] == 1
    found = world.audit()
    if {finding.fault.name for finding in found.findings} == {"LOCKED_AT_IDLE"}:
        # A lock that is left over with no request running is told by its pages.
        return
    guard = Guard(Mode.OFF, tmp_path, dict)
    report(found, found.findings, "idle", Leak.DUMP, guard)
    dumps = [read_dump(entry.path) for entry in DumpStore(guard.root).list()]
    assert all(dump.damage == () for dump in dumps)
    (incident,) = group(dumps)
    first = conclude(incident)[0]
    assert (first.rule, first.structure) == ("tree-broken", structure)
