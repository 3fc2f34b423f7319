"""A reader of dumps meets whole, torn, damaged and newer ones."""

import json
import os
import shutil
import struct
from datetime import UTC

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dump_examples import seed_bug_draft
from gemma4_dumps.errors import DumpError, DumpIncompatible, DumpNotFound, DumpUnreadable
from gemma4_dumps.manifest_file import encode_manifest, parse_manifest
from gemma4_dumps.reader import read_dump, verify_dump
from gemma4_dumps.schema import Layer, Manifest
from gemma4_dumps.store import DumpStore
from gemma4_dumps.writer import write_dump

FILES = ["manifest.json", "tensors.safetensors", "events.jsonl"]
on_disk = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def dump_path(tmp_path):
    path = write_dump(tmp_path, seed_bug_draft()).path
    assert path is not None
    return path


def read_everything(path) -> None:
    """Whatever lies at `path`, reading it ends well or in a DumpError."""
    try:
        verify_dump(path)
        dump = read_dump(path)
        for name in dump.manifest.tensors:
            dump.tensor(name)
            dump.as_float32(name)
            dump.strided(name)
        list(dump.events())
    except DumpError:
        pass


def edit_manifest(path, **changes) -> None:
    fields = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(fields | changes))


class TestVersions:
    def test_a_newer_minor_is_read_and_its_fields_are_kept(self, dump_path):
        edit_manifest(dump_path, schema_version="1.7", moon_phase={"full": True})
        manifest = read_dump(dump_path).manifest
        assert manifest.model_extra == {"moon_phase": {"full": True}}
        assert json.loads(encode_manifest(manifest))["moon_phase"] == {"full": True}

    @pytest.mark.parametrize("version", ["2.0", "0.9", "10.0"])
    def test_another_major_is_incompatible(self, dump_path, version):
        edit_manifest(dump_path, schema_version=version)
        with pytest.raises(DumpIncompatible):
            read_dump(dump_path)
        assert DumpStore(dump_path.parent).list()[0].state == "incompatible"

    @pytest.mark.parametrize("version", ["", "one", None, 1.0, "1", "1.x", "٣.0"])
    def test_no_version_is_unreadable(self, dump_path, version):
        edit_manifest(dump_path, schema_version=version)
        with pytest.raises((DumpUnreadable, DumpIncompatible)):
            read_dump(dump_path)

    def test_the_published_verdicts_are_not_a_limit(self, dump_path):
        edit_manifest(dump_path, verdict="invented_later")
        assert read_dump(dump_path).manifest.verdict == "invented_later"


