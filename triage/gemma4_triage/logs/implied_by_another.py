"""Notes that say with what, or where else, all is well: whoever writes that down has something that is not.

What is wrong such a note leaves out; what it is of, its words tell: a field or a call, a rate, or an answer.
"""

from __future__ import annotations

import re

from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.trouble_in_words import Seen

_ELSEWHERE = pattern(
    rb"(?i)(?:^#+ *|^\W*)(?:but |while |only )?(?:with(?:out)?|on|under|in|via|through|from)\b [\w\"'./:=-]+|"
    rb"\bwith(?:out)? (?:the |an? )?[\w\"'./:=-]+|\bon (?:the |an? |another )[\w-]+|"
    rb"\b(?:transformers|vllm|llama\.cpp|ollama|hf)\b(?: itself)? (?:reads|writes|answers|gives|gets|is|has)\b|"
    rb"\b(?:the )?same (?:\w+ ){1,3}(?:with|without|on|in|under|via|by)\b|\b(?:an)?other \w+"
)
_WELL = pattern(
    rb"(?i)\bas (?:expected|(?:it|they) should(?: be)?)\b|\b(?:do|does|did) not change\b|\b(?:is|are) not affected\b|"
    rb"\b(?:is|are|was|were|gives?|gets?|comes?|stays?|looks?|reads?|writes?|answers?|scores?)\b(?: [\w'-]+){0,3}? "
    rb"(?:right|fine|well|good|correct(?:ly)?|complete(?:ly)?|intact|whole|normal(?:ly)?|ok|coherent|sane)\b|"
    rb"\bworks?(?: \w+)?(?=\W*$|[.;,)])"
)
_NOT = pattern(
    rb"(?i)\b(?:not (?!change|affected)|never|no longer|still|fails?|wrong|garbage|crash\w*|dies|hangs?|only if|"
    rb"except|until|should have|to be (?:right|sure))|n't\b|\b(?:also|too)\b(?! (?:is |are )?"
    rb"(?:right|fine|well|good|correct|complete|normal|ok))"
)
_OF: tuple[tuple[Seen, re.Pattern[bytes]], ...] = (
    (
        "form",
        pattern(
            rb"(?i)\bstream\w*|\btools?\b|\bcalls?\b|\bJSON\b|\bresponse_format\b|\bfields?\b|\bschema\b|"
            rb"\barguments\b(?= (?:of|in|are|is))|\bthinking\b|\breasoning\w*|\bthoughts?\b|\btool_choice\b|"
            rb"\bparsers?\b"
        ),
    ),
    ("memory", pattern(rb"(?i)\b(?:memory|RSS|VRAM|RAM)\b")),
    ("speed", pattern(rb"(?i)\btok(?:ens?)?/s\b|\bthroughput\b|\blatency\b|\bTTFT\b|\bspeed\b|\bfast\b|\brates?\b")),
)
_CLAUSES = pattern(rb"[;()]\s*|\.\s+|,? but ")
_LOOKED_AT = 400  # bytes


def clause_of(note: bytes) -> bytes:
    """Return what a note says of something else that is well; b"" if it says nothing so."""
    for clause in _CLAUSES.split(note[:_LOOKED_AT]):
        if _ELSEWHERE.search(clause) and _WELL.search(clause) and not _NOT.search(clause):
            return clause
    return b""


def kind_of(note: bytes) -> Seen | None:
    """Return of what kind something else is well by a note; None if it says nothing so."""
    if not clause_of(note):
        return None
    of: list[Seen] = [kind for kind, words in _OF if words.search(note[:_LOOKED_AT])]
    return of[0] if of else "answers"
