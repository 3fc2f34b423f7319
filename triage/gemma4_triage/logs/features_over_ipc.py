"""Features of images that are handed over as memory of the GPU: what does not fit their own pool stays there."""

from __future__ import annotations

from gemma4_triage.logs.facts import LogFacts

_SWITCH, _ROOM = "SGLANG_USE_CUDA_IPC_TRANSPORT", "SGLANG_MM_FEATURE_CACHE_MB"
_ON = frozenset({"1", "true", "True"})


def kept_on_the_gpu(facts: LogFacts) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice of an encoder without memory where features are handed over so; None elsewhere."""
    if facts.arguments.get(_SWITCH, "") not in _ON:
        return None
    room = facts.arguments.get(_ROOM, "")
    small = f" Their own pool has {room} MB ({_ROOM}), and what does not fit it is kept beside it." if room else ""
    larger = f"a larger {_ROOM} than {room}" if room else f"a larger {_ROOM}"
    return (
        "The device's memory ran out in the image or audio encoder, in a server that hands features of images over as "
        f"memory of the GPU ({_SWITCH}): those of all requests that wait lie there, beside pools and weights.{small}",
        (
            f"unset {_SWITCH}: features then wait on the host",
            f"or {larger}, so that all features of requests that run or wait fit in it; fewer requests with images at "
            "once",
            "a later release, which copies to the host what that pool does not take (SGLang 16118); a smaller "
            "--mem-fraction-static only puts it off",
        ),
    )
