"""`gemma4-triage replay`: the committed samples of real runs, output, JSON, shrinking and every exit code."""

import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from dump_examples import flip, offence, paged_draft
from gemma4_dumps.store import DumpStore
from gemma4_triage.cli import app

CORPUS = Path(__file__).parents[1] / "data" / "corpus_dumps"
SAMPLES = Path(__file__).parents[2] / "dumps" / "samples"
(SEED_BUG,) = SAMPLES.glob("*p24275*")
(CONTAINED,) = SAMPLES.glob("*p1291*")


@pytest.fixture
def store(tmp_path):
    return DumpStore(tmp_path / "root")


@pytest.fixture
def cli(capsys):
    def run(*words):
        code = app.main(["replay", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def clean(store):
    return store.write(paged_draft([[3, 4], [5, 6]], [8, 7])).path


class TestSamples:
    def test_the_seed_bug_reads_one_page_outside_and_seven_wrong_ones(self, cli):
        code, out, err = cli(SEED_BUG)
        assert (code, err) == (1, "")
        assert out.startswith(f"READS BEYOND THE BUFFER  {SEED_BUG.name}")
        assert "assumed, because the dump does not say: heads 8:2 (--heads), head dim 64 (--head-dim), no window" in out
        (row,) = [line for line in out.splitlines() if line.startswith("5 ")]
        assert "7 other page, 1 out of range" in row
        assert "[7] = 65, out of range" in row
        assert [line.split()[0] for line in out.splitlines()[-3:]] == ["as", "clamp", "contain"]

    @pytest.mark.parametrize("path", sorted(CORPUS.glob("swa-state-stale/*_page-table-bounds_000[23]")))
    def test_ids_of_another_pool_that_happen_to_be_right(self, cli, path):
        code, out, _ = cli(path)
        assert (code, out.split("  ")[0]) == (1, "READS THE RIGHT PAGES BY CHANCE")
        assert "the same fault reads other pages" in out
        assert json.loads(cli(path, "--json")[1])["fine"] is False

    def test_its_json_says_the_same(self, cli):
        code, out, _ = cli(SEED_BUG, "--json", "--heads", "4:1", "--head-dim", "16", "--window", "512")
        document = json.loads(out)
        assert (code, document["kind"], document["worst"], document["fine"]) == (1, "replay", "out_of_range", False)
        assert document["call"]["assumed"] == []
        assert (document["call"]["q_heads"], document["call"]["head_dim"]) == (4, 16)
        (row,) = document["rows"]
        assert (row["row"], row["reads_outside"], row["first"]["entry"]) == (5, 1, 65)
        assert document["reference"]["as dumped"]["bad_rows"] == [5]
        assert document["unknown_intentions"] == 0

    def test_what_was_contained_is_said_to_be_unknown(self, cli):
        code, out, _ = cli(CONTAINED)
        assert code == 1
        assert "7 entries hold the null page since containment" in out
        assert "of 2 entries that are read the dump does not say what should have been there" in out

    def test_shrinking_it_leaves_one_entry_that_fails_alike(self, cli, tmp_path):
        code, out, err = cli(SEED_BUG, "--shrink", "--output", tmp_path / "small")
        assert code == 1
        assert "shrunk: 6 rows x 10 columns -> 1 x 1, 854 keys -> 1, 848 B of tensors -> " in err
        (path,) = [entry.path for entry in DumpStore(tmp_path / "small").list()]
        assert f"Wrote {path}" in err
        assert out.startswith(f"READS BEYOND THE BUFFER  {path.name}")
        assert cli(path)[0] == 1
        assert app.main(["dumps", "show", str(path)]) == 0
        assert app.main(["dumps", "verify", str(path)]) == 0

    def test_what_is_damaged_is_said_first_and_not_shrunk(self, cli, tmp_path):
        copy = copytree(SEED_BUG, tmp_path / SEED_BUG.name)
        flip(copy / "tensors.safetensors")
        code, out, _ = cli(copy)
        damage, title = out.splitlines()[:2]
        assert (code, title.split("  ")[0]) == (4, "READS BEYOND THE BUFFER")
        assert damage.startswith(f"damaged: {SEED_BUG.name}: tensors.safetensors: SHA-256 ")
        code, out, err = cli(copy, "--shrink", "--output", tmp_path / "small")
        assert (code, out.splitlines(), (tmp_path / "small").exists()) == (4, [damage], False)
        assert "a damaged dump is not shrunk" in err

    def test_the_json_of_shrinking(self, cli, tmp_path):
        code, out, _ = cli(CONTAINED, "--shrink", "--renumber", "--output", tmp_path, "--json")
        shrunk = json.loads(out)["shrunk"]
        assert (code, shrunk["from"], shrunk["after"]["rows"], shrunk["after"]["columns"]) == (1, CONTAINED.name, 1, 1)
        assert (tmp_path / Path(shrunk["path"]).name / "manifest.json").exists()


class TestExitCodes:
    def test_1_where_another_pools_ids_happen_to_be_right_and_it_says_so(self, cli, store):
        code, out, _ = cli(store.write(paged_draft([[3, 4]], [8], translated=[[3, 4]], verdict="wrong_space")).path)
        assert code == 1
        assert "the ids are of another pool than the buffer, and here happen to be the right ones" in out

    def test_0_for_a_call_that_is_fine(self, cli, clean):
        code, out, _ = cli(clean)
        assert (code, out.split("  ")[0]) == (0, "READS WHAT IT SHOULD")

    @pytest.mark.parametrize("backends", ["trtllm_mha", "reference,trtllm_mha"])
    def test_3_where_a_backend_cannot_run_and_nothing_else_is_wrong(self, cli, clean, backends, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        code, out, _ = cli(clean, "--backend", backends)
        assert code == 3
        assert "cannot run here: needs a CUDA device" in out

    def test_1_is_stronger_than_3_if_something_asked_for_ran(self, cli, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert cli(SEED_BUG, "--backend", "reference,trtllm_mha")[0] == 1
        assert cli(SEED_BUG, "--backend", "trtllm_mha")[0] == 3

    def test_3_beyond_a_cap(self, cli, clean):
        code, out, err = cli(clean, "--heads", "64:64", "--head-dim", "1024", "--cap-mib", "1")
        assert (code, out) == (3, "")
        assert "--cap-mib" in err

    def test_4_for_an_unreadable_dump(self, cli, clean):
        (clean / "tensors.safetensors").write_bytes(b"{")
        assert cli(clean)[0] == 4

    @pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
    def test_5_for_a_rule_that_is_not_known(self, cli, store, words):
        draft = replace(paged_draft([[3, 4]], [8]), rule="something-else", offences=[], tensors={})
        code, out, err = cli(store.write(draft).path, *words)
        assert code == 5
        assert "rule something-else" in err
        assert not out or json.loads(out)["exit_code"] == 5

    def test_5_for_shrinking_what_is_fine(self, cli, clean, tmp_path):
        code, out, err = cli(clean, "--shrink", "--output", tmp_path / "small")
        assert (code, out) == (5, "")
        assert "nothing to shrink" in err
        assert not (tmp_path / "small").exists()

    @pytest.mark.parametrize(
        "words",
        [
            ("--backend", "cudnn"),
            ("--backend", ","),
            ("--heads", "8"),
            ("--heads", "0:1"),
            ("--heads", "3:2"),
            ("--renumber",),
            ("--window", str(2**31)),
            ("--output", "x"),
        ],
    )
    def test_2_for_usage(self, cli, clean, words):
        code, out, err = cli(clean, *words)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")

    def test_2_if_the_output_is_a_file(self, cli, tmp_path):
        (tmp_path / "file").write_text("")
        assert cli(SEED_BUG, "--shrink", "--output", tmp_path / "file")[0] == 2
        code, _, err = cli(SEED_BUG, "--shrink", "--output", "/proc/none/below")
        assert (code, err.splitlines()[-2:]) == (
            3,
            ["error: /proc/none cannot be written: No such file or directory", "hint: name another --output"],
        )


def test_text_from_a_dump_cannot_command_the_terminal(cli, store):
    name = "\x1b[31mpage_table"
    draft = paged_draft([[3, 70]], [8], offences=[offence(0, 1, 70, table=name)])
    draft.tensors[name] = draft.tensors.pop("page_table")
    code, out, _ = cli(store.write(draft).path)
    assert code == 1
    assert "\x1b" not in out
    assert "\\x1b[31mpage_table: 1 row x 2 columns" in out
