"""What somebody writes beside a log of a server that no longer answers: a log of it may just end, without a word."""

from __future__ import annotations

import re

from gemma4_triage.logs.facts import Place, Remark

NAME = "noted_silence"
_SAYS = re.compile(
    rb"(?i)\bhangs?\b(?! up\b)|\bhung\b(?! up\b)|\bhanging\b|\bstuck\b|\bfr(?:ozen|eezes)\b|\bdead-?locks?\b|"
    rb"\b(?:no|none of the) (?:\w+ ){0,2}(?:requests?|answers?|clients?|calls?)\b.{0,30}\b(?:answered|served|comes?|returns?)\b|"
    rb"\bnothing (?:is |was |gets |has been )?(?:ever )?(?:answered|returned|logged|printed|comes back)\b|"
    rb"\bnever (?:answers?|answered|returns?|returned|responds?|responded|comes? back|finish(?:es|ed)|opens)\b|"
    rb"\b(?:no longer|stop(?:s|ped)?|does not|doesn't|do not|don't) (?:answer|respond)(?:s|ing)?\b|"
    rb"/(?:health|generate|v1)\S* (?:times? out|timed out|does not answer)|\b(?:un|not )responsive\b"
)
_DENIES = re.compile(
    rb"(?i)\b(?:no|not|n't|nothing|never|without(?: a)?|instead of(?: a)?|no longer|any ?more) "
    rb"(?:hangs?\b|hung\b|hanging\b|stuck\b|frozen\b|freezes?\b|dead-?lock)|"
    rb"\bwith(?:out)? --\S+.{0,40}\b(?:fine|works?|ok|well|answers|good|starts?)\b"
)


def keep(kept: dict[str, Remark], line: bytes, place: Place) -> None:
    """Keep the first note by which the server, or requests to it, stand.

    Args:
        kept: remarks by their names.
        line: of the log, as it stands.
        place: of the line.
    """
    if line.startswith(b"#") and _SAYS.search(line) and not _DENIES.search(line):
        kept.setdefault(NAME, Remark(place, "", line[:400].decode(errors="replace").strip()))
