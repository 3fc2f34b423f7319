"""The verb `diagnose`: what it prints, its document, its exit codes."""

import gzip
import io
import json
import shutil
import subprocess
import sys

import pytest

from diagnose_examples import CORPUS, ROOT
from made_logs import death
from processor_time import holds

SEED = CORPUS / "swa-state-stale"
SAMPLES = ROOT / "dumps" / "samples"
LOGS = ROOT / "tests" / "data" / "logs"
H200 = "20261121T133817.982072Z_vm_r0_p1291_page-table-bounds_0009"
LATEST = "20261121T165051.804820Z_vm_r0_p18498_page-table-bounds_0006"


def document(text: str) -> dict:
    found = json.loads(text)
    assert found["schema_version"]
    return found


class TestWhatItReads:
    def test_a_whole_store_is_the_default(self, cli, monkeypatch):
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(SEED))
        code, out, err = cli("diagnose")
        assert (code, err) == (1, "")
        assert out.startswith("INCIDENT  vm, rank 0, 2026-11-21 16:50:49")
        assert "1. CERTAIN  draft-swa-state-stale" in out

    def test_latest_is_one_dump(self, cli):
        code, out, _ = cli("diagnose", "latest", "--dir", SEED, "--json")
        (incident,) = document(out)["incidents"]
        assert code == 1
        assert [dump["dump_id"] for dump in incident["dumps"]] == [LATEST]

    def test_a_folder_of_dumps_is_all_of_them(self, cli):
        _, out, _ = cli("diagnose", SEED, "--json")
        (incident,) = document(out)["incidents"]
        assert len(incident["dumps"]) == 4
        assert len({guards["pid"] for guards in incident["guards"]}) == 3

    def test_of_a_large_folder_the_newest_and_it_says_so(self, cli):
        _, out, err = cli("diagnose", SEED, "--limit", "1", "--json")
        found = document(out)
        (incident,) = found["incidents"]
        assert [dump["dump_id"] for dump in incident["dumps"]] == [LATEST]
        assert found["older_dumps_not_read"] == 3
        assert "3 older dumps; --limit 0 reads all of them" in err
        assert document(cli("diagnose", SEED, "--limit", "0", "--json")[1])["older_dumps_not_read"] == 0

    def test_a_dump_named_twice_counts_once(self, cli):
        _, out, _ = cli("diagnose", LATEST, SEED / LATEST, "--dir", SEED, "--json")
        assert len(document(out)["incidents"][0]["dumps"]) == 1

    def test_several_incidents_the_newest_first(self, cli):
        code, out, _ = cli("diagnose", SEED, CORPUS / "negative-page")
        assert code == 1
        assert "INCIDENT 1 of 2" in out
        assert out.index("unassigned-page") < out.index("draft-swa-state-stale")


