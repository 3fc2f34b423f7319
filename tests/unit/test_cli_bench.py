"""`bench probes` and `bench plot` as a user runs them; what was measured is made up, nothing is started."""

import json
from xml.etree import ElementTree

import pytest

from bench_examples import FACTORS, HOOKS_US, INSTALLATION, PROJECT, probes_document
from dump_examples import seed_bug_draft
from gemma4_dumps.writer import write_dump
from gemma4_repro.bench.arms import ARMS, choose
from gemma4_triage.cli import bench_probes
from gemma4_triage.report.bench_document import count_dumps


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Makes the command report this document."""

    def make(interrupted=False, **changes):
        found = probes_document(tmp_path, **changes)
        monkeypatch.setattr(bench_probes, "_need_cuda", lambda: None)
        monkeypatch.setattr(bench_probes, "_measure", lambda plan, folder: (found, interrupted))
        return found

    return make


class TestProbes:
    def test_targets_met(self, cli, measured, tmp_path):
        measured()
        code, out, err = cli("bench", "probes", "--out", tmp_path / "rows.json")
        assert code == 0
        assert "contain: met: probes take at most 1% of a step of none; worst 0.45%" in out
        assert "off: met: 38 of SGLang's functions compared, 0 changed (tests/contract/test_attachment.py::" in out
        assert f"Wrote {tmp_path / 'rows.json'}" in err
        rows = json.loads((tmp_path / "rows.json").read_text())
        assert (rows["kind"], rows["schema_version"], rows["device"]) == ("bench-probes", "1.0", "NVIDIA H200")
        assert len(rows["rows"]) == 4 * len(ARMS)
        assert rows["command"].startswith("gemma4-triage")
        assert rows["versions"]["sglang"] == "0.5.13.post1"
        assert rows["project"] == PROJECT
        assert rows["run_folder"] == tmp_path.name

    def test_json_is_the_only_thing_on_stdout(self, cli, measured):
        found = measured()
        code, out, _ = cli("bench", "probes", "--json")
        assert code == 0
        assert json.loads(out)["rows"] == json.loads(json.dumps(found["rows"]))

    def test_a_missed_target_exits_1(self, cli, measured):
        measured(hooks_us=HOOKS_US | {"contain": {"page-table.build": 21.0}}, factors=FACTORS | {"contain": 1.011})
        code, out, _ = cli("bench", "probes")
        assert code == 1
        assert "contain: missed" in out

    def test_a_target_that_only_the_step_shows_is_met_and_says_so(self, cli, measured):
        measured(hooks_us=HOOKS_US | {"contain": {"page-table.build": 21.0}})
        code, out, _ = cli("bench", "probes")
        assert code == 0
        assert "contain: met: probes take at most 1% of a step of none; worst 1.05% (mtp" in out
        assert "in 4 of 4 cells above that, where the step is at most 0.40% longer, noise included" in out

    def test_a_target_that_could_not_be_measured_exits_1(self, cli, measured):
        measured(installation=INSTALLATION | {"identity": None})
        code, out, _ = cli("bench", "probes")
        assert code == 1
        assert "off: not measured" in out

    @pytest.mark.parametrize(
        ("words", "rounds"), [((), 10), (("--host-engine",), 1), (("--host-engine", "--rounds", "3"), 3)]
    )
    def test_rounds_are_those_that_were_asked_for(self, cli, measured, monkeypatch, words, rounds):
        found, plans = measured(), []
        monkeypatch.setattr(bench_probes, "_measure", lambda plan, folder: plans.append(plan) or (found, False))
        cli("bench", "probes", *words)
        assert plans[0].rounds == rounds

    def test_a_smoke_run_says_so_and_judges_no_time(self, cli, measured):
        measured(host_engine=True, arms=choose((), smoke=True), hooks_us={"ledger": {"leak-ledger.alloc": 900.0}})
        code, out, _ = cli("bench", "probes", "--host-engine")
        assert code == 0
        assert "these numbers are no measurement" in out
        assert "ledger: not judged" in out

    def test_what_was_interrupted_is_written_and_says_130(self, cli, measured, tmp_path):
        measured(interrupted=True, partial="interrupted")
        code, out, _ = cli("bench", "probes", "--out", tmp_path / "rows.json")
        assert code == 130
        assert "partial: interrupted" in out
        assert json.loads((tmp_path / "rows.json").read_text())["partial"] == "interrupted"

    def test_without_cuda_it_says_what_is_missing(self, cli, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        code, _, err = cli("bench", "probes")
        assert code == 3
        assert "the CUDA driver shows no device here" in err
        assert "--host-engine" in err

    def test_a_run_folder_that_is_in_use(self, cli, tmp_path):
        (tmp_path / "theirs").touch()
        code, _, err = cli("bench", "probes", "--host-engine", "--run-folder", tmp_path)
        assert code == 2
        assert "is not empty" in err
        assert "--run-folder" in err

    def test_it_overwrites_nothing_unasked(self, cli, measured, tmp_path):
        measured()
        path = tmp_path / "rows.json"
        path.write_text("mine")
        code, _, err = cli("bench", "probes", "--out", path)
        assert code == 2
        assert "--force" in err
        assert path.read_text() == "mine"
        assert cli("bench", "probes", "--out", path, "--force")[0] == 0
        assert json.loads(path.read_text())["kind"] == "bench-probes"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--arm", "none,trapp"), "there is no arm 'trapp'"),
            (("--model", "12b"), "--model '12b' cannot be read"),
            (("--mtp", "maybe"), "--mtp 'maybe' cannot be read"),
            (("--batch", "1,x"), "--batch '1,x' cannot be read"),
            (("--batch", "0"), "--batch '0' cannot be read"),
            (("--out", "no/such/folder/rows.json"), "cannot be a file here"),
            (("--rounds", "0"), "--rounds"),
        ],
    )
    def test_usage(self, cli, words, said):
        code, _, err = cli("bench", "probes", *words)
        assert code == 2
        assert said in err


class TestPlot:
    def write(self, path, **changes):
        path.write_text(json.dumps({"kind": "bench-probes"} | probes_document(path.parent, **changes)))
        return path

    def test_a_picture_of_all_arms_without_outside_references(self, cli, tmp_path):
        rows = self.write(tmp_path / "rows.json")
        code, _, err = cli("bench", "plot", rows, "--out", tmp_path / "x.svg")
        assert code == 0
        assert "Wrote" in err
        text = (tmp_path / "x.svg").read_text()
        said = [element.text for element in ElementTree.fromstring(text).iter() if element.text]
        assert all(said.count(arm.id) == 4 for arm in ARMS)
        assert "MTP on, batch 64: none takes 2.00 ms" in said
        assert "href" not in text
        assert "url(" not in text

    def test_a_smoke_run_is_refused(self, cli, tmp_path):
        rows = self.write(tmp_path / "rows.json", host_engine=True, arms=choose((), smoke=True))
        code, _, err = cli("bench", "plot", rows, "--out", tmp_path / "x.svg")
        assert code == 2
        assert "no measurement" in err
        assert not (tmp_path / "x.svg").exists()

    def test_files_of_different_devices_are_not_mixed(self, cli, tmp_path):
        one = self.write(tmp_path / "one.json")
        other = self.write(tmp_path / "two.json", installation=INSTALLATION | {"gpu": {"name": "B200"}})
        code, _, err = cli("bench", "plot", one, other, "--out", tmp_path / "x.svg")
        assert code == 2
        assert "different devices or versions" in err

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": "x", "measurement": true, "rows": [1]}'])
    def test_what_is_no_rows(self, cli, tmp_path, text):
        (tmp_path / "rows.json").write_text(text)
        assert cli("bench", "plot", tmp_path / "rows.json", "--out", tmp_path / "x.svg")[0] == 2

    def test_it_overwrites_nothing_unasked(self, cli, tmp_path):
        rows = self.write(tmp_path / "rows.json")
        assert cli("bench", "plot", rows, "--out", rows)[0] == 2
        assert cli("bench", "plot", rows, "--out", rows, "--force")[0] == 2


def test_dumps_are_counted_by_arm_and_guard_manifests_are_none(tmp_path):
    for server in ("mtp-on/trap", "mtp-off/trap.2"):
        write_dump(tmp_path / server / "dumps", seed_bug_draft())
    for other in ("guards", "audits"):
        (tmp_path / "mtp-on" / "log" / "dumps" / other).mkdir(parents=True)
    assert count_dumps(tmp_path) == {"trap": 2, "log": 0}
