"""`diagnose WHATEVER…`: evidence is told apart by content, wherever it lies and whatever it is called."""

import json
import os
import pickle
import shutil
import tarfile
import threading
import zipfile

import pytest

from asked_evidence import CPU, DUMPS, exported, rules
from diagnose_examples import CORPUS, ROOT
from gemma4_triage.logs import source
from gemma4_triage.own_document import RUN_KINDS
from gemma4_triage.runs import record_file
from report_examples import SEED_BUG

LOGS = ROOT / "tests" / "data" / "logs"
RUNS = ROOT / "tests" / "data" / "finished_runs"
SEED = CORPUS / "swa-state-stale"


class TestRenamed:
    def test_a_dump_is_found_from_any_folder_above_it(self, cli, tmp_path):
        shutil.copytree(DUMPS / CPU, tmp_path / "from bob" / "two" / "a crash")
        for words in ([tmp_path], ["--dir", tmp_path], [tmp_path / "from bob"], [tmp_path / "from bob/two/a crash"]):
            code, found, _ = rules(cli, *words)
            assert (code, found) == (1, [["draft-swa-state-stale"]])

    def test_the_guards_of_a_renamed_store_come_with_it(self, cli, tmp_path):
        shutil.copytree(SEED, tmp_path / "x" / "y")
        _, _, document = rules(cli, tmp_path)
        (incident,) = document["incidents"]
        assert (len(incident["dumps"]), len(incident["guards"])) == (4, 3)

    def test_a_manifest_that_lies_alone_is_one(self, cli, tmp_path):
        guards = sorted((CORPUS / "clean-aborts" / "guards").iterdir())
        shutil.copy(guards[0], tmp_path / "pasted.json")
        code, found, document = rules(cli, tmp_path / "pasted.json")
        assert (code, found) == (0, [[]])
        assert document["incidents"][0]["guards"][0]["source"] == "pasted.json"

    def test_a_torn_one_below_is_named_and_the_others_are_read(self, cli, tmp_path):
        shutil.copytree(DUMPS / CPU, tmp_path / "a" / "whole")
        torn = shutil.copytree(DUMPS / CPU, tmp_path / "b" / "torn")
        (torn / "manifest.json").write_text("{")
        code, found, document = rules(cli, tmp_path)
        assert (code, found) == (4, [["draft-swa-state-stale"]])
        assert document["unreadable"][0]["path"] == str(torn)
        # It lies in a folder of its own, so that the other is as certain as it was.
        assert document["summary"]["certain"] == 1
        assert rules(cli, torn)[0] == 4

    def test_a_zip_of_what_lies_in_a_dump_is_that_dump_wherever_it_lies(self, cli, tmp_path):
        (tmp_path / "sent").mkdir()
        shutil.make_archive(str(tmp_path / "sent" / "x"), "zip", SEED_BUG)
        for named in (tmp_path, tmp_path / "sent" / "x.zip"):
            code, out, err = cli("diagnose", named)
            assert (code, err) == (1, "")
            assert "CERTAIN  draft-swa-state-stale" in out

    def test_what_was_not_read_where_nothing_else_is_ends_report_as_diagnose(self, cli, tmp_path):
        shutil.make_archive(str(tmp_path / "y"), "gztar", SEED_BUG)
        for verb in ("diagnose", "report"):
            code, out, err = cli(verb, tmp_path)
            assert (code, out) == (4, "")
            assert "error: 1 file or folder there could not be read, and nothing else is there" in err
            assert "y.tar.gz is a tar archive" in err

    @pytest.mark.parametrize("name", ["tensors.safetensors", "events.jsonl"])
    def test_one_file_of_a_dump_is_a_damaged_dump(self, cli, tmp_path, name):
        sample = next((ROOT / "dumps" / "samples").glob("20261121T133240*"))
        torn = tmp_path / "sent"
        torn.mkdir()
        shutil.copy(sample / name, torn)
        for named in (tmp_path, torn, torn / name):
            code, _, err = cli("diagnose", named)
            assert (code, "there is no manifest.json in it" in err) == (4, True)

    def test_an_events_jsonl_of_somebody_else_is_no_dump(self, cli, tmp_path):
        (tmp_path / "app").mkdir()
        (tmp_path / "app" / "events.jsonl").write_text('{"event": "click", "site": "shop"}\n')
        code, _, err = cli("diagnose", tmp_path)
        assert (code, "holds no dump, no log" in err) == (5, True)

    def test_one_that_lost_its_manifest_is_named_with_what_it_lacks(self, cli, tmp_path):
        torn = shutil.copytree(DUMPS / CPU, tmp_path / "from bob" / "torn")
        (torn / "manifest.json").unlink()
        code, _, err = cli("diagnose", tmp_path)
        assert (code, err) == (4, f"not read: {torn}: there is no manifest.json in it: torn, or no dump\n")
        for name in (torn, torn / "events.jsonl", torn / "tensors.safetensors"):
            code, _, err = cli("diagnose", name)
            assert (code, "there is no manifest.json in it" in err) == (4, True)


