"""A diffusion pipeline whose layers are cut over several GPUs, and whose tensors then do not fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

MARKS = ((b"Running pipeline stages: [", "of_pictures"), (b"[DenoisingStage]", "of_pictures"))
"""What only a server of diffusion pipelines writes, beside the lines of remarks.py."""
_SIZES = pattern(r"(?i)mat1 and mat2|size of tensor|must match|shape|sizes? \d+|dimension")


def of_pictures(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield how to spread a pipeline over GPUs otherwise, where its tensors do not fit and its layers are cut."""
    ranks = facts.settings.get("tp_size", "1")
    if "of_pictures" not in facts.remarks and not death.caller.startswith("multimodal_gen/"):
        return
    if ranks in ("1", "None") or not _SIZES.search(death.message):
        return
    yield (
        f"once without --tp-size {ranks}: its layers are then whole, and one of two that follow each other was cut and "
        "the other not, if it runs so; several GPUs by sequence (--sp-degree, --ulysses-degree) meanwhile, then a "
        "later release"
    )
