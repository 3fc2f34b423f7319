"""What is said of a prefix cache's node, by the word that a dump has for what is wrong with it."""

import re

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.incident import PROCESS_END

SPLIT = " Another has more than its tokens: as where a split cuts slots at another length than the key (_split_node)."
_AT_SLOTS = "Look at what gives a node its slots: insert, and how _split_node parts them (redistribute_on_node_split)."
STAMP, GONE = "stamp gone", "gone and still a child"
OF_LOCKS = (STAMP, "stamp elsewhere", "lock on another node")
"""Kinds of which requests are counted, and not nodes."""
SAME_TEXT = "one text in two nodes"
OF_VALUES = ("tokens without slots", "window given up and still there", SAME_TEXT)
OTHER_WINDOW, OTHER_TEXT = "another window", "another text"
COUNTS = ("counted as locked or not", "window counted as locked or not")
WINDOW, PROTECTED = "window locked alone", ("full_protected", "swa_protected")
LEFT_OVER = (
    "has more locks on its sliding window than on itself: with no request left windows are locked still, and no node "
    "is: locks of windows were left over, of one node or of all that a request locked",
    None,
    "Compare where a lock of the window and its release end (acquire_component_lock, release_component_lock): both "
    "count the node whose stamp (uuid) ends them. A release that leaves the window out leaves all of them.",
)
MISLEADS = ("another parent", "fewer slots than tokens", "more slots than tokens")
"""Kinds that give a walk up from a node other slots than its request has."""
KINDS: dict[str, tuple[Structure, Defect | None, str, str]] = {
    "child of two": (
        *(Structure.TREE_NODE, Defect.DUPLICATE),
        "is among the children of two nodes, or twice among those of one: prefixes of two texts lead to it, and one of "
        "them is not that of its keys and values; its pages count twice",
        "Look at what puts a node among a parent's children (insert, _add_new_node, _split_node), and takes it off the "
        "one that it had.",
    ),
    "another parent": (
        *(Structure.TREE_NODE, Defect.STALE),
        "names another node as its parent than the one that has it as a child, so that walks to the root (locks, "
        "unlocks, prefixes) pass that one by",
        "Look at what moves a node: _split_node has to give the lower part its new parent, and that its old one.",
    ),
    GONE: (
        *(Structure.TREE_NODE, Defect.STALE),
        "is not among the nodes that the cache counts as its own, and a match finds it: it was evicted or removed and "
        "is still among its parent's children, or the cache lost count of it",
        "Look at what takes a node out of its parent (_remove_leaf_from_parent): its key has to be the one that it has "
        "there.",
    ),
    "removed and still listed": (
        *(Structure.TREE_NODE, Defect.STALE),
        "is on a list of what may be evicted, and the cache does not count it as its own any more: it was removed, and "
        "stayed on that list; the next eviction takes it again",
        "Look at what takes a removed node off the lists of leaves and of windows (evictable_device_leaves, "
        "lru_lists).",
    ),
    "fewer slots than tokens": (
        *(Structure.TREE_NODE, Defect.LOST),
        "has fewer slots than its key has tokens, so that what hits it lacks some, or gets those of other tokens",
        _AT_SLOTS,
    ),
    "more slots than tokens": (
        *(Structure.TREE_NODE, None),
        "has more slots than its key has tokens, so that what hits it gets those of other tokens",
        _AT_SLOTS,
    ),
    "tokens without slots": (
        *(Structure.TREE_NODE, Defect.LOST),
        "is in the tree and has no slots of the full pool for its tokens, as one that was evicted has none, and that "
        "is taken out of the tree: its value was taken from it, or an eviction ended half done; unless somebody gave "
        "its pages back they are lost, and no match goes past it",
        "Look at what takes a node's value (evict_component, cd.value = None), and whether what it had was freed.",
    ),
    "window given up and still there": (
        *(Structure.TREE_NODE, Defect.STALE),
        "has slots of the sliding window, and its window was given up: the map has none for its slots, and the list by "
        "which windows are evicted does not have it. Its value came back, or was not taken away; a match takes that "
        "window for valid and reads what is not its own, or padding",
        "Look at what takes a node's window (evict_component: cd.value = None), and at what gives one its window again "
        "(insert, tombstone recovery): map, list and value have to go together.",
    ),
    SAME_TEXT: (
        *(Structure.TREE_NODE, Defect.DUPLICATE),
        "has slots that another node has too, for the very same tokens: one text was put into the cache twice, from "
        "one row, as where the request's namespace (extra_key) or the beginning of its key is not what it was at the "
        "insert before. Who evicts the one gives back what the other still has",
        "Look at what a request's key is made of at each of its inserts (extra_key, fill ids), and at how far an "
        "insert says that the tree has it (prev_prefix_len, cache_protected_len).",
    ),
    OTHER_TEXT: (
        *(Structure.TREE_NODE, None),
        "has other tokens in its key than those whose keys and values were stored in its slots: whoever has the text "
        "of that key is given the prefix of another",
        "Look at what makes a node's key (insert, fill ids, _split_node), at what changes one that the tree has, and "
        "at who writes into slots that a node holds.",
    ),
    OTHER_WINDOW: (
        *(Structure.TREE_NODE, None),
        "has other slots of the sliding window than the map has for its slots of the full pool: what is read of it and "
        "what is evicted are not the same",
        "Look at what gives a node its window (insert, _split_node), which takes what the map has for its slots then, "
        "and at what writes the map of slots that a node holds.",
    ),
    "not a child": (
        *(Structure.TREE_NODE, Defect.LOST),
        "is not among the children of its parent, which is in the tree: no match finds it; it was left out there, or "
        "was given up and is still counted",
        "Look at what puts a node among its parent's children (insert, _add_new_node, _split_node), and by which key.",
    ),
    "cut off": (
        *(Structure.TREE_NODE, Defect.LOST),
        "cannot be reached from the root, though the cache still counts it as its own: what lay above was evicted or "
        "removed while this hung on it",
        "Look at which nodes count as leaves (_is_device_leaf), and at what takes a node out of its parent.",
    ),
    "list breaks off": (
        *(Structure.TREE_NODE, Defect.STALE),
        "stands on a list by which nodes are evicted (LRU) where the links of its neighbours do not lead to it and "
        "back again: a walk from one end passes nodes by, or comes to one that was removed, so that an eviction finds "
        "too little, or what it must not take",
        "Look at what links nodes there (_add_node_after, _remove_node): both neighbours of a node change, each in the "
        "direction of the other (lru_next, lru_prev).",
    ),
    "lock on another node": (
        *(Structure.TREE_LOCK, None),
        "is the one that a request's lock names (lock.node), and the lock's receipt was made for another (node_id): "
        "one of the two has changed. The release is refused, or unlocks what others hold, and what was locked stays so",
        "Look at what moves a request's lock to another node (checkpoint_into_tree, cache_unfinished_req, "
        "init_load_back): the lock and its receipt have to be made together.",
    ),
    STAMP: (
        *(Structure.TREE_LOCK, Defect.STALE),
        "no longer has the stamp (uuid) at which a request's lock of its sliding window ends, and no other has it: "
        "another lock stamped it anew, it was taken off, or the lock's own receipt has changed. The release then goes "
        "on to the root, past what that request locked",
        "Look at what writes a node's stamp: a lock stamps a node that has none (acquire_component_lock), and a split "
        "hands it on to the upper part.",
    ),
    "stamp elsewhere": (
        *(Structure.TREE_LOCK, None),
        "has the stamp (uuid) at which a request's lock of its sliding window ends, and is not above the node that "
        "this lock names: the lock names another node than it was taken on, its receipt has another lock's stamp, or "
        "the stamp went to another node. The release then goes on to the root, past what that request locked",
        "Look at what moves a request's lock (lock.node, its receipt), and at what hands a stamp on (_split_node).",
    ),
    "under another key": (
        *(Structure.TREE_NODE, None),
        "stands among its parent's children by another key than its own: whoever has that key's tokens is led to it, "
        "and whoever has its own is not",
        "Look at what puts a node among its parent's children (insert, _add_new_node, _split_node), and by which key.",
    ),
    "locks below zero": (
        *(Structure.TREE_LOCK, Defect.NEGATIVE),
        "has fewer than no locks: it was unlocked once more than it was locked, or the count was changed beside it",
        "Compare inc_lock_ref and dec_lock_ref: each hold has to end once, on the node it began on.",
    ),
    "fewer locks than below": (
        *(Structure.TREE_LOCK, Defect.OFF_BY_ONE),
        "has fewer locks than its children have together, where who locks a node locks all above it: a lock was left "
        "out on the way to the root, taken off twice, or taken off from a node above the one that it began on; or a "
        "child has one too many",
        "Compare inc_lock_ref and dec_lock_ref, and what _split_node copies: both walk from a node to the root.",
    ),
    "held and not locked": (
        *(Structure.TREE_LOCK, Defect.ZERO),
        "has no lock, and requests hold it, by the lock that each of them has, so that an eviction may take what they "
        "read: its last lock was taken off too early or twice, the count was changed beside them, or a request's "
        "lock names another node than the one that it was taken on",
        "Compare inc_lock_ref and dec_lock_ref: each hold has to end once, on the node it began on.",
    ),
    "window held and not locked": (
        *(Structure.TREE_LOCK, Defect.ZERO),
        "has no lock on its sliding window, and requests hold that, by the lock that each of them has, so that an "
        "eviction may take what they read: its last was taken off too early or twice, or the count was changed beside "
        "them",
        "Compare where a lock of the window and its release end (acquire_component_lock, release_component_lock).",
    ),
    "fewer locks than holders": (
        *(Structure.TREE_LOCK, Defect.EARLY),
        "has fewer locks than requests hold it, by the lock that each of them has: one was taken off too early or "
        "twice, or the count was changed beside them",
        "Compare inc_lock_ref and dec_lock_ref: each hold has to end once, on the node it began on.",
    ),
    "fewer window locks than holders": (
        *(Structure.TREE_LOCK, Defect.EARLY),
        "has fewer locks on its sliding window than requests hold it, by the lock that each of them has: one was taken "
        "off too early or twice, or the count was changed beside them",
        "Compare where a lock of the window and its release end (acquire_component_lock, release_component_lock).",
    ),
    WINDOW: (
        *(Structure.TREE_LOCK, None),
        "has more locks on its sliding window than on itself: its own were taken off or never taken, or one of its "
        "window was left over",
        "Compare inc_lock_ref and dec_lock_ref of both of a node's counts.",
    ),
    "counted as locked or not": (
        *(Structure.TREE_LOCK, None),
        "is counted as locked and has no lock, or the other way round, by the tokens that the cache counts as locked: "
        "a first lock or a last release did not move the count, so that evictions take it for fuller, or emptier, than "
        "it is",
        "Compare where the counts move with where locks do (component_protected_size_, component_evictable_size_).",
    ),
    "window counted as locked or not": (
        *(Structure.TREE_LOCK, None),
        "has a sliding window that is counted as locked and has no lock, or the other way round, by the tokens that "
        "the cache counts as locked: a first lock or a last release did not move the count, so that evictions take "
        "windows for fuller, or emptier, than they are",
        "Compare where the counts move with where locks do (acquire_component_lock, release_component_lock, "
        "release_window_lock).",
    ),
    "not a leaf": (
        *(Structure.TREE_LOCK, Defect.EARLY),
        "is on the list of leaves that may be evicted, and has children, a lock or no tokens: evicting it cuts off, or "
        "takes away, what is in use",
        "Look at which nodes count as leaves (_is_device_leaf, _update_evictable_leaf_sets).",
    ),
    "listed without a window": (
        *(Structure.TREE_NODE, Defect.STALE),
        "is on the list by which sliding windows are evicted, and has none any more",
        "Look at what gives a node's window up: it has to leave that list then.",
    ),
    "unlisted window": (
        *(Structure.TREE_NODE, Defect.LOST),
        "has a sliding window and is not on the list by which these are evicted, so that no eviction finds it",
        "Look at what gives a node its window (insert, _split_node): it has to join that list then.",
    ),
    "unlisted leaf": (
        *(Structure.TREE_NODE, Defect.LOST),
        "is a leaf without a lock and not on the list of those that may be evicted, so that no eviction finds it",
        "Look at what updates that list when a child or a lock goes (_update_evictable_leaf_sets).",
    ),
}
"""In the order in which one is what the others follow from."""
_INNERMOST = 4
_CHANGES = (
    *("_split_node", "_add_new_node", "insert", "_insert_helper", "evict", "redistribute_on_node_split"),
    *("acquire_component_lock", "release_component_lock", "inc_lock_ref", "dec_lock_ref"),
)
"""Functions of SGLang's that leave a tree as it must not be until they return."""
_OF_THE_DEVICE = re.compile(r"(?i)cuda|out of memory|\bhip\b|device-side|illegal memory")
"""What an exception says that came of the device, whatever ran then."""