class TestZips:
    def test_an_export_is_read_in_place_and_named_by_the_zip(self, cli, tmp_path):
        path = exported(cli, tmp_path, DUMPS / CPU)
        code, found, document = rules(cli, path)
        assert (code, found) == (1, [["draft-swa-state-stale"]])
        assert document["incidents"][0]["dumps"][0]["path"] == f"{path}/{CPU}"
        assert rules(cli, tmp_path)[1] == found

    @pytest.mark.parametrize("verb", ["dumps show", "dumps verify", "replay", "diagnose", "report"])
    def test_every_verb_takes_the_zip_and_the_path_that_is_shown(self, cli, tmp_path, verb):
        path = exported(cli, tmp_path, DUMPS / CPU)
        plain = cli(*verb.split(), DUMPS / CPU)
        for name in (path, f"{path}/{CPU}"):
            code, out, err = cli(*verb.split(), name)
            assert (code, err) == (plain[0], plain[2])
            assert "gemma4-triage-" not in out

    def test_of_several_dumps_one_has_to_be_named(self, cli, tmp_path):
        path = exported(cli, tmp_path, *(DUMPS / name for name in os.listdir(DUMPS) if "leak" in name or name == CPU))
        code, _, err = cli("dumps", "show", path)
        assert code == 2
        assert "holds 2 dumps" in err
        assert len(rules(cli, path)[1]) == 2

    def test_logs_and_dumps_in_one_zip(self, cli, tmp_path):
        path = tmp_path / "a.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(LOGS / "pool-leak.log", "logs/pod-0.txt")
            for file in (DUMPS / CPU).iterdir():
                archive.write(file, f"anything/{file.name}")
        _, found, document = rules(cli, path)
        assert [one[0] for one in found] == ["draft-swa-state-stale", "pool-leak"]
        assert document["incidents"][1]["logs"][0]["file"] == f"{path}/logs/pod-0.txt"

    def test_a_hostile_one_is_an_error_alone_and_a_line_beside_others(self, cli, tmp_path):
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
            archive.writestr("../outside", "x")
        code, _, document = rules(cli, tmp_path / "bad.zip")
        assert (code, document["kind"]) == (4, "error")
        assert "outside of it" in document["message"]
        shutil.copytree(DUMPS / CPU, tmp_path / "whole")
        code, found, document = rules(cli, tmp_path)
        assert (code, found) == (4, [["draft-swa-state-stale"]])
        assert document["unreadable"][0]["path"] == str(tmp_path / "bad.zip")
        assert not (tmp_path.parent / "outside").exists()

    def test_a_zip_in_a_zip_is_left_alone_and_said(self, cli, tmp_path):
        inner = exported(cli, tmp_path, DUMPS / CPU)
        with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
            archive.write(inner, "inner.zip")
            archive.write(LOGS / "pool-leak.log", "a.log")
        _, _, document = rules(cli, tmp_path / "outer.zip")
        assert "inner.zip: a zip in a zip" in document["err"]
        assert document["files_not_read"] == 1
        with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
            archive.write(inner, "inner.zip")
        inner.unlink()
        for name in (tmp_path, tmp_path / "outer.zip"):
            code, _, err = cli("diagnose", name)
            assert (code, "outer.zip/inner.zip: a zip in a zip; unpack the outer one" in err) == (4, True)


