"""Readers of what else a server leaves, on files that are torn, odd, slow to read or want to harm."""

import contextlib
import json
import pickle
import random
import shutil
import time

import pytest

from asked_evidence import EVIDENCE, document, readings
from gemma4_dumps.errors import DumpError
from gemma4_triage.readers import cuda_gdb, flashinfer_log, py_spy
from gemma4_triage.readers.catalog import READERS
from gemma4_triage.readers.reading import Moment, NotThis, Reading
from gemma4_triage.readers.text_file import Lines
from gemma4_triage.time_limit import Clock

FILES = sorted(path for path in EVIDENCE.rglob("*") if path.is_file() and path.suffix not in (".md", ".log"))


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("name", ["", "renamed.pkl"])
def test_a_torn_snapshot_is_never_a_healthy_server(cli, tmp_path, share, name):
    (whole,) = (EVIDENCE / "crash").rglob("*.pkl")
    data = whole.read_bytes()
    (tmp_path / (name or whole.name)).write_bytes(data[: int(len(data) * share)])
    code, found = document(cli, tmp_path)
    assert (code, found["clean"], found["files_read_in_part"]) == (4, False, 1)
    # A name that SGLang gives to crash snapshots only says that the server ended.
    assert [one["rule"] for one in found["incidents"][0]["findings"]] == ([] if name else ["ended-with-requests"])
    last = cli("diagnose", tmp_path)[1].splitlines()[-1]
    assert "nothing wrong" not in last
    assert "1 file read in part" in last
    code, out, _ = cli("report", tmp_path, "--json")
    assert (code, json.loads(out)["verdict"]["status"]) == (4, "unchecked" if name else "bad")


@pytest.mark.parametrize(
    "fields", [{"server_args": 1}, {"server_args": 1, "requests": [("a", {}, 1.7e9, 0.0), ("a", {})]}]
)
def test_a_pickle_of_requests_that_lacks_some_is_damaged(cli, tmp_path, fields):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(fields))
    code, found = document(cli, tmp_path)
    assert (code, found["files_read_in_part"]) == (4, 1)
    assert found["incidents"][0]["readings"][0]["problem"].startswith("is damaged: ")


@pytest.mark.parametrize(
    "sample", ["flight-recorder/nccl_trace_rank_0", "flight-recorder-json/rank_0.json", "hanging/collect.json"]
)
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_torn_reading_is_named_beside_others_and_alone(cli, tmp_path, sample, share):
    whole = EVIDENCE / sample
    data = whole.read_bytes()
    (tmp_path / whole.name).write_bytes(data[: int(len(data) * share)])
    assert document(cli, tmp_path / whole.name)[0] == 4
    shutil.copy(EVIDENCE.parent / "logs" / "healthy.log", tmp_path)
    code, found = document(cli, tmp_path)
    assert (code, found["files_left_alone"]) == (4, 0)
    assert [one["path"] for one in found["unreadable"]] == [str(tmp_path / whole.name)]
    assert cli("diagnose", tmp_path)[1].endswith("of 1 run: 1 unreadable file or dump\n")


@pytest.mark.parametrize(
    ("reader", "begins", "line"),
    [
        (cuda_gdb.read, b"", b"Current focus set to CUDA kernel 1, block (1,1) "),
        (cuda_gdb.read, b"CUDA Exception: Warp Assert\n#0 0x1 in a", b"<(<(:"),
        (cuda_gdb.read, b"CUDA Exception: Warp Assert\n", b"<<<("),
        (flashinfer_log.read_logs, b"FlashInfer API Call: f\n", b"[2025-11-11"),
        (flashinfer_log.read_logs, b"FlashInfer API Call: f\n  a=\n", b"FlashInfer API Call: "),
        (py_spy.read, b'Process 1: x\nPython v3.1\nThread 1 (idle): "MainThread"\n  ', b"a ("),
    ],
)
def test_lines_that_take_a_pattern_long_take_no_time(tmp_path, reader, begins, line):
    path = tmp_path / "x"
    path.write_bytes(begins + (line * 2000)[:16000].join([b"\n"] * 100))
    begin = time.process_time()
    with contextlib.suppress(NotThis):
        list(reader([path]))
    assert time.process_time() - begin < 3


