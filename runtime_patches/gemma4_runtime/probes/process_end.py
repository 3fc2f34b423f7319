"""Probe `process-end`: a scheduler that dies of an exception leaves a dump, and a process that ends says how.

| hook                                   | what it leaves                                                            |
|----------------------------------------|---------------------------------------------------------------------------|
| around Scheduler.run_event_loop        | a dump of the exception: traceback, batch, rows; the mark `exception`     |
| before SignalHandler.sigterm_handler   | the mark `stopped`: somebody asked for it                                 |
| before Engine.shutdown                 | the mark `stopped`; of an exception, as below                             |
| before the handler of SIGQUIT          | the mark `child failed`: a worker died, or SGLang's watchdog stopped it   |
| the interpreter's own end (session.py) | the mark `exit`; `exception` if one came out of SGLang and nobody took it |

The guard manifest holds the first mark as `ended`. SGLang kills its workers when it stops, so that they leave none;
one mark of any process of a launch is enough. A launch without any mark whose processes are gone was killed.

The event loop is everything that a scheduler does once it serves, allocation and `prepare_for_decode` included. What a
probe trapped has its dump already. A launcher that raises before it serves has no loop: Python keeps what it printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.schema import Provenance
from gemma4_runtime import current
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.errors import TrappedViolation, VerificationFailed
from gemma4_runtime.evidence import payload
from gemma4_runtime.release.requests import held, swa_evicted
from gemma4_runtime.release.tree_links import broken_of, said_of_tree, wrong_locks
from gemma4_runtime.settings import Mode

RULE = "process-end"
VERDICT = "exception"
REQUEST_COLUMNS = ("request_slot", "tokens", "committed", "allocated", "protected", "swa_evicted")
"""Columns of the tensor `requests`, int64 [requests, 6]; -1 where a request does not say."""

_SITE = "Scheduler.run_event_loop"
_FRAMES = 32
_TEXT = 500
_REQUESTS = 256
_ROWS = 64
_OWN = ("gemma4_runtime", "torch.", "sglang.srt.plugins")
_COUNTERS = ("kv_committed_len", "kv_allocated_len", "cache_protected_len")
_OF_BATCH = ("req_pool_indices", "seq_lens", "seq_lens_cpu", "out_cache_loc")


def around_event_loop(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around `Scheduler.run_event_loop`, which returns or raises when the scheduler ends."""
    try:
        return original(scheduler, *args, **kwargs)
    except Exception as error:
        _leave(scheduler, error)
        raise


def before_sigterm(*args: Any, **kwargs: Any) -> None:
    """Run before `SignalHandler.sigterm_handler`."""
    current.note_end("stopped", "SIGTERM")


def before_child_failed(*args: Any, **kwargs: Any) -> None:
    """Run before `SignalHandler.running_phase_sigquit_handler`."""
    current.note_end("child failed", "SIGQUIT, by which a worker that fails tells the server")


def before_shutdown(*args: Any, **kwargs: Any) -> None:
    """Run before `Engine.shutdown`, which the interpreter's end calls too."""
    _note_end("stopped", "Engine.shutdown")


def note_exit() -> None:
    """Leave the mark of an interpreter that ends."""
    _note_end("exit", "the interpreter ended")


def _note_end(how: str, why: str) -> None:
    """Leave a mark, which is an exception's where that is what ended the interpreter and SGLang raised it."""
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException) and _is_sglangs(error):
        how, why = "exception", one_line(f"{type(error).__name__}: {error}, raised in {_place(error)}")
    current.note_end(how, why)


def _is_sglangs(error: BaseException) -> bool:
    return any(_name(frame).startswith("sglang.") for frame, _ in _walk(error))


def self_test() -> None:
    """Find the place and the batch of a planted exception; know a trapped one.

    Raises:
        VerificationFailed: it no longer does.
    """
    trapped = RuntimeError("planted")
    trapped.__cause__ = TrappedViolation("planted", None, "planted")
    try:
        _planted()
    except ValueError as error:
        found = (_place(error), was_trapped(error), was_trapped(trapped), one_line("a\nb"))
    else:
        found = ()
    if found != (f"{__name__}._planted", False, True, "a b"):
        raise VerificationFailed(f"{RULE}: self test: {found}")


def _planted() -> None:
    raise ValueError("planted")


def was_trapped(error: BaseException | None) -> bool:
    """Return whether a probe stopped the scheduler here, so that its dump exists."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, TrappedViolation):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def one_line(text: str) -> str:
    """Return `text` on one line, cut where it is long."""
    words = " ".join(text.split())
    return words if len(words) <= _TEXT else f"{words[:_TEXT]}…"


def _leave(scheduler: Any, error: Exception) -> None:
    """Write the dump and the mark. SGLang's own exception is on its way: nothing here may replace it."""
    said = one_line(f"{type(error).__name__}: {error}")
    if not was_trapped(error):
        violation = Violation(VERDICT, (), 0)
        current.guard().report(violation, RULE, _SITE, lambda: _draft(scheduler, error, said), act=Mode.LOG)
    current.note_end("exception", said)


