"""Dumps of an allocator's calls, made from its history without a violation, or with its calls changed."""

import itertools

from gemma4_dumps.draft import DumpDraft
from gemma4_dumps.reader import read_dump
from gemma4_dumps.writer import write_dump
from gemma4_runtime.probes.swa_allocator_state import _facts

_numbers = itertools.count()


def draft_of(allocator, verdict="double_free"):
    """What a dump would hold if the probe reported something now."""
    return DumpDraft(
        rule="swa-double-free",
        verdict=verdict,
        summary="made by a test",
        mode="log",
        action="logged",
        site="SWATokenToKVPoolAllocator.free",
        **_facts(allocator, {}),
    )


def write(root, draft):
    """The dump of a draft, in a store of its own below `root`."""
    outcome = write_dump(root / f"store{next(_numbers)}", draft)
    assert outcome.path is not None, outcome
    return read_dump(outcome.path)
