"""The real engine on this CPU, each run in a process of its own: a scheduler that dies takes its parent along."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HOST = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TRITON_INTERPRET": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "GEMMA4_TRIAGE_HOST_ENGINE": "1",
}


@dataclass(frozen=True)
class Run:
    """returncode as of subprocess; outputs: per engine, per prompt; log: stdout and stderr together."""

    returncode: int
    outputs: list[list[dict[str, Any]]] | None
    log: str


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
        (folder / "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, str(Path(__file__).with_name("engine_child.py"))]
        with (folder / "log").open("w") as log:
            child = subprocess.Popen(
                [*command, str(folder / "spec.json"), str(folder / "result.json")],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | HOST | {"SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / "dumps")} | environment,
                start_new_session=True,
            )
            try:
                code = child.wait(timeout_s)
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        result = folder / "result.json"
        outputs = json.loads(result.read_text()) if result.exists() else None
        return Run(code, outputs, (folder / "log").read_text(errors="replace"))

    return run
