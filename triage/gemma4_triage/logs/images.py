"""Images that a server was started from, by the commands beside its log: which of two served, which is a nightly."""

from __future__ import annotations

import re

from gemma4_triage.finding import Finding
from gemma4_triage.logs.alarm_words import FATAL
from gemma4_triage.logs.facts import LogFacts, Place, Remark

_IMAGE = re.compile(r"\b[\w.-]+/(?:sglang|vllm-openai|vllm)[\w-]*:(?P<tag>[\w.-]+)")
_NIGHTLY = re.compile(r"nightly|\bdev\b|^dev|^main|20[2-9]\d[01]\d[0-3]\d")
_SAY_LITTLE = frozenset({"hang", "illegal-access", "unexplained-line", "other-crash"})
_UP = ("ready", "http_ready", "vllm_serves")
_LONGEST = 1000  # bytes of a command


def keep(kept: dict[str, Remark], line: bytes, place: Place) -> None:
    """Keep the first and the last command that starts a server from an image with a tag."""
    text = line[:_LONGEST].decode(errors="replace").strip()
    if _IMAGE.search(text):
        kept.setdefault("first_image", Remark(place, "", text))
        kept["image"] = Remark(place, "", text)


def beside(facts: LogFacts, found: list[Finding]) -> list[Finding]:
    """Return the findings, the first of them with what the images tell, if they tell anything."""
    look = _one_serves(facts)
    # Where a log does not say why, the build is what to change first.
    if not look and found and found[0].rule in _SAY_LITTLE:
        look = _nightly(facts)
    if not look or not found:
        return found
    advice = (look, *found[0].advice)
    return [found[0].model_copy(update={"advice": advice}), *found[1:]]


def _one_serves(facts: LogFacts) -> str:
    """Return which image to stay with, where the same command was given with two and one of them came up."""
    first, last = facts.remarks.get("first_image"), facts.remarks.get("image")
    if first is None or last is None or first.place.line == last.place.line:
        return ""
    tags = [found["tag"] for one in (first, last) if (found := _IMAGE.search(one.text))]
    if tags[0] == tags[1] or first.text.replace(tags[0], "") != last.text.replace(tags[1], ""):
        return ""
    ends = [death.place.line for death in facts.deaths]
    ends += [alarm.place.line for alarm in facts.alarms if alarm.kind in FATAL]
    up = [facts.remarks[name].place.line for name in _UP if name in facts.remarks]
    early = [line for line in ends if line < last.place.line]
    late = [line for line in ends if line > last.place.line]
    if early and not late and any(line > last.place.line for line in up):
        good, bad, shown = tags[1], tags[0], last
    elif late and not early and any(first.place.line < line < last.place.line for line in up):
        good, bad, shown = tags[0], tags[1], first
    else:
        return ""
    return (
        f"stay with {good}, which serves with the same command (line {shown.place.line}): what changed up to {bad} is "
        "at fault, and neither checkpoint, GPU nor arguments; report it with both tags, and take a later release once "
        "it is mended"
    )


def _nightly(facts: LogFacts) -> str:
    """Return what to do about a server that hangs or ended in an image that is a nightly build; "" elsewhere."""
    said = facts.remarks.get("image")
    found = _IMAGE.search(said.text) if said is not None else None
    if said is None or found is None or not _NIGHTLY.search(found["tag"]):
        return ""
    return (
        f"the nightly image of the day before {found['tag']}, or the last release: if that serves, the change between "
        "both is at fault, of code or of packages in the image (pip list of both, side by side: a package that went "
        "missing makes what compiles kernels as it serves stand or fail)"
    )