class TestLogs:
    def test_a_log_needs_no_option(self, cli):
        code, found, _ = rules(cli, LOGS / "pool-leak.log")
        assert (code, found[0][0]) == (1, "pool-leak")

    def test_a_folder_of_logs(self, cli, tmp_path):
        for name in ("pool-leak", "healthy"):
            shutil.copy(LOGS / f"{name}.log", tmp_path / name)
        (tmp_path / "notes").write_text("buy milk\n")
        (tmp_path / "core").write_bytes(b"\x7fELF" + bytes(3000))
        code, found, document = rules(cli, tmp_path)
        assert code == 1
        assert sorted(map(bool, found)) == [False, True]
        assert (document["err"], document["files_left_alone"]) == ("", 2)
        assert "left alone, by their content: 2 files" in cli("diagnose", tmp_path)[1]

    def test_the_one_line_that_a_leak_left_is_a_log_in_a_folder_too(self, cli, tmp_path):
        shutil.copy(LOGS / "healthy.log", tmp_path)
        (tmp_path / "end").write_text("AssertionError: Full Pool Mem Leak Detected!\n")
        code, found, _ = rules(cli, tmp_path)
        assert (code, sorted(found)) == (1, [[], ["unexplained-line"]])

    def test_a_log_alone_speaks_of_that_log_only(self, cli, monkeypatch):
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(SEED))
        for words in (["--log", LOGS / "pool-leak.log"], [LOGS / "pool-leak.log"]):
            _, _, document = rules(cli, *words)
            (incident,) = document["incidents"]
            assert incident["dumps"] == []

    def test_dumps_and_their_log_in_one_command(self, cli, tmp_path):
        named = sorted(path.name for path in SEED.iterdir())[2]
        log = tmp_path / "server.log"
        line = f"page-table-bounds: page 65 [logged; seen 1 times; dump: /gone/{named}]\n"
        # The log is another run's, which names its own launcher.
        log.write_text((LOGS / "illegal-access.log").read_text().replace("parent_pid=19284", "") + line)
        _, _, document = rules(cli, SEED, log)
        (incident,) = document["incidents"]
        assert incident["logs"][0]["relation"] == "names"
        times = [entry["time_utc"] for entry in incident["timeline"]]
        assert times == sorted(times)
        assert {str(log), named} <= {entry["source"] for entry in incident["timeline"]}
        assert "time, UTC" in cli("diagnose", SEED, log)[1]


def test_a_runs_folder(cli):
    code, found, _ = rules(cli, RUNS / "e4b-trtllm")
    assert code == 1
    assert "draft-swa-state-stale" in {rule for one in found for rule in one}


class TestWithoutArguments:
    def test_it_is_the_newest_incident_of_this_machine(self, cli, tmp_path, monkeypatch):
        for name in (SEED, CORPUS / "negative-page", CORPUS / "clean-retraction"):
            shutil.copytree(name, tmp_path, dirs_exist_ok=True)
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
        code, found, document = rules(cli)
        assert (code, found) == (1, [["unassigned-page"]])
        assert "not shown: 1 older incident and 1 run without one" in document["err"]
        assert f"diagnose --dir {tmp_path}" in document["err"]
        assert len(rules(cli, "--dir", tmp_path)[1]) == 3

    def test_a_machine_without_incidents_is_fine(self, cli, monkeypatch):
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(CORPUS / "clean-retraction"))
        assert rules(cli)[:2] == (0, [[]])


