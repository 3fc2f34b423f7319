"""What a note or a command above a failure says was installed just before it: mostly it is what no longer fits."""

from __future__ import annotations

from gemma4_triage.finding import Finding
from gemma4_triage.logs.facts import LogFacts, Place, Remark
from gemma4_triage.logs.late_pattern import pattern

MARKS = ((b"$ pip install", "installed"), (b"$ pip3 install", "installed"), (b"$ uv pip install", "installed"))
"""What a command at a shell begins with, beside notes and the lines of remarks.py."""
_INSTALLED = pattern(r"^\s*(?:#|\(?[\w@:~/.-]*\)? ?\$).{0,60}?\bpip3? install (?P<what>[^;|&]{3,120})")
_CHANGES = pattern(
    r"git\+https?://\S+/(?P<git>[\w.-]+?)(?:\.git)?(?=[@#\s'\"]|$)|"
    r"(?:^|\s)(?:-U|--upgrade)\s+(?P<new>[a-z][\w.\[\]-]*)"
)
_OF_PACKAGES = frozenset({"wheels-do-not-fit", "library-kernel", "other-crash", "refused-by-check", "unexplained-line"})
_TRIED = pattern(r"(?i)\b(?:same|still|tried|trying|help(?:s|ed)?|fix(?:es|ed)?|again|no (?:change|effect))\b")
_SHORTEST = 3  # letters of a name
_TYPES = pattern(r"^(?:ImportError|ModuleNotFoundError|AttributeError|TypeError|NameError|RuntimeError|OSError)\b")
_SERVERS = frozenset({"sglang", "vllm"})
_OF_ANOTHER = (
    "line {0} says that {1} was installed anew: go back to the release of it that was there, or that the packages "
    "which use it ask for (pip check; pip show {1} names them), and keep it pinned"
)
_OF_A_SERVER = (
    "line {0} says that {1} was installed anew, which brings other releases of what it needs: go back to the release "
    "that was there, with those (a fresh environment), or forward with everything that uses it"
)


def keep(kept: dict[str, Remark], line: bytes, place: Place) -> None:
    """Keep a note that says that a package was taken from its repository, or upgraded."""
    text = line[:400].decode(errors="replace").strip()
    if _package(text):
        kept["installed"] = Remark(place, "", text)


def _package(text: str) -> str:
    """Return the package that a line says was taken from its repository, or upgraded; "" if it names none."""
    said = None if _TRIED.search(text) else _INSTALLED.match(text)
    found = _CHANGES.search(said["what"].strip()) if said else None
    return (found["git"] or found["new"]).partition("[")[0] if found else ""


def before(facts: LogFacts, found: list[Finding]) -> list[Finding]:
    """Return the findings, the first of them with what was installed just before, where it may be of packages."""
    said = facts.remarks.get("installed")
    package = _package(said.text) if said is not None else ""
    if said is None or not package or not found or found[0].rule not in _OF_PACKAGES:
        return found
    failed = next(iter(found[0].evidence), None)
    if failed is None or not _TYPES.match(str(failed.value)) or len(package) < _SHORTEST:
        return found
    if int(failed.field.removeprefix("line ")) < said.place.line:
        return found
    look = _OF_A_SERVER if package in _SERVERS else _OF_ANOTHER
    advice = (look.format(said.place.line, package), *found[0].advice)
    return [found[0].model_copy(update={"advice": advice}), *found[1:]]
