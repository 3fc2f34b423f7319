"""pip, or uv, found nothing to install that fits: what the lines above it say of why."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern

_LINE = pattern(
    r"ERROR: (?:No matching distribution|Could not find a version|Cannot install|ResolutionImpossible)|"
    r".{0,8}No solution found when"
)
MARKS = (
    (b"has inconsistent version: ", "wheel_renamed"),
    (b"-win_amd64.", "on_windows"),
    (b"-macosx_", "on_macos"),
    (b" was yanked", "yanked"),
)
"""What pip prints above it, beside the lines of remarks.py."""
_UNKNOWN = (
    "Unknown cause: {0} found nothing to install that fits. No rule here knows why.",
    Confidence.POSSIBLE,
    (
        "the lines beside it say why: no wheel for this Python (3.10 to 3.12), platform or CUDA (--extra-index-url of "
        "torch's), two packages whose releases exclude each other, or a wheel whose name and metadata differ (by its "
        "URL with --no-deps, or an earlier release)",
        "pip install sglang alone in a fresh environment, or uv pip install; SGLang's image has all of it",
    ),
)
_RENAMED = (
    "pip refuses a wheel whose name has another version than the metadata within it ({0}), as a wheel that was renamed "
    "after it was built has. Nothing on this machine is wrong, and no other index or Python mends that wheel.",
    Confidence.LIKELY,
    (
        "another release of that package, whose wheel is whole (a later one, else the one before); SGLang's image",
        "or the wheel by its URL: uv pip install --no-deps URL, or pip of an earlier release, which does not compare",
    ),
)
_ELSEWHERE = (
    "pip found no wheel for {0}: it fetches those of {0} here, and SGLang's kernels have wheels for Linux alone.",
    Confidence.LIKELY,
    (
        "Linux: on Windows within WSL 2 (with the driver of Windows, nvidia-smi shows the GPU there) or Docker; on "
        "macOS its own guide, from source, as far as the release has one",
        "neither another Python nor another index has such a wheel",
    ),
)
_YANKED = (
    "{0} {1}, which the release that was asked for pins, was taken back from the index by its makers (yanked), and uv "
    "chooses no such release by itself. Neither this machine nor its Python is at fault.",
    Confidence.LIKELY,
    (
        "a later release of what is to be installed, which pins another {0} (its index page lists them), or the one "
        "before; or SGLang's image",
        "else name that very version beside it, which is then taken: uv pip install '{0}=={1}' ...",
    ),
)
_TAKEN_BACK = pattern(r"Because ([\w.-]+)==(\S+) was yanked")
_VERSIONS = pattern(r"has inconsistent version: (.{1,120})")


def of_pip(facts: LogFacts, text: str) -> tuple[str, Confidence, tuple[str, ...]] | None:
    """Return cause, confidence and advice where a line is pip's that nothing fits; None where it is not."""
    if not _LINE.match(text):
        return None
    yanked = facts.remarks.get("yanked")
    if yanked is not None and (found := _TAKEN_BACK.search(yanked.text)) is not None:
        cause, confidence, look = _YANKED
        return cause.format(*found.groups()), confidence, tuple(one.format(*found.groups()) for one in look)
    renamed = facts.remarks.get("wheel_renamed")
    if renamed is not None:
        cause, confidence, look = _RENAMED
        said = _VERSIONS.search(renamed.text)
        return cause.format(said[1] if said else "as it says"), confidence, look
    for name, system in (("on_windows", "Windows"), ("on_macos", "macOS")):
        if name in facts.remarks and _OF_KERNELS.search(text):
            cause, confidence, look = _ELSEWHERE
            return cause.format(system), confidence, look
    cause, confidence, look = _UNKNOWN
    return cause.format("uv" if "No solution" in text else "pip"), confidence, look


_OF_KERNELS = pattern(r"(?:sgl|sglang)[-_]kernel|flashinfer|vllm|triton|decord|torch_memory_saver|nvidia")