class TestBadInput:
    @pytest.mark.parametrize("name", ["nothing", "./nothing", "nothing.zip"])
    def test_what_is_not_there(self, cli, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        assert cli("diagnose", name)[0] == 2

    def test_a_folder_without_evidence(self, cli, tmp_path):
        (tmp_path / "notes.txt").write_text("milk")
        code, out, err = cli("diagnose", tmp_path)
        assert (code, out) == (5, "")
        assert "holds no dump, no log and nothing else" in err

    def test_a_core_dump_says_what_makes_text_of_it(self, cli, tmp_path):
        (tmp_path / "core").write_bytes(b"\x7fELF" + bytes(3000))
        code, _, err = cli("diagnose", tmp_path / "core")
        assert code == 2
        assert "cuda-gdb -batch" in err

    def test_a_pipe_in_a_folder_is_not_waited_for(self, cli, tmp_path):
        os.mkfifo(tmp_path / "pipe.log")
        assert cli("diagnose", tmp_path)[0] == 5

    def test_links_in_a_folder_are_not_followed(self, cli, tmp_path):
        (tmp_path / "link").symlink_to(SEED)
        (tmp_path / "log").symlink_to(LOGS / "pool-leak.log")
        assert cli("diagnose", tmp_path)[0] == 5


@pytest.mark.slow
def test_the_last_line_sums_up(cli):
    last = cli("diagnose", DUMPS)[1].splitlines()[-1]
    assert last.startswith("5 incidents: 4 certain, 1 likely; next: gemma4-triage ")
    document = json.loads(cli("diagnose", DUMPS, "--json")[1])
    assert document["summary"]["next"] == last.partition("next: ")[2]
    assert cli("diagnose", CORPUS / "clean-retraction")[1].endswith("no incident: nothing wrong in 1 run\n")


def test_what_is_next_is_of_the_first_cause_and_lacks_nothing_that_only_a_reader_knows(cli):
    document = json.loads(cli("diagnose", LOGS / "illegal-access.log", "--json")[1])
    (incident,) = document["incidents"]
    assert "--config CONFIG" in incident["plan"][0]["command"]
    (step,) = (step for step in incident["plan"] if step["command"] == document["summary"]["next"])
    assert incident["findings"][0]["rule"] in step["rules"]
    assert step["command"].startswith("gemma4-triage serve ")


class TestPickles:
    @pytest.mark.parametrize(
        "data",
        [
            pickle.dumps({"text": "CUDA error: an illegal memory access\nScheduler hit an exception"}),
            pickle.dumps(["CUDA error: x\n"], protocol=0),
        ],
    )
    @pytest.mark.parametrize("verb", ["diagnose", "logs", "report", "known check"])
    def test_one_that_no_reader_takes_is_no_log(self, cli, tmp_path, verb, data):
        (tmp_path / "a.log").write_bytes(data)
        code, out, err = cli(*verb.split(), tmp_path / "a.log")
        assert (code, out) == (2, "")
        assert "a.log is a pickle of no kind that is read, and nothing in it was unpickled" in err.splitlines()[0]
        assert cli("diagnose", tmp_path)[0] == 5

    def test_one_that_only_begins_as_a_snapshot_is_named_by_a_report_too(self, cli, tmp_path):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps([("server_args", 1)]))
        code, _, err = cli("report", tmp_path / "a.pkl")
        assert (code, "begins as a crash snapshot of SGLang does, and holds nothing of it" in err) == (5, True)


def test_a_copy_of_a_dump_is_the_dump(cli, tmp_path):
    exported(cli, tmp_path, DUMPS / CPU)
    shutil.copytree(DUMPS / CPU, tmp_path / "torn" / CPU)
    (tmp_path / "torn" / CPU / "tensors.safetensors").write_bytes(b"")
    shutil.copytree(DUMPS / CPU, tmp_path / "x" / CPU)
    code, found, document = rules(cli, tmp_path)
    assert (code, found) == (1, [["draft-swa-state-stale"]])
    assert len(document["incidents"][0]["dumps"]) == 1
    assert "left out: 2 copies of dumps that are here too" in document["err"]


