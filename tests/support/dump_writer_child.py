"""Real writer processes for test_dump_kills: killed at a chosen point, or many at once. Run as a script."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dump_examples import seed_bug_draft
from gemma4_dumps.caps import StoreCaps
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.reader import verify_dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.writer import WriteOutcome

CAPS = StoreCaps(count=3)
FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.scandir", "fcntl.flock"}


def write(root: Path) -> WriteOutcome:
    block = TensorPayload.from_array(np.ones(20_000, np.float32))
    return DumpStore(root, CAPS).write(seed_bug_draft(tensors={"block": block}))


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a fork. Returns the signal that ended it, 0 if none did."""
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def kill_at_file_event(wanted: int) -> None:
    """SIGKILL before the `wanted`th time that the file system is touched."""
    seen = 0

    def watch(event: str, _: object) -> None:
        nonlocal seen
        if event in FILE_EVENTS:
            seen += 1
            if seen == wanted:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def kill_at_call(wanted: int) -> None:
    """SIGKILL at the `wanted`th call or return of any function, Python's or C's: between write and fsync too."""
    seen = 0

    def watch(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


def check_after_kill(root: Path) -> None:
    """Assert that the store lists, holds its cap, what is complete is whole, and the next writer works."""
    store = DumpStore(root, CAPS)
    entries = store.list()
    complete = [entry for entry in entries if entry.state == "complete"]
    assert {entry.state for entry in entries} <= {"complete", "torn"}, entries
    assert len(complete) <= CAPS.count
    assert all(verify_dump(entry.path).ok for entry in complete)
    assert write(root).path is not None
    assert len(store.names()) <= CAPS.count
    # Only dumps, counters and lock: nothing piles up.
    others = {path.name for path in root.iterdir()} - set(store.names())
    assert others <= {"counters.json", ".counters.json.tmp", ".lock"}, others


def kill_everywhere(root: Path, arm: Callable[[int], None], first: int, step: int) -> None:
    """Kill a writer at point `first`, `first + step` ..., until one gets through."""
    for _ in range(4):
        assert write(root).path is not None
    kills, point = 0, first

    def killed_writer() -> None:
        arm(point)
        write(root)

    while in_child(killed_writer) == signal.SIGKILL:
        kills += 1
        check_after_kill(root)
        point += step
    print(kills)


def write_at_once(root: Path, processes: int, each: int) -> None:
    """Fork `processes` writers that start together; each says how many of its dumps were stored, dropped, failed."""
    begin, go = os.pipe()
    children = []
    for rank in range(processes):
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.read(begin, 1)
            store = DumpStore(root, StoreCaps(count=10))
            outcomes = [store.write(seed_bug_draft(rank=rank, step=step)) for step in range(each)]
            for outcome in outcomes:
                word = "stored" if outcome.path else "dropped" if outcome.dropped_reason else outcome.error
                os.write(1, f"{word}\n".encode())
            # Not os._exit: what was counted is written at exit.
            sys.exit()
        children.append(pid)
    os.close(begin)
    # All children wait for the other end of the pipe to be closed.
    os.close(go)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "file-events":
        kill_everywhere(folder, kill_at_file_event, 1, 1)
    elif what == "calls":
        kill_everywhere(folder, kill_at_call, 1, int(sys.argv[3]))
    else:
        write_at_once(folder, int(sys.argv[3]), int(sys.argv[4]))