def _draft(scheduler: Any, error: Exception, said: str) -> DumpDraft:
    place = _place(error)
    batch = _batch(scheduler, error)
    stage = _stage(error)
    summary = f"the scheduler raised {said} in {place}, called by {stage}"
    notes: list[str] = []
    mode = getattr(batch, "forward_mode", None)
    allocator = getattr(scheduler, "token_to_kv_pool_allocator", None)
    return DumpDraft(
        rule=RULE,
        site=place,
        summary=summary,
        verdict=VERDICT,
        provenance=Provenance(table_origin="", explanation=summary),
        forward_mode=getattr(mode, "name", None),
        step=_number(getattr(scheduler, "forward_ct", None)),
        page_size=_number(getattr(allocator, "page_size", None)),
        scalars={
            "exception": type(error).__name__,
            "message": one_line(str(error)),
            "stage": stage,
            "traceback": " > ".join(_frames(error)),
            "requests": len(getattr(batch, "reqs", None) or ()),
            "columns": ",".join(REQUEST_COLUMNS),
        }
        | _tree(scheduler, notes),
        tensors=dict(_tensors(scheduler, batch, notes)),
        notes=notes,
    )


def _tree(scheduler: Any, notes: list[str]) -> dict[str, str]:
    """Return what is wrong with the prefix cache's nodes, if anything; the exception may have come from one of them."""
    try:
        if (cache := getattr(scheduler, "tree_cache", None)) is None:
            return {}
        cache = getattr(cache, "inner", cache)
        broken, named = dict(broken_of(cache)), ("running_batch", "last_batch", "cur_batch")
        running = [one for name in named for one in getattr(getattr(scheduler, name, None), "reqs", None) or ()]
        broken |= wrong_locks(cache, {id(one): one for one in running}.values())
    # Broad on purpose: a cache in the middle of a change may have anything in it, and the rest is worth having.
    except Exception as error:  # noqa: BLE001
        notes.append(one_line(f"the prefix cache could not be read: {type(error).__name__}: {error}"))
        return {}
    return {"tree_broken": said_of_tree(broken)} if broken else {}


def _walk(error: BaseException) -> Iterator[tuple[Any, int]]:
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _name(frame: Any) -> str:
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}"


def _place(error: BaseException) -> str:
    """Return the innermost function of SGLang's that raised it, else the innermost of all."""
    names = [_name(frame) for frame, _ in _walk(error)]
    theirs = [name for name in names if name.startswith("sglang.") and not name.startswith(_OWN)]
    return (theirs or names or ["?"])[-1]


def _stage(error: BaseException) -> str:
    """Return what the event loop had called, for example `get_next_batch_to_run`, `run_batch` or `on_idle`."""
    names = [_name(frame) for frame, _ in _walk(error)]
    theirs = [name for name in names if ".Scheduler." in name and "event_loop" not in name]
    return theirs[0].rpartition(".")[2] if theirs else "its event loop"


def _frames(error: BaseException) -> list[str]:
    """Return `module.function:line` of each frame but the hooks' own, outermost first."""
    named = [f"{_name(frame)}:{line}" for frame, line in _walk(error)]
    shown = [name for name in named if not name.startswith(("gemma4_runtime", "sglang.srt.plugins"))]
    return shown[-_FRAMES:]


def _batch(scheduler: Any, error: BaseException) -> Any:
    """Return the batch that was being worked on: the innermost one that a frame has, else the scheduler's latest."""
    found = None
    for frame, _ in _walk(error):
        values = frame.f_locals
        for value in (values.get("self"), values.get("batch")):
            if hasattr(value, "req_pool_indices") and hasattr(value, "reqs"):
                found = value
    if found is not None:
        return found
    named = (getattr(scheduler, name, None) for name in ("cur_batch", "running_batch", "last_batch"))
    return next((batch for batch in named if batch is not None and batch.reqs), None)


def _tensors(scheduler: Any, batch: Any, notes: list[str]) -> Iterator[tuple[str, TensorPayload]]:
    """Yield what of the batch can still be read; what cannot is a note. The device may be what died."""
    requests = list(getattr(batch, "reqs", None) or ())[:_REQUESTS]
    if requests:
        yield "requests", TensorPayload.from_array(np.array([_counters(request) for request in requests], np.int64))
    for name in _OF_BATCH:
        tensor = getattr(batch, name, None)
        if tensor is not None:
            yield from _copied(name, lambda tensor=tensor: tensor, notes)
    slots = [slot for request in requests[:_ROWS] if (slot := held(request).req_pool_idx) is not None]
    table = getattr(getattr(scheduler, "req_to_token_pool", None), "req_to_token", None)
    if slots and table is not None:
        known = [slot for slot in slots if 0 <= slot < table.shape[0]]
        longest = max((_number(getattr(held(one), "kv_allocated_len", 0)) or 0 for one in requests[:_ROWS]), default=0)
        yield from _copied("req_to_token", lambda: table[known, : max(min(longest, table.shape[1]), 1)], notes)


def _copied(name: str, read: Callable[[], Any], notes: list[str]) -> Iterator[tuple[str, TensorPayload]]:
    try:
        yield name, payload(read())
    # Broad on purpose: the exception may have taken the device with it, and the rest is worth having.
    except Exception as error:  # noqa: BLE001
        notes.append(one_line(f"{name} could not be read: {type(error).__name__}: {error}"))


def _counters(request: Any) -> list[int]:
    tokens = len(getattr(request, "origin_input_ids", ())) + len(getattr(request, "output_ids", ()))
    record = held(request)
    said = (record.req_pool_idx, tokens, *(getattr(record, name, None) for name in _COUNTERS), swa_evicted(request))
    return [-1 if (number := _number(value)) is None else number for value in said]


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) else None
