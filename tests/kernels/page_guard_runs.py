"""One build through page_guard, held against the reading by hand.

Where it runs: kernel_paths.py.
"""

import os
from pathlib import Path

import torch
from kernel_paths import DEVICE
from page_guard_by_hand import Build, Table, arguments, slow

from gemma4_kernels.page_guard.launch import Findings, GuardedTable, NullPage, PageGuard, PreparedCheck

ROOT = Path(__file__).resolve().parents[2]
ILLEGAL, LEGAL, IN_PADDED_ROWS = NullPage


def launch_and_read(prepared: PreparedCheck) -> Findings | None:
    prepared.launch()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return prepared.read()


def run(build: Build, path: str):
    """(findings, arrays afterwards, result words), and nothing around the arrays has changed."""
    given_, views, memories = arguments(build, DEVICE)
    before = [(memory.clone(), view.clone()) for memory, view in zip(memories, views, strict=True)]
    prepared = PageGuard(DEVICE, path).prepare(**given_)
    prepared.launch()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    words = prepared.result.tolist()
    after = [view.tolist() for view in views]
    for view, memory, (old, contents) in zip(views, memories, before, strict=True):
        # With the view put back as it was, the memory around it has to be what it was.
        view.copy_(contents)
        assert torch.equal(memory, old), "memory outside the array was written"
    found = prepared.read()
    assert not prepared.result.any(), "the next launch would not start clean"
    return found, after, words


def assert_reads_like_the_slow_one(build: Build, path: str) -> Findings | None:
    expected, arrays = slow(build)
    found, after, _ = run(build, path)
    assert found == expected
    assert after == arrays
    return found


def assert_contains_rows_that_overlap(build: Build, path: str) -> None:
    """Assert what is certain, as one program may read the 0 of another: who overflows, and that nothing bad is left."""
    expected, arrays = slow(build)
    found, after, _ = run(build, path)
    assert after == arrays
    assert (found is None) == (expected is None)
    if expected and found:
        assert found.overflows == expected.overflows
        assert {offence.array for offence in found.offences} == {offence.array for offence in expected.offences}
        assert set(found.rows) <= set(expected.rows)


def clean(rows: int, columns: int, page_size: int = 16, arrays: int = 2, **changes) -> Build:
    """Return every entry live and legal: ids 1..bound-1, different from row to row and from table to table."""
    bounds = [1000 - 10 * t for t in range(arrays)]
    return Build(
        arrays=[
            Table(
                [[1 + (31 * r + c + t) % (bounds[t] - 1) for c in range(columns)] for r in range(rows)], columns, bound
            )
            for t, bound in enumerate(bounds)
        ],
        lengths=[columns * page_size] * rows,
        page_size=page_size,
        **changes,
    )


def one(pages: torch.Tensor, bound: int = 4, *more) -> list[GuardedTable]:
    return [GuardedTable(pages, bound, *more)]


def child_environment() -> dict[str, str]:
    # What the parent finds its packages by comes behind: the bench is over the repository's kernels, and imports more.
    behind = os.environ.get("PYTHONPATH")
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "kernels"), behind]))}
