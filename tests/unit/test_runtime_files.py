"""What a guarded process writes beside its dumps, on a disk that is full: nothing is left half written."""

import json
import logging
import resource
from contextlib import contextmanager

import pytest

from gemma4_runtime.leak import auditor
from gemma4_runtime.leak.auditor import write_tally
from gemma4_runtime.manifest import write_manifest

LONG = "x" * 100_000


@contextmanager
def full_disk():
    """Let no file of this process grow beyond 4 KiB: a write fails as on a full disk, with part of it written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def manifest(**more):
    return {"created_utc": "2026-01-01T00:00:00+00:00", "hostname": "vm", "pid": 7} | more


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(auditor, "_refused", set())


def test_a_tally_that_does_not_fit_leaves_the_one_before_and_nothing_else(tmp_path):
    write_tally(tmp_path, {"steps": 1})
    with full_disk():
        write_tally(tmp_path, {"steps": 2, "equations": [LONG]})
    (path,) = (tmp_path / "audits").iterdir()
    assert json.loads(path.read_text())["steps"] == 1
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_refused_tally_is_said_once(tmp_path, caplog):
    with caplog.at_level(logging.ERROR), full_disk():
        for steps in range(3):
            write_tally(tmp_path, {"steps": steps, "equations": [LONG]})
    assert [record.getMessage() for record in caplog.records] == [
        "gemma4-triage: the audit's tally could not be written, now or later: [Errno 27] File too large"
    ]


def test_a_guard_manifest_that_does_not_fit_leaves_the_one_before_and_nothing_else(tmp_path):
    path = write_manifest(tmp_path, manifest())
    with full_disk(), pytest.raises(OSError, match="too large"):
        write_manifest(tmp_path, manifest(versions={"torch": LONG}))
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text()) == manifest()


def test_the_latest_64_guard_manifests_are_kept(tmp_path):
    paths = [write_manifest(tmp_path, manifest(pid=pid)) for pid in range(100, 170)]
    assert sorted(tmp_path.iterdir()) == paths[-64:]
