"""The catalog of scenarios: an explicit tuple. Only what runs is listed."""

from __future__ import annotations

from gemma4_dumps.wording import names_near
from gemma4_repro.errors import UnknownName
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.scenarios import e4b_triton, e4b_trtllm, mtp_v2_leak, mtp_zero_accept
from gemma4_runtime.releases import BASE, at_least

SCENARIOS: tuple[Scenario, ...] = (
    e4b_trtllm.SCENARIO,
    e4b_triton.SCENARIO,
    mtp_v2_leak.SCENARIO,
    mtp_zero_accept.SCENARIO,
)


def absent_scenarios(release: str) -> dict[str, str]:
    """Return the ids of the scenarios that a release has nothing to show of, and why.

    Args:
        release: Of SGLang.
    """
    parts = {scenario.id: scenario.absent.partition(", ") for scenario in SCENARIOS}
    return {name: why for name, (first, _, why) in parts.items() if why and at_least(release, first)}


def find_scenario(scenario_id: str, release: str = BASE) -> Scenario:
    """Return the scenario of that name.

    Args:
        scenario_id: Its name.
        release: Of SGLang, on which it is to run.

    Raises:
        UnknownName: There is none, and the text lists those that there are; or that release has nothing to show.
    """
    for scenario in SCENARIOS:
        if scenario.id == scenario_id:
            if why := absent_scenarios(release).get(scenario_id):
                raise UnknownName(
                    f"SGLang {release} cannot have the scenario {scenario_id!r}: {why}",
                    f"it runs in an environment that has SGLang {BASE}, which make setup RELEASE={BASE} makes",
                )
            return scenario
    raise UnknownName(
        f"there is no scenario {scenario_id!r}",
        names_near(scenario_id, (scenario.id for scenario in SCENARIOS), "gemma4-triage repro lists all"),
    )


def choose_arms(scenario: Scenario, wanted: tuple[str, ...]) -> tuple[Arm, ...]:
    """Return the named arms in the scenario's order, each once; all of them if none is named. Raises UnknownName."""
    known = [arm.id for arm in scenario.arms]
    for name in wanted:
        if name not in known:
            raise UnknownName(f"scenario {scenario.id} has no arm {name!r}", f"its arms: {', '.join(known)}")
    return tuple(arm for arm in scenario.arms if not wanted or arm.id in wanted)
