"""Values of requests, in lines that --log-requests writes or that somebody pastes, which no server can serve."""

from __future__ import annotations

import re

from gemma4_triage.logs.facts import Remark

MARKS = (
    (b"stop_token_ids", "asked_values"),
    (b"'n': ", "asked_values"),
    (b"(asked of it: ", "asked_values"),
    (b'"tokens":', "asked_values"),
    (b"input_embeds", "asked_embeds"),
    (b'"lora_path"', "asked_adapter"),
    (b"/pause_generation", "paused"),
    (b"/continue_generation", "continued"),
    (b"tokenizer_worker_num is set to 1", "one_tokenizer"),
)
SHOWN = frozenset({"many_samples", "several_samples", "null_ids", "ids_outside", "pause_seen"})
"""Names under which `keep` keeps what such lines ask for."""
OF_CONTROL = (b"_generation HTTP/", b"/update_weights_from_")
"""What answers to whoever steers a server have in them, which else say nothing."""
_MOST_SAMPLES = 1000
_LARGEST_ID = 1_000_000  # no vocabulary has as many
_SAMPLES = re.compile(rb"""["']n["']: ?(\d{1,12})\b""")
_IDS = re.compile(rb"""["']?(stop_token_ids|tokens)["']?\s*[:=]\s*\[([^\[\]]{0,400})\]""")
_NULL = re.compile(rb"\b(?:null|None)\b")
_NUMBER = re.compile(rb"-?\d+")
_LONGEST = 8000  # bytes


_OF_A_PROBE = b"rid='HEALTH_CHECK"
BY_A_PROBE = b"(by a probe)"
"""What is kept of a request that a health check has made."""


def said_of(request: bytes) -> bytes:
    """Return, of a request as --log-requests writes it, who made it if no client did, and values that cannot be."""
    if _OF_A_PROBE in request or request.startswith(BY_A_PROBE):
        return BY_A_PROBE
    if b"'n': " not in request and b"stop_token_ids" not in request:
        return b""
    found = [match[0] for match in _SAMPLES.finditer(request) if int(match[1]) > _MOST_SAMPLES]
    found += [match[0] for match in _IDS.finditer(request) if _NULL.search(match[2]) or _are_outside(match[2])]
    return b"(asked of it: " + b"; ".join(found) + b")" if found else b""


def _are_outside(listed: bytes) -> bool:
    return any(not 0 <= int(number) < _LARGEST_ID for number in _NUMBER.findall(listed))


def keep(kept: dict[str, Remark], name: str, line: bytes) -> None:
    """Keep what a request asks for that cannot be, and whether generation is paused.

    Args:
        kept: remarks by their names, the line itself among them.
        name: of the line.
        line: as it stands.
    """
    if name == "paused":
        kept["pause_seen"] = kept[name]
    elif name == "continued":
        kept.pop("paused", None)
    elif name in ("asked_values", "samples"):
        said = line[:_LONGEST]
        samples = max((int(number) for number in _SAMPLES.findall(said)), default=1)
        if samples > 1:
            kept["several_samples"] = kept[name]
        if samples > _MOST_SAMPLES:
            kept["many_samples"] = kept[name]
        for _, listed in _IDS.findall(said):
            if _NULL.search(listed):
                kept["null_ids"] = kept[name]
            if _are_outside(listed):
                kept["ids_outside"] = kept[name]
