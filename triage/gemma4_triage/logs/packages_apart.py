"""Two packages of different releases: which one asks, which one lacks, by the frames and the name that is missing."""

from __future__ import annotations

from typing import Any

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.tracebacks import FOLDER_OF

_PART = pattern(r"No module named '(\w+)\.([\w.]+)'|cannot import name '(\w+)' from '(\w+)(?:\.[\w.]+)?'")
_BUILT = pattern(r"(?:^|\.)_\w*C\w*$|common_ops|_kernels$")
"""Parts that are compiled as a package is built: what lacks there is a build, and no release."""
_OF_THE_SERVER = frozenset({"", "sglang", "vllm"})


def of_two(death: Death) -> dict[str, Any] | None:
    """Return cause and advice where a package asks another one for what its installed release has not; None else."""
    found = _PART.search(death.message)
    if found is None or death.path or death.caller or death.package in _OF_THE_SERVER:
        return None
    other, part = (found[1], f"{found[1]}.{found[2]}") if found[1] else (found[4], found[3])
    if other == death.package or _BUILT.search(part) or other in _OF_THE_SERVER:
        return None
    return {
        "cause": f"{death.package} imports {part}, which the installed {other} has not: the two are of different "
        "releases or commits. Nothing is missing that pip install of a new package would bring.",
        "advice": (
            f"{death.package} of the release that belongs to the installed {other} (pip show {other} "
            f"{death.package}; of one that was taken from main the tag of that release), or a later {other} that has "
            f"{part}: both of one commit where both come from one repository",
            f"or without {death.package}, where whoever imports it can do without",
        ),
        "ruled_out_if": (f"python -c 'import {other}' fails by itself: then it is not installed whole",),
    }


_RENAMED = pattern(r"\b(sgl[-_]kernel|sglang[-_]kernel)\b")
_ASKS = pattern(r"\w+\.py:\S+ (?:assert_pkg_version|version|distribution|from_name)$")
_NAMES = {"sglang": ("sglang-kernel", "sgl-kernel", "later"), "sgl": ("sgl-kernel", "sglang-kernel", "earlier")}


def of_a_new_name(facts: LogFacts, death: Death) -> dict[str, Any] | None:
    """Return cause and advice where SGLang's package of kernels is asked for by the name of other releases."""
    found = _RENAMED.search(death.message)
    if found is None:
        return None
    chain = death.chain or death.place.line
    near = [
        one
        for one in facts.deaths
        if abs((one.chain or one.place.line) - chain) <= _NEAR and _RENAMED.search(one.message)
    ]
    callers = (_asks(one) for one in near)
    asks = next(filter(None, callers), "")
    if not asks:
        return None
    name, other, when = _NAMES[found[1].replace("-", "_").partition("_")[0]]
    return {
        "cause": f"{asks}, which is none of SGLang's own files, asks for SGLang's kernels as {name}, their name in "
        f"{when} releases of SGLang; the installed one may well have them as {other}. Nothing has to be missing.",
        "advice": (
            f"versions that belong together: a release of the caller ({asks.partition('.')[0]}) for the installed "
            "SGLang, mostly a later one, or the SGLang that it is made for; pip list | grep kernel shows whether "
            f"{other} is there",
            f"until then its check taken out or made to accept {other} (it may catch another exception than is "
            f"raised); do not install {name} beside {other}: both bring the same modules",
        ),
        "ruled_out_if": (f"pip list shows neither {name} nor {other}",),
    }


_NEAR = 20  # lines


def _asks(death: Death) -> str:
    """Return the file that asked for a package, if it is not SGLang's own; "" else."""
    if not death.frames or not _ASKS.match(death.frames[-1]):
        return ""
    files = [frame.partition(":")[0] for frame in death.frames if not _ASKS.match(frame)]
    return files[-1] if files and files[-1] not in FOLDER_OF and files[-1] not in _OWN else ""


_OWN = frozenset({"engine.py", "server_args.py", "launch_server.py", "http_server.py", "common.py"})
