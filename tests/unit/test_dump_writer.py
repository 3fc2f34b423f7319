"""A dump is written whole, within its cap, or not at all."""

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from dump_examples import seed_bug_draft
from gemma4_dumps.caps import StoreCaps
from gemma4_dumps.directory_name import TEMPORARY_PREFIX, parse_name
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.reader import read_dump, verify_dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.writer import write_dump

HERE = str(Path(__file__).parents[1] / "support")


def written(root, draft, **options) -> Path:
    outcome = write_dump(root, draft, **options)
    assert outcome.error is None
    assert outcome.dropped_reason is None
    assert outcome.path is not None
    return outcome.path


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {HERE!r})\n{textwrap.dedent(code)}", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_dump_has_three_files_and_says_what_was_given(tmp_path):
    path = written(tmp_path, seed_bug_draft())
    assert sorted(p.name for p in path.iterdir()) == ["events.jsonl", "manifest.json", "tensors.safetensors"]
    dump = read_dump(path)
    assert dump.manifest.dump_id == path.name
    assert dump.manifest.rule == "page-table-bounds"
    assert dump.manifest.layer.id == 4
    assert dump.manifest.launch_args == ("--model-path", "toy", "--api-key", "[redacted]")
    assert dump.manifest.offence_count == 1
    assert dump.tensor("page_table")[2, 7] == 70
    assert list(dump.events()) == [{"event": "alloc", "step": 87}]
    assert verify_dump(path).ok
    parsed = parse_name(path.name)
    assert parsed is not None
    assert (parsed.pid, parsed.rule, parsed.temporary) == (os.getpid(), "page-table-bounds", False)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_nobody_else_may_read_it(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = written(tmp_path / "root", seed_bug_draft())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.iterdir()} == {0o600}
    if umask != 0o277:
        assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700


def test_awkward_evidence_is_kept_as_text(tmp_path):
    draft = seed_bug_draft(
        step=np.int64(3),
        scalars={"nan": float("nan"), "huge": 10**400, "numpy": np.float32(0.5), "object": object()},
        guards={"deep": {"inf": float("inf"), "set": {1}}},
        launch_args=["--served-model-name", "na\udcffme"],
        events=[{"value": float("-inf")}],
        created_utc=datetime(2026, 1, 2, tzinfo=UTC),
        rule="weird/../rule name",
    )
    dump = read_dump(written(tmp_path, draft))
    assert dump.manifest.step == 3
    assert dump.manifest.scalars["nan"] == "nan"
    assert dump.manifest.scalars["numpy"] == 0.5
    assert dump.manifest.guards["deep"] == {"inf": "inf", "set": [1]}
    assert dump.manifest.launch_args[1] == "na\\udcffme"
    assert list(dump.events()) == [{"value": "-inf"}]
    assert dump.path.parent == tmp_path
    assert dump.manifest.created_utc.year == 2026


def test_a_dump_stays_below_its_cap_and_small_tensors_win(tmp_path):
    caps = StoreCaps(bytes_per_dump=200_000)
    cache = TensorPayload.from_array(np.ones((1000, 500), np.float32))
    row = TensorPayload.from_array(np.ones((1, 500_000), np.float32))
    small = TensorPayload.from_array(np.arange(100, dtype=np.int32))
    dump = read_dump(written(tmp_path, seed_bug_draft(tensors={"kv": cache, "row": row, "small": small}), caps=caps))
    assert sum(p.stat().st_size for p in dump.path.iterdir()) <= 200_000
    assert dump.tensor("small").tolist() == list(range(100))
    kept = dump.manifest.tensors["kv"]
    assert kept.truncated_from_shape == (1000, 500)
    assert dump.tensor("kv").shape == kept.shape
    assert 20 < kept.shape[0] < 100
    assert dump.manifest.truncated["kv"].to_shape == kept.shape
    assert dump.manifest.truncated["row"].to_shape is None
    assert dump.manifest.dropped.tensors == 1


def test_payloads_that_contradict_themselves_cost_only_themselves(tmp_path):
    bad = {
        "short": TensorPayload(data=b"123", dtype="int32", shape=(4,)),
        "unknown": TensorPayload(data=b"1", dtype="complex256", shape=(1,)),
        "strides": TensorPayload(data=b"1", dtype="uint8", shape=(1,), stride=(1, 1)),
        "objects": TensorPayload.from_array(np.array([object()])),
        "ok": TensorPayload.from_array(np.arange(3)),
    }
    dump = read_dump(written(tmp_path, seed_bug_draft(tensors=bad)))
    assert list(dump.manifest.tensors) == ["ok"]
    assert dump.manifest.dropped.tensors == 4
    assert "3 bytes" in dump.manifest.truncated["short"].reason


def test_the_latest_events_and_the_first_offences_are_kept(tmp_path):
    offence = seed_bug_draft().offences[0]
    draft = seed_bug_draft(
        events=[{"n": n, "text": "x" * 100} for n in range(1000)], dropped_events=7, offences=[offence] * 1000
    )
    dump = read_dump(written(tmp_path, draft, caps=StoreCaps(bytes_per_dump=200_000)))
    numbers = [event["n"] for event in dump.events()]
    assert numbers == list(range(numbers[0], 1000))
    assert dump.manifest.dropped.events == 7 + numbers[0]
    assert (len(dump.manifest.offences), dump.manifest.offence_count) == (256, 1000)


