"""Rows, targets and answers of `bench step` from made-up results, and the run of its processes."""

import json
import sys
from collections import Counter

import pytest
import torch

from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.marked_lines import MARK
from gemma4_repro.step_bench import run_process
from gemma4_repro.step_bench.answers import compare, is_right, tolerance
from gemma4_repro.step_bench.measure import against
from gemma4_repro.step_bench.plan import MARGIN, MOST_RELATIVE, StepPlan
from gemma4_repro.step_bench.rows import build_rows, judge_targets, wrong_arms
from gemma4_repro.step_bench.run_process import Measured, run_plan

# Its arms compare optimisations, none of which is ported.
pytestmark = pytest.mark.releases("0.5.13.post1")

PLAN = StepPlan(("26b", "e4b"), (1, 16), None, ("none", "shipped", "all"), 5, 60.0)
ANSWER = {"relative_difference": 0.01, "bit_equal": False, "same_tokens": 1.0, "tolerance": 0.05, "right": True}


def measured(us, kernels_against_none=None, right=True):
    """us: per arm. kernels_against_none: of `shipped`."""
    found = Measured()
    for model in PLAN.models:
        for batch in PLAN.batches:
            where = {"model": model, "batch": batch}
            for arm, times in us.items():
                found.answers.append(where | {"arm": arm} | ANSWER | {"right": right})
                found.samples.append(where | {"arm": arm, "us": times})
                changed = kernels_against_none if arm == "shipped" else {}
                found.launches.append(where | {"arm": arm, "kernels": 9, "against_none": changed})
    return found


US = {"none": [10.0, 12.0, 14.0], "shipped": [10.0, 12.1, 14.0], "all": [8.0, 9.6, 11.2]}


def judged(found):
    return {target["target"]: target for target in judge_targets(PLAN, build_rows(PLAN, found, "GPU"))}


def test_a_row_has_the_time_and_what_none_takes_in_the_same_round():
    rows = build_rows(PLAN, measured(US, {}), "GPU")
    assert [(row["model"], row["batch"], row["arm"]) for row in rows[:4]] == [
        ("26b", 1, "none"),
        ("26b", 1, "shipped"),
        ("26b", 1, "all"),
        ("26b", 16, "none"),
    ]
    row = rows[2]
    assert row["speedup"] == {"median": 1.25, "low": 1.25, "high": 1.25, "rounds": 3}
    assert (row["step_us"]["median"], row["layers"], row["kernels"], row["device"]) == (9.6, 30, 9, "GPU")
    assert row["answers"] == ANSWER


def test_targets_are_met_where_every_cell_holds_them():
    assert {id: target["status"] for id, target in judged(measured(US, {})).items()} == {
        "faster": "met",
        "as-shipped": "met",
    }


def test_a_step_that_may_be_no_faster_misses():
    slow = judged(measured(US | {"all": [10.1, 11.0, 12.0]}, {}))["faster"]
    assert (slow["status"], len(slow["missed_in"])) == ("missed", 4)
    assert slow["worst"]["value"] < 1


def test_a_kernel_more_than_shipped_misses():
    assert judged(measured(US, {"copy": 1}))["as-shipped"]["status"] == "missed"


def test_a_cell_that_was_not_timed_is_not_met():
    found = measured(US, {})
    found.samples = [sample for sample in found.samples if (sample["model"], sample["batch"]) != ("e4b", 16)]
    assert judged(found)["faster"]["status"] == "not measured"
    assert judged(measured({}))["as-shipped"]["status"] == "not measured"


def test_wrong_arms_are_listed():
    assert wrong_arms(measured(US, {})) == []
    assert len(wrong_arms(measured(US, {}, right=False))) == 12


def test_kernels_are_told_by_what_differs():
    assert against(Counter(a=2, b=1), None) is None
    assert against(Counter(a=2, c=3), Counter(a=2, b=1)) == {"b": -1, "c": 3}
    long = "k" * 100
    assert against(Counter({long + "1": 2}), Counter({long + "2": 3})) == {long: -1}


