"""Pictures that are prepared on the first GPU by every rank, beside the pools: what memory they take there."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import pattern

PROCESS = pattern(r"Process (\d+) has (\d+\.\d+) GiB memory in use")
_OF_MODELS = pattern(r"(?i)-vl\b|vision|ocr|omni|llava|pixtral|internvl|minicpm-?[vo]|kimi-vl|gemma-?[34]")
_FEWEST_BESIDE = 3  # processes beside the largest on one GPU


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