class TestWhatItSays:
    def test_what_containment_left_is_not_called_the_translation_of_what_was_there(self, cli):
        _, out, _ = cli("diagnose", "20261121T133817", "--dir", SAMPLES)
        assert "draft-swa-state-stale" in out
        assert "translated_page_table[2, 2]" not in out

    def test_an_entry_that_is_still_there_is_shown_translated(self, cli):
        _, out, _ = cli("diagnose", "20261121T103430", "--dir", SAMPLES)
        assert "translated_page_table[5, 7]  49" in out

    def test_the_document_holds_the_finding_whole(self, cli):
        _, out, err = cli("diagnose", CORPUS / "one-untranslated-row", "--json")
        found = document(out)
        assert (found["kind"], found["clean"], found["exit_code"], err) == ("diagnosis", False, 1, "")
        (finding,) = found["incidents"][0]["findings"]
        assert finding["rule"] == "row-not-translated"
        assert finding["confidence"] == "certain"
        assert {"source", "field", "value", "meaning"} == set(finding["evidence"][0])
        assert {"field": "swa_out_cache_loc[5, 3]", "value": 798}.items() <= finding["evidence"][5].items()
        assert finding["upstream"] == ["SGLang 24402"]

    def test_the_terminal_shows_the_same(self, cli):
        _, out, _ = cli("diagnose", CORPUS / "one-untranslated-row", "--json")
        (finding,) = document(out)["incidents"][0]["findings"]
        _, shown, _ = cli("diagnose", CORPUS / "one-untranslated-row")
        words = " ".join(shown.split())
        for text in (finding["cause"], *finding["ruled_out_if"], *finding["advice"], *finding["next_commands"]):
            assert text in words
        for piece in finding["evidence"]:
            assert f"[1] {piece['field']} {piece['value']} {piece['meaning']}" in words

    def test_nothing_wrong(self, cli):
        code, out, err = cli("diagnose", "--dir", CORPUS / "clean-aborts")
        assert (code, err) == (0, "")
        assert "nothing wrong here: 3 guarded processes, 3 verified, no dump; 4 leak audits without a finding" in out
        assert "noted at start-up: swa_slots: found 1024" in out
        code, out, _ = cli("diagnose", "--dir", CORPUS / "clean-aborts", "--json")
        assert (code, document(out)["clean"]) == (0, True)
        assert document(out)["incidents"][0]["findings"] == []

    def test_runs_that_say_the_same_are_shown_once(self, cli):
        code, out, _ = cli(
            "diagnose", *(CORPUS / name for name in ("clean-aborts", "clean-retraction", "negative-page"))
        )
        assert code == 1
        assert out.index("1. LIKELY  unassigned-page") < out.index("RUN WITHOUT DUMPS")
        assert out.count("nothing wrong here") == 1
        assert "the same in 1 more run;" in out

    def test_of_manifests_alone_that_mark_no_end_nobody_says_that_it_was_well(self, cli):
        # Those of a server whose scheduler SIGKILL ended, by a plugin that wrote no ends.
        code, out, _ = cli("diagnose", ROOT / "tests" / "data" / "evidence" / "crash" / "guards")
        assert (code, "nothing wrong" in out) == (0, False)
        assert "nothing was found, which may not be all: 3 guarded processes" in out
        assert "no incident found in 1 run; of 1 nothing says how it ended" in out

    def test_what_a_dump_says_cannot_command_the_terminal(self, cli, tmp_path):
        dump = shutil.copytree(CORPUS / "unmergeable-spec-info", tmp_path / "store")
        (manifest,) = dump.rglob("manifest.json")
        manifest.write_text(manifest.read_text().replace("FrozenKVMTPVerifyInput", "\\u001b[31mVerifyInput"))
        _, out, _ = cli("diagnose", "--dir", dump)
        assert "\x1b" not in out
        assert "\\x1b[31mVerifyInput" in out


