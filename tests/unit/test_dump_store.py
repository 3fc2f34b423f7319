"""The folder of dumps: limits, several writers, resolving and pruning."""

import multiprocessing
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from big_dumps import crowd
from dump_examples import seed_bug_draft
from gemma4_dumps.caps import StoreCaps
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.errors import DumpNotFound, DumpUnreadable
from gemma4_dumps.lock import store_lock
from gemma4_dumps.reader import read_dump, verify_dump
from gemma4_dumps.removal import remove_dumps
from gemma4_dumps.schema import Heading, Manifest
from gemma4_dumps.store import DumpStore, default_root

NOW = datetime.now(UTC)


def write_steps(store: DumpStore, steps, **changes) -> None:
    for step in steps:
        assert store.write(seed_bug_draft(step=step, **changes)).path is not None


def steps_of(store: DumpStore) -> list[int | None]:
    return [entry.manifest.step for entry in store.list() if entry.manifest is not None]


class TestCaps:
    def test_first_and_latest_of_a_signature_outlive_the_count_cap(self, tmp_path):
        store = DumpStore(tmp_path, StoreCaps(count=5))
        write_steps(store, [0], verdict="negative")
        write_steps(store, range(1, 11))
        assert steps_of(store) == [10, 9, 8, 1, 0]
        assert store.dropped_dumps() == {"count": 6}
        newest = read_dump(store.resolve("latest"))
        assert newest.manifest.dropped.dumps == 5

    def test_the_count_cap_holds_even_when_all_are_first_or_latest(self, tmp_path):
        store = DumpStore(tmp_path, StoreCaps(count=3))
        for number in range(6):
            write_steps(store, [number], rule=f"rule-{number}")
        assert steps_of(store) == [5, 4, 3]

    def test_total_bytes(self, tmp_path):
        store = DumpStore(tmp_path, StoreCaps(total_bytes=400_000))
        block = {"block": TensorPayload.from_array(np.ones(25_000, np.float32))}
        write_steps(store, range(8), tensors=block)
        assert steps_of(store) == [7, 6, 0]
        assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) < 400_000
        assert store.dropped_dumps() == {"total_bytes": 5}

    def test_age_spares_first_and_latest(self, tmp_path):
        store = DumpStore(tmp_path, StoreCaps(age_days=2))
        for days in (30, 20, 10, 1):
            write_steps(store, [days], created_utc=NOW - timedelta(days=days))
        assert steps_of(store) == [1, 30]
        assert store.dropped_dumps() == {"age": 2}

    def test_a_dump_larger_than_the_store_is_refused_and_counted(self, tmp_path):
        outcome = DumpStore(tmp_path, StoreCaps(total_bytes=100)).write(seed_bug_draft())
        assert outcome.path is None
        assert outcome.error is None
        assert "do not fit" in (outcome.dropped_reason or "")
        assert DumpStore(tmp_path).list() == []
        assert DumpStore(tmp_path).dropped_dumps() == {"refused": 1}

    def test_torn_dumps_go_first(self, tmp_path):
        store = DumpStore(tmp_path, StoreCaps(count=3))
        write_steps(store, range(3))
        (store.list()[0].path / "manifest.json").write_text("{")
        write_steps(store, [3])
        assert steps_of(store) == [3, 1, 0]

    def test_damaged_counters_stand_in_nobodys_way(self, tmp_path):
        for content in ("{", '{"dropped_dumps": {"count": "many"}}', "[]", '{"dropped_dumps": []}'):
            (tmp_path / "counters.json").write_text(content)
            store = DumpStore(tmp_path, StoreCaps(count=1))
            write_steps(store, [1, 2])
            assert store.dropped_dumps()["count"] >= 1

    def test_what_is_not_a_dump_is_never_removed(self, tmp_path):
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "manifest.json").write_text("{}")
        outside = tmp_path / "elsewhere"
        write_steps(DumpStore(outside), [1])
        inside = tmp_path / "root"
        inside.mkdir()
        os.symlink(DumpStore(outside).list()[0].path, inside / DumpStore(outside).list()[0].dump_id)
        assert DumpStore(inside).list() == []
        DumpStore(inside).prune(keep=0)
        DumpStore(tmp_path).prune(keep=0)
        assert (tmp_path / "thesis" / "manifest.json").exists()
        assert len(DumpStore(outside).list()) == 1


def _write_many(root: str, rank: int) -> list[str | None]:
    store = DumpStore(root, StoreCaps(count=10))
    return [store.write(seed_bug_draft(rank=rank, step=step)).error for step in range(8)]


def test_several_ranks_write_into_one_root(tmp_path):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        errors = pool.starmap(_write_many, [(str(tmp_path), rank) for rank in range(3)])
    assert [error for rank in errors for error in rank] == [None] * 24
    store = DumpStore(tmp_path)
    entries = store.list()
    assert len(entries) == 10
    assert {entry.state for entry in entries} == {"complete"}
    assert all(verify_dump(entry.path).ok for entry in entries)
    assert sum(store.dropped_dumps().values()) == 14


