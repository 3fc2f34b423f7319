"""Plays a recorded run back in place of the engine: `python tests/support/recorded_engine.py PARENT_PID RUN [ARM]`.

It is the prefork process of a run, as the supervisor starts it. Its arms leave in their folders what those of RUN left
(a folder of tests/data/recorded_runs), write RUN's logs, and end as the engine does: well with a result, else killed.
With ARM, every arm does as that one.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

from gemma4_repro.engine import prefork
from gemma4_repro.engine.arm_request import LOG_NAME, RESULT_NAME, ArmRequest


def main(run: Path, always: str | None = None) -> None:
    """Serve arms until stdin closes."""

    def play(request: ArmRequest) -> None:
        arm = run / (always or request.arm)
        # The log is open: what the arm prints goes there.
        shutil.copytree(arm, request.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOG_NAME))
        print((arm / LOG_NAME).read_text(), end="", flush=True)
        if not (arm / RESULT_NAME).exists():
            os.kill(os.getpid(), signal.SIGKILL)

    prefork.main(lambda: {"cuda": False, "import_s": 0.0}, play)


if __name__ == "__main__":
    main(Path(sys.argv[2]), *sys.argv[3:])
