"""Reports of `diff backends` and `diff patches`: what their verdict.json holds, in every form, with its exit code."""

import copy
import json

import pytest
from lxml import etree

from gemma4_triage.report.html.render import render_html
from gemma4_triage.report.triage_junit import render_junit
from gemma4_triage.report.triage_markdown import render_markdown
from gemma4_triage.report.triage_sarif import render_sarif
from report_examples import BACKENDS_RUN, PATCHES_RUN, report_of

WIDTH, DECODE = "swa-window-width", "triton-decode-window"


@pytest.fixture
def edited(tmp_path):
    """Return a function of (run, change) to a report of the run's verdict alone, after `change` of its document."""

    def make(run, change):
        verdict = json.loads((run / "verdict.json").read_text())
        change(verdict)
        (tmp_path / "verdict.json").write_text(json.dumps(verdict))
        return report_of(tmp_path)

    return make


def checks(report, side):
    (arm,) = [arm for arm in report.run.arms if arm.id == side]
    return [(check.expected, check.observed, check.status) for check in arm.checks]


def failures(report):
    junit = etree.fromstring(render_junit(report).encode())
    return int(junit.get("failures"))


def agree(verdict):
    """Make the verdict as it would be with every fix on."""
    verdict["exit_code"], verdict["fixes"] = 0, []
    for side in verdict["sides"]:
        side["dumps"] = []
        side["status"] = side["status"].replace("differs", "agrees")
        for against in side["against"]:
            against["causes"], against["agrees"] = [], True
            for prompt in against["prompts"]:
                prompt |= {"agrees": True, "first_position_over_tolerance": None, "logprob_difference": 1e-5}


def test_backends_that_differ_say_where_why_and_what_helps():
    report = report_of(BACKENDS_RUN)
    assert (report.exit_code, report.verdict.status) == (1, "bad")
    assert report.verdict.headline.startswith("diff backends: 4 of 4 sides NOT as the reference, 312 s")
    assert checks(report, "triton-mtp-off") == [
        ("runs to its end", "completed", "ok"),
        ("prompt 0 as transformers", "logprobs differ from position 31, most by 5.4e-02 at position 36", "failed"),
        ("prompt 1 as transformers", "logprobs differ from position 32, most by 4.4e-02 at position 42", "failed"),
        ("no dump", "1 dump", "failed"),
    ]
    for text in (render_html(report), render_markdown(report), render_sarif(report)):
        assert "triton-mtp-off" in text
    said = " ".join(report.verdict.sentences)
    assert "Its sliding layers saw 31 keys where the window holds 32" in said
    assert f"Fixes that this asks for: {DECODE}, {WIDTH}; as a patch set: default,+{DECODE},+{WIDTH}" in said
    assert report.commands[0].line == (
        "gemma4-triage diff backends --patches default --backend triton,trtllm_mha --mtp off,on"
    )
    assert {incident.label for incident in report.incidents} == {arm.id for arm in report.run.arms}


def test_a_patch_set_is_held_against_its_base():
    report = report_of(PATCHES_RUN)
    base, other = "base-trtllm_mha-mtp-on", "with-trtllm_mha-mtp-on"
    assert report.exit_code == 1
    assert checks(report, base) == [("the measure", "completed", "ok")]
    assert [status for _, _, status in checks(report, other)] == ["ok", "failed", "failed", "ok"]
    assert checks(report, other)[-1][:2] == ("no more than 2 dumps, as the base", "0 dumps")
    assert failures(report) == 2
    assert report.commands[0].line == (
        f"gemma4-triage diff patches --base default --with default,+{WIDTH} --backend trtllm_mha --mtp on"
    )


@pytest.mark.parametrize("run", [BACKENDS_RUN, PATCHES_RUN])
def test_sides_that_agree_are_good_news(edited, run):
    report = edited(run, agree)
    assert (report.exit_code, report.verdict.status, failures(report)) == (0, "ok", 0)
    assert "all as the reference" in report.verdict.headline
    assert {arm.status for arm in report.run.arms} == {"ok"}


def test_a_dump_more_than_the_base_has_fails(edited):
    def change(verdict):
        agree(verdict)
        verdict["exit_code"] = 1
        verdict["sides"][1] |= {"status": "violations", "dumps": [{"path": "x", "state": "complete"}]}

    report = edited(PATCHES_RUN, change)
    assert checks(report, "with-trtllm_mha-mtp-on")[-1] == ("no dump", "1 dump", "failed")
    assert (report.exit_code, failures(report)) == (1, 1)


def test_a_side_that_crashed_shows_how_and_the_end_of_its_log(edited):
    def change(verdict):
        crashed = verdict["sides"][0]
        crashed |= {"status": "crashed", "ending": "crashed", "signal": "SIGSEGV", "log_tail": ["the last line"]}
        crashed["hint"] = "fixes of the default set that were off here: eager-out-cache-loc"
        crashed["against"] = [{"reference": "transformers", "agrees": None, "prompts": [], "causes": []}]
        verdict["sides"] = [copy.deepcopy(crashed)]

    report = edited(BACKENDS_RUN, change)
    assert checks(report, "triton-mtp-off")[0] == ("runs to its end", "crashed (SIGSEGV)", "failed")
    assert "the last line" in render_markdown(report)
    assert any("eager-out-cache-loc" in sentence for sentence in report.verdict.sentences)