def test_a_zip_given_as_a_log_or_a_folder_is_told_what_reads_it(cli, tmp_path):
    zipped = exported(cli, tmp_path, DUMPS / CPU).rename(tmp_path / "fd of bob.zip")
    hint = f"hint: to read all that is in it: gemma4-triage diagnose '{zipped}'"
    assert cli("logs", zipped)[2].splitlines()[1] == hint
    assert cli("dumps", "list", "--dir", zipped)[2].splitlines()[1] == hint


class TestPipesAndMissingFiles:
    @pytest.mark.parametrize("verb", ["diagnose", "report", "logs"])
    def test_a_pipe_that_nobody_writes_to_is_no_log(self, cli, tmp_path, monkeypatch, verb):
        monkeypatch.setattr(source, "PIPE_WAIT_S", 0.1)
        os.mkfifo(tmp_path / "p.log")
        code, out, err = cli(verb, tmp_path / "p.log")
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {tmp_path}/p.log is a pipe that nobody writes to\n")

    def test_a_pipe_whose_writer_comes_late_is_read_whole(self, cli, tmp_path):
        os.mkfifo(tmp_path / "p.log")
        text = (LOGS / "illegal-access.log").read_bytes()
        writer = threading.Timer(0.3, lambda: (tmp_path / "p.log").write_bytes(text))
        writer.start()
        _, found, _ = rules(cli, tmp_path / "p.log")
        writer.join()
        assert found == rules(cli, LOGS / "illegal-access.log")[1]

    def test_a_file_that_is_not_there_is_called_a_file(self, cli, tmp_path):
        for name in (tmp_path / "server.log", "server.log.gz"):
            code, out, err = cli("diagnose", name)
            assert (code, out) == (2, "")
            assert err.startswith(f"error: there is no file {name}\n")

    def test_a_link_that_leads_nowhere_is_called_one(self, cli, tmp_path):
        (tmp_path / "latest").symlink_to("/gone/dumps")
        code, _, err = cli("diagnose", tmp_path / "latest")
        assert (code, err.splitlines()[0]) == (
            2,
            f"error: {tmp_path / 'latest'} is a link to /gone/dumps, which is not there",
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[New LWP 9]\n\nThread 2 (Thread 0x7f10 (LWP 12) "python"):\n#0  0x00007f in poll () from /lib/libc.so.6\n',
            "is gdb's stacks of threads",
        ),
        (
            "  Kernel Parent Dev Grid Status SMs Mask GridDim BlockDim Invocation\n*      0      -   0    1 Active\n",
            "is cuda-gdb's table of kernels",
        ),
        ("internal record id: 3\ngroup info: default\ncollective state: scheduled\n", "is what torchfrtrace says"),
    ],
    ids=["gdb", "info cuda kernels", "torchfrtrace"],
)
def test_what_a_tool_printed_and_nobody_reads_is_named(cli, tmp_path, text, said):
    (tmp_path / "a.txt").write_text(text)
    code, _, err = cli("diagnose", tmp_path / "a.txt")
    assert (code, said in err, "hint: " in err) == (2, True, True)
    code, _, err = cli("diagnose", tmp_path)
    assert (code, f"left alone: {tmp_path}/a.txt is " in err, said in err) == (5, True, True)
    shutil.copy(LOGS / "healthy.log", tmp_path)
    code, _, err = cli("diagnose", tmp_path)
    assert (code, said in err) == (0, True)
    # What a log quotes is a log's.
    (tmp_path / "a.txt").write_text((LOGS / "healthy.log").read_text() + text)
    assert cli("diagnose", tmp_path / "a.txt")[0] == 0


