"""Runs the call on a real backend in a subprocess, so that an illegal access ends that process and is a result here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gemma4_triage.errors import EnvironmentCannot
from gemma4_triage.inspection.cuda_presence import cuda_is_present
from gemma4_triage.replay import exchange
from gemma4_triage.replay.compare import compare
from gemma4_triage.replay.exchange import BackendCall
from gemma4_triage.replay.image import pages_of
from gemma4_triage.replay.outcome import BackendOutcome, Status, VariantOutcome
from gemma4_triage.replay.prepare import Prepared
from gemma4_triage.replay.rebuild import MAX_ENTRIES
from gemma4_triage.replay.tables import INTENDED, VARIANTS, is_placeholder

REFERENCE = "reference"
BACKENDS = (REFERENCE, "torch", "triton", "flashinfer", "trtllm_mha")
NEED_CUDA = ("flashinfer", "trtllm_mha")
DEFAULT_TIMEOUT_S = 300.0

_ILLEGAL = ("illegal memory access", "address space", "misaligned address", "illegal address")
_LAST_LINES, _LOG_TAIL_BYTES = 6, 8192


def run_backend(prepared: Prepared, name: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> BackendOutcome:
    """Run every variant on backend `name`. Raises EnvironmentCannot if it is too large or has no room."""
    begun = time.monotonic()
    # Asked of the driver: torch takes seconds to import for the same answer.
    if name in NEED_CUDA and not cuda_is_present():
        return BackendOutcome(name, time.monotonic() - begun, refusal="needs a CUDA device", missing=True)
    try:
        with tempfile.TemporaryDirectory(prefix="gemma4-replay-") as made:
            folder = Path(made)
            exchange.write_call(folder, backend_call(prepared))
            ended = _run(name, folder, timeout_s)
            return _outcome(prepared, name, folder, ended, time.monotonic() - begun)
    except OSError as error:
        raise EnvironmentCannot(f"{name} cannot be run: {error}", "TMPDIR names the folder for the exchange") from error


def backend_call(prepared: Prepared) -> BackendCall:
    """Return the call as a subprocess gets it: a row for each query, entries as places in the image's arena.

    Raises EnvironmentCannot if that is too large.
    """
    call, image = prepared.call, prepared.image
    rows, positions = call.queries
    if rows.size * call.ids.shape[1] > MAX_ENTRIES:
        raise EnvironmentCannot(
            f"too large for a backend: {rows.size} queries of {call.ids.shape[1]} entries, the cap is {MAX_ENTRIES}",
            "cut the dump down first with --shrink",
        )
    return BackendCall(
        variants=VARIANTS,
        keys=image.keys[: image.arena_pages],
        values=image.values[: image.arena_pages],
        queries=prepared.queries,
        lengths=positions + 1,
        tables={name: _placed(prepared, table)[rows] for name, table in prepared.variants.items()},
        before=image.before,
        inside=image.inside.shape[0],
        page_size=call.geometry.page_size,
        paged=call.paged,
        window_left=call.window_left,
        scale=prepared.scale,
        dtype=call.geometry.dtype,
    )


def _placed(prepared: Prepared, table: np.ndarray) -> np.ndarray:
    call, image = prepared.call, prepared.image
    pages = pages_of(call, table)
    # What no query sees is not in the image. It is masked, so its place does not matter; an entry outside stays there.
    hidden = ~call.read & (((pages >= 0) & (pages < image.bound)) | is_placeholder(pages))
    pages = np.where(hidden, 0, pages)
    places = np.where(call.live, image.places(pages), 0)
    if call.paged:
        return places
    page_size = call.geometry.page_size
    return places * page_size + np.where(is_placeholder(table), 0, table % page_size)


def _run(name: str, folder: Path, timeout_s: float) -> int | None:
    """Return its exit code, negative for a signal; None if it took too long."""
    # -P: the folder that we were started in must not stand before the installed packages.
    command = [sys.executable, "-P", "-m", "gemma4_triage.replay.backends.child", name, str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _outcome(prepared: Prepared, name: str, folder: Path, ended: int | None, seconds: float) -> BackendOutcome:
    refusal = exchange.read_json(folder / exchange.REFUSAL)
    if refusal is not None:
        return BackendOutcome(name, seconds, refusal=refusal["reason"], missing=refusal["missing"])
    about = exchange.read_json(folder / exchange.ABOUT)
    lines = _last_lines(folder)
    if about is None:
        said = _ending(ended, lines)[1]
        return BackendOutcome(name, seconds, refusal=f"did not start: {said}", missing=True, last_lines=lines)
    variants: list[VariantOutcome] = []
    for number, variant in enumerate(VARIANTS):
        variants.append(
            _variant(prepared, folder, number, variant, about["dtype"]) or _unfinished(variants, ended, lines)
        )
    failed = any(variant.status is not Status.RAN for variant in variants)
    return BackendOutcome(
        name,
        seconds,
        device=about["device"],
        dtype=about["dtype"],
        note=about["note"],
        variants=tuple(variants),
        last_lines=lines if failed else (),
    )


def _variant(prepared: Prepared, folder: Path, number: int, variant: str, dtype: str) -> VariantOutcome | None:
    """Return None if the process left nothing of it."""
    found = exchange.read_output(folder, number)
    if found is not None:
        rows = prepared.call.queries[0]
        return VariantOutcome(
            variant,
            Status.RAN,
            from_table=compare(found, prepared.reference[variant], rows, dtype),
            from_intended=compare(found, prepared.reference[INTENDED], rows, dtype),
        )
    problem = exchange.read_json(folder / f"{number}.json")
    if problem is None:
        return None
    return VariantOutcome(variant, _status_of(problem["error"]), problem["error"].splitlines()[0])


def _unfinished(before: list[VariantOutcome], ended: int | None, lines: tuple[str, ...]) -> VariantOutcome:
    """Return the first variant without a result: the one that the process ended in."""
    variant = VARIANTS[len(before)]
    failed = next((done for done in before if done.status is not Status.RAN), None)
    if failed is not None:
        return VariantOutcome(variant, Status.NOT_RUN, f"{failed.variant} ended the process")
    status, said = _ending(ended, lines)
    return VariantOutcome(variant, status, said)


def _ending(ended: int | None, lines: tuple[str, ...]) -> tuple[Status, str]:
    if ended is None:
        return Status.TIMED_OUT, "no result within the time limit"
    if ended < 0:
        name = signal.Signals(-ended).name if -ended in signal.valid_signals() else f"signal {-ended}"
        status = Status.ILLEGAL_ACCESS if name in ("SIGSEGV", "SIGBUS") else Status.KILLED
        return status, f"ended by {name}"
    said = lines[-1] if lines else "nothing on stderr"
    return _status_of(" ".join(lines)), f"exit code {ended}: {said}"


def _status_of(text: str) -> Status:
    return Status.ILLEGAL_ACCESS if any(word in text for word in _ILLEGAL) else Status.RAISED


def _last_lines(folder: Path) -> tuple[str, ...]:
    with (folder / "log").open("rb") as log:
        log.seek(0, os.SEEK_END)
        log.seek(max(log.tell() - _LOG_TAIL_BYTES, 0))
        lines = log.read().decode(errors="replace").splitlines()
    return tuple(line for line in lines if line.strip())[-_LAST_LINES:]
