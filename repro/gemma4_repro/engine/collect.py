"""Turns what an arm left in its folder, and how its process ended, into an Outcome."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from gemma4_repro.engine.arm_request import LOG_NAME, RESULT_NAME, Phase, read_phase
from gemma4_repro.engine.log_exceptions import exceptions_in_file
from gemma4_repro.engine.outcome import ArmResult, Ending, Outcome
from gemma4_repro.engine.supervisor import ArmExit

MAX_RESULT_BYTES = 16 * 1024**2


def collect(arm: str, folder: Path, end: ArmExit, limit_s: float) -> Outcome:
    """Read the folder. A result that cannot be read is not an error here: the outcome says so in `problem`."""
    result, problem = read_result(folder / RESULT_NAME)
    if end.timed_out:
        ending = Ending.TIMED_OUT
        phase = read_phase(folder)
        problem = f"killed after {limit_s:.0f} s while {phase.value if phase else 'starting its process'}"
    elif end.exit_code == 0:
        ending = Ending.COMPLETED if result is not None else Ending.NO_RESULT
    else:
        ending = Ending.DIED_AT_START if read_phase(folder) in (None, Phase.STARTING) else Ending.CRASHED
        # Where a process dies before its end, having no result is no news.
        problem = None
    return Outcome(
        arm=arm,
        ending=ending,
        folder=folder,
        duration_s=end.duration_s,
        exit_code=end.exit_code,
        signal_name=end.signal_name,
        raised=exceptions_in_file(folder / LOG_NAME),
        result=result,
        problem=problem,
    )


def read_result(path: Path) -> tuple[ArmResult | None, str | None]:
    """Return the result and None, or None and why there is none."""
    try:
        if path.stat().st_size > MAX_RESULT_BYTES:
            return None, f"{path.name} is larger than {MAX_RESULT_BYTES // 1024**2} MiB"
        return ArmResult.model_validate_json(path.read_bytes()), None
    except FileNotFoundError:
        return None, f"it wrote no {path.name}"
    except OSError as error:
        return None, f"{path.name} cannot be read: {error.strerror}"
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return None, f"{path.name} is not a result: {f'{where}: ' if where else ''}{first['msg']}"
