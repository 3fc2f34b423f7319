"""What every scenario's record holds, that the plugin accepts its settings, and how one is looked up."""

import dataclasses
import importlib
import pkgutil

import pytest

from gemma4_repro import scenarios
from gemma4_repro.catalog import SCENARIOS, choose_arms, find_scenario
from gemma4_repro.errors import UnknownName
from gemma4_repro.expect_comparison import SameOutputs
from gemma4_repro.expect_ending import Completes
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.workloads import SWA_PRESSURE, Beginnings, Workload
from gemma4_runtime.releases import BASE
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings


def arm(**changes) -> Arm:
    fields = {
        "id": "one",
        "title": "an arm",
        "environment": {},
        "engine_arguments": {},
        "workload": SWA_PRESSURE,
        "time_limit_s": 5.0,
        "expectations": (Completes(),),
    }
    return Arm(**(fields | changes))


def scenario(*arms: Arm) -> Scenario:
    return Scenario(id="s", symptom="x", hardware="CPU", expected_s=1, toys=("a", "b"), arms=arms)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"id": "../up"}, "names a folder"),
        ({"id": "Fault"}, "lower-case"),
        ({"time_limit_s": 0}, "above 0"),
        ({"expectations": ()}, "expects nothing"),
        ({"environment": {"PATH": "/"}}, "PATH"),
        ({"environment": {"SGLANG_TRTLLM_MHA_DEBUG_DIR": "/tmp"}}, "SGLANG_TRTLLM_MHA_DEBUG_DIR"),
    ],
)
def test_an_arm_refuses_what_cannot_run(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        arm(**changes)


def test_an_arm_is_frozen_all_through():
    one = arm(environment={"GEMMA4_TRIAGE_FAULTS": "swa-state-stale"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.id = "two"  # type: ignore[misc]
    with pytest.raises(TypeError):
        one.environment["GEMMA4_TRIAGE_FAULTS"] = ""  # type: ignore[index]


def test_a_scenario_refuses_equal_ids_and_comparisons_with_nobody():
    with pytest.raises(ValueError, match="differ"):
        scenario(arm(), arm())
    with pytest.raises(ValueError, match="compared with"):
        scenario(arm(expectations=(SameOutputs("absent"),)))
    with pytest.raises(ValueError, match="compared with one"):
        scenario(arm(expectations=(SameOutputs("one"),)))


def test_the_workload_is_what_triggers_the_fault_and_the_same_every_time():
    prompts, new_tokens = SWA_PRESSURE.prompts(), SWA_PRESSURE.new_tokens()
    assert [len(prompt) for prompt in prompts] == [101] * 8
    assert new_tokens == sorted(new_tokens)
    assert (new_tokens[0], new_tokens[-1]) == (40, 150)
    assert SWA_PRESSURE.prompts() == prompts
    assert len({tuple(prompt) for prompt in prompts}) == 8


def test_beginnings_are_prefixes_of_the_load_that_follows():
    beginnings, whole = Beginnings(3, 49, 1, 1, seed=21), Workload(3, 101, 1, 1, seed=21)
    assert beginnings.prompts() == [prompt[:49] for prompt in whole.prompts()]


def test_the_main_example_ages_its_pools_before_it_drafts():
    for one in find_scenario("e4b-trtllm").arms:
        stages = one.workload.stage_of()
        drafting = [stage for stage, count in zip(stages, one.workload.new_tokens(), strict=True) if count > 1]
        assert set(drafting) == {max(stages)}, "a request that drafts before the pools differ traps too early"


@pytest.mark.parametrize("numbers", [(0, 101, 1, 2), (1, 1, 1, 2), (1, 101, 0, 2), (1, 101, 3, 2)])
def test_a_workload_refuses_impossible_numbers(numbers):
    with pytest.raises(ValueError, match=r"need|rise"):
        Workload(*numbers)


@pytest.mark.parametrize(
    "entry", [(s, a) for s in SCENARIOS for a in s.arms], ids=lambda pair: f"{pair[0].id}:{pair[1].id}"
)
def test_the_runtime_accepts_every_arms_settings(entry, monkeypatch):
    scenario, one = entry
    for name, value in one.environment.items():
        monkeypatch.setenv(name, value)
    settings = read_settings()
    chosen = {patch.id for patch in select(settings)}
    assert chosen >= set(settings.faults)
    assert ("mtp-v2" in chosen) == (settings.mtp_v2 is True)
    if scenario.id.startswith("e4b-"):
        assert "swa-state-stale" in chosen
        assert ("swa-state-swap" in chosen) == one.id.endswith("fixed")


@pytest.mark.parametrize("name", ["mtp-v2-leak", "mtp-zero-accept"])
def test_what_a_release_cannot_show_is_refused_with_the_reason(name):
    assert find_scenario(name, BASE).id == name
    with pytest.raises(UnknownName, match=f"SGLang 0.5.23 cannot have the scenario '{name}': .*V1 worker"):
        find_scenario(name, "0.5.23")


def test_looking_up_names_lists_what_there_is():
    trtllm = find_scenario("e4b-trtllm")
    assert [a.id for a in choose_arms(trtllm, ())] == ["fault", "fault-silent", "fault-probes", "fixed"]
    assert [a.id for a in choose_arms(trtllm, ("fixed", "fault", "fixed"))] == ["fault", "fixed"]
    with pytest.raises(UnknownName) as unknown:
        find_scenario("e4b-trtlm")
    assert "e4b-trtllm" in unknown.value.hint
    with pytest.raises(UnknownName) as unknown:
        choose_arms(trtllm, ("silent",))
    assert "fault-silent" in unknown.value.hint


def test_every_scenario_file_is_in_the_catalog():
    names = [module.name for module in pkgutil.iter_modules(scenarios.__path__)]
    modules = [importlib.import_module(f"{scenarios.__name__}.{name}") for name in names]
    written = [module.SCENARIO.id for module in modules if hasattr(module, "SCENARIO")]
    assert sorted(written) == sorted(s.id for s in SCENARIOS)
