"""The verb `report`: what it writes, its document, its exit codes."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from gemma4_triage.report.model.records import Report
from report_examples import CORPUS, CORPUS_RUN, LOGS, ROOT, RUN, SAMPLES, SEED_BUG


def document(text: str) -> dict:
    found = json.loads(text)
    assert (found["schema_version"], found["kind"]) == ("1.0", "report")
    return found


class TestFiles:
    def test_all_of_them(self, cli, tmp_path):
        names = {"--out": "r.html", "--markdown": "r.md", "--junit": "r.xml", "--sarif": "r.sarif"}
        words = [word for option, name in names.items() for word in (option, tmp_path / name)]
        code, out, err = cli("report", RUN, *words)
        assert (code, err.splitlines()) == (0, [f"Wrote {tmp_path / name}" for name in names.values()])
        assert out.startswith("e4b-trtllm, reproduced\ne4b-trtllm: as expected, 62 s")
        assert sorted(os.listdir(tmp_path)) == sorted(names.values())
        heads = [(tmp_path / name).read_text()[:15] for name in names.values()]
        assert heads == ["<!DOCTYPE html>", "# e4b-trtllm, r", '<?xml version="', '{\n "$schema": "']

    def test_markdown_into_a_folder_is_triage_report(self, cli, tmp_path):
        code, _, err = cli("report", SEED_BUG, "--markdown", tmp_path)
        assert (code, err) == (1, f"Wrote {tmp_path / 'TRIAGE_REPORT.md'}\n")
        text = (tmp_path / "TRIAGE_REPORT.md").read_text()
        assert "### certain: draft-swa-state-stale" in text
        assert "[65!]" in text

    def test_a_run_of_unknown_end_is_nowhere_said_to_be_well_as_diagnose_has_it(self, cli, tmp_path):
        guards = ROOT / "tests" / "data" / "evidence" / "crash" / "guards"
        names = {"--out": "r.html", "--markdown": "r.md", "--junit": "r.xml"}
        words = [word for option, name in names.items() for word in (option, tmp_path / name)]
        code, out, _ = cli("report", guards, *words)
        texts = [out, *((tmp_path / name).read_text() for name in names.values())]
        said = "othing was found, which may not be all"
        assert code == 0
        assert all(said in text for text in texts)
        assert not any("nothing wrong" in text for text in texts)
        assert "<skipped " in texts[-1]
        found = document(cli("report", guards, "--json")[1])
        assert found["verdict"]["status"] == "unchecked"
        assert found["verdict"]["headline"].endswith("of 1 run nothing says how it ended")
        assert json.loads(cli("diagnose", guards, "--json")[1])["summary"]["runs_of_unknown_end"] == 1

    def test_nothing_is_overwritten_without_force(self, cli, tmp_path):
        out = tmp_path / "r.html"
        out.write_text("mine")
        code, _, err = cli("report", SEED_BUG, "-o", out)
        assert (code, out.read_text()) == (2, "mine")
        assert "--force" in err
        assert cli("report", SEED_BUG, "-o", out, "--force")[0] == 1
        assert out.read_text().startswith("<!DOCTYPE html>")

    def test_a_folder_that_is_not_there_is_refused_before_anything_is_read(self, cli, tmp_path):
        code, _, err = cli("report", tmp_path / "none", "-o", tmp_path / "none" / "r.html")
        assert (code, "cannot be a file here" in err) == (2, True)

    def test_two_reports_do_not_go_to_one_file(self, cli, tmp_path):
        code, _, err = cli("report", SEED_BUG, "-o", tmp_path / "r", "--sarif", tmp_path / "." / "r")
        assert (code, "two reports go to one file" in err) == (2, True)
        assert os.listdir(tmp_path) == []

    def test_a_full_disk_leaves_no_half_file(self, cli, tmp_path, monkeypatch):
        import pathlib

        def fill(self, *_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(pathlib.Path, "replace", fill)
        code, _, err = cli("report", SEED_BUG, "-o", tmp_path / "r.html")
        assert (code, "No space left on device" in err) == (3, True)
        assert os.listdir(tmp_path) == []


class TestDocument:
    @pytest.mark.parametrize("source", [RUN, CORPUS_RUN, SAMPLES], ids=lambda path: path.name)
    def test_it_is_the_model(self, cli, source):
        code, out, err = cli("report", source, "--json")
        found = document(out)
        assert (code, err) == (found["exit_code"], "")
        report = Report.model_validate(found)
        assert report.model_dump(mode="json").items() <= found.items()

    def test_a_run(self, cli):
        found = document(cli("report", RUN, "--json")[1])
        assert [arm["id"] for arm in found["run"]["arms"]] == ["fault", "fault-silent", "fault-probes", "fixed"]
        assert [log["label"] for log in found["logs"]] == ["fault", "fault-silent", "fault-probes", "fixed"]
        (incident,) = found["incidents"]
        assert (incident["label"], incident["expected"]) == ("fault-probes", True)
        spans = [lane["spans"][0] for lane in found["timeline"]["lanes"]]
        assert [span["begin"] for span in spans[1:]] == pytest.approx([span["end"] for span in spans[:-1]])

    def test_arms_that_ran_side_by_side_are_shown_each_from_its_own_start(self, cli, tmp_path):
        verdict = json.loads((RUN / "verdict.json").read_text())
        run = shutil.copytree(RUN, tmp_path / "run")
        verdict["duration_s"] = verdict["import_s"] + max(arm["duration_s"] for arm in verdict["arms"])
        (run / "verdict.json").write_text(json.dumps(verdict))
        timeline = json.loads(cli("report", run, "--json")[1])["timeline"]
        assert timeline["origin"] == "its own start"
        spans = [lane["spans"][0] for lane in timeline["lanes"]]
        assert {span["begin"] for span in spans} == {0}
        assert timeline["end"] == max(span["end"] for span in spans)

    def test_a_case_that_stays_silent_is_missed_and_bad(self, cli, tmp_path):
        run = shutil.copytree(CORPUS_RUN, tmp_path / "run")
        verdict = json.loads((run / "verdict.json").read_text())
        verdict["faults"][1] |= {"good": False, "fired": {}, "objections": ["nobody saw it"]}
        verdict["exit_code"] = 1
        (run / "verdict.json").write_text(json.dumps(verdict))
        code, out, _ = cli("report", run, "--json")
        found = document(out)
        assert (code, found["verdict"]["status"]) == (1, "bad")
        assert "Case double-bookkeeping: nobody saw it." in found["verdict"]["sentences"]
        assert [one["probe"] for one in found["run"]["cases"][1]["sightings"] if one["expected"]] == ["leak-ledger"]

    def test_a_log_with_dumps_gives_evidence_to_the_incident_that_it_names(self, cli, tmp_path):
        log = tmp_path / "server.log"
        log.write_text(f"page-table-bounds: full page ids [trapped; seen 1 times; dump: /srv/dumps/{SEED_BUG.name}]\n")
        found = document(cli("report", SAMPLES, "--log", log, "--json")[1])
        named = [
            incident["dumps"][0]["id"]
            for incident in found["incidents"]
            for finding in incident["findings"]
            for piece in finding["evidence"]
            if piece["source"] == str(log)
        ]
        assert named
        assert set(named) == {SEED_BUG.name}

    def test_what_happened_when_is_of_all_evidence_in_every_form(self, cli, tmp_path):
        crash = ROOT / "tests" / "data" / "evidence" / "crash"
        _, out, _ = cli("report", crash, "-o", tmp_path / "r.html", "--markdown", tmp_path / "r.md")
        (incident,) = document(cli("report", crash, "--json")[1])["incidents"]
        assert [event["text"] for event in incident["events"]][-1] == "SGLang wrote down its requests and ended"
        assert len({event["source"] for event in incident["events"]}) > 3
        for text in (out, (tmp_path / "r.html").read_text(), (tmp_path / "r.md").read_text()):
            assert "SGLang wrote down its requests and ended" in text
            assert "a crash snapshot of SGLang, 3 finished and 1 unfinished requests" in text
        assert "Noted at start-up: /" not in (tmp_path / "r.html").read_text()

    def test_a_run_that_did_not_end(self, cli, tmp_path):
        run = shutil.copytree(RUN, tmp_path / "run")
        (run / "verdict.json").unlink()
        code, out, _ = cli("report", run, "--json")
        found = document(out)
        assert (code, found["run"], found["incidents"][0]["label"]) == (1, None, "fault-probes")
        assert found["left_out"] == ["verdict.json is not there: the run did not end"]


class TestExitCodes:
    def test_nothing_wrong(self, cli):
        code, out, _ = cli("report", CORPUS / "clean-aborts")
        assert (code, "nothing wrong" in out) == (0, True)

    def test_a_name_that_is_too_long_for_a_file(self, cli):
        code, _, err = cli("report", "a" * 300)
        assert (code, "hint: " in err) == (2, True)
        for option in ("--output", "--markdown", "--junit", "--sarif"):
            code, _, err = cli("report", CORPUS / "clean-aborts", option, "a" * 5000)
            assert (code, "cannot be written: File name too long" in err) == (3, True)

    def test_an_empty_folder(self, cli, tmp_path):
        code, out, err = cli("report", tmp_path, "--json")
        assert (code, json.loads(out)["kind"]) == (5, "error")
        assert f"{tmp_path} is empty" in err
        assert cli("report", "--dir", tmp_path)[0] == 5

    def test_a_log_in_which_nothing_is_sglangs(self, cli, tmp_path):
        (tmp_path / "a.log").write_text("hello\n")
        assert cli("report", "--log", tmp_path / "a.log")[0] == 5

    def test_a_log_alone(self, cli):
        code, out, _ = cli("report", "--log", LOGS / "healthy.log")
        assert (code, "nothing wrong" in out) == (0, True)
        code, out, _ = cli("report", "--log", LOGS / "swa-starved.log")
        assert (code, "binding-pool" in out) == (1, True)

    def test_a_run_that_checked_nothing(self, cli, tmp_path):
        run = shutil.copytree(RUN, tmp_path / "run")
        verdict = json.loads((run / "verdict.json").read_text())
        verdict["exit_code"] = 5
        verdict["arms"] = verdict["arms"][1:2]
        for check in verdict["arms"][0]["checks"]:
            check["status"] = "not checked"
        (run / "verdict.json").write_text(json.dumps(verdict))
        code, out, _ = cli("report", run, "-o", tmp_path / "r.html")
        assert (code, "nothing was checked" in out) == (5, True)
        assert (tmp_path / "r.html").exists()

    def test_a_named_dump_that_cannot_be_read(self, cli, tmp_path):
        torn = shutil.copytree(SEED_BUG, tmp_path / SEED_BUG.name)
        (torn / "manifest.json").write_text("{")
        code, _, err = cli("report", torn, "-o", tmp_path / "r.html")
        assert (code, "Wrote" in err) == (4, False)
        # In a folder it is named, and the report is of the others: here there are none.
        code, out, err = cli("report", "--dir", tmp_path, "-o", tmp_path / "r.html")
        assert (code, err) == (4, f"Wrote {tmp_path / 'r.html'}\n")
        assert f"not read: {torn}" in out

    def test_a_torn_one_beside_others(self, cli, tmp_path):
        store = shutil.copytree(SAMPLES, tmp_path / "store")
        (store / SEED_BUG.name / "manifest.json").unlink()
        code, out, _ = cli("report", store)
        assert (code, out.startswith("not read: "), "pages-leaked" in out, "CERTAIN" in out) == (4, True, True, False)

    def test_tensors_that_cannot_be_read_cost_the_picture_and_every_certainty(self, cli, tmp_path):
        store = shutil.copytree(SAMPLES, tmp_path / "store")
        for file in store.rglob("tensors.safetensors"):
            file.write_bytes(b"\x00" * 7)
        code, out, _ = cli("report", store, "--json")
        dumps = [dump for incident in document(out)["incidents"] for dump in incident["dumps"]]
        findings = [one for incident in document(out)["incidents"] for one in incident["findings"]]
        assert code == 4
        # What is damaged, once by its size and once as the tensors that it should hold; and what cannot be shown.
        # A dump of shapes has no picture to lose.
        assert [len(dump["problems"]) for dump in dumps] == [3, 2, 3, 3, 3]
        assert [one["rule"] for one in findings if one["confidence"] == "certain" and one["kind"] == "cause"] == []

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            '{"kind": "bench", "exit_code": 0}',
            '{"kind": "diff-backends", "exit_code": 0, "sides": []}',
            '{"kind": "repro", "exit_code": 0, "arms": [{"id": "..", "status": "ok", "duration_s": 1, "checks": []}]}',
            '{"kind": "repro", "exit_code": 0, "arms": [{"id": "a", "status": "ok", "duration_s": NaN, "checks": []}]}',
        ],
    )
    def test_a_verdict_that_is_none(self, cli, tmp_path, text):
        (tmp_path / "verdict.json").write_text(text.replace("{", '{"schema_version": "1.0", ', 1))
        code, _, err = cli("report", tmp_path)
        assert (code, "is not the verdict of a run" in err) == (4, True)

    def test_a_run_and_something_else(self, cli):
        code, _, err = cli("report", RUN, SEED_BUG)
        assert (code, "2 names are given" in err) == (2, True)

    def test_what_is_not_there(self, cli, tmp_path):
        assert cli("report", tmp_path / "none")[0] == 2
        code, _, err = cli("report", SEED_BUG, "--log", tmp_path / "none.log")
        assert (code, "none.log cannot be read" in err) == (2, True)


@pytest.mark.slow
def test_it_imports_no_torch_and_the_terminal_no_html():
    code = (
        "import sys; from gemma4_triage.cli.app import main; "
        f"main(['report', {str(RUN)!r}]); "
        "print(sorted({'torch', 'sglang', 'triton', 'gemma4_triage.report.html'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
