"""Fix, on request only: what would be read out of range is read from the null page, and the request is marked.

A safety net for a server that must not die of a page table, at the price of answers that may be wrong. The check is
that of the probe `page-table`, whose hooks this patch shares; see `indices/act.py` for what it does in place of the
debug mode, and `degraded.py` for the marks. The pull requests' clamp took the nearest page in range: that is another
request's, and nobody was told (accept length fell from 2.76 to 1.69). Here it is page 0, nobody's.

| hook                                         | process   | why                                             |
|----------------------------------------------|-----------|-------------------------------------------------|
| before ServerArgs.__post_init__              | the first | refuses to start on several ranks               |
| after to_payload of the output streamer      | scheduler | marks leave with their requests' output         |
| before TokenizerManager._handle_batch_output | tokenizer | takes them off: SGLang reads such keys by token |
| before RequestLogger.log_finished_request    | tokenizer | into the last meta_info, which is then logged   |
| around TokenizerManager._wait_one_response   | tokenizer | into each reply's meta_info, streamed or not    |
| after Req.reset_for_retract                  | scheduler | what is computed anew may be cached again       |
| after Scheduler.flush_cache                  | scheduler | nothing doubtful is cached any more             |
| after Scheduler.get_internal_state           | scheduler | /server_info counts                             |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any
from weakref import WeakValueDictionary

from gemma4_runtime.degraded import DEGRADED, KEY
from gemma4_runtime.errors import SettingsError
from gemma4_runtime.release.arguments import settled

STATE_KEY = "gemma4_triage_degraded"
"""Of an internal state in /server_info."""
_MARK = "_gemma4_mark"
# SGLang's states of marked requests, by request id. It has forgotten a finished one by the time it logs its reply.
_marked: WeakValueDictionary[str, Any] = WeakValueDictionary()


def refuse_several_ranks(arguments: Any, **_unknown: Any) -> None:
    """Run before `ServerArgs.__post_init__`.

    Raises:
        SettingsError: tensor or pipeline parallelism is asked for.
    """
    sizes = {"--tp-size": arguments.tp_size, "--pp-size": arguments.pp_size}
    asked = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if asked:
        raise SettingsError(
            f"GEMMA4_TRIAGE_PATCHES asks for clamp, which does not serve {' and '.join(asked)}: a rank would keep a "
            "marked request out of its own prefix cache only, and ranks whose caches differ would make different "
            "batches; leave clamp out of GEMMA4_TRIAGE_PATCHES, or serve on one rank"
        )


def refuse_several_settled_ranks(server_args: Any, **_unknown: Any) -> None:
    """Run before `check_server_args`, where 0.5.23 has settled what it was given.

    Raises:
        SettingsError: tensor or pipeline parallelism is asked for.
    """
    refuse_several_ranks(settled(server_args))


def after_payload(payload: Any, accumulator: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `_GenerationStreamAccumulator.to_payload`, which gives None if there is nothing to send."""
    if payload is not None:
        DEGRADED.outputs(payload)


def before_batch_output(tokenizer: Any, recv_obj: Any, **_unknown: Any) -> None:
    """Run before `TokenizerManager._handle_batch_output`."""
    info = getattr(recv_obj, "customized_info", None)
    marks = info.pop(KEY, None) if info else None
    if not marks:
        return
    if isinstance(marks[0], dict):
        # SGLang cuts a batch into one output per request for several tokenizer workers, and takes off a list.
        marks = [marks]
    for rid, mark in zip(recv_obj.rids, marks, strict=True):
        state = tokenizer.rid_to_state.get(rid)
        if state is not None and mark:
            setattr(state, _MARK, mark[-1])
            _marked[rid] = state


def before_finished_log(request_logger: Any, obj: Any, out: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    """Run before `RequestLogger.log_finished_request`. SGLang's metrics exporter gets the same `out` next."""
    mark = getattr(_marked.get(out["meta_info"]["id"]), _MARK, None)
    if mark is not None:
        out["meta_info"][KEY] = mark


async def around_response(
    original: Callable[..., AsyncIterator[dict[str, Any]]], tokenizer: Any, obj: Any, *args: Any, **kwargs: Any
) -> AsyncIterator[dict[str, Any]]:
    """Run around `TokenizerManager._wait_one_response`."""
    # A request that has finished is forgotten there before its last reply is handed out.
    state = tokenizer.rid_to_state.get(obj.rid)
    async for reply in original(tokenizer, obj, *args, **kwargs):
        mark = getattr(state, _MARK, None)
        if mark is not None:
            reply["meta_info"][KEY] = mark
        yield reply


def after_retract(result: Any, request: Any, **_unknown: Any) -> None:
    """Run after `Req.reset_for_retract`."""
    DEGRADED.computed_anew(request)


def after_flush(flushed: bool, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Scheduler.flush_cache`, which refuses while requests run."""
    if flushed:
        DEGRADED.cache_was_flushed()


def after_internal_state(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Scheduler.get_internal_state`."""
    result.internal_state[STATE_KEY] = DEGRADED.document()