class TestResolve:
    @pytest.fixture
    def store(self, tmp_path):
        store = DumpStore(tmp_path / "root")
        for hour in (1, 2):
            write_steps(store, [hour], created_utc=datetime(2026, 1, 1, hour, tzinfo=UTC))
        return store

    def test_latest_name_prefix_and_path(self, store):
        newest, oldest = store.list()
        assert store.resolve("latest") == newest.path
        assert store.resolve(oldest.dump_id) == oldest.path
        assert store.resolve("20260101T01") == oldest.path
        assert store.resolve(oldest.path) == oldest.path

    def test_a_folder_of_that_name_in_the_current_one_is_not_meant(self, store, tmp_path, monkeypatch):
        oldest = store.list()[1]
        (tmp_path / oldest.dump_id).mkdir()
        monkeypatch.chdir(tmp_path)
        assert store.resolve(oldest.dump_id) == oldest.path

    @pytest.mark.parametrize("wanted", ["20260101", "2027", "", "..\0", "x" * 5000, "/no/such"])
    def test_what_fits_none_or_several(self, store, wanted):
        with pytest.raises(DumpNotFound):
            store.resolve(wanted)

    def test_latest_skips_torn_dumps(self, store):
        newest, oldest = store.list()
        (newest.path / "manifest.json").unlink()
        assert store.resolve("latest") == oldest.path
        (oldest.path / "manifest.json").unlink()
        with pytest.raises(DumpNotFound):
            store.resolve("latest")

    @pytest.mark.parametrize("tear", [Path.unlink, lambda path: os.truncate(path, path.stat().st_size - 1)])
    def test_latest_is_none_that_a_list_calls_torn(self, store, tear):
        newest, oldest = store.list()
        tear(next(path for path in newest.path.iterdir() if path.name != "manifest.json"))
        assert [one.state for one in store.each(store.names())] == ["torn", "complete"]
        assert store.resolve("latest") == oldest.path


class TestPrune:
    def test_caps_age_keep_and_dry_run(self, tmp_path):
        store = DumpStore(tmp_path)
        for days in (5, 4, 3, 2):
            write_steps(store, [days], created_utc=NOW - timedelta(days=days))
        assert store.prune() == []
        assert len(store.prune(older_than=timedelta(days=2.5), dry_run=True)) == 3
        assert steps_of(store) == [2, 3, 4, 5]
        removed = store.prune(older_than=timedelta(days=3.5))
        assert [removal.entry.created_utc for removal in removed] == [NOW - timedelta(days=days) for days in (4, 5)]
        store.prune(keep=1)
        assert steps_of(store) == [2]
        assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [store.list()[0].dump_id]

    @pytest.mark.slow
    def test_a_long_prune_lets_a_server_write(self, tmp_path, monkeypatch):
        crowd(tmp_path / "root", 700)
        # So full that a writer without the lock is refused.
        store = DumpStore(tmp_path / "root", StoreCaps(count=600))
        writer = threading.Thread(target=write_steps, args=(store, range(5)))

        def remove_slowly(root, removals):
            # 3.5 s altogether: longer than a writer waits for the lock.
            time.sleep(len(removals) * 0.005)
            return remove_dumps(root, removals)

        monkeypatch.setattr("gemma4_dumps.store.remove_dumps", remove_slowly)
        writer.start()
        store.prune(keep=0)
        writer.join()
        assert "store_busy" not in store.dropped_dumps()
        assert 1 <= len(store.names()) <= 5

    def test_a_locked_store_is_said_to_be(self, tmp_path):
        store = DumpStore(tmp_path)
        write_steps(store, [1])
        with store_lock(tmp_path, 1), pytest.raises(DumpUnreadable, match="another process; 0 of 1 were removed"):
            store.prune(keep=0)

    def test_nothing_there(self, tmp_path):
        assert DumpStore(tmp_path / "absent").prune() == []
        assert not (tmp_path / "absent").exists()


def test_root_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpUnreadable):
        DumpStore(tmp_path / "file").list()


def test_default_root_is_the_state_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "gemma4-triage" / "dumps"
    assert DumpStore().root == default_root()
    assert not default_root().exists()


class TestList:
    def test_a_heading_has_the_manifests_own_fields(self):
        shared = Heading.model_fields.keys() - {"tensors"}
        for name in shared:
            assert repr(Heading.model_fields[name]) == repr(Manifest.model_fields[name])

    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: text,
            lambda text: text[:-40],
            lambda text: text.replace('"action": "', '"action": "not '),
            lambda text: text.replace('"schema_version": "1', '"schema_version": "9'),
            lambda text: text.replace('"rule": ', '"ruler": '),
            lambda text: "[]",
            lambda text: text.replace('"offence_count": ', '"offence_count": -1'),
        ],
        ids=["whole", "torn", "action", "major", "no rule", "list", "count"],
    )
    def test_a_listed_dump_is_what_its_whole_manifest_says(self, tmp_path, damage):
        store = DumpStore(tmp_path)
        path = store.write(seed_bug_draft()).path / "manifest.json"
        path.write_text(damage(path.read_text()))
        [listed], [whole] = store.each(store.names()), store.list()
        assert (listed.state, listed.problem, listed.size_bytes) == (whole.state, whole.problem, whole.size_bytes)
        if whole.manifest is None:
            assert listed.heading is None
        else:
            shown = set(Heading.model_fields) - {"tensors"}
            assert listed.heading.model_dump(include=shown) == whole.manifest.model_dump(include=shown)
            assert list(listed.heading.tensors) == list(whole.manifest.tensors)

    def test_what_a_list_does_not_show_is_not_looked_into(self, tmp_path, monkeypatch):
        # Without this a listing of 10^5 dumps takes minutes.
        store = DumpStore(tmp_path)
        store.write(seed_bug_draft())
        monkeypatch.setattr("gemma4_dumps.manifest_file.load_manifest", None)
        monkeypatch.setattr("gemma4_dumps.listing.load_manifest", None)
        [listed] = store.each(store.names())
        assert listed.heading.rule == seed_bug_draft().rule