def of_a_gone_node(dump: Dump) -> bool:
    """Return whether the cache has a node among its nodes that it gave up: then its pages' free was right."""
    return GONE in str(dump.manifest.scalars.get("tree_broken"))


def counts_of(dump: Dump) -> dict[str, int]:
    """Return what is wrong with nodes by a dump, and with how many; empty where it says nothing of them."""
    text = dump.manifest.scalars.get("tree_broken")
    pairs = (one.rpartition(":") for one in str(text or "").split(","))
    return {kind: int(count) for kind, _, count in pairs if kind in KINDS and count.isdecimal()}


def half_done(dump: Dump) -> bool | None:
    """Return whether an exception came out of the middle of a change, or of the device; None where it may have.

    A change that is half done leaves the very same. An audit runs between steps.
    """
    if dump.manifest.rule != PROCESS_END:
        return False
    scalars = dump.manifest.scalars
    frames = [one for one in str(scalars.get("traceback")).split(" > ") if one.startswith("sglang.")][-_INNERMOST:]
    changing = any(one.rpartition(":")[0].rpartition(".")[2] in _CHANGES for one in frames)
    # A release that goes past its stamp asserts in the middle of one, and the stamp was gone before.
    changing &= STAMP not in counts_of(dump)
    return True if changing or _OF_THE_DEVICE.search(str(scalars.get("message"))) else None
