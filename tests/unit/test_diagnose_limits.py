"""`diagnose` of far more than it reads: thousands of files, hostile sizes and times; what was not read is said."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asked_evidence import CPU, DUMPS, EVIDENCE, exported, rules
from diagnose_examples import ROOT
from gemma4_dumps import unpacked
from gemma4_dumps.errors import DumpUnreadable
from gemma4_triage.diagnose import material, sources
from gemma4_triage.diagnose.assign_readings import assign_readings
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.logs import source
from gemma4_triage.logs.read import read_source
from gemma4_triage.readers.opcodes import read_pickle
from gemma4_triage.readers.reading import Identity, Moment, Reading
from gemma4_triage.time_limit import until

LOGS = ROOT / "tests" / "data" / "logs"
RUNS = ROOT / "tests" / "data" / "finished_runs"


class TestFarTooMuch:
    """What somebody sends may be thousands of files: all of it together has limits, and what is beyond is said."""

    def many(self, tmp_path, count: int) -> None:
        for at in range(count):
            shutil.copytree(DUMPS / CPU, tmp_path / f"{at}" / "renamed")
            # A copy of a dump is that dump.
            manifest = tmp_path / f"{at}" / "renamed" / "manifest.json"
            manifest.write_text(manifest.read_text().replace(CPU, f"{CPU[:-4]}{at:04}"))

    def test_pieces(self, cli, tmp_path, monkeypatch):
        monkeypatch.setattr(material, "MAX_PIECES", 2)
        self.many(tmp_path, 5)
        shutil.copy(EVIDENCE / "cuda-gdb" / "core.txt", tmp_path)
        code, _, document = rules(cli, tmp_path)
        (incident,) = document["incidents"]
        assert (code, len(incident["dumps"]), document["files_not_read"]) == (1, 2, 4)
        assert "not read: 4 files and folders: reading ends after 2 pieces of evidence" in document["err"]
        assert (
            f", before {tmp_path}/2/renamed/manifest.json; name a part of it, or --limit 0 for all" in document["err"]
        )
        _, _, document = rules(cli, tmp_path, "--limit", "0")
        assert (document["files_not_read"], len(document["incidents"][0]["dumps"])) == (0, 5)
        # A store by itself has the same limits.
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(DUMPS))
        assert rules(cli)[2]["files_not_read"] == len(list(DUMPS.glob("2*"))) - 2
        assert "files and folders: reading ends after 2 pieces" in cli("report")[1]
        report = tmp_path / "report.html"
        cli("report", tmp_path, "-o", report)
        assert "4 files and folders: reading ends" in report.read_text()

    def test_memory_that_manifests_take(self, cli, tmp_path, monkeypatch):
        monkeypatch.setattr(material, "MAX_PARSED_BYTES", (DUMPS / CPU / "manifest.json").stat().st_size * 2)
        self.many(tmp_path, 3)
        for limit in ("200", "0"):
            _, _, document = rules(cli, tmp_path, "--limit", limit)
            assert (document["files_not_read"], len(document["incidents"][0]["dumps"])) == (1, 2)

    @pytest.mark.slow
    def test_what_hostile_json_takes_in_memory_is_bounded(self, tmp_path):
        (guards,) = EVIDENCE.glob("hanging/dumps/guards/*.json")
        hostile = guards.read_text().rstrip()[:-1] + ', "x": [' + "[]," * 690_000 + "0]}"
        for at in range(40):
            (tmp_path / f"{at}.json").write_text(hostile)
        # What the kernel has as a process's most counts what its parent had when it forked.
        begin = (
            "import re, sys; from gemma4_triage.cli.app import main; sys.argv = ['x', 'diagnose', sys.argv[1]]\n"
            "try:\n    main()\n"
            "finally:\n    print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        )
        done = subprocess.run([sys.executable, "-c", begin, tmp_path], capture_output=True, text=True, check=False)
        assert "reading ends after 32 MiB of manifests" in done.stderr
        # 40 of them would take 2 GiB.
        assert int(done.stdout.split()[-1]) < 1.3 * 1024**2

    def test_time(self, cli, tmp_path, monkeypatch):
        monkeypatch.setattr(material, "MAX_SECONDS", -1.0)
        self.many(tmp_path, 1)
        shutil.copy(LOGS / "pool-leak.log", tmp_path)
        code, _, document = rules(cli, tmp_path)
        assert (code, document["kind"]) == (4, "error")
        assert "reading ends after -1 s" in document["err"]
        # A log that was named itself is read to its end.
        code, found, document = rules(cli, LOGS / "pool-leak.log", tmp_path)
        assert (code, found[0][0]) == (1, "pool-leak")
        assert "not read: 1 file or folder: reading ends after -1 s" in document["err"]

    def test_time_of_logs_and_of_readers_together(self, tmp_path):
        (tmp_path / "a.log").write_text("a\n" * 10)
        with until(time.monotonic() - 1):
            facts = read_source(source.Source(str(tmp_path / "a.log")))
            with pytest.raises(DumpUnreadable, match="it took too long"):
                read_pickle(EVIDENCE / "flight-recorder" / "nccl_trace_rank_0")
        assert facts.problem == "ends early: it took too long"

    def test_logs_of_folders_that_come_too_late(self, cli, tmp_path, monkeypatch):
        for name in ("a.log", "b.log"):
            shutil.copy(LOGS / "pool-leak.log", tmp_path / name)
        real = sources._Finder.result

        def late(finder):
            found = real(finder)
            found.end_s = time.monotonic() - 1
            return found

        monkeypatch.setattr(sources._Finder, "result", late)
        code, _, err = cli("diagnose", tmp_path)
        assert code == 4
        assert "not read: 2 logs: reading took too long" in err

    @pytest.mark.slow
    def test_logs_of_folders_beyond_the_newest(self, cli, tmp_path):
        for at in range(70):
            name = "healthy" if at else "pool-leak"
            shutil.copy(LOGS / f"{name}.log", tmp_path / f"{at}.log")
            os.utime(tmp_path / f"{at}.log", (1e9 + at, 1e9 + at))
        code, found, document = rules(cli, tmp_path)
        assert (code, document["clean"], document["files_not_read"], any(found)) == (4, False, 6, False)
        assert document["summary"]["not_read"] == "6 files and folders not read"
        assert f"not read: 6 older logs, the newest of them {tmp_path}/5.log; --limit 0 reads all" in document["err"]
        last = cli("diagnose", tmp_path)[1].splitlines()[-1]
        assert last == "no incident found in what was read of 64 runs: 6 files and folders not read"
        code, _, document = rules(cli, tmp_path, "--limit", "0")
        assert (code, document["files_not_read"], document["summary"]["certain"]) == (1, 0, 1)
        code, out, _ = cli("report", tmp_path, "--json")
        verdict = json.loads(out)["verdict"]
        assert (code, verdict["status"]) == (4, "unchecked")
        assert verdict["headline"] == "nothing wrong in what could be read: 6 files and folders not read"

    def test_a_log_that_is_torn_is_no_clean_one(self, cli, tmp_path):
        packed = gzip.compress((LOGS / "healthy.log").read_bytes())
        (tmp_path / "a.log.gz").write_bytes(packed[: len(packed) * 9 // 10])
        for name in (tmp_path, tmp_path / "a.log.gz"):
            code, found, document = rules(cli, name)
            assert (code, found, document["clean"], document["files_read_in_part"]) == (4, [[]], False, 1)
        out = cli("diagnose", tmp_path)[1]
        assert "nothing wrong in what was read of the log" in out
        assert out.endswith("no incident found in what was read of 1 run: 1 file read in part\n")

    def test_older_dumps_that_the_limit_leaves_are_said_and_no_lack(self, cli):
        code, _, document = rules(cli, RUNS / "diff-patches" / "base-trtllm_mha-mtp-on" / "dumps", "--limit", "1")
        assert (code, document["older_dumps_not_read"], document["summary"]["not_read"]) == (
            0,
            1,
            "1 older dump not read",
        )

    def test_files_and_folders(self, cli, tmp_path, monkeypatch):
        monkeypatch.setattr(sources, "MAX_FILES", 5)
        for at in range(9):
            (tmp_path / f"{at}.bin").write_bytes(b"\1")
        shutil.copy(LOGS / "pool-leak.log", tmp_path / "0.log")
        code, _, document = rules(cli, tmp_path, LOGS / "pool-leak.log")
        assert code == 1
        assert document["files_not_read"] == 6

    def test_what_is_not_read_is_named_with_its_whole_path(self, cli, tmp_path, monkeypatch):
        (tmp_path / "ours/closed").mkdir(parents=True)
        for name in ("a.log", "b.log"):
            shutil.copy(LOGS / "pool-leak.log", tmp_path / "ours" / name)
        os.utime(tmp_path / "ours/a.log", (0, 0))
        monkeypatch.chdir(tmp_path)

        def closed(path):
            if Path(path).name == "closed":
                raise PermissionError(13, "Permission denied")
            return scandir(path)

        scandir = os.scandir
        monkeypatch.setattr(os, "scandir", closed)
        monkeypatch.setattr(sources, "MAX_LOGS", 1)
        err = cli("diagnose", "ours")[2]
        assert f"not read: {tmp_path}/ours/closed: Permission denied\n" in err
        assert f"not read: 1 older log, the newest of them {tmp_path}/ours/a.log; " in err
        code, _, err = cli("diagnose", "ours/closed")
        assert (code, f"error: {tmp_path}/ours/closed cannot be read: Permission denied\n" in err) == (4, True)
        monkeypatch.setattr(sources, "MAX_FILES", 2)
        assert f"after 50000 files and folders, before {tmp_path}/ours/" in cli("diagnose", "ours")[2]

    def test_folders_inside_one_another(self, cli, tmp_path):
        folder = tmp_path.joinpath(*["d"] * 30)
        folder.mkdir(parents=True)
        shutil.copy(LOGS / "pool-leak.log", folder)
        code, _, err = cli("diagnose", tmp_path)
        assert (code, "not read: 1 file or folder: reading ends at 24 folders inside one another" in err) == (4, True)
        assert f", before {tmp_path.joinpath(*['d'] * 25)}; " in err
        assert cli("diagnose", tmp_path / "d/d/d/d/d/d/d")[0] == 1

    def test_zips_together(self, cli, tmp_path, monkeypatch):
        path = exported(cli, tmp_path, DUMPS / CPU)
        monkeypatch.setattr(unpacked, "MAX_ALL_BYTES", 10)
        code, _, document = rules(cli, path)
        assert code == 4
        assert "and the zips before it unpack to more than 10 bytes" in document["message"]

    @pytest.mark.slow
    @pytest.mark.parametrize("pids", ["of one", "of each", "overlapping"])
    def test_a_thousand_readings_that_name_processes(self, pids):
        def hostile(at: int) -> Reading:
            named = {"of one": (7,), "of each": (at,), "overlapping": tuple(range(at, at + 200))}[pids]
            command = ("sglang", "serve", *(word for number in range(40) for word in (f"--o-{number}", "1")))
            identity = Identity(named, host=f"h{at}" if pids == "of each" else "vm", command=command, folder=f"/b{at}")
            moment = Moment(1795257270.0 + at, "it started")
            return Reading(f"/b{at}/collect.json", "collection", "a bundle", identity=identity, moments=(moment,))

        readings = [hostile(at) for at in range(1000)]
        begin = time.process_time()
        found = assign_readings([Incident()], readings)
        # It took 50 to 100 s while what an incident says was gathered anew for each reading.
        assert time.process_time() - begin < 20
        assert sum(len(incident.readings) for incident in found) == 1000
        assert len(found) == (1001 if pids == "of each" else 2)

    @pytest.mark.slow
    def test_thousands_of_torn_files_end_in_a_count(self, cli, tmp_path):
        whole = (EVIDENCE / "flight-recorder" / "nccl_trace_rank_0").read_bytes()
        (guards,) = EVIDENCE.glob("hanging/dumps/guards/*.json")
        for at in range(1500):
            folder = tmp_path / f"{at}"
            folder.mkdir()
            (folder / "a").write_bytes(whole[: 100 + at])
            (folder / "b.json").write_bytes(guards.read_bytes()[: -1 - at % 20])
            (folder / "c.zip").write_bytes(b"PK\3\4" + bytes(at))
            (folder / "d").symlink_to("/etc/passwd")
            os.mkfifo(folder / "e")
        begin = time.monotonic()
        code, out, err = cli("diagnose", tmp_path)
        assert time.monotonic() - begin < 60
        assert (code, out.count("\n") < 1000, err.count("\n") < 10) == (4, True, True)
        assert "2000 files and folders: reading ends after 1000 pieces of evidence" in err
