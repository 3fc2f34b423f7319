"""Runs SGLang's engine in a process of its own: a scheduler that dies takes its parent along."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TRITON_INTERPRET": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "GEMMA4_TRIAGE_HOST_ENGINE": "1",
    # The host engine refuses to run where CUDA is present.
    "CUDA_VISIBLE_DEVICES": "",
}


@dataclass(frozen=True)
class Run:
    """returncode as of subprocess; outputs: what the child wrote, None if it did not; log: stdout and stderr together.

    outputs of engine_child.py: per engine, per prompt.
    """

    returncode: int
    outputs: list[Any] | None
    log: str


def run_engine(folder: Path, environment: dict[str, str], timeout_s: float, **spec: Any) -> Run:
    """spec: engines (a list of keyword arguments), prompts, new_tokens, logprobs_of, logprobs_from (a prompt position).

    See engine_child.py.
    """
    return run_child("engine_child.py", folder, environment, timeout_s, spec)


def run_child(script: str, folder: Path, environment: dict[str, str], timeout_s: float, spec: dict[str, Any]) -> Run:
    """script: of this folder, started as `python script SPEC.json RESULT.json`. Its dumps go to `folder`/dumps."""
    (folder / "spec.json").write_text(json.dumps(spec))
    command = [sys.executable, str(Path(__file__).with_name(script))]
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(
            [*command, str(folder / "spec.json"), str(folder / "result.json")],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / "dumps")} | environment,
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