class TestLog:
    @pytest.fixture
    def own_log(self, tmp_path):
        """Return the log of a crash that names a dump of the seed bug's run."""
        text = (LOGS / "illegal-access.log").read_text().replace("19284", "18402")
        log = tmp_path / "server.log"
        log.write_text(f"{text}page-table-bounds: page 65 [logged; seen 1 times; dump: /gone/{LATEST}]\n")
        return log

    def test_one_cause_is_shown_with_values_of_both(self, cli, own_log):
        code, out, err = cli("diagnose", SEED, "--log", own_log)
        assert (code, err) == (1, "")
        assert f"[L1]  {own_log}: 114 of 117 lines understood, 2026-11-21T16:51:28 to" in out
        assert "of the server of 20261121T165049" in out
        first = " ".join(out.partition("2. CERTAIN")[0].split())
        assert "1. CERTAIN draft-swa-state-stale" in first
        assert "[2] provenance.table_space full whose page ids the table holds" in first
        assert "[L1] line 18 full 0.36, swa 0.89 the last pool usage before it" in first

    def test_the_document(self, cli, own_log):
        logs = [own_log, own_log, LOGS / "healthy.log"]
        _, out, _ = cli("diagnose", SEED, *(word for log in logs for word in ("--log", log)), "--json")
        (incident, run) = document(out)["incidents"]
        assert [log["file"] for log in incident["logs"]] == [str(own_log)]
        assert (incident["logs"][0]["relation"], incident["logs"][0]["guess"]) == ("names", False)
        assert incident["logs"][0]["injected_faults"] == ["swa-state-stale"]
        assert incident["findings"][0]["rule"] == "draft-swa-state-stale"
        assert str(own_log) in {piece["source"] for piece in incident["findings"][0]["evidence"]}
        assert [log["file"] for log in run["logs"]] == [str(LOGS / "healthy.log")]
        assert run["logs"][0]["relation"] == "apart"

    def test_a_foreign_log_is_a_run_of_its_own_and_says_what_parts_them(self, cli):
        code, out, _ = cli("diagnose", "--dir", SAMPLES, "--log", LOGS / "illegal-access.log")
        assert code == 1
        incidents, _, run = out.partition("RUN WITHOUT DUMPS")
        assert "[L1]" not in incidents
        assert "a run of its own" in run
        _, out, _ = cli("diagnose", SAMPLES / H200, "--log", LOGS / "illegal-access.log", "--json")
        (_, run) = document(out)["incidents"]
        assert run["logs"][0]["related_to"] == H200
        assert "the log has page size 16, the dump 64" in run["logs"][0]["reasons"]
        assert "the log has device cpu, the dump cuda" in run["logs"][0]["reasons"]

    def test_a_guess_is_called_one_and_is_no_evidence(self, cli, tmp_path):
        _, alone, _ = cli("diagnose", SEED, "--json")
        # Its own log names a process that is none of the launch's, and so is no guess.
        log = tmp_path / "server.log"
        log.write_text((LOGS / "illegal-access.log").read_text().replace("parent_pid=19284", ""))
        code, out, _ = cli("diagnose", SEED, "--log", log, "--json")
        (incident, run) = document(out)["incidents"]
        assert code == 1
        assert incident["findings"] == document(alone)["incidents"][0]["findings"]
        assert (run["logs"][0]["relation"], run["logs"][0]["guess"]) == ("guess", True)
        _, out, _ = cli("diagnose", SEED, "--log", log)
        assert "a guess: perhaps of the server of 20261121T165049" in out

    def test_a_run_that_only_ended_stands_behind_a_guessed_log_that_says_why(self, cli, tmp_path):
        (tmp_path / "guards").mkdir()
        fields = {"verified": True, "patches": [], "pid": 1, "command": [], "created_utc": "2026-01-01T00:00:00+00:00"}
        fields["ended"] = {"how": "child failed", "why": "SIGQUIT"}
        (tmp_path / "guards" / "1.json").write_text(json.dumps(fields))
        log = tmp_path / "server.log"
        for said, rules in (
            ("No CUDA GPUs are available", ["no-gpu", "ended-without-saying-why"]),
            # What is no more certain than that it ended says nothing better.
            ("a word that no rule knows", ["ended-without-saying-why", "other-crash"]),
        ):
            log.write_text("".join(death(1, f"RuntimeError: {said}")))
            code, out, _ = cli("diagnose", "--dir", tmp_path, "--log", log, "--json")
            assert code == 1
            assert [one["findings"][0]["rule"] for one in document(out)["incidents"]] == rules

    def test_it_goes_to_the_incident_whose_dump_it_names(self, cli, tmp_path):
        log = tmp_path / "server.log"
        log.write_text(f"page-table-bounds: page 65 [logged; seen 1 times; dump: /gone/{LATEST}]\n")
        _, out, err = cli("diagnose", SEED, CORPUS / "negative-page", "--log", log, "--json")
        assert [len(incident["logs"]) for incident in document(out)["incidents"]] == [0, 1]
        assert err == ""

    @pytest.mark.parametrize(
        ("log", "patches"),
        [("stale-write-rows", "default"), ("hybrid-draft-pool", "default"), ("pool-leak", "none")],
    )
    def test_a_crash_without_a_dump_does_not_leave_out_the_fix_of_its_cause(self, cli, log, patches):
        _, out, _ = cli("diagnose", "--log", LOGS / f"{log}.log", "--json")
        (incident,) = document(out)["incidents"]
        (serve,) = [step["command"] for step in incident["plan"] if " serve " in step["command"]]
        assert f" --patches {patches} --debug 1 -- " in serve

    def test_a_replica_that_starts_and_ends_beside_it_on_another_port_is_another_server(self, cli, tmp_path):
        crash = ROOT / "tests" / "data" / "evidence" / "crash"
        lines = [line for line in (crash / "server.log").read_text().splitlines() if "guards" not in line]
        relations = []
        for port in ("21000", "21001"):
            log = tmp_path / f"{port}.log"
            log.write_text("\n".join(lines).replace("21000", port))
            _, out, _ = cli("diagnose", crash / "guards", log, "--json")
            relations += [one["relation"] for each in document(out)["incidents"] for one in each["logs"]]
        assert relations == ["agrees", "apart"]

    def test_alone_it_is_a_run(self, cli, tmp_path):
        code, out, _ = cli("diagnose", "--dir", tmp_path, "--log", LOGS / "pool-leak.log")
        assert code == 1
        assert "RUN WITHOUT DUMPS" in out
        assert out.index("1. CERTAIN  pool-leak") < out.index("POSSIBLE  crash-without-dump")
        code, out, _ = cli(
            "diagnose", "--dir", tmp_path, "--log", LOGS / "healthy.log", "--log", LOGS / "accept-drop.log"
        )
        assert (code, out.count("RUN WITHOUT DUMPS")) == (1, 2)
        code, out, _ = cli("diagnose", "--dir", tmp_path, "--log", LOGS / "healthy.log")
        assert code == 0
        assert "nothing wrong in the log; there is no guard manifest of this run" in out

    def test_gzip_and_stdin(self, cli, tmp_path, monkeypatch):
        packed = tmp_path / "server.log.1.gz"
        packed.write_bytes(gzip.compress((LOGS / "pool-leak.log").read_bytes()))
        stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO((LOGS / "trapped.log").read_bytes())))
        monkeypatch.setattr(sys, "stdin", stream)
        code, out, _ = cli("diagnose", "--dir", tmp_path, "--log", packed, "--log", "-", "--json")
        assert code == 1
        assert [[log["file"] for log in incident["logs"]] for incident in document(out)["incidents"]] == [
            [str(packed)],
            ["-"],
        ]

    def test_a_torn_gzip_counts_as_far_as_it_goes(self, cli, tmp_path):
        packed = tmp_path / "log.gz"
        packed.write_bytes(gzip.compress((LOGS / "swa-starved.log").read_bytes())[:-200])
        code, _, err = cli("diagnose", "--dir", tmp_path, "--log", packed)
        assert code == 1
        assert f"{packed} ends early" in err

    def test_a_log_that_cannot_be_read(self, cli, tmp_path):
        for path in (tmp_path / "none.log", tmp_path):
            code, out, err = cli("diagnose", SEED, "--log", path)
            assert (code, out) == (2, "")
            assert "error: " in err
        assert cli("diagnose", SEED, "--log", "-", "--log", "-")[0] == 2

    def test_something_else_than_a_log(self, cli, tmp_path):
        log = tmp_path / "notes.txt"
        log.write_text("fine\n")
        code, out, err = cli("diagnose", "--dir", tmp_path, "--log", log, "--json")
        assert (code, document(out)["exit_code"]) == (5, 5)
        assert "no line of SGLang's scheduler in the logs" in err
        code, out, err = cli("diagnose", SEED, "--log", log)
        assert (code, err) == (1, f"{log}: 0 of 1 line understood\n")
        assert "notes.txt" not in out


