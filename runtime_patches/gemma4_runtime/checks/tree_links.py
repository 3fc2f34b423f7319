"""How the nodes of a prefix cache hang together: links, locks, and the lists by which it evicts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Broken(StrEnum):
    """What is wrong with a node. Dumps have these words."""

    OTHER_PARENT = "another parent"
    """It names another node as its parent than the one that has it as a child."""
    CUT_OFF = "cut off"
    """The cache knows it, and no path from the root leads to it."""
    NO_CHILD = "not a child"
    """The cache knows it, and the node that it names as its parent is in the tree and does not have it as a child."""
    TWICE = "child of two"
    """It is among the children of two nodes, or twice among those of one."""
    GONE = "gone and still a child"
    """A path from the root leads to it, and the cache does not know it any more."""
    GHOST = "removed and still listed"
    """It is on a list of those that may be evicted, and the cache does not know it any more."""
    FEW_SLOTS = "fewer slots than tokens"
    """It has fewer slots than its key has tokens, in the full pool or in its sliding window."""
    MANY_SLOTS = "more slots than tokens"
    NO_SLOTS = "tokens without slots"
    """It is in the tree, and has no slots of the full pool at all."""
    SAME_TEXT = "one text in two nodes"
    """It has slots that another node has too, for the very same tokens."""
    STALE_WINDOW = "window given up and still there"
    """It has slots of the sliding window, the map has none for its own, and the list of windows does not have it."""
    OTHER_TEXT = "another text"
    """Its key has other tokens than those that were stored in its slots for these very places."""
    OTHER_WINDOW = "another window"
    """Its slots of the sliding window are not what the map has for its slots of the full pool."""
    FEWER_LOCKS = "fewer locks than below"
    """It has fewer locks than its children together, and who locks a node locks all that are above it."""
    BELOW_ZERO = "locks below zero"
    WINDOW_LOCKS = "window locked alone"
    """Its sliding window has more locks than it has."""
    OFF_LIST = "list breaks off"
    """The links of a list by which nodes are evicted do not lead to it and back again."""
    LOCK_ELSEWHERE = "lock on another node"
    """Not of a node: a request's lock names another node than its receipt does."""
    STAMP_GONE = "stamp gone"
    """Not of a node: a request's lock of its sliding window ends at a stamp that no node has any more."""
    STAMP_ELSEWHERE = "stamp elsewhere"
    """Not of a node: the node with that stamp is not on the way from the lock's node up to the root."""
    NO_HOLDS = "held and not locked"
    """Requests lock it, by what each has of its lock, and it has no lock."""
    NO_WINDOW_HOLDS = "window held and not locked"
    FEW_HOLDS = "fewer locks than holders"
    """Requests lock it likewise, and it has fewer locks, but some."""
    FEW_WINDOW_HOLDS = "fewer window locks than holders"
    """The same of its sliding window."""
    COUNTED = "counted as locked or not"
    """Not of a node: the cache counts more or fewer tokens as locked than its locked nodes have."""
    WINDOW_COUNTED = "window counted as locked or not"
    """The same of sliding windows."""
    OTHER_KEY = "under another key"
    """Its parent has it among its children by another key than its own."""
    NOT_A_LEAF = "not a leaf"
    """It is on the list of leaves that may be evicted, and has a child with tokens, a lock, or no tokens."""
    UNLISTED = "unlisted leaf"
    """It is a leaf without a lock, and not on the list of those that may be evicted."""
    WINDOW_UNLISTED = "unlisted window"
    """It has its sliding window, and is not on the list by which windows are evicted."""
    NO_WINDOW = "listed without a window"
    """It is on that list, and has no sliding window."""


