"""The real engine on this CPU, on the committed toys."""

from typing import Any

import pytest

import engine_process
from engine_process import HOST, Run
from toy_arguments import ENGINE, MTP


@pytest.fixture(scope="session")
def engine_arguments() -> dict[str, Any]:
    return dict(ENGINE)


@pytest.fixture(scope="session")
def mtp_arguments(engine_arguments) -> dict[str, Any]:
    return engine_arguments | MTP


@pytest.fixture(scope="session")
def run_engine(tmp_path_factory):
    """run_engine({"GEMMA4_TRIAGE_PATCHES": ...}, engines=[...], prompts=[...], new_tokens=16) -> Run."""

    def run(environment: dict[str, str], timeout_s: float = 180, **spec: Any) -> Run:
        folder = tmp_path_factory.mktemp("engine")
        return engine_process.run_engine(folder, HOST | environment, timeout_s, **spec)

    return run