class TestHostileManifest:
    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"schema_version": "1.0"}',
            b'{"schema_version": "1.0", "step": NaN}',
            b'{"schema_version": "1.0", "step": 1e999}',
            b'{"schema_version": "\\ud800"}',
            b'{"schema_version": "1.0", "step": ' + b"9" * 5000 + b"}",
            b'{"schema_version": "1.0", "schema_version": "1.0"}',
            b'{"schema_version": "1.0", "guards": {"a": [{"b": 1, "c": 2, "b": 3}]}}',
            b'{"schema_version": "1.0", "guards": "' + b"x" * 2**21 + b'"}',
        ],
        ids=range(14),
    )
    def test_damage(self, dump_path, content):
        (dump_path / "manifest.json").write_bytes(content)
        with pytest.raises(DumpUnreadable):
            read_dump(dump_path)
        assert DumpStore(dump_path.parent).list()[0].state == "torn"

    @pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "..", "a/b", "a\0b", ""])
    def test_file_names_cannot_lead_outside(self, dump_path, name):
        record = {"sha256": "0" * 64, "size_bytes": 1}
        edit_manifest(dump_path, files={name: record})
        with pytest.raises(DumpUnreadable):
            verify_dump(dump_path)

    @pytest.mark.parametrize("file", FILES)
    @pytest.mark.parametrize("kind", ["directory", "symlink", "pipe", "absent", "empty"])
    def test_files_that_are_something_else(self, dump_path, file, kind):
        target = dump_path / file
        copy = dump_path.parent / "copy"
        shutil.copy(target, copy)
        target.unlink()
        if kind == "directory":
            target.mkdir()
        elif kind == "symlink":
            target.symlink_to(copy)
        elif kind == "pipe":
            os.mkfifo(target)
        elif kind == "empty":
            target.touch()
        if file == "manifest.json":
            with pytest.raises(DumpUnreadable):
                verify_dump(dump_path)
        else:
            assert not verify_dump(dump_path).ok
            if kind != "empty" or file == "tensors.safetensors":
                with pytest.raises(DumpUnreadable):
                    _ = (read_dump(dump_path).tensor("page_table"), list(read_dump(dump_path).events()))

    @pytest.mark.parametrize(
        "layout",
        [
            {"stride": [1]},
            {"stride": [10**30, 1]},
            {"stride": [-20, 1]},
            {"stride": [2**39, 1]},
            {"storage_offset": 10**18},
            {"storage_offset": -1},
            {"shape": [20, 4]},
            {"shape": [10**9, 10**9]},
            {"dtype": "float64"},
            {"dtype": "object"},
        ],
        ids=str,
    )
    def test_layouts_that_cannot_be(self, dump_path, layout):
        record = json.loads((dump_path / "manifest.json").read_text())["tensors"]["page_table"]
        edit_manifest(dump_path, tensors={"page_table": record | layout})
        with pytest.raises(DumpUnreadable):
            read_dump(dump_path).strided("page_table")

    @pytest.mark.parametrize("length", [0, 2**40, 2**63, 2**64 - 1])
    def test_header_lengths(self, dump_path, length):
        (dump_path / "tensors.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
        assert not verify_dump(dump_path).ok
        with pytest.raises(DumpUnreadable):
            read_dump(dump_path).tensor("page_table")

    def test_a_file_of_many_gigabytes_is_not_loaded(self, dump_path):
        with open(dump_path / "tensors.safetensors", "r+b") as file:
            file.truncate(2**40)
        with pytest.raises(DumpUnreadable, match="damaged: 1099511627696 bytes of values"):
            read_dump(dump_path).tensor("page_table")
        assert not verify_dump(dump_path).ok

    def test_a_key_twice_is_refused_whatever_it_says(self, dump_path):
        text = (dump_path / "manifest.json").read_text().replace('"rule"', '"rule": "page-table-bounds", "rule"', 1)
        (dump_path / "manifest.json").write_text(text)
        with pytest.raises(DumpUnreadable, match="the key 'rule' stands twice"):
            read_dump(dump_path)

    def test_pages_of_more_slots_than_any_has_are_refused(self, dump_path):
        edit_manifest(dump_path, page_size=2**31)
        assert read_dump(dump_path).manifest.page_size == 2**31
        edit_manifest(dump_path, page_size=2**31 + 1)
        with pytest.raises(DumpUnreadable, match="page_size"):
            read_dump(dump_path)

    def test_a_shape_without_values_that_no_array_can_have(self, dump_path):
        shape = [0, 10**30]
        header = json.dumps({"page_table": {"dtype": "I32", "shape": shape, "data_offsets": [0, 0]}}).encode()
        (dump_path / "tensors.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        edit_manifest(dump_path, tensors={"page_table": {"shape": shape, "dtype": "int32", "stride": [1, 1]}})
        with pytest.raises(DumpUnreadable, match="cannot be"):
            read_dump(dump_path).tensor("page_table")

    def test_events_are_read_line_by_line(self, dump_path):
        (dump_path / "events.jsonl").write_bytes(b'{"n": 1}\n' * 3 + b"{" + b" " * 2**21)
        events = read_dump(dump_path).events()
        assert [next(events) for _ in range(3)] == [{"n": 1}] * 3
        with pytest.raises(DumpUnreadable, match="line 4 has more than"):
            next(events)

    def test_infinity_by_overflow_becomes_text(self, dump_path):
        text = (dump_path / "manifest.json").read_text().replace('"window": 512', '"window": 1e999')
        (dump_path / "manifest.json").write_text(text)
        assert read_dump(dump_path).manifest.scalars == {"window": "inf"}


@pytest.mark.parametrize("file", FILES)
def test_every_truncation_is_noticed(dump_path, file):
    whole = (dump_path / file).read_bytes()
    for length in {0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 2}:
        (dump_path / file).write_bytes(whole[: max(length, 0)])
        try:
            assert not verify_dump(dump_path).ok
        except DumpUnreadable:
            assert file == "manifest.json"
        read_everything(dump_path)


def test_a_flipped_bit_is_noticed(dump_path):
    data = bytearray((dump_path / "tensors.safetensors").read_bytes())
    data[-1] ^= 1
    (dump_path / "tensors.safetensors").write_bytes(data)
    report = verify_dump(dump_path)
    assert [check.subject for check in report.checks if not check.ok] == ["tensors.safetensors"]


@on_disk
@given(file=st.sampled_from(FILES), content=st.binary(max_size=300))
def test_random_files_give_nothing_but_dump_errors(dump_path, file, content):
    whole = (dump_path / file).read_bytes()
    try:
        (dump_path / file).write_bytes(content)
        read_everything(dump_path)
    finally:
        (dump_path / file).write_bytes(whole)


@on_disk
@given(file=st.sampled_from(FILES), edits=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=6)), min_size=1))
def test_damaged_files_give_nothing_but_dump_errors(dump_path, file, edits):
    whole = (dump_path / file).read_bytes()
    damaged = bytearray(whole)
    for place, data in edits:
        start = place % len(damaged) if damaged else 0
        damaged[start : start + len(data)] = data
    try:
        (dump_path / file).write_bytes(damaged)
        read_everything(dump_path)
    finally:
        (dump_path / file).write_bytes(whole)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@on_disk
