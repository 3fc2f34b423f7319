"""A pool found no room though weights are small: something else has the memory of that GPU, such as another rank."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.remarks import number_in

_LEAST_SHARE = 0.6  # of the GPU, what SGLang gives weights and pools at the least by itself
_BESIDE_WEIGHTS = 0.15  # of the GPU, what a pool would have had beside them


_NAMED = pattern(r"mem_fraction_static=(\d?\.\d+)")


def _share(facts: LogFacts, death: Death) -> float | None:
    """Return the share that weights and pools were given; None where neither the message nor a start says it."""
    if (named := _NAMED.search(death.message)) is not None:
        return float(named[1])
    given = facts.settings.get("mem_fraction_static", "None")
    if given != "None":
        return float(given) if given.replace(".", "", 1).isdecimal() else None
    return _LEAST_SHARE if "model_path" in facts.settings else None


_CLASS = pattern(r"type=(\w+)")


def _classes(facts: LogFacts) -> set[str]:
    """Return the classes of the first and the last weights that were loaded: a draft's is another one."""
    loads = (facts.remarks[name] for name in ("first_after_weights", "after_weights") if name in facts.remarks)
    return {found[1] for load in loads if (found := _CLASS.search(load.text))}


def of_a_shared_gpu(facts: LogFacts, death: Death) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where weights take far less than the share in which the pools found no room."""
    loaded = facts.remarks.get("after_weights")
    used = number_in(loaded.text, "mem usage") if loaded is not None else None
    left = number_in(loaded.text, "avail mem") if loaded is not None else None
    drafts = len(_classes(facts)) > 1 or facts.settings.get("speculative_algorithm", "None") != "None"
    if not used or left is None or drafts or "states" in facts.remarks:
        return None
    share = _share(facts, death)
    if share is None or used / (used + left) + _BESIDE_WEIGHTS > share:
        return None
    both = all(facts.settings.get(f"{name}_size", "1") not in ("1", "None") for name in ("dp", "pp"))
    return (
        f"A rank found no room for its pools, and not for its weights: those take {used:.1f} GB where {left:.1f} GB "
        "are left beside them. Something else has the memory of that rank's GPU: another process, or another rank of "
        "this same server.",
        (
            *(
                (
                    "nvidia-smi: two of this server's processes on one GPU and none on another? Then once without --dp "
                    "beside --pp (one of them alone, or a server for each replica behind a router with "
                    "CUDA_VISIBLE_DEVICES): some releases count a replica's GPUs by --tp alone and leave --pp out; a "
                    "later release counts both",
                )
                if both
                else ()
            ),
            "nvidia-smi as it starts, with the process of each GPU: end what else is there, or keep that GPU out "
            "(CUDA_VISIBLE_DEVICES, --base-gpu-id, --gpu-id-step); a higher --mem-fraction-static does not help",
        ),
    )