class TestAnswers:
    reference = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))

    def test_equal(self):
        found = compare(self.reference.clone(), self.reference)
        assert (found["bit_equal"], found["max_abs_difference"], found["relative_difference"]) == (True, 0.0, 0.0)
        assert is_right(found, 0.0)

    def test_a_difference_is_in_units_of_the_spread(self):
        found = compare(self.reference + 0.1 * self.reference.std(), self.reference)
        assert found["relative_difference"] == pytest.approx(0.1, rel=1e-4)
        assert (found["same_tokens"], found["bit_equal"]) == (1.0, False)
        assert is_right(found, 0.11)
        assert not is_right(found, 0.09)

    def test_a_token_that_changes_is_seen(self):
        other = self.reference.clone()
        other[1, 7] = 100.0
        assert compare(other, self.reference)["same_tokens"] == pytest.approx(2 / 3)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_what_is_not_finite_is_wrong_and_goes_into_json(self, value):
        other = self.reference.clone()
        other[0, 0] = value
        found = compare(other, self.reference)
        json.dumps(found, allow_nan=False)
        assert not is_right(found, 0.5)

    def test_logits_that_are_all_equal_say_nothing(self):
        flat = torch.zeros(2, 5)
        assert not is_right(compare(flat, flat), 0.5)

    def test_the_tolerance_grows_with_the_noise_up_to_a_limit(self):
        assert tolerance({"relative_difference": 0.01}) == pytest.approx(0.01 * MARGIN)
        assert tolerance({"relative_difference": 9.0}) == MOST_RELATIVE
        assert tolerance({"relative_difference": None}) is None


# Speaks as process.py does: {model: how it ends}.
PROCESS = f"""
import json, os, sys, time
ends = json.loads(sys.argv[1])
task = json.load(sys.stdin)
def tell(kind, **fields):
    print({MARK!r} + json.dumps({{"kind": kind}} | fields), flush=True)
print("a library's words")
tell("about", versions={{}})
model = task["model"]
tell("stage", model=model, what="loads")
assert not any(name.startswith("GEMMA4_") for name in os.environ)
if ends.get(model) == "hang":
    time.sleep(60)
if ends.get(model):
    sys.exit("RuntimeError: " + ends[model])
tell("model", model=model, parameters=1)
tell("samples", model=model, batch=1, arm="none", us=[1.0])
tell("answers", model=model, batch=1, arm="none", right=True)
"""


def run(ends, say=lambda line: None):
    return run_plan(PLAN, say, (sys.executable, "-c", PROCESS, json.dumps(ends)), {"GEMMA4_TRIAGE_PATCHES": "default"})


def test_a_process_per_model():
    said = []
    found = run({}, said.append)
    assert said == ["26b: loads", "e4b: loads"]
    assert found.models == {"26b": {"parameters": 1}, "e4b": {"parameters": 1}}
    assert [sample["model"] for sample in found.samples] == ["26b", "e4b"]
    assert (found.lost, found.partial) == ([], "")


def test_a_model_whose_process_ends_is_lost_alone():
    found = run({"26b": "no memory"})
    assert [sample["model"] for sample in found.samples] == ["e4b"]
    (lost,) = found.lost
    assert (lost["model"], lost["arm"]) == ("26b", "every arm")
    assert "no memory" in lost["why"]


def test_a_model_that_says_nothing_for_too_long_is_lost_alone(monkeypatch):
    monkeypatch.setattr(run_process, "_SILENCE_S", 2.0)
    found = run({"26b": "hang"})
    assert [sample["model"] for sample in found.samples] == ["e4b"]
    assert "no result for 2 s" in found.lost[0]["why"]


def test_nothing_measured_is_an_error_with_the_last_words():
    with pytest.raises(EnvironmentLacks, match="no memory"):
        run({"26b": "no memory", "e4b": "no memory"})