def test_without_a_base_nothing_was_checked(edited):
    def change(verdict):
        verdict["exit_code"] = 5
        base, other = verdict["sides"]
        base |= {"ending": "crashed", "exit_code": 1}
        other["status"] = "not compared"
        other["against"][-1] |= {"agrees": None, "prompts": [], "causes": []}

    report = edited(PATCHES_RUN, change)
    assert (report.exit_code, report.verdict.status, failures(report)) == (5, "unchecked", 0)
    assert "nothing was checked" in report.verdict.headline
    assert checks(report, "with-trtllm_mha-mtp-on")[1] == (
        "as base-trtllm_mha-mtp-on",
        "nothing to compare with",
        "not checked",
    )


def test_sides_that_agree_without_the_patches_work_checked_nothing(edited):
    def change(verdict):
        agree(verdict)
        verdict["exit_code"] = 5
        verdict["patches_compared"] = [{"id": "yoco", "exercised": False, "why_not": ["padded rows"]}]
        verdict["prompt_logprobs_why_not"] = "Logprobs of prompts were left out."

    report = edited(PATCHES_RUN, change)
    assert (report.exit_code, report.verdict.status) == (5, "unchecked")
    side = next(arm.id for arm in report.run.arms if arm.id.startswith("with"))
    assert ("a patch of the difference does its work", "none did", "not checked") in checks(report, side)
    assert report.run.causes[-2:] == (
        "Patch yoco was not exercised: padded rows",
        "Logprobs of prompts were left out.",
    )
    assert failures(report) == 0


def test_numbers_that_json_has_none_for(edited):
    def change(verdict):
        for prompt in verdict["sides"][0]["against"][0]["prompts"]:
            prompt |= {"logprob_difference": None, "logprob_difference_position": None}

    report = edited(BACKENDS_RUN, change)
    assert checks(report, "triton-mtp-off")[1][1] == "logprobs differ from position 31, most by ?"
    assert ("logprobs against transformers", "not finite") in [
        (pair.name, pair.value) for pair in report.run.arms[0].numbers
    ]


def pressed(verdict):
    """Make the verdict of `diff backends --load pressure --fault swa-state-stale`: the last side dies."""
    verdict |= {
        "scenario": "26b",
        "load": {"name": "pressure", "requests": 24, "swa_peak_above": 0.85},
        "summary": ["trtllm_mha-mtp-on (94%) dies; triton-mtp-on (94%) comes to the end."],
        "fixes_added": [WIDTH],
        "fixes_left_out": ["swa-state-swap"],
    }
    for side in verdict["sides"]:
        side["faults"], side["usage"]["swa_peak"] = ["swa-state-stale"], 0.94
    dead = verdict["sides"][-1]
    dead |= {"ending": "crashed", "exit_code": 1, "status": "crashed"}
    dead["died"] = {"step": 9, "phase": "decode", "prompts_at_fault": [10], "requests_finished": 8, "full": 0.4}
    dead["died"] |= {"swa": 0.94, "dumps": ["20261123_dump"]}
    dead["against"] = [{"reference": "transformers", "agrees": None, "prompts": [], "causes": []}]


def test_who_died_under_pressure_is_in_every_form(edited):
    report = edited(BACKENDS_RUN, pressed)
    dead = report.run.arms[-1]
    assert {(pair.name, pair.value) for pair in dead.numbers} >= {
        ("died in step", "9 (decode)"),
        ("requests answered before", "8"),
        ("prompts with bad pages", "10"),
        ("pools in use then", "SWA 94%, full 40%"),
        ("dumps of that step", "20261123_dump"),
    }
    assert ("more than 85% of the SWA pool in use", "peak 94%", "ok") in checks(report, dead.id)
    assert report.run.causes[0] == "trtllm_mha-mtp-on (94%) dies; triton-mtp-on (94%) comes to the end."
    assert any("swa-state-swap" in cause for cause in report.run.causes)
    assert "diff backends 26b --load pressure" in report.commands[0].line
    assert "--fault swa-state-stale" in report.commands[0].line
    for text in (render_html(report), render_markdown(report)):
        assert "trtllm_mha-mtp-on (94%) dies" in text
        assert "9 (decode)" in text


def test_pressure_that_was_not_reached_is_not_checked(edited):
    def change(verdict):
        agree(verdict)
        pressed(verdict)
        verdict["sides"] = verdict["sides"][:1]
        verdict["sides"][0]["usage"]["swa_peak"] = 0.6
        verdict["exit_code"], verdict["nothing_checked_why"] = 5, "the load did not fill the SWA pool"

    report = edited(BACKENDS_RUN, change)
    assert (report.exit_code, report.verdict.status, failures(report)) == (5, "unchecked", 0)
    found = checks(report, "triton-mtp-off")
    assert ("more than 85% of the SWA pool in use", "peak 60%", "not checked") in found
    assert ("the sides' agreement says something", "the load did not fill the SWA pool", "not checked") in found
