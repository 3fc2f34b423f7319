"""One arm, in its own process: start SGLang's engine, run the load, check the pools at idle, write result.json.

Whatever goes wrong ends this process with a traceback in its log; judging that is the runner's work.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from gemma4_repro.engine.arm_request import LEFTOVERS_NAME, PHASE_NAME, RESULT_NAME, ArmRequest, Phase
from gemma4_repro.engine.outcome import ArmResult, IdleCheck
from gemma4_repro.engine.serving import serve
from gemma4_repro.recorders.catalog import recorders_of

IDLE_TIMEOUT_S = 20.0
_PATHS_KEY = "gemma4_triage_paths"
"""Of an internal state in /server_info, as fusion/paths.py of the runtime writes it."""


def run_arm(request: ArmRequest) -> None:
    """Run one arm to its end.

    Raises:
        TimeoutError: the scheduler published no idle state after the load.
        Exception: whatever the engine raises.
    """
    import sglang
    from sglang.srt.entrypoints.engine import Engine

    _enter(request.folder, Phase.STARTING)
    recorders = recorders_of(request)
    for recorder in recorders:
        recorder.register(sglang.__version__)
    started = time.monotonic()
    engine = Engine(**request.engine_arguments)
    serving = time.monotonic()
    _write_whole(request.folder / LEFTOVERS_NAME, _load_file(engine))
    _enter(request.folder, Phase.SERVING)
    answers = serve(engine, request, [recorder.replied for recorder in recorders])
    for recorder in recorders:
        recorder.finish()
    served = time.monotonic()
    _enter(request.folder, Phase.IDLE)
    idle = check_idle(engine)
    result = ArmResult(
        arm=request.arm,
        sglang_version=sglang.__version__,
        start_s=serving - started,
        load_s=served - serving,
        answers=answers,
        idle=idle,
        paths=_paths(engine) if request.watched else {},
    )
    _write_whole(request.folder / RESULT_NAME, result.model_dump_json(indent=1))
    _enter(request.folder, Phase.DONE)
    engine.shutdown()


def _paths(engine: Any) -> dict[str, dict[str, int]]:
    """Say which path the calls of each patch took, where a patch counts them."""
    (state,) = engine.get_server_info()["internal_states"]
    return state.get(_PATHS_KEY, {})


def _load_file(engine: Any) -> str:
    """Say where the scheduler publishes its load: a shared memory file that SGLang 0.5.13.post1 never removes."""
    return engine.tokenizer_manager.load_snapshot_reader.path


def check_idle(engine: Any) -> IdleCheck:
    """SGLang publishes its load when idle, after its leak checker; a leak raises there and no state is published."""
    _wait_idle(engine)
    flushed = engine.flush_cache()
    after = _wait_idle(engine)
    return IdleCheck(
        leak_checker_ran=True,
        flush_succeeded=bool(flushed.success),
        used_tokens_after_flush=after.num_used_tokens,
        used_share_after_flush=after.token_usage,
    )


def _wait_idle(engine: Any) -> Any:
    """Return the scheduler's own report from now on, with no request running or waiting.

    It is waited for within the engine's loop: a signal that comes between two runs of a uvloop is lost, and a scheduler
    that dies says so by a signal.

    Raises:
        TimeoutError: none came.
    """
    return engine.loop.run_until_complete(_idle_load(engine, time.time()))


async def _idle_load(engine: Any, newer_than: float) -> Any:
    limit = time.monotonic() + IDLE_TIMEOUT_S
    while time.monotonic() < limit:
        for load in await engine.tokenizer_manager.get_loads():
            if load.timestamp > newer_than and load.num_running_reqs == load.num_waiting_reqs == 0:
                return load
        await asyncio.sleep(0.05)
    raise TimeoutError(f"the scheduler published no idle state within {IDLE_TIMEOUT_S:.0f} s after the load")


def _enter(folder: Path, phase: Phase) -> None:
    _write_whole(folder / PHASE_NAME, phase.value)


def _write_whole(path: Path, text: str) -> None:
    """Write so that a reader sees the whole text or the previous one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
