"""Two servers of a split whose starts stand in one log: in which arguments a prefill and a decode server differ.

Somebody who writes down both commands shows what neither server's own log can: KV that one lays out otherwise than the
other reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gemma4_triage.logs.facts import LogFacts, Place, Remark

_SIDE = re.compile(rb"--disaggregation-mode[= ](prefill|decode)\b")
_FLAG = re.compile(r"(?<![\w`'-])--([a-z][a-z0-9-]{1,60})(?:[= ]+(?!-)('[^']*'|\"[^\"]*\"|[^\s\\]+))?")
_ALIKE = {
    "page-size": "--page-size",
    "kv-cache-dtype": "--kv-cache-dtype",
    "dtype": "--dtype",
    "quantization": "--quantization",
    "attention-backend": "--attention-backend",
    "speculative-algo": "--speculative-algorithm",
    "speculative-algorithm": "--speculative-algorithm",
    "disaggregation-transfer-backend": "--disaggregation-transfer-backend",
    "pp-size": "--pp-size",
    "swa-full-tokens-ratio": "--swa-full-tokens-ratio",
}
"""What both sides have to be given alike, by the names that a command may have; how --tp may differ is the model's."""
_OF_RANKS = {"tp": "--tp", "tp-size": "--tp", "tensor-parallel-size": "--tp", "dp": "--dp", "dp-size": "--dp"}
"""How many ranks a side has, which may differ for some models and transfer backends alone."""
_LONGEST = 2000  # characters


def keep(kept: dict[str, Remark], line: bytes, place: Place) -> None:
    """Keep the command of one side of a split, whole or as a note."""
    if (side := _SIDE.search(line)) is not None:
        kept[f"command_of_{side[1].decode()}"] = Remark(place, "", line[:_LONGEST].decode(errors="replace").strip())


def _asked(said: Remark, names: Mapping[str, str]) -> Mapping[str, str]:
    found = _FLAG.findall(said.text)
    return {names[name]: value.strip("'\"") for name, value in found if name in names}


def differences(facts: LogFacts, names: Mapping[str, str] = _ALIKE) -> Iterator[str]:
    """Yield each of these arguments that the two sides were given differently, with both values."""
    prefill, decode = (facts.remarks.get(f"command_of_{side}") for side in ("prefill", "decode"))
    if prefill is None or decode is None:
        return
    first, second = _asked(prefill, names), _asked(decode, names)
    for flag in sorted(first.keys() | second.keys()):
        if first.get(flag) != second.get(flag):
            yield f"{flag} ({first.get(flag, 'none')} at prefill, {second.get(flag, 'none')} at decode)"


def made_alike(facts: LogFacts) -> str:
    """Return what to give both sides alike, and why; "" if they differ in nothing that this knows."""
    differ = tuple(differences(facts))
    if not differ:
        return ""
    why = "what one side writes or leaves out, such as states for drafts, the other lays out and reads by its own start"
    return f"the same of these on both sides, by the prefill server's start too: {'; '.join(differ)}: {why}"


def of_as_many_ranks(facts: LogFacts) -> str:
    """Return what to give both sides where they have other numbers of ranks; "" if none is shown to differ."""
    differ = tuple(differences(facts, _OF_RANKS))
    if not differ:
        return ""
    return (
        f"as many ranks on both sides, which differ here: {'; '.join(differ)}. Each rank's KV then goes to one rank, "
        "and the sign that it has come is counted once; transfer backends take other numbers for some models alone"
    )


def of_unlike_attention(facts: LogFacts) -> str:
    """Return over how many ranks each side spreads one request's attention, where they differ; "" if none shows it."""
    prefill, decode = (facts.remarks.get(f"command_of_{side}") for side in ("prefill", "decode"))
    if prefill is None or decode is None:
        return ""
    first, second = _attention_ranks(prefill), _attention_ranks(decode)
    return f"{first} at prefill, {second} at decode" if first and second and first != second else ""


def _attention_ranks(said: Remark) -> int:
    """Return over how many ranks a side spreads one request's attention; 0 if its command does not say."""
    given = _asked(said, _OF_RANKS)
    ranks, groups = given.get("--tp", "1"), given.get("--dp", "1")
    if not (ranks.isdecimal() and groups.isdecimal()):
        return 0
    apart = "--enable-dp-attention" in said.text
    return int(ranks) // max(1, int(groups)) if apart else int(ranks)
