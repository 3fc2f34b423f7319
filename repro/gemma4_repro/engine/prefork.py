"""Imports SGLang once, then forks one process per arm: `python -m gemma4_repro.engine.prefork PARENT_PID`.

One JSON object per line. In: {"folder": ...}, which holds a request.json; another may come while an arm runs. Out:
{"event": "ready", ...}, then for each arm {"event": "started", "folder": ..., "pid": ...} and {"event": "ended",
"folder": ..., "exit_code": ..., "signal": ...}. Each arm leads a process group of its own. When stdin closes,
everything is killed and this process ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from gemma4_repro.engine.arm_request import LEFTOVERS_NAME, LOG_NAME, REQUEST_NAME, ArmRequest
from gemma4_repro.engine.log_exceptions import DEATH_MARK
from gemma4_repro.engine.parent_death import adopt_orphans, die_with_parent, outlive_parent

_POLL_S = 0.05
_GONE_POLL_S = 0.005


def main(load: Callable[[], dict[str, Any]] | None = None, run: Callable[[ArmRequest], None] | None = None) -> None:
    """Serve arm requests until stdin closes. load and run: what to import and how to run an arm; for tests."""
    die_with_parent(int(sys.argv[1]))
    adopt_orphans()
    # The protocol gets a descriptor of its own: what libraries print on stdout must not mix with it.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    about = (load or _import_sglang)()
    # From here on the end of stdin tells that the parent has gone, and then there is an arm to end first.
    outlive_parent()
    _tell(replies, {"event": "ready"} | about)
    _serve(replies, run or _run_engine_arm)


def _serve(replies: Any, run: Callable[[ArmRequest], None]) -> None:
    """Fork an arm for each request and tell of its end, until stdin closes; then no arm is left."""
    arms: dict[int, Path] = {}
    received = b""
    while True:
        for pid, status in _ended_children():
            # Others are orphans of an arm, which came to this process.
            if (folder := arms.pop(pid, None)) is not None:
                _end_group(pid)
                _remove_leftovers(folder)
                _tell(replies, {"event": "ended", "folder": str(folder)} | _how(status))
        if not select.select([0], [], [], _POLL_S if arms else None)[0]:
            continue
        if not (chunk := os.read(0, 65536)):
            break
        *lines, received = (received + chunk).split(b"\n")
        for line in lines:
            folder = Path(json.loads(line)["folder"])
            arm = _fork_arm(folder, run)
            arms[arm] = folder
            _tell(replies, {"event": "started", "folder": str(folder), "pid": arm})
    for arm in arms:
        _end_group(arm)
    if arms:
        os._exit(1)


def _import_sglang() -> dict[str, Any]:
    """Import what the engine and its workers import. No plugin is loaded: each arm does that in its own environment."""
    started = time.monotonic()
    import sglang
    import sglang.srt.entrypoints.engine
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler
    import sglang.srt.models.registry
    import torch
    from sglang.srt.managers.multimodal_processor import import_processors
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING

    import_processors("sglang.srt.multimodal.processors")
    # Reading a toy's processor imports every one of them, in each process of each arm.
    list(VIDEO_PROCESSOR_MAPPING.values())
    # What is here stays, in each arm too: no collection in an arm has to walk through it, and so SGLang's at start and
    # at each flush of its cache take no second.
    gc.collect()
    gc.freeze()

    return {
        "sglang_version": sglang.__version__,
        "cuda": torch.cuda.is_available(),
        "import_s": round(time.monotonic() - started, 2),
        "threads": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1,
    }


def _fork_arm(folder: Path, run: Callable[[ArmRequest], None]) -> int:
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become_arm(folder, parent, run)
    return pid


def _become_arm(folder: Path, parent: int, run: Callable[[ArmRequest], None]) -> NoReturn:
    """Be the forked child: with its own process group, its own log, its own environment; never returns."""
    exit_code = 1
    try:
        os.setsid()
        os.umask(0o077)
        die_with_parent(parent)
        log = os.open(folder / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
        request = ArmRequest.model_validate_json((folder / REQUEST_NAME).read_text(encoding="utf-8"))
        os.environ.update(request.environment)
        sys.argv = list(request.command)
        run(request)
        exit_code = 0
    except SystemExit as stop:
        exit_code = stop.code if isinstance(stop.code, int) else 1
    # This is the bottom of the child's stack: without it the parent's loop would run on in the child.
    except BaseException:  # noqa: BLE001
        # Marked like SGLang's own workers mark theirs, so that the runner knows it for what ended the process.
        print(f"gemma4-triage: the arm {DEATH_MARK}{traceback.format_exc()}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _run_engine_arm(request: ArmRequest) -> None:
    from gemma4_repro.engine.arm_process import run_arm

    run_arm(request)


def _ended_children() -> Iterator[tuple[int, int]]:
    """Reap what has ended: process and status."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _how(status: int) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code if code >= 0 else None, "signal": signal.Signals(-code).name if code < 0 else None}


def _end_group(group: int) -> None:
    """Kill what is left of an arm's group and wait until none of it is there; orphans of other arms stay."""
    limit = time.monotonic() + 5
    while time.monotonic() < limit:
        try:
            os.killpg(group, signal.SIGKILL)
            # Those whose parent has not ended yet come to this process when it has.
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(_GONE_POLL_S)
        except ProcessLookupError:
            return
        except ChildProcessError:
            time.sleep(_GONE_POLL_S)


def _remove_leftovers(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / LEFTOVERS_NAME).read_text(encoding="utf-8").splitlines():
            # The one kind of file that is known to be left; nothing else is removed, whatever the list says.
            if line.startswith("/dev/shm/sglang_loads_") and ".." not in line:
                Path(line).unlink(missing_ok=True)
        (folder / LEFTOVERS_NAME).unlink()


def _tell(replies: Any, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main()
