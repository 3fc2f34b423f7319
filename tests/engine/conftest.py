"""The real engine on this CPU, on the committed toys."""

from typing import Any

import pytest

from engine_forks import forks
from engine_process import Run
from toy_arguments import ENGINE, ENGINE_26B, MTP, MTP_26B


@pytest.fixture(scope="session")
def engine_arguments() -> dict[str, Any]:
    return dict(ENGINE)


@pytest.fixture(scope="session")
def mtp_arguments(engine_arguments) -> dict[str, Any]:
    return engine_arguments | MTP


@pytest.fixture(scope="session")
def experts_arguments() -> dict[str, Any]:
    """Of `toy-26b`, which has experts."""
    return dict(ENGINE_26B)


@pytest.fixture(scope="session")
def experts_mtp_arguments(experts_arguments) -> dict[str, Any]:
    return experts_arguments | MTP_26B


@pytest.fixture(scope="session")
def engine_forks(tmp_path_factory):
    """SGLang is imported once for all tests that start an engine of their own."""
    with forks(tmp_path_factory.mktemp("forks") / "prefork.txt") as found:
        yield found


@pytest.fixture(scope="session")
def run_engine(tmp_path_factory, engine_forks):
    """run_engine({"GEMMA4_TRIAGE_PATCHES": ...}, engines=[...], prompts=[...], new_tokens=16) -> Run."""

    def run(environment: dict[str, str], timeout_s: float = 180, **spec: Any) -> Run:
        return engine_forks.run_child("engine_child", tmp_path_factory.mktemp("engine"), environment, timeout_s, spec)

    return run
