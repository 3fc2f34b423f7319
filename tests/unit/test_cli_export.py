"""`dumps export`: a zip that somebody else can read, or no zip."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from big_dumps import measured_cli, sparse_dump
from dump_examples import put_manifest, seed_bug_draft
from gemma4_dumps.archive import examine, write_archive
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.store import DumpStore
from gemma4_triage.cli import app


@pytest.fixture
def store(tmp_path):
    return DumpStore(tmp_path / "root")


@pytest.fixture
def dump_path(store) -> Path:
    path = store.write(seed_bug_draft()).path
    assert path is not None
    return path


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out.zip"


@pytest.fixture
def cli(capsys):
    def run(*words):
        code = app.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


class TestRoundTrip:
    def test_every_command_of_its_readme(self, cli, store, dump_path, out, tmp_path):
        store.write(seed_bug_draft(step=89))
        code, said, err = cli("dumps", "export", "latest", dump_path.name, "--dir", store.root, "-o", out)
        assert (code, said) == (0, "")
        assert err.startswith(f"Wrote {out}: 2 dumps, ")
        subprocess.run(["unzip", "-q", out, "-d", tmp_path / "dumps"], check=True)
        readme = (tmp_path / "dumps" / "README.md").read_text()
        lines = [line.split()[1:] for line in readme.splitlines() if line.startswith("    gemma4-triage ")]
        assert [words[0] for words in lines] == ["diagnose", "dumps", "dumps"]
        for words in lines:
            code, said, _ = cli(*(word.replace("THIS.zip", str(out)) for word in words))
            assert code == (words[0] == "diagnose")
            assert dump_path.name in said or ">70<" in said
        for name, digest in [row.split("|")[1:4:2] for row in readme.splitlines() if row.count("|") == 4][2:4]:
            found = hashlib.sha256((tmp_path / "dumps" / dump_path.name / name.strip()).read_bytes()).hexdigest()
            assert found == digest.strip()

    def test_the_readme_says_what_it_is_and_what_is_not_in_it(self, cli, dump_path, out):
        cli("dumps", "export", dump_path, "-o", out)
        readme = zipfile.ZipFile(out).read("README.md").decode()
        assert "out_of_range page-table-bounds, trapped" in readme
        assert "full->SWA translation missing" in readme
        assert "page_table int32[4, 20]" in readme
        assert "Not in it: prompts, token ids, generated text, KV values, weights." in readme
        assert "hunter2" not in readme

    def test_equal_dumps_give_equal_zips(self, cli, dump_path, out, tmp_path):
        other = tmp_path / "other.zip"
        cli("dumps", "export", dump_path, "-o", out)
        time.sleep(2.1)
        # Zip's clock ticks every two seconds.
        os.utime(dump_path / "manifest.json")
        cli("dumps", "export", dump_path, dump_path, "-o", other)
        assert out.read_bytes() == other.read_bytes()
        assert {info.external_attr >> 16 for info in zipfile.ZipFile(out).infolist()} == {0o100600}

    def test_json(self, cli, dump_path, out):
        code, said, err = cli("dumps", "export", dump_path, "-o", out, "--json")
        document = json.loads(said)
        assert (code, document["kind"]) == (0, "dump-export")
        assert document["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
        assert [dump["dump_id"] for dump in document["dumps"]] == [dump_path.name]
        assert err.startswith("Wrote ")


class TestNames:
    def test_a_folder_of_another_name_gets_the_name_in_its_manifest(self, cli, dump_path, out, tmp_path):
        moved = dump_path.rename(tmp_path / "from bob")
        cli("dumps", "export", moved, "-o", out)
        assert f"{dump_path.name}/manifest.json" in zipfile.ZipFile(out).namelist()

    @pytest.mark.parametrize("dump_id", ["../../outside", "/etc", "..", "", "a\\b"])
    def test_no_name_leads_out_of_the_zip(self, cli, dump_path, out, tmp_path, dump_id):
        manifest = json.loads((dump_path / "manifest.json").read_text()) | {"dump_id": dump_id}
        put_manifest(dump_path, manifest)
        moved = dump_path.rename(tmp_path / "..hidden")
        assert cli("dumps", "export", moved, "-o", out)[0] == 0
        folders = {name.rpartition("/")[0] for name in zipfile.ZipFile(out).namelist()}
        assert folders == {"", "dump-..hidden"}

    def test_two_of_one_name_are_refused(self, cli, dump_path, out, tmp_path):
        other = DumpStore(tmp_path / "other").write(seed_bug_draft()).path
        assert other is not None
        copy = other.rename(other.parent / dump_path.name)
        code, _, err = cli("dumps", "export", dump_path, copy, "-o", out)
        assert code == 2
        assert "would both be" in err
        assert not out.exists()

    def test_links_are_not_followed(self, cli, dump_path, out, tmp_path):
        (tmp_path / "secret").write_text("hunter2")
        (dump_path / "events.jsonl").unlink()
        (dump_path / "events.jsonl").symlink_to(tmp_path / "secret")
        assert cli("dumps", "export", dump_path, "-o", out)[0] == 1
        assert cli("dumps", "export", dump_path, "-o", out, "--allow-damaged")[0] == 0
        assert b"hunter2" not in b"".join(map(zipfile.ZipFile(out).read, zipfile.ZipFile(out).namelist()))

    def test_what_a_dump_says_is_no_markup_of_the_readme(self, cli, store, out):
        store.write(seed_bug_draft(summary="# Fine\n\n| all | is | well |\n\x1b[2J"))
        cli("dumps", "export", "latest", "--dir", store.root, "-o", out)
        readme = zipfile.ZipFile(out).read("README.md").decode()
        assert "    # Fine | all | is | well | \\x1b[2J\n" in readme


class TestDamaged:
    def test_a_flipped_bit(self, cli, dump_path, out):
        data = bytearray((dump_path / "tensors.safetensors").read_bytes())
        data[-1] ^= 1
        (dump_path / "tensors.safetensors").write_bytes(data)
        code, _, err = cli("dumps", "export", dump_path, "-o", out)
        assert code == 1
        assert "is damaged: tensors.safetensors: SHA-256" in err
        assert "hint: --allow-damaged" in err
        assert not out.exists()
        assert cli("dumps", "export", dump_path, "-o", out, "--allow-damaged")[0] == 0
        archive = zipfile.ZipFile(out)
        assert archive.read(f"{dump_path.name}/tensors.safetensors") == data
        assert "**Damaged**" in archive.read("README.md").decode()

    def test_a_torn_dump(self, cli, dump_path, out):
        (dump_path / "manifest.json").unlink()
        assert cli("dumps", "export", dump_path, "-o", out)[0] == 4
        assert not out.exists()
        assert cli("dumps", "export", dump_path, "-o", out, "--allow-damaged")[0] == 0
        assert f"{dump_path.name}/tensors.safetensors" in zipfile.ZipFile(out).namelist()

    def test_a_folder_that_holds_no_dump(self, cli, tmp_path, out):
        (tmp_path / "empty").mkdir()
        assert cli("dumps", "export", tmp_path / "empty", "-o", out, "--allow-damaged")[0] == 4
        assert [path.name for path in tmp_path.iterdir()] == ["empty"]

    def test_a_dump_of_another_major_version(self, cli, dump_path, out):
        text = (dump_path / "manifest.json").read_text().replace('"schema_version": "1.1"', '"schema_version": "2.0"')
        (dump_path / "manifest.json").write_text(text)
        assert cli("dumps", "export", dump_path, "-o", out)[0] == 4

    def test_a_dump_that_changes_between_verifying_and_copying(self, dump_path, out):
        candidate = examine(dump_path)
        (dump_path / "events.jsonl").write_text("{}\n")
        with pytest.raises(DumpUnreadable, match="changed while it was read"):
            write_archive(out, [candidate], lambda _: "")
        assert list(out.parent.glob("*.zip*")) == []


class TestTheFile:
    def test_an_existing_file_is_refused_and_overwritten_when_forced(self, cli, dump_path, out):
        out.write_text("mine")
        code, _, err = cli("dumps", "export", dump_path, "-o", out)
        assert code == 2
        assert "exists" in err
        assert out.read_text() == "mine"
        assert cli("dumps", "export", dump_path, "-o", out, "--force")[0] == 0
        assert zipfile.is_zipfile(out)

    @pytest.mark.parametrize(
        "words", [["absent", "-o", "x.zip"], ["-o", "x.zip"], ["latest"], ["latest", "-o", "/no/x.zip"]]
    )
    def test_usage(self, cli, store, dump_path, tmp_path, monkeypatch, words):
        monkeypatch.chdir(tmp_path)
        assert cli("dumps", "export", *words, "--dir", store.root)[0] == 2
        assert not (tmp_path / "x.zip").exists()

    def test_a_full_disk_leaves_nothing(self, cli, store, tmp_path):
        noise = TensorPayload.from_array(np.random.default_rng(0).integers(0, 255, 30_000, dtype=np.uint8))
        dump_path = store.write(seed_bug_draft(tensors={"noise": noise})).path
        disk = tmp_path / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk]
        if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting a tmpfs is not permitted here")
        try:
            code, _, err = cli("dumps", "export", dump_path, "-o", disk / "x.zip")
            assert code == 3
            assert "No space left" in err
            assert list(disk.iterdir()) == []
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_an_interrupted_export_leaves_nothing_under_its_name(self, tmp_path, out):
        path = sparse_dump(tmp_path / "root", 2 * 10**8, hashed=True)
        command = [sys.executable, "-m", "gemma4_triage", "dumps", "export", str(path), "-o", str(out)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as export:
            while not list(tmp_path.glob(".out.zip.*")):
                assert export.poll() is None
                time.sleep(0.01)
            export.send_signal(signal.SIGINT)
            assert export.wait() == 130
        assert list(tmp_path.glob("*out.zip*")) == []

    def test_an_interrupt_that_zipfile_hides_is_one_all_the_same(self, cli, dump_path, out, monkeypatch):
        """Closing the archive between the beginning of an entry and its handle is an error of its own."""

        def interrupted(archive, *args, **kwargs):
            archive._writing = True
            raise KeyboardInterrupt

        monkeypatch.setattr(zipfile.ZipFile, "open", interrupted)
        code, _, err = cli("dumps", "export", dump_path, "-o", out)
        assert (code, err) == (130, "error: interrupted\n")
        assert list(out.parent.glob("*out.zip*")) == []

    @pytest.mark.slow
    def test_large_dumps_are_copied_in_pieces(self, tmp_path, out):
        run = measured_cli("dumps", "export", sparse_dump(tmp_path / "root", 10**8, hashed=True), "-o", out)
        assert run.code == 0
        assert run.peak_mb <= 200
        assert zipfile.ZipFile(out).testzip() is None


def test_a_zip_is_read_in_place(cli, dump_path, out):
    cli("dumps", "export", dump_path, "-o", out)
    code, said, err = cli("dumps", "show", out)
    assert (code, err) == (0, "")
    assert dump_path.name in said
