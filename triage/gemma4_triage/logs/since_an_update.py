"""What notes say of an earlier build that was well: then a change between both is at fault, and no option first."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern

_THING = r"(?:images?|releases?|builds?|versions?|commits?|nightl(?:y|ies)|tags?|main|wheels?)"
_FINE = (
    r"(?:fast|fine|right|ok|works?|worked|good|well|normal(?:ly)?|correct|quick|"
    r"never (?:did|had|does|showed|hung|died)(?: (?:it|this|so))?|"
    # A rate that is noted of it is held against today's.
    r"\d[\d.]* ?k? ?(?:tok(?:en)?s?|t|req(?:uest)?s?)(?:/s|ps| per second))"
)
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sep|Oct|Nov|Dec)\w*"
_OF_A_DAY = rf"of (?:the )?\d{{1,2}}(?:st|nd|rd|th)?\.? (?:of )?{_MONTH}|of \d{{4}}-\d\d-\d\d"
_WELL_BEFORE = (
    pattern(rf"(?i)\b(?:old|older|previous|earlier|last (?:week|month)'s|former) {_THING}\b.{{0,40}}?\b{_FINE}\b"),
    pattern(
        rf"(?i)\b{_THING} (?:\S+ ){{0,4}}(?:before|earlier|ago|older|{_OF_A_DAY}|of (?:the )?(?:last|early|mid|late|"
        rf"end of|begin\w* of) \w+|from (?:last|early|\w+ (?:days|weeks|months))\b.{{0,20}})(?: \S+){{0,3}}? .{{0,20}}?"
        rf"\b{_FINE}\b"
    ),
    pattern(rf"(?i)\b(?:fast|fine|right|ok|good|well) (?:with|in|on) the (?:old|older|previous|earlier) {_THING}\b"),
)
_SHARES = pattern(r"(?<![\d.])(0\.\d{2,4}|1\.0+)(?![\d.]|\.\d)")
_SCORED_BEFORE = pattern(
    rf"(?i)\b{_THING} (?:\S+ ){{0,5}}(?:before|earlier|ago|{_OF_A_DAY})\b[^;]{{0,60}}?"
    r"(?<![\d.])(0\.\d{2,4}|1\.0+)(?!\d)"
)
_APART = 0.01  # of scores
_SINCE = pattern(
    r"(?i)\b(?:since|after) (?:\w+ ){0,3}?(?:pull(?:ing|ed)?|updat\w+|upgrad\w+|switching|moving to|the new \w+)\b"
)
_DENIED = pattern(r"(?i)\b(?:no|not|never|nothing|none)\b[^,;]*$")
_HELPED = pattern(
    r"(?i)\b(?:gone|fixed|solved|no longer|help(?:s|ed)|still|also|too|driver|CUDA|weights?|adapters?)\b|"
    r"\bkernel of the host\b|\bupdate_weights|\bflush"
)
_CLAUSES = pattern(r"\. (?=[A-Z])|[;\n]")
_TRY = (
    "the build {0} ({1}): with the same command, machine and load a change between both is at "
    "fault, and neither sizes nor options. Stay with it, or take a newer one that may have it mended"
)
_BISECT = (
    "the nightly images between both, or the commits (git bisect), each time the middle one, and the same benchmark or "
    "request: that names the change. Hold pip list of both side by side too, for a library may be it; report it with "
    "both commits"
)
NOTES = "notes"
"""Name under which all notes of a log are kept."""
_NOT_ABOVE = frozenset({"like-incidents"})


def _began(clause: str) -> bool:
    """Say whether something began with an update; "no slowdown after it" says that nothing did."""
    found = _SINCE.search(clause)
    return found is not None and not _DENIED.search(clause[: found.start()])


def _scored_more(notes: str) -> str:
    """Return the line that has an earlier build's score, if each score of other lines is lower; "" if none is."""
    lines = notes.splitlines()
    for number, line in enumerate(lines):
        others = _SHARES.findall(" ".join(lines[:number] + lines[number + 1 :]))
        if others and (own := _SCORED_BEFORE.search(line)) and float(own[1]) >= max(map(float, others)) + _APART:
            return line.lstrip("# ")
    return ""


def _noted(facts: LogFacts) -> tuple[str, str]:
    """Return which build was well by the notes, and their words; "" and "" if they say nothing of it."""
    notes = facts.remarks[NOTES].text if NOTES in facts.remarks else ""
    clauses = [clause.lstrip("# ") for clause in _CLAUSES.split(notes)]
    well = next((one for one in clauses if any(words.search(one) for words in _WELL_BEFORE)), "")
    well = well or _scored_more(notes)
    since = next((one for one in clauses if _began(one) and not _HELPED.search(one)), "")
    if well:
        return "that was well by a note", well.strip()[:_SHOWN]
    return ("from before what a note says that it began with", since.strip()[:_SHOWN]) if since else ("", "")


_SHOWN = 120  # characters


def steps(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do first where notes tell of an earlier build that was well; empty if none does."""
    which, said = _noted(facts)
    return (f"with {_TRY.format(which, said)}", f"with {_BISECT}") if said else ()


def beside(facts: LogFacts, found: list[Finding]) -> list[Finding]:
    """Return the findings on ends, the first of them with the earlier build behind its own first advice."""
    told = steps(facts)
    if not told or not found or found[0].confidence is Confidence.CERTAIN or found[0].rule in _NOT_ABOVE:
        return found
    advice = found[0].advice
    return [found[0].model_copy(update={"advice": (*advice[:1], *told[:1], *advice[1:])}), *found[1:]]
