"""What pictures take of the GPU's memory beside pools and weights, as they are prepared and as they are handed on."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

PROCESS = pattern(r"Process (\d+) has (\d+\.\d+) GiB memory in use")
_OF_MODELS = pattern(r"(?i)-vl\b|vision|ocr|omni|llava|pixtral|internvl|minicpm-?[vo]|kimi-vl|gemma-?[34]")
_SPOKEN = pattern(r"(?i)\b(?:images?|pictures?|photos?|videos?)\b(?! (?:of|from) (?:docker|the nightly))")
_FEWEST_BESIDE = 3  # processes beside the largest on one GPU


def takes_pictures(facts: LogFacts) -> bool:
    """Say whether a server takes pictures: by its model's name, and by what notes say of its requests."""
    notes = facts.remarks["notes"].text if "notes" in facts.remarks else ""
    return bool(_OF_MODELS.search(facts.settings.get("model_path", "")) or _SPOKEN.search(notes))


def prepares_pictures(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where every rank has a share of the first GPU beside its own; empty if that is not so."""
    others = sorted(float(used) for _, used in PROCESS.findall(death.message))[:-1]
    model = facts.settings.get("model_path", "")
    if len(others) < _FEWEST_BESIDE or "GPU 0 has" not in death.message or not _OF_MODELS.search(model):
        return ()
    return (
        f"--disable-fast-image-processor: {len(others)} processes beside this rank's hold {sum(others):.1f} GiB of the "
        "first GPU, as where pictures are prepared on it, and that grows with them; a lower --mem-fraction-static only "
        "delays it",
    )


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
