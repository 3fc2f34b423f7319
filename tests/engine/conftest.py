"""The real engine on this CPU, on the committed toys."""

from typing import Any

import pytest

import engine_process
from engine_process import HOST, Run


def toy(name: str) -> str:
    from gemma4_repro.toys.locate import toy_path

    return str(toy_path(name))


@pytest.fixture(scope="session")
def engine_arguments() -> dict[str, Any]:
    return {
        "model_path": toy("toy-e4b"),
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "trtllm_mha",
        "page_size": 16,
        "swa_full_tokens_ratio": 0.4,
        "max_total_tokens": 2560,
        "max_running_requests": 8,
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
    }


@pytest.fixture(scope="session")
def mtp_arguments(engine_arguments) -> dict[str, Any]:
    return engine_arguments | {
        "speculative_algorithm": "NEXTN",
        "speculative_draft_model_path": toy("toy-e4b-assistant"),
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }


@pytest.fixture(scope="session")
def run_engine(tmp_path_factory):
    """run_engine({"GEMMA4_TRIAGE_PATCHES": ...}, engines=[...], prompts=[...], new_tokens=16) -> Run."""

    def run(environment: dict[str, str], timeout_s: float = 180, **spec: Any) -> Run:
        folder = tmp_path_factory.mktemp("engine")
        return engine_process.run_engine(folder, HOST | environment, timeout_s, **spec)

    return run