def test_time_is_looked_at_in_long_lines_too(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"a" * 10**6)
    monkeypatch.setattr(Clock, "is_over", True)
    lines = Lines(path)
    assert len(list(lines)) < 10
    assert lines.problem == "ends early: it took too long"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_sample_is_a_reading_or_an_error_in_a_line(tmp_path, path, seed):
    luck = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(luck.choice([1, 4, 40])):
        data[luck.randrange(len(data))] = luck.randrange(256)
    damaged = tmp_path / path.name
    damaged.write_bytes(data[: luck.choice([len(data), len(data) // 2, 40])])
    for reader in READERS:
        try:
            for reading in reader.read([damaged]):
                assert isinstance(reading, Reading)
        except (DumpError, NotThis):
            pass


# What a field may hold instead of what it should.
ODD = (
    None,
    True,
    -1,
    1e308,
    float("inf"),
    10**400,
    2**63,
    "x",
    "",
    "0001-01-01",
    [],
    {},
    [[]],
    {"a": 1},
    "--port",
    "\x1b[31m",
)


def bent(value, dice: random.Random, share: float):
    """Return a JSON value with some of its parts, at any depth, replaced by odd ones or left out."""
    if dice.random() < share:
        return dice.choice(ODD)
    if isinstance(value, dict):
        return {name: bent(part, dice, share) for name, part in value.items() if dice.random() > share / 2}
    return [bent(part, dice, share) for part in value] if isinstance(value, list) else value


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(60))
def test_odd_values_in_any_field_end_in_no_error_of_ours(cli, tmp_path, seed):
    dice = random.Random(seed)
    sample = dice.choice(("hanging", "crash", "crash-0.5.23", "flight-recorder-json"))
    folder = shutil.copytree(EVIDENCE / sample, tmp_path / "x")
    for path in folder.rglob("*.json"):
        known = json.loads(path.read_text())
        # JSON has no infinity; Python writes one all the same.
        path.write_text(json.dumps(bent(known, dice, dice.choice((0.02, 0.1, 0.3))), indent=1))
    requests = [(dice.choice(ODD), dice.choice(ODD), dice.choice((*ODD, 1.7e9)), dice.choice(ODD)) for _ in range(3)]
    snapshot = {"server_args": dice.choice(ODD), "requests": requests, "launch_command": dice.choice(ODD)}
    (folder / "crash_dump_x.pkl").write_bytes(pickle.dumps(snapshot))
    entries = [{"collective_seq_id": 1, "time_created_ns": dice.choice(ODD), "frames": dice.choice(ODD)}]
    for rank in range(2):
        trace = {"pg_config": {}, "rank": dice.choice(ODD), "entries": [*entries, dice.choice(ODD)]}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(trace))
    for words in (("diagnose", folder), ("diagnose", folder, "--json"), ("report", folder, "--json")):
        code, _, err = cli(*words)
        assert code in (0, 1, 4, 5), err


def test_a_time_that_no_calendar_has_is_none():
    assert [Moment(time, "x").time_s for time in (0, 1.5, None, -1, 1e12, float("nan"), float("inf"), 10**400)] == [
        *(0.0, 1.5),
        *[None] * 6,
    ]


def test_what_a_file_says_cannot_command_the_terminal(cli, tmp_path):
    text = (EVIDENCE / "cuda-gdb" / "core.txt").read_text().replace("fmhaSm100", "fmha\x1b[2J")
    (tmp_path / "core.txt").write_text(text)
    _, out, _ = cli("diagnose", tmp_path)
    assert "\x1b" not in out


def test_a_very_long_line_is_survived(tmp_path):
    stacks = tmp_path / "s.txt"
    stacks.write_bytes(b"Process 1: x\nPython v3.11.1 (y)\n" + b"a" * 10**7 + b"\nThread 1 (idle)\n    f (g.py:1)\n")
    (reading,) = readings(stacks)
    assert reading.identity.pids == (1,)
