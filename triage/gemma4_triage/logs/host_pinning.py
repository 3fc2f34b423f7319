"""Memory of the host that is pinned for a GPU: a failure of it that nobody looked at comes back at another call."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import of_settings, remarked

_LEFT_OVER = pattern(
    r"CUDA error: (?:invalid argument|operation not supported)|invalid argument|operation not supported"
)
_CAUSE = (
    "A call to CUDA was given what it does not take{0}. This server keeps KV on the host "
    "(--enable-hierarchical-cache), and a cause of that is memory there that was not pinned: earlier releases do not "
    "look whether cudaHostRegister succeeded, and its error comes at the first call behind it, whatever that is."
)
_AS_THE_DRIVER_SAYS = ", and the driver says that it could not map memory of the host for it"
_LESS = (
    "a smaller --hicache-size or --hicache-ratio{0}, with free -g and dmesg -T (Cannot map memory) beside it; once "
    "without --enable-hierarchical-cache: if it then holds, it is that; ulimit -l unlimited (docker: --ulimit "
    "memlock=-1); a later release fails where it pins, and says so (SGLang 26301)"
)


def at_a_later_call(facts: LogFacts, found: Finding) -> Finding:
    """Return the finding with memory of the host that was not pinned ahead, where that is what the server may have."""
    if not any(_LEFT_OVER.search(str(piece.value)) for piece in found.evidence):
        return found
    said = "host_not_mapped" in facts.remarks
    if not said and facts.settings.get("enable_hierarchical_cache") != "True" and "host_pool" not in facts.remarks:
        return found
    return found.model_copy(
        update={
            "cause": _CAUSE.format(_AS_THE_DRIVER_SAYS * said),
            "confidence": Confidence.LIKELY if said else Confidence.POSSIBLE,
            "evidence": (
                *found.evidence,
                *remarked(facts, "host_not_mapped", "what the driver said"),
                *remarked(facts, "host_pool", "what was asked of the host"),
                *of_settings(facts, "enable_hierarchical_cache"),
            ),
            "advice": (_LESS.format(_asked(facts)), *found.advice),
        }
    )


def _asked(facts: LogFacts) -> str:
    pool = facts.remarks.get("host_pool")
    size = number_in(pool.text, "Allocating") if pool is not None else None
    return f" ({size:g} GB for this rank now, and each rank pins its own)" if size else " (each rank pins its own)"


_OF_A_NETWORK = pattern(r"(?i)libfabric|\bfi_\w+ failed|\bnixl|\bucx|\bibv_|\brdma|mooncake|\befa\b")
_LOCKED = (
    "ulimit -l unlimited (docker: --ulimit memlock=-1, capability IPC_LOCK), free -g and reserved huge pages at that "
    "time; fewer rails or queue pairs for each rank; the GPU's memory and --mem-fraction-static do not matter"
)


def of_a_network(facts: LogFacts, text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return what happened and what to do where a library of the network got no memory; None if the line is no such."""
    if _OF_A_NETWORK.search(text) is None:
        return None
    what = "a library of the network got no memory of the host, of which it locks pages for its cards"
    return what, (*_of_the_host(facts), _LOCKED)


def _of_the_host(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do about memory that the hierarchical cache has pinned before; empty where there is none."""
    pool = facts.remarks.get("host_pool")
    if pool is None and facts.settings.get("enable_hierarchical_cache") != "True":
        return ()
    size = number_in(pool.text, "Allocating") if pool is not None else None
    before = f"has pinned {size:g} GB for this rank just before (line {pool.place.line})" if pool and size else "pins"
    return (
        f"a smaller --hicache-size or --hicache-ratio: the hierarchical cache {before}, each rank its own, and may "
        "leave no room in one piece; once without --enable-hierarchical-cache says if it is that; a later release, "
        "which may set the transfers up first (SGLang 27981)",
    )