class TestNeverRaises:
    def test_root_is_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        assert "FileExistsError" in (write_dump(tmp_path / "file", seed_bug_draft()).error or "")
        assert "NotADirectoryError" in (write_dump(tmp_path / "file" / "below", seed_bug_draft()).error or "")

    def test_root_may_not_be_written(self):
        # /proc refuses even root.
        assert write_dump("/proc/gemma4", seed_bug_draft()).error is not None

    def test_a_draft_that_no_manifest_can_carry(self, tmp_path):
        assert "mode" in (write_dump(tmp_path, seed_bug_draft(mode="sideways")).error or "")
        assert write_dump(tmp_path, seed_bug_draft(offences=None)).error is not None
        assert write_dump(tmp_path, None).error is not None  # pyright: ignore[reportArgumentType]
        assert not any(p.name.startswith(TEMPORARY_PREFIX) for p in tmp_path.iterdir())

    def test_a_cap_below_the_manifest(self, tmp_path):
        assert "cap is 100" in (write_dump(tmp_path, seed_bug_draft(), StoreCaps(bytes_per_dump=100)).error or "")

    def test_interrupts_pass_and_leave_nothing_behind(self, tmp_path):
        class Interrupting(dict):
            def items(self):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_dump(tmp_path, seed_bug_draft(tensors=Interrupting()))
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_file_size_limit_leaves_no_half_dump(tmp_path):
    code = """
        import resource, signal, numpy as np
        from dump_examples import seed_bug_draft
        from gemma4_dumps.draft import TensorPayload
        from gemma4_dumps.writer import write_dump
        assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        big = TensorPayload.from_array(np.ones((1000, 100), np.float32))
        print(write_dump(sys.argv[1], seed_bug_draft(tensors={"big": big})).error)
    """
    done = run_python(code, str(tmp_path))
    assert "File too large" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 50_000


def test_full_disk_leaves_no_half_dump(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        big = TensorPayload.from_array(np.ones((1000, 500), np.float32))
        outcome = write_dump(tmp_path, seed_bug_draft(tensors={"big": big}))
        assert "No space left" in (outcome.error or "")
        assert list(tmp_path.iterdir()) == []
        written(tmp_path, seed_bug_draft())
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stop_before", ["events.jsonl", "manifest.json", "rename"])
def test_a_killed_writer_leaves_a_torn_dump_that_is_listed(tmp_path, stop_before):
    # An audit hook stops the process for good at the chosen system call, where SIGKILL then finds it.
    code = """
        import os, time
        from dump_examples import seed_bug_draft
        from gemma4_dumps.writer import write_dump
        def stop(event, arguments):
            hit = event == "open" and str(arguments[0]).endswith(sys.argv[2])
            if hit or (event == "os.rename" and sys.argv[2] == "rename"):
                print("here", flush=True)
                time.sleep(60)
        sys.addaudithook(stop)
        write_dump(sys.argv[1], seed_bug_draft())
    """
    full = f"import sys; sys.path.insert(0, {HERE!r})\n{textwrap.dedent(code)}"
    with subprocess.Popen(
        [sys.executable, "-c", full, str(tmp_path), stop_before], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "here\n"
        assert [entry.state for entry in DumpStore(tmp_path).list()] == ["writing"]
        writer.send_signal(signal.SIGKILL)
    [entry] = DumpStore(tmp_path).list()
    assert entry.state == "torn"
    assert "is gone" in (entry.problem or "")
    if stop_before != "rename":
        with pytest.raises(DumpUnreadable):
            read_dump(entry.path)
    assert write_dump(tmp_path, seed_bug_draft()).path is not None
    assert {entry.state for entry in DumpStore(tmp_path).list()} == {"complete", "torn"}


def test_a_stopped_lock_holder_cannot_hang_a_server(tmp_path):
    code = """
        import time
        from gemma4_dumps.lock import store_lock
        from pathlib import Path
        with store_lock(Path(sys.argv[1]), 1) as held:
            print(held, flush=True)
            sys.stdin.read()
    """
    full = f"import sys; sys.path.insert(0, {HERE!r})\n{textwrap.dedent(code)}"
    with subprocess.Popen(
        [sys.executable, "-c", full, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        begin = time.monotonic()
        caps = StoreCaps(count=2)
        outcomes = [write_dump(tmp_path, seed_bug_draft(), caps, lock_timeout_s=0.1) for _ in range(3)]
        assert time.monotonic() - begin < 5
        holder.communicate("")
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert [outcome.path is not None for outcome in outcomes] == [True, True, False]
    assert "locked by another process" in (outcomes[2].dropped_reason or "")
    dump = read_dump(written(tmp_path, seed_bug_draft(), caps=caps))
    assert dump.manifest.dropped.dumps == 1
    assert DumpStore(tmp_path).dropped_dumps()["store_busy"] == 1


def test_the_manifest_on_disk_is_strict_json(tmp_path):
    path = written(tmp_path, seed_bug_draft(scalars={"x": float("inf")}))

    def refuse(constant):
        raise AssertionError(constant)

    json.loads((path / "manifest.json").read_text(), parse_constant=refuse)