class TestWhatIsNotUnpacked:
    """There may be a crash in it, so whatever lies beside it is not called well."""

    def test_in_a_folder_it_is_said_and_counts_as_unread(self, cli, tmp_path):
        shutil.copy(LOGS / "healthy.log", tmp_path)
        assert cli("diagnose", tmp_path)[0] == 0
        for at in range(6):
            with tarfile.open(tmp_path / f"logs{at}.tar.gz", "w:gz") as archive:
                archive.add(LOGS / "illegal-access.log", "server.log")
        code, out, err = cli("diagnose", tmp_path, "--json")
        found = json.loads(out)
        assert (code, found["clean"], found["files_not_read"]) == (4, False, 6)
        hint = f"unpack it: tar -xOf {tmp_path}/logs0.tar.gz FILE | gemma4-triage diagnose -"
        assert f"not read: {tmp_path}/logs0.tar.gz is a tar archive; {hint}\n" in err
        assert "not read: 2 more archives\n" in err

    def test_in_a_zip_it_is_named_by_the_zip(self, cli, tmp_path):
        with tarfile.open(tmp_path / "logs.tar", "w") as archive:
            archive.add(LOGS / "illegal-access.log", "server.log")
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.write(tmp_path / "logs.tar", "logs.tar")
            archive.write(LOGS / "healthy.log", "healthy.log")
        code, _, err = cli("diagnose", tmp_path / "a.zip")
        assert (code, f"not read: {tmp_path}/a.zip/logs.tar is a tar archive; unpack the zip and it" in err) == (
            4,
            True,
        )

    def test_alone_in_a_folder_it_is_not_nothing(self, cli, tmp_path):
        (tmp_path / "server.log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
        code, _, err = cli("diagnose", tmp_path)
        assert code in (4, 5)
        assert "is zstd, which this Python cannot read" in err or "ends early" in err


class TestNamedFiles:
    def test_one_that_only_begins_as_evidence_is_named(self, cli, tmp_path):
        (tmp_path / "a.json").write_text('{"kind": "collection", "processes": 3}')
        code, _, err = cli("diagnose", tmp_path / "a.json")
        assert code == 5
        assert f"{tmp_path / 'a.json'} begins as a bundle of collect does, and holds nothing of it" in err
        assert "nothing there can be read" in err

    @pytest.mark.slow
    @pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
    def test_what_another_user_may_not_read(self, cli, tmp_path):
        (tmp_path / "closed").mkdir(mode=0)
        (tmp_path / "closed.log").touch(mode=0)
        (tmp_path / "half" / "closed").mkdir(parents=True)
        shutil.copy(LOGS / "pool-leak.log", tmp_path / "half")
        (tmp_path / "half" / "closed").chmod(0)
        for folder in (tmp_path, *tmp_path.parents[:-2]):
            folder.chmod(0o755)
        cli("diagnose", LOGS / "pool-leak.log")
        expected = {
            "closed": (4, f"{tmp_path}/closed cannot be read: Permission denied"),
            "closed/a.log": (4, "closed cannot be read: Permission denied"),
            "closed.log": (2, "closed.log cannot be read: Permission denied"),
            "half": (4, f"not read: {tmp_path}/half/closed: Permission denied"),
        }
        for name, (code, said) in expected.items():
            reads, writes = os.pipe()
            child = os.fork()
            if child == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                found = cli("diagnose", tmp_path / name)
                os.write(writes, json.dumps([found[0], found[2]]).encode())
                os._exit(0)
            os.close(writes)
            os.waitpid(child, 0)
            with open(reads) as told:
                got, err = json.loads(told.read())
            assert (got, said in err) == (code, True), err


class TestDocumentsOfThisProject:
    """What a run, a bench or a command wrote about evidence is none, whatever lines it quotes."""

    GOLDEN = sorted((ROOT / "tests" / "contract" / "golden").glob("json_*.json"))
    ROWS = sorted((ROOT / "kernels" / "bench" / "rows").glob("*.json"))
    RUN = ROOT / "tests" / "data" / "finished_runs" / "e4b-trtllm"

    @pytest.mark.parametrize("path", [*GOLDEN, *ROWS], ids=lambda path: path.stem)
    def test_each_is_told_for_what_it_is(self, cli, path):
        if b'"schema_version"' not in path.read_bytes()[:200]:
            pytest.skip("an older bench's rows say no version")
        code, out, err = cli("diagnose", path)
        assert (code, out) == (5, "")
        assert err.startswith(f"error: {path} is what ") or "is the verdict of a finished run" in err
        assert cli("logs", path)[:2] == (2, "")
        assert cli("diagnose", "--log", path)[:2] == (2, "")

    def test_the_line_that_reads_it_is_named_and_runs(self, cli, tmp_path):
        verdict = self.RUN / "verdict.json"
        code, _, err = cli("diagnose", verdict)
        assert code == 5
        assert f"hint: gemma4-triage report {verdict} shows it" in err
        code, out, _ = cli("report", verdict)
        assert (code, out) == (0, cli("report", self.RUN)[1])
        renamed = shutil.copy(verdict, tmp_path / "sent.json")
        assert "e4b-trtllm: as expected" in cli("report", renamed)[1]
        rows = next(path for path in self.ROWS if path.name.startswith("kernels_h200"))
        hint = cli("diagnose", rows)[2].splitlines()[1].removeprefix("hint: gemma4-triage ").removesuffix(" draws it")
        assert cli(*[tmp_path / word if word == "bench.svg" else word for word in hint.split()])[0] == 0

    def test_beside_evidence_one_line_says_that_they_were_left_alone(self, cli, tmp_path):
        folder = shutil.copytree(self.RUN, tmp_path / "run")
        before = json.loads(cli("diagnose", folder, "--json")[1])
        for at in range(3):
            shutil.copy(folder / "verdict.json", folder / f"copy{at}.json")
        code, out, err = cli("diagnose", folder, "--json")
        assert err.count("left alone: ") == 1
        assert "is the verdict of a finished run: gemma4-triage report" in err
        assert "3 files more like it" in err
        assert (code, json.loads(out)["summary"]) == (1, before["summary"])
        verdicts = {log["file"] for one in json.loads(out)["incidents"] for log in one["logs"]}
        assert not any(name.endswith(".json") for name in verdicts)

    def test_the_kinds_of_runs_are_those_that_report_reads(self):
        assert set(RUN_KINDS) == set(record_file._MODELS)

    def test_lines_of_a_log_may_have_such_keys(self, cli, tmp_path):
        lines = ["server_args=ServerArgs(page_size=16)", "CUDA error: an illegal memory access was encountered"]
        shipped = [json.dumps({"schema_version": "1.0", "kind": "event", "log": line + "\n"}) for line in lines]
        (tmp_path / "a.log").write_text("\n".join(shipped) + "\n")
        assert cli("logs", tmp_path / "a.log")[0] == 1

    def test_evidence_that_is_no_log_is_sent_to_diagnose(self, cli):
        for path in (
            ROOT / "tests" / "data" / "evidence" / "hanging" / "collect.json",
            next((CORPUS / "clean-aborts" / "guards").iterdir()),
            next((CORPUS / "clean-aborts" / "audits").iterdir()),
        ):
            code, _, err = cli("logs", path)
            assert (code, f"hint: gemma4-triage diagnose {path} reads it" in err) == (2, True)
            # Of a ledger without a finding there is nothing to say.
            assert cli("diagnose", path)[0] == (
                5 if path.parent.name == "audits" else 1 if "hanging" in str(path) else 0
            )

    @pytest.mark.parametrize("name", ["manifest.json", "tensors.safetensors", "events.jsonl"])
    def test_a_file_of_a_dump_stands_for_the_dump(self, cli, name):
        assert cli("diagnose", SEED_BUG / name)[:2] == cli("diagnose", SEED_BUG)[:2]

    def test_a_manifest_without_its_dump(self, cli, tmp_path):
        shutil.copy(SEED_BUG / "manifest.json", tmp_path / "sent.json")
        code, _, err = cli("diagnose", tmp_path / "sent.json")
        assert (code, "is a dump's manifest without its dump" in err) == (5, True)
