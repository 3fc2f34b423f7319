"""The real engine on this CPU, on the committed toys."""

from typing import Any

import pytest

from engine_process import Run, answers_only, forks, prompts_spec
from toy_arguments import ENGINE, ENGINE_26B, MTP, MTP_26B

LONGEST_FIRST = (
    "test_crash_scripts_live",
    "test_diff_pressure_live",
    "test_mtp_v2_live",
    "test_quality_live",
    "test_yoco_live",
    "test_diff_live",
    "test_logit_faults_live",
    "test_repro_corpus",
    "test_repro_mutations",
    "test_repro_mtp",
    "test_layer_ops_live",
    "test_swa_peak_live",
    "test_repro_e4b_trtllm",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files that take minutes before all others: one that begins last keeps one process busy and the other idle."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session")
def engine_arguments() -> dict[str, Any]:
    return dict(ENGINE)


@pytest.fixture(scope="session")
def mtp_arguments(engine_arguments) -> dict[str, Any]:
    return engine_arguments | MTP


@pytest.fixture(scope="session")
def experts_arguments() -> dict[str, Any]:
    """Return the arguments of `toy-26b`, which has experts."""
    return dict(ENGINE_26B)


@pytest.fixture(scope="session")
def experts_mtp_arguments(experts_arguments) -> dict[str, Any]:
    return experts_arguments | MTP_26B


@pytest.fixture(scope="session")
def engine_forks(tmp_path_factory):
    """Yield what forks engines: SGLang is imported once for all tests that start one of their own."""
    with forks(tmp_path_factory.mktemp("forks") / "prefork.txt") as found:
        yield found


@pytest.fixture(scope="session")
def run_engine(tmp_path_factory, engine_forks):
    """Return what starts engines and gives their Run, whose outputs are each engine's answers.

    run_engine({"GEMMA4_TRIAGE_PATCHES": ...}, engines=[...], prompts=[...], new_tokens=16)
    """

    def run(environment: dict[str, str], timeout_s: float = 180, **spec: Any) -> Run:
        folder = tmp_path_factory.mktemp("engine")
        return answers_only(engine_forks.run(folder, environment, timeout_s, prompts_spec(**spec)))

    return run
