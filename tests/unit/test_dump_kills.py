"""Real writer processes: killed wherever they are, 64 at once, on a disk that fills up anywhere."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from dump_examples import seed_bug_draft
from gemma4_dumps.caps import StoreCaps
from gemma4_dumps.reader import verify_dump
from gemma4_dumps.store import DumpStore

SUPPORT = Path(__file__).parents[1] / "support"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def child(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, SUPPORT / "dump_writer_child.py", *map(str, words)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_killed_before_every_single_file_operation(tmp_path):
    # Three files, the lock, the survey, the removal of one dump, the counters, the rename.
    assert int(child("file-events", tmp_path)) > 30


@pytest.mark.slow
def test_killed_between_any_two_calls(tmp_path):
    # A prime step, so that the points differ from those of the file operations.
    assert int(child("calls", tmp_path, 97)) > 30


@pytest.mark.slow
def test_killed_by_the_clock(tmp_path):
    code = "from dump_writer_child import *\nwhile True: write(Path(sys.argv[1]))"
    random_ = random.Random(0)
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", code, tmp_path], cwd=SUPPORT, env=ENVIRONMENT) as writer:
            before = len(DumpStore(tmp_path).names())
            while len(DumpStore(tmp_path).names()) == before == 0:
                time.sleep(0.01)
            time.sleep(random_.uniform(0, 1))
            writer.send_signal(signal.SIGKILL)
        store = DumpStore(tmp_path, StoreCaps(count=3))
        entries = store.list()
        assert {entry.state for entry in entries} <= {"complete", "torn"}
        assert sum(entry.state == "complete" for entry in entries) <= 3
        assert all(verify_dump(entry.path).ok for entry in entries if entry.state == "complete")
        # What the killed one left goes with the next dump that is written.
        assert store.write(seed_bug_draft()).path is not None
        assert len(store.names()) <= 3
    store.prune(keep=0)
    assert store.names() == []


@pytest.mark.slow
def test_sixty_four_processes_at_once(tmp_path):
    said = Counter(child("at-once", tmp_path, 64, 4).split("\n"))
    assert said.pop("") == 1
    assert set(said) <= {"stored", "dropped"}
    assert said.total() == 256
    store = DumpStore(tmp_path)
    entries = store.list()
    assert len(entries) == 10
    assert {entry.state for entry in entries} == {"complete"}
    assert all(verify_dump(entry.path).ok for entry in entries)
    assert len({entry.dump_id for entry in entries}) == 10
    # Each of the 256 is there or counted, in whichever process.
    assert sum(store.dropped_dumps().values()) == 256 - 10


@pytest.fixture
def small_disk(tmp_path):
    """Return what mounts a tmpfs with options: a real file system that really runs full. Unmounted after the test."""
    mounted = []

    def mount(options: str) -> Path:
        root = tmp_path / f"disk{len(mounted)}"
        root.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", root], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
        mounted.append(root)
        return root

    yield mount
    for root in mounted:
        subprocess.run(["umount", root], check=True)


FULL_AT = [*(f"size={pages * 4}k" for pages in range(1, 14)), *(f"nr_inodes={count}" for count in range(2, 12))]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("option", FULL_AT)
def test_a_disk_that_is_full_after_any_of_the_files(small_disk, option):
    """No half dump, no exception, and whatever was stored is whole; the counters never cost a dump."""
    store = DumpStore(small_disk(option), StoreCaps(count=2))
    outcomes = [store.write(seed_bug_draft(step=step)) for step in range(5)]
    for outcome in outcomes:
        assert outcome.path is not None or "No space left" in (outcome.error or "")
    entries = store.list()
    assert all(entry.state == "complete" and verify_dump(entry.path).ok for entry in entries)
    assert len(entries) <= 2
    leftovers = {path.name for path in store.root.iterdir()} - set(store.names())
    assert leftovers <= {"counters.json", ".lock"}


def test_the_sizes_above_meet_a_disk_that_holds_nothing_and_one_that_holds_all(small_disk):
    for option, stored in ((FULL_AT[0], 0), (FULL_AT[12], 2), (FULL_AT[13], 0), (FULL_AT[-1], 2)):
        store = DumpStore(small_disk(option), StoreCaps(count=2))
        for step in range(5):
            store.write(seed_bug_draft(step=step))
        assert len(store.names()) == stored, option
