"""Runs SGLang's engine in a process of its own, because a scheduler that dies takes its parent along.

The process is a fresh one, or is forked from one that has imported SGLang, which pays the 20 s of that import once. The
latter is the prefork process of a reproduction with `engine_child` as its arms; run as a script, this file is that.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4_repro.engine import prefork
from gemma4_repro.engine.arm_request import LOG_NAME, REQUEST_NAME, ArmRequest
from gemma4_repro.engine.host_environment import hermetic_environment
from gemma4_repro.engine.supervisor import Supervisor

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
SPEC_NAME, RESULT_NAME = "spec.json", "result.json"
CHILD = Path(__file__).with_name("engine_child.py")


@dataclass(frozen=True)
class Run:
    """A child that has ended.

    Attributes:
        returncode: as subprocess has it.
        outputs: what the child wrote, None if it did not; of `prompts_spec`, what `answers_only` makes of it.
        log: stdout and stderr together.
    """

    returncode: int
    outputs: Any
    log: str


def prompts_spec(
    engines: list[dict[str, Any]], prompts: list[list[int]], before: str | None = None, **load: Any
) -> dict[str, Any]:
    """Return the child's spec of engines that serve the same prompts, which may be none: a start is all that is asked.

    Args:
        engines: the keyword arguments of each.
        prompts: their tokens.
        before: what is called first.
        load: what else `engine_child.generate` takes.
    """
    loads = [{"prompts": prompts, **load}] if prompts else []
    arms = [{"engine": engine, "loads": loads} for engine in engines]
    return {"before": [before] if before else [], "arms": arms}


def answers_only(run: Run) -> Run:
    """Return the run of `prompts_spec` with each engine's answers, of those that answered, as its outputs."""
    served = [arm["loads"][0] for arm in run.outputs or () if arm["loads"]]
    return Run(run.returncode, served or None, run.log)


def run_fresh(folder: Path, environment: dict[str, str], timeout_s: float, spec: dict[str, Any]) -> Run:
    """Start `engine_child` in a new Python and wait for its end.

    Args:
        folder: for its files; its dumps go to the folder `dumps` in it.
        environment: what differs from ours.
        timeout_s: how long it may take.
        spec: what it is to do.

    Raises:
        subprocess.TimeoutExpired: it had to be killed.
    """
    (folder / SPEC_NAME).write_text(json.dumps(spec))
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, str(CHILD), str(folder / SPEC_NAME), str(folder / RESULT_NAME)],
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
    return Run(code, _result(folder), (folder / "log").read_text(errors="replace"))


class Forks:
    """Runs one forked child after the other."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def run(self, folder: Path, environment: dict[str, str], timeout_s: float, spec: dict[str, Any]) -> Run:
        """Do as `run_fresh`.

        Raises:
            TimeoutError: it had to be killed.
        """
        (folder / SPEC_NAME).write_text(json.dumps(spec))
        request = ArmRequest(
            arm="engine",
            folder=folder,
            command=[sys.executable, str(CHILD)],
            environment={"SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / "dumps")} | environment,
            engine_arguments={},
            prompts=[],
            new_tokens=[],
        )
        (folder / REQUEST_NAME).write_text(request.model_dump_json())
        ended = self._supervisor.run(folder, timeout_s)
        log = (folder / LOG_NAME).read_text(errors="replace")
        if ended.timed_out:
            raise TimeoutError(f"not done within {timeout_s} s; its log ends with:\n{log[-4000:]}")
        code = -signal.Signals[ended.signal_name] if ended.signal_name else ended.exit_code
        assert code is not None
        return Run(code, _result(folder), log)


@contextmanager
def forks(log: Path) -> Iterator[Forks]:
    """Start the process that imports SGLang and yield what forks it; `log` is its log.

    Raises:
        PreforkFailed: it did not start.
    """
    command = [sys.executable, __file__, str(os.getpid())]
    with Supervisor(log, hermetic_environment() | HOST, command) as supervisor:
        supervisor.wait_ready()
        yield Forks(supervisor)


def _result(folder: Path) -> Any:
    result = folder / RESULT_NAME
    return json.loads(result.read_text()) if result.exists() else None


def _run(request: ArmRequest) -> None:
    import engine_child

    engine_child.main(str(request.folder / SPEC_NAME), str(request.folder / RESULT_NAME))


if __name__ == "__main__":
    prefork.main(run=_run)
