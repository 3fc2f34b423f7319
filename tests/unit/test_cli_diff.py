"""`gemma4-triage diff`: what it prints, its document, its exit codes."""

import json
import shutil

import numpy as np
import pytest

from big_dumps import measured_cli, sparse_dump
from dump_examples import flip, renew_hashes, seed_bug_draft
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.schema import Provenance
from gemma4_dumps.store import DumpStore
from gemma4_dumps.writer import write_dump


@pytest.fixture
def store(tmp_path):
    return DumpStore(tmp_path / "root")


def add(store, table=None, **changes):
    # Another table is not the one that the draft's offences are of.
    tensors = {} if table is None else {"tensors": {"page_table": TensorPayload.from_array(table)}, "offences": []}
    path = write_dump(store.root, seed_bug_draft(**tensors, **changes)).path
    assert path is not None
    return path


@pytest.fixture
def two(store):
    """Return two dumps with five different entries, the first at [1, 3]."""
    table = np.zeros((4, 5), np.int32)
    changed = table.copy()
    changed[1, 3:], changed[3, :3] = 65, 66
    return add(store, table), add(store, changed)


@pytest.mark.parametrize("verb", [("diff",), ("diff", "dumps")])
def test_equal_dumps(cli, store, verb):
    a, b = add(store), add(store)
    code, out, err = cli(*verb, a, b)
    assert (code, err) == (0, "")
    assert out.startswith("EQUAL\n")
    assert "The two dumps are equal." in out
    assert "volatile fields differ too; --volatile shows them" in out
    assert a.name in out
    assert b.name in out


def test_the_first_difference_with_its_place_and_both_values(cli, two):
    code, out, _ = cli("diff", *two)
    assert code == 1
    assert out.startswith("DIFFERENT\n")
    assert "page_table: 5 of 20 entries differ" in out
    assert "    [1, 3]  0 | 65\n" in out
    assert (
        "What differs first as data flows is in the page tables: page_table[1, 3] is 0 in A, 65 in B, "
        "the first of 5 that differ, of 20." in out
    )


def test_rows_limits_what_is_shown_and_says_how_many_are_hidden(cli, two, store):
    _, out, _ = cli("diff", *two, "--rows", 2)
    assert "[1, 4]" in out
    assert "[3, 0]" not in out
    assert "3 more; --rows shows more" in out
    document = json.loads(cli("diff", *two, "--rows", 2, "--json")[1])
    table = document["tensors"]["page_table"]
    assert (table["differing"], table["hidden"], len(table["differences"])) == (5, 3, 2)
    other = add(store, extents={}, page_size=1)
    _, out, _ = cli("diff", two[0], other, "--rows", 1)
    assert "geometry (4)" in out
    assert "3 more; --rows shows more" in out


def test_names_beginnings_and_latest_in_a_directory(cli, two, store):
    a, b = two
    code, out, _ = cli("diff", "--dir", store.root, a.name, "latest")
    assert code == 1
    assert f"  A  {a.name}\n  B  {b.name}\n" in out


def test_provenance_comes_first(cli, store):
    a = add(store)
    b = add(store, np.ones((4, 20), np.int32), provenance=Provenance(table_space="swa", buffer_space="swa"))
    _, out, _ = cli("diff", a, b)
    assert out.index("provenance.table_space") < out.index("page_table:")
    assert 'in the provenance: provenance.table_space is "full" in A, "swa" in B.' in out


def test_volatile_fields_are_shown_when_asked_for_and_never_count(cli, store):
    a, b = add(store), add(store)
    code, out, _ = cli("diff", a, b, "--volatile")
    assert code == 0
    assert "volatile, does not count" in out
    assert "created_utc" in out
    document = json.loads(cli("diff", a, b, "--json")[1])
    assert document["volatile"] is None
    assert document["volatile_count"] > 0
    shown = json.loads(cli("diff", a, b, "--json", "--volatile")[1])["volatile"]
    assert {"field": "dump_id", "a": a.name, "b": b.name} in shown["differences"]


