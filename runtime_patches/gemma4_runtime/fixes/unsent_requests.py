"""Fix: a request that never reached the scheduler leaves nothing behind in the tokenizer manager.

`TokenizerManager.generate_request` makes an entry of `rid_to_state` for every id of a request before it does anything
with it, and the scheduler's answer takes the entry away. No answer comes for an id that was not sent:

| what is not sent | why |
|---|---|
| all but the first id of a request with n > 1 | the first is sent once, and each of the n answers gets a new id |
| a prompt that is refused, as too long say | the refusal is raised between the entry and the sending |

On SIGTERM SGLang waits until there is no entry, so such a server never ends. SGLang 0.5.23 takes the entries away
itself; this can go when the pin passes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any


async def around_generate(
    original: Callable[..., Any], tokenizer: Any, obj: Any, *args: Any, **kwargs: Any
) -> AsyncIterator[Any]:
    """Run around `TokenizerManager.generate_request`."""
    async with aclosing(original(tokenizer, obj, *args, **kwargs)) as replies:
        try:
            async for reply in replies:
                yield reply
        finally:
            forget_unsent(tokenizer.rid_to_state, obj)


def forget_unsent(states: dict[str, Any], obj: Any) -> None:
    """Take away the entries of a request that were made for it and not sent.

    An id that is another request's already, which SGLang refuses, keeps that one's entry.
    """
    own = [obj, *getattr(obj, "_sub_obj_cache", {}).values()]
    ids = obj.rid if isinstance(obj.rid, list) else [obj.rid]
    for id in ids:
        state = states.get(id)
        if state is None or not any(state.obj is one for one in own):
            continue
        if not state.time_stats.api_server_dispatch_time:
            del states[id]