class TestExitCodes:
    def test_nothing_to_look_at(self, cli, tmp_path):
        code, out, err = cli("diagnose", "--dir", tmp_path, "--json")
        assert (code, document(out)["exit_code"]) == (5, 5)
        assert "neither a dump nor a guard manifest" in err

    def test_a_newcomer_is_told_where_it_looked_and_what_there_is_to_try(self, cli, tmp_path, monkeypatch):
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
        code, out, err = cli("diagnose")
        assert (code, out) == (5, "")
        assert f"error: neither a dump nor a guard manifest in {tmp_path}\n" in err
        assert "gemma4-triage samples has some" in err
        assert "gemma4-triage samples has some to try" in cli("dumps", "ls")[2]

    def test_no_such_dump(self, cli):
        assert cli("diagnose", "nonsense", "--dir", SEED)[0] == 2
        assert cli("diagnose", "--dir", SEED / "none")[0] == 2

    def test_a_dump_that_cannot_be_read(self, cli, tmp_path):
        torn = shutil.copytree(SEED / LATEST, tmp_path / LATEST)
        (torn / "manifest.json").write_text("{")
        code, out, err = cli("diagnose", torn, "--json")
        assert (code, document(out)["exit_code"]) == (4, 4)
        # A store with nothing but that cannot be called clean.
        code, out, err = cli("diagnose", "--dir", tmp_path, "--json")
        assert (code, document(out)["clean"]) == (4, False)
        assert document(out)["unreadable"][0]["path"] == str(torn)
        assert "not read" in err

    def test_a_torn_one_beside_others_is_named_and_they_are_diagnosed(self, cli, tmp_path):
        store = shutil.copytree(SEED, tmp_path / "store")
        (store / LATEST / "manifest.json").unlink()
        (store / "guards" / "x.json").write_text("[1]")
        code, out, err = cli("diagnose", "--dir", store)
        # What cannot be read may show an earlier cause.
        assert (code, "1. LIKELY  draft-swa-state-stale" in out, "CERTAIN" in out) == (4, True, False)
        assert err.count("not read") == 2

    def test_tensors_that_cannot_be_read_are_said_first_and_nothing_is_certain(self, cli, tmp_path):
        store = shutil.copytree(CORPUS / "one-untranslated-row", tmp_path / "store")
        (tensors,) = store.rglob("tensors.safetensors")
        tensors.write_bytes(b"\x00" * 7)
        code, out, err = cli("diagnose", "--dir", store, "--json")
        found = document(out)
        assert (code, found["exit_code"], found["clean"]) == (4, 4, False)
        (damaged,) = found["damaged"]
        assert "7 bytes, the manifest says" in damaged["problems"][0]
        assert damaged["dump_id"] in err
        finding = found["incidents"][0]["findings"][0]
        assert (finding["rule"], finding["confidence"]) == ("page-past-pool-end", "likely")
        code, out, _ = cli("diagnose", "--dir", store)
        assert code == 4
        assert out.startswith(f"damaged: {damaged['dump_id']}: tensors.safetensors: 7 bytes")


def test_it_is_quick_and_imports_no_torch():
    diagnose = (
        "import sys; from gemma4_triage.cli.app import main; "
        f"main(['diagnose', {str(SEED)!r}]); print(sorted({{'torch', 'sglang', 'triton'}} & set(sys.modules)))"
    )
    libraries = "import numpy, pydantic.main, rich.table, safetensors.numpy, typer; print([])"
    # Processor time, since other tests share this machine, beside that of the libraries alone: machines differ too.
    assert holds(lambda ours, alone: ours < 3 * alone, lambda: _ends(diagnose), lambda: _ends(libraries))


def _ends(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