def test_json_is_one_document(cli, two):
    code, out, err = cli("diff", *two, "--json")
    document = json.loads(out)
    assert (code, err) == (1, "")
    assert (document["schema_version"], document["kind"], document["equal"]) == ("1.0", "dump-diff", False)
    assert document["a"] == {"dump": two[0].name, "path": str(two[0])}
    assert document["first"]["stage"] == "page tables"
    assert document["tensors"]["page_table"]["differences"][0] == {"index": [1, 3], "a": 0, "b": 65}


def test_json_has_a_word_for_nan_and_none_for_what_is_absent(cli, store):
    before, after = np.array([np.nan, 1.0]), np.array([2.0, np.inf])
    a, b = add(store, before, extents={"x": 1}), add(store, after, extents={})
    document = json.loads(cli("diff", a, b, "--json")[1])
    found = [(one["a"], one["b"]) for one in document["tensors"]["page_table"]["differences"]]
    assert found == [("nan", 2.0), (1.0, "inf")]
    assert document["sections"]["geometry"]["differences"] == [{"field": "extents.x", "a": 1}]


def test_long_texts_are_cut_where_they_differ(cli, store):
    a, b = add(store, summary="x" * 500 + "left"), add(store, summary="x" * 500 + "right" + "y" * 500)
    _, out, _ = cli("diff", a, b)
    assert 'left"\n' in out
    assert "right" in out
    assert "y" * 100 not in out


def test_what_a_dump_says_cannot_command_the_terminal(cli, store):
    _, out, _ = cli("diff", add(store), add(store, extents={"\x1b[2J": 1}, summary="\x1b[31m"))
    assert "\x1b" not in out


class TestMistakes:
    def test_a_dump_is_missing(self, cli, store):
        code, out, err = cli("diff", add(store))
        assert (code, out) == (2, "")
        assert "DUMP_B" in err

    def test_a_dump_that_is_not_there(self, cli, store):
        code, _, err = cli("diff", add(store), "nope", "--dir", store.root)
        assert code == 2
        assert "nope" in err

    @pytest.mark.parametrize("name", ["manifest.json", "tensors.safetensors"])
    @pytest.mark.parametrize("how", [[], ["--json"]])
    def test_a_damaged_dump(self, cli, store, tmp_path, name, how):
        a = add(store)
        b = shutil.copytree(a, tmp_path / "broken")
        (b / name).write_bytes(b"{")
        code, out, err = cli("diff", a, b, *how)
        assert code == 4
        assert "error: B, broken: " in err
        assert "Traceback" not in err
        if how:
            assert json.loads(out)["exit_code"] == 4
        else:
            assert out.startswith("damaged: B, broken: ") if name == "tensors.safetensors" else out == ""

    def test_values_that_no_checksum_vouches_for(self, cli, store, tmp_path):
        a = add(store)
        b = shutil.copytree(a, tmp_path / a.name)
        flip(b / "tensors.safetensors")
        code, out, _ = cli("diff", a, b)
        assert code == 4
        assert out.startswith(f"damaged: B, {a.name}: tensors.safetensors: SHA-256 ")
        assert "\nDIFFERENT\n" in out
        code, out, err = cli("diff", a, b, "--json")
        assert (code, [one["path"] for one in json.loads(out)["damaged"]]) == (4, [str(b)])
        assert err.startswith("damaged: B, ")

    def test_nothing_shows_the_help(self, cli):
        code, out, _ = cli("diff")
        assert code == 2
        assert "diff DUMP_A DUMP_B" in out


@pytest.mark.slow
def test_large_tensors_are_compared_in_windows(tmp_path):
    size = 400 * 10**6
    a, b = (sparse_dump(tmp_path / name, size, hashed=True) for name in "ab")
    with open(b / "tensors.safetensors", "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x07")
    renew_hashes(b)
    run = measured_cli("diff", a, b)
    print(f"diff of 2 x {size / 1e6:.0f} MB: {run.wall_s:.2f} s wall, {run.cpu_s:.2f} s CPU, {run.peak_mb:.0f} MB")
    assert run.code == 1
    assert f"kv[{size - 1}] is 0 in A, 7 in B, the first of 1 that differ, of {size}" in run.out
    assert run.peak_mb <= 200