@given(field=st.sampled_from(sorted(Manifest.model_fields)), value=json_values)
def test_any_value_in_any_field(dump_path, field, value):
    whole = (dump_path / "manifest.json").read_bytes()
    try:
        edit_manifest(dump_path, **{field: value})
        read_everything(dump_path)
    finally:
        (dump_path / "manifest.json").write_bytes(whole)


@settings(deadline=None)
@given(st.data())
def test_manifests_survive_a_round_trip(data):
    manifest = Manifest.model_validate(
        {
            "dump_id": "x",
            "created_utc": data.draw(st.datetimes(timezones=st.just(UTC))),
            "rule": data.draw(st.text()),
            "verdict": data.draw(st.text()),
            "summary": data.draw(st.text()),
            "mode": data.draw(st.sampled_from(["log", "contain", "trap"])),
            "action": "logged",
            "site": data.draw(st.text()),
            "layer": Layer(id=data.draw(st.none() | st.integers()), type=None),
            "scalars": data.draw(
                st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text())
            ),
            "guards": data.draw(st.dictionaries(st.text(), json_values)),
            "host": {"hostname": data.draw(st.text()), "pid": 1},
            "launch_args": data.draw(st.lists(st.text())),
        }
    )
    assert parse_manifest(encode_manifest(manifest)) == manifest


def test_not_a_dump(tmp_path):
    for path in (tmp_path / "absent", "\0", "x" * 5000):
        with pytest.raises(DumpNotFound):
            read_dump(path)
        with pytest.raises(DumpNotFound):
            verify_dump(path)
    with pytest.raises(DumpUnreadable):
        read_dump(tmp_path)


def test_unknown_tensor(dump_path):
    with pytest.raises(DumpNotFound, match="page_table"):
        read_dump(dump_path).tensor("nope")
