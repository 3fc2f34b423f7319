"""The matrix without an engine: made-up dumps against made-up records."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gemma4_dumps.schema import Host, Layer, Manifest, Offence, Provenance
from gemma4_repro.corpus import proofs
from gemma4_repro.corpus.case import CleanCase, FaultCase, Origin
from gemma4_repro.corpus.finding import Finding
from gemma4_repro.corpus.matrix import Cause, CleanRow, Evidence, FaultRow, Matrix, Sighting
from gemma4_repro.recorders.steps import read_step_times, step_at
from gemma4_repro.staged_workload import BRIEF, at_once
from gemma4_repro.workloads import OpenWorkload

SEED = Finding(
    "page-table",
    "page-table-bounds",
    "out_of_range",
    {"role": "draft", "layer.type": "sliding", "provenance.table_space": ("full", "draft")},
)


def manifest(**changes) -> Manifest:
    fields = {
        "dump_id": "d",
        "created_utc": datetime.now(UTC),
        "rule": "page-table-bounds",
        "verdict": "out_of_range",
        "summary": "page 65 of 65",
        "mode": "log",
        "action": "logged",
        "site": "s",
        "layer": Layer(id=4, type="sliding"),
        "provenance": Provenance(table_space="full", buffer_space="swa"),
        "role": "draft",
        "host": Host(hostname="h", pid=1),
        "page_size": 16,
    }
    return Manifest(**(fields | changes))


def sighting(step=3, **changes) -> Sighting:
    return Sighting(Path("d"), manifest(**changes), step)


def evidence(*sightings, **changes) -> Evidence:
    fields = {"unreadable": 0, "ending": "crashed", "incomplete": None, "missing": (), "duration_s": 1.0}
    return Evidence(sightings=sightings, **(fields | changes))


def fault(*findings, **changes) -> FaultCase:
    fields = {
        "id": "f",
        "title": "t",
        "workload": BRIEF,
        "origin": Origin("SGLang 1", "r"),
        "injected": "i",
        "inject": ("swa-state-stale",),
        "findings": findings or (SEED,),
    }
    return FaultCase(**(fields | changes))


CLEAN = CleanCase(id="c", title="t", workload=BRIEF)


class TestCause:
    def test_the_dump_that_says_it_all(self):
        row = FaultRow(fault(), evidence(sighting()))
        assert (row.detected, row.cause, row.good, row.steps_to_detection) == (True, Cause.RIGHT, True, 3)
        assert row.fired == {"page-table": 1}

    @pytest.mark.parametrize(
        "changes",
        [
            {"role": "target"},
            {"layer": Layer(id=5, type="full")},
            {"verdict": "negative"},
            {"provenance": Provenance(table_space="swa", buffer_space="swa")},
            {"rule": "page-table-other"},
        ],
    )
    def test_a_dump_that_differs_in_one_thing_names_another_cause(self, changes):
        row = FaultRow(fault(), evidence(sighting(**changes)))
        assert row.cause is Cause.WRONG
        assert not row.good
        assert any("the first dump says otherwise" in objection for objection in row.objections)

    def test_no_dump_is_a_miss_and_no_cause(self):
        row = FaultRow(fault(), evidence())
        assert (row.detected, row.cause, row.silent, row.good) == (False, Cause.NONE, ("page-table",), False)
        assert row.steps_to_detection is None

    def test_the_right_dump_after_a_wrong_one_is_too_late(self):
        row = FaultRow(fault(), evidence(sighting(rule="swa-double-free", verdict="double_free"), sighting(step=9)))
        assert row.detected
        assert row.cause is Cause.WRONG

    def test_a_later_dump_may_be_a_consequence_only_if_the_record_says_so(self):
        later = sighting(9, rule="swa-double-free", verdict="double_free")
        assert FaultRow(fault(), evidence(sighting(), later)).cause is Cause.WRONG
        allowed = fault(consequences=(("swa-double-free", "double_free"),))
        assert FaultRow(allowed, evidence(sighting(), later)).good

    def test_the_same_fault_may_be_seen_earlier_if_the_record_says_so(self):
        early = sighting(1, rule="request-rows", verdict="table_entry", scalars={"defect": "other space"})
        assert FaultRow(fault(), evidence(early, sighting())).cause is Cause.WRONG
        record = Finding("request-rows", "request-rows", "table_entry", {"scalars.defect": "other space"})
        allowed = fault(earlier=(record,))
        assert FaultRow(allowed, evidence(early, early, sighting())).good
        assert FaultRow(allowed, evidence(sighting())).good
        assert FaultRow(allowed, evidence(early)).silent == ("page-table",)
        stale = sighting(1, rule="request-rows", verdict="table_entry", scalars={"defect": "stale"})
        assert FaultRow(allowed, evidence(stale, sighting())).cause is Cause.WRONG

    def test_every_finding_has_to_be_made(self):
        both = fault(SEED, Finding("geometry", "geometry", "swa_state"))
        alone = FaultRow(both, evidence(sighting()))
        assert alone.silent == ("geometry",)
        assert "no dump says geometry, swa_state" in alone.objections
        assert FaultRow(both, evidence(sighting(0, rule="geometry", verdict="swa_state"), sighting())).good

    def test_a_torn_dump_is_not_good(self):
        assert not FaultRow(fault(), evidence(sighting(), unreadable=1)).good

    def test_proofs_are_asked_when_all_fields_agree(self):
        row5 = Finding(SEED.probe, SEED.rule, SEED.verdict, {"offences.0.row": 5}, (proofs.all_in_one_row,))
        bad = [Offence(table="t", row=row, column=7, value=70, lower=1, upper=65) for row in (5, 5, 6)]
        assert FaultRow(fault(row5), evidence(sighting(offences=bad[:2]))).good
        assert FaultRow(fault(row5), evidence(sighting(offences=bad))).cause is Cause.WRONG
        assert FaultRow(fault(row5), evidence(sighting(offences=[]))).cause is Cause.WRONG


def offence(value, upper=65, request_slot=1):
    return Offence(table="t", row=0, column=0, value=value, lower=1, upper=upper, request_slot=request_slot)


@pytest.mark.parametrize(
    ("proof", "good", "bad"),
    [
        (proofs.first_page_past_the_end, {"offences": [offence(65)]}, {"offences": [offence(66)]}),
        (proofs.slot_of_page_zero, {"offences": [offence(15)]}, {"offences": [offence(16)]}),
        (proofs.owner_is_known, {"offences": [offence(1)]}, {"offences": [offence(1, request_slot=0)]}),
    ],
)
def test_proofs(proof, good, bad):
    assert proof(manifest(**good)) is None
    assert proof(manifest(**bad)) is not None
    assert proof(manifest(offences=[])) is not None


@pytest.mark.parametrize(("available", "missing", "surplus"), [(1008, True, False), (1040, False, True), (1024, 0, 0)])
def test_pool_equations(available, missing, surplus):
    parts = {"swa_evictable": 0, "swa_protected": 0, "swa_session_held": 0, "swa_uncached": 0}
    said = manifest(scalars=parts | {"swa_available": available, "swa_total": 1024})
    assert (proofs.one_swa_page_missing(said) is None) == bool(missing)
    assert (proofs.one_swa_page_too_many(said) is None) == bool(surplus)
    assert proofs.one_swa_page_missing(manifest()) == "the SWA pool's equation is not in the dump"


class TestClean:
    def test_silence_is_good(self):
        assert CleanRow(CLEAN, evidence()).good

    def test_any_dump_is_a_false_alarm_a_torn_one_too(self):
        assert CleanRow(CLEAN, evidence(sighting(), unreadable=1)).false_alarms == 2
        assert not CleanRow(CLEAN, evidence(sighting())).good

    @pytest.mark.parametrize("changes", [{"incomplete": "crashed"}, {"missing": ("Retract requests",)}])
    def test_a_run_that_did_not_do_its_load_shows_nothing(self, changes):
        row = CleanRow(CLEAN, evidence(**changes))
        assert row.false_alarms == 0
        assert not row.good
        assert row.objections


class TestMatrix:
    def test_exit_codes_and_totals(self):
        right, missed = FaultRow(fault(), evidence(sighting())), FaultRow(fault(), evidence())
        wrong = FaultRow(fault(), evidence(sighting(role="target")))
        quiet, alarm = CleanRow(CLEAN, evidence()), CleanRow(CLEAN, evidence(sighting()))
        assert Matrix((right,), (quiet,)).exit_code == 0
        for matrix in (Matrix((right, missed), ()), Matrix((wrong,), (quiet,)), Matrix((right,), (alarm,))):
            assert matrix.exit_code == 1
        assert Matrix((right, missed, wrong), (quiet, alarm)).totals == {
            "faults": 3,
            "missed": 1,
            "wrong_causes": 1,
            "clean_runs": 2,
            "false_alarms": 1,
            "unfit_clean_runs": 0,
        }


class TestRecords:
    def test_open_answers_need_an_end(self):
        open_answers = at_once(OpenWorkload(prompt_count=1, prompt_tokens=5))
        with pytest.raises(ValueError, match="no context_length says where they end"):
            fault(workload=open_answers)
        assert fault(workload=open_answers, engine={"context_length": 96}).workload is open_answers

    def test_a_fault_that_injects_or_expects_nothing_is_refused(self):
        with pytest.raises(ValueError, match="injects nothing"):
            fault(inject=())
        with pytest.raises(ValueError, match="expects no finding"):
            fault(findings=())
        with pytest.raises(ValueError, match="names a folder"):
            fault(id="../f")

    # Its run leaves the window fix on, which 0.5.14 and later have themselves.
    @pytest.mark.releases("0.5.13.post1")
    def test_what_a_run_sets(self):
        plain = fault().environment(guarded=True)
        assert plain["GEMMA4_TRIAGE_FAULTS"] == "swa-state-stale"
        assert plain["GEMMA4_TRIAGE_PATCHES"] == "default,+swa-window-width"
        assert (plain["SGLANG_TRTLLM_MHA_DEBUG"], plain["GEMMA4_TRIAGE_LEAK"]) == ("log", "dump")
        assert fault(trap=True).environment(guarded=True)["SGLANG_TRTLLM_MHA_DEBUG"] == "trap"
        off = fault(without=("swa-window-width", "swa-state-swap")).environment(guarded=False)
        assert off["GEMMA4_TRIAGE_PATCHES"] == "default,-swa-state-swap"
        assert (off["SGLANG_TRTLLM_MHA_DEBUG"], off["GEMMA4_TRIAGE_LEAK"]) == ("off", "off")


def test_steps_are_read_from_times(tmp_path):
    path = tmp_path / "steps.txt"
    assert read_step_times(path) == []
    path.write_text("10.0\n11.5\n12.0\n13.")
    times = read_step_times(path)
    assert times == [10.0, 11.5, 12.0]
    assert [step_at(times, moment) for moment in (9.9, 10.0, 11.6, 99.0)] == [0, 1, 2, 3]
