"""Engines for tests, forked from one process that has imported SGLang: the 20 s that an import takes are paid once.

It is the prefork process of a reproduction, with scripts of this folder as its arms; run as a script, it is that.
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine_process import HOST, Run
from gemma4_repro.engine import prefork
from gemma4_repro.engine.arm_request import LOG_NAME, REQUEST_NAME, ArmRequest
from gemma4_repro.engine.host_environment import hermetic_environment
from gemma4_repro.engine.supervisor import Supervisor

SPEC_NAME, RESULT_NAME = "spec.json", "result.json"


class Forks:
    """Runs one child after the other."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def run_child(
        self, module: str, folder: Path, environment: dict[str, str], timeout_s: float, spec: dict[str, Any]
    ) -> Run:
        """module: of this folder, whose main(SPEC.json, RESULT.json) is called. As `engine_process.run_child` else.

        Raises TimeoutError.
        """
        (folder / SPEC_NAME).write_text(json.dumps(spec))
        request = ArmRequest(
            arm=module,
            folder=folder,
            command=[sys.executable, f"{module}.py"],
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
        result = folder / RESULT_NAME
        return Run(code, json.loads(result.read_text()) if result.exists() else None, log)


@contextmanager
def forks(log: Path) -> Iterator[Forks]:
    """Raises PreforkFailed. log: of the process that imports SGLang."""
    command = [sys.executable, __file__, str(os.getpid())]
    with Supervisor(log, hermetic_environment() | HOST, command) as supervisor:
        supervisor.wait_ready()
        yield Forks(supervisor)


def _run(request: ArmRequest) -> None:
    importlib.import_module(request.arm).main(str(request.folder / SPEC_NAME), str(request.folder / RESULT_NAME))


if __name__ == "__main__":
    prefork.main(run=_run)