@dataclass(frozen=True)
class Link:
    """A node below the root.

    Attributes:
        name: By which it is told from others; the root's is 0.
        above: Of the node that has it as a child.
        parent: Of the node that it names as its parent; None is none at all.
        full: It has tokens of the full pool.
        window: It has them in its sliding window too.
        locks: How many hold it.
        window_locks: How many hold its sliding window.
        spare: Slots that it has beyond the tokens of its key; below 0 where some are missing.
        unlike: Tokens of its key that are not those which were stored in its slots.
        unmapped: Slots of its sliding window that the map does not have for its slots of the full pool.
        misfiled: Its parent has it among its children by another key than its own.
        places: How often it is among the children of a node.
        given_up: It has a sliding window, and the map has nothing for any of its slots.
        text_twice: Another node, met before, has slots of its own for the same tokens.
    """

    name: int
    above: int
    parent: int | None
    full: bool
    window: bool
    locks: int
    window_locks: int = 0
    spare: int = 0
    unlike: int = 0
    unmapped: int = 0
    misfiled: bool = False
    places: int = 1
    given_up: bool = False
    text_twice: bool = False


@dataclass(frozen=True)
class Links:
    """A cache's nodes and its lists of them, by name.

    Attributes:
        nodes: That a path from the root leads to.
        known: That the cache knows by their number; None where it keeps no such table.
        leaves: That may be evicted; None where no list has them.
        windows: Whose sliding windows may be evicted; None where no list has them.
        parents: That those which the cache knows, or has on its list of leaves, name as their parents.
        off_lists: Which a walk over a list by which they are evicted, from the one end or from the other, passes by.
    """

    nodes: Sequence[Link]
    known: Collection[int] | None = None
    leaves: Collection[int] | None = None
    windows: Collection[int] | None = None
    parents: Mapping[int, int | None] = field(default_factory=dict)
    off_lists: Collection[int] = ()


def broken_links(links: Links) -> Iterator[tuple[Broken, int]]:
    """Yield what is wrong with which node, by name; one that is cut off is in no place of the tree."""
    below, inner = Counter[int](), set[int]()
    for node in links.nodes:
        below[node.above] += node.locks
        if node.full:
            inner.add(node.above)
    names = {node.name for node in links.nodes}
    strangers = set(links.known or ()) | set(links.leaves or ()) | set(links.windows or ())
    there = names | {0}
    for name in sorted(strangers - there):
        if links.known is not None and name not in links.known:
            yield Broken.GHOST, name
            continue
        yield (Broken.NO_CHILD if links.parents.get(name) in there else Broken.CUT_OFF), name
    for node in links.nodes:
        if links.known is not None and node.name not in links.known:
            # Its other counts and lists are of a node that was given up.
            yield Broken.GONE, node.name
            continue
        if node.places > 1:
            yield Broken.TWICE, node.name
        elif node.parent != node.above:
            yield Broken.OTHER_PARENT, node.name
        if node.misfiled:
            yield Broken.OTHER_KEY, node.name
        if node.spare:
            yield (Broken.MANY_SLOTS if node.spare > 0 else Broken.FEW_SLOTS), node.name
        if not node.full:
            yield Broken.NO_SLOTS, node.name
        if node.text_twice:
            yield Broken.SAME_TEXT, node.name
        if node.unlike and not node.spare:
            yield Broken.OTHER_TEXT, node.name
        stale = node.given_up and links.windows is not None and node.name not in links.windows
        if stale:
            yield Broken.STALE_WINDOW, node.name
        elif node.unmapped and not node.spare:
            yield Broken.OTHER_WINDOW, node.name
        if node.locks < 0 or node.window_locks < 0:
            yield Broken.BELOW_ZERO, node.name
        elif node.locks < below[node.name]:
            yield Broken.FEWER_LOCKS, node.name
        elif node.window_locks > node.locks:
            yield Broken.WINDOW_LOCKS, node.name
        if node.name in links.off_lists:
            yield Broken.OFF_LIST, node.name
        unlisted = Broken.WINDOW_UNLISTED
        of_lists = _of_lists(node, links, node.name in inner)
        yield from ((broken, node.name) for broken in of_lists if not (stale and broken is unlisted))


def _of_lists(node: Link, links: Links, inner: bool) -> Iterator[Broken]:
    if links.leaves is not None:
        leaf = node.full and not (inner or node.locks or node.window_locks)
        if leaf != (node.name in links.leaves):
            yield Broken.UNLISTED if leaf else Broken.NOT_A_LEAF
    if links.windows is not None and node.window != (node.name in links.windows):
        yield Broken.WINDOW_UNLISTED if node.window else Broken.NO_WINDOW
