"""Complaints of answers and calls by their form: what an answer lacks, repeats, mixes up, or is in place of another.

The words of a complaint are without number; what is said of an answer is of few forms. Each form asks for a subject
that is an answer's, so that the same words about a load or a machine are no complaint.
"""

from __future__ import annotations

import re

from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.trouble_in_words import Seen

_OF_FORM = (
    r"(?:tools?|tool[ _]?(?:calls?|uses?)|function(?:s| calls?)?|calls?|arguments?|JSON|schema|fields?|keys?|"
    r"usage (?:fields?|blocks?|objects?|counts?)|"
    r"finish_reason|edits|parameters|chunks?|deltas?|citations?|markdown|code|indentation|quotes)"
)
_OF_NUMBERS = (
    r"(?:(?:prompt_|input_|top_|token |output_)?log_?probs?|log ?probabilit(?:y|ies)|scores?|rerank(?:er)? scores|"
    r"embeddings?|vectors?|rewards?|similarit(?:y|ies)|rankings?|logits)"
)
_OF_ANSWERS = (
    r"(?:answers?|repl(?:y|ies)|outputs?|texts?|responses?|content|completions?|transcripts?|transcriptions?|"
    r"translations?|summar(?:y|ies)|captions?|descriptions?|generations?|sentences?|words|digits|numbers|tokens?|"
    r"end (?:token|mark)|pictures?|images?|audio|prompt of a batch|model|it|one|style|adapter)"
)
_FEW = r"(?: [\w'\"()/.,-]+){0,5}? "
_FAR = r"(?: [\w'\"()/.,-]+){0,7}? "
_LOST = (
    r"(?:lacks?|misses|loses?|drops?|skips?|omits?|leaves? out|(?:is|are|was|were|gets?|goes) (?:all |simply )?"
    r"(?:missing|lost|left out|dropped|swallowed|absent|stripped|cut off|torn|garbled|eaten)|"
    r"(?:has|have|holds?|contains?|comes? with|brings?|shows?) (?:no|fewer|too few|too many|extra|only half)\b)"
)
_SPOILT = (
    r"(?:fails?(?! over)|(?<!line )breaks?|(?:is|are|was|were|gets?) (?:all |mostly |often )?(?:rejected|refused|"
    r"broken|invalid|"
    r"unusable|unparsable|corrupt(?:ed)?|nonsense|scrambled|shuffled|reversed|shifted|positive|all equal)|"
    r"(?:cannot|can't|could not) be (?:parsed|read|decoded|used|loaded)|"
    r"(?:does|do|did|is|are) not (?:match|agree|add up|rank|fit|parse|validate|belong|correspond|follow|valid|"
    r"what|the one)\b|"
    r"(?:holds?|contains?|has|have|ends? with|starts? with|begins? with) (?:\w+ ){0,2}(?:stray|foreign|pieces|bits|"
    r"parts|fragments|leftovers|raw|escaped|half|doubled|broken|invalid|strange|unknown|marks of)\b)"
)
_LANGUAGE = (
    r"(?:another|the wrong|a foreign|some other|a different) (?:language|script|alphabet)|Korean|Chinese|Japanese|"
    r"Russian|Cyrillic|Arabic|Thai|Hindi|Spanish|French|German|Vietnamese|Hebrew|Greek|Portuguese|Turkish|Hangul|"
    r"Kanji|Latin letters"
)
_AGAIN = (
    r"(?:over and over|again and again|for ?ever|endlessly|without end|until (?:max_\w+|the limit|it is cut)|"
    r"all the way|time after time)"
)
_FORMS: tuple[tuple[Seen, str], ...] = (
    # Which tool, and whether a client can use the call.
    (
        "form",
        r"\b(?:the |a |another )?(?:wrong|other|false|unknown|non-?existent|same) (?:tools?|functions?) "
        r"(?:is|are|gets?) (?:called|chosen|picked|used)\b|"
        r"\b(?:calls?|picks?|chooses|uses|invents) (?:the |a |an )?(?:wrong|other|false|unknown|non-?existent) "
        r"(?:tool|function|name)",
    ),
    ("form", rf"\b{_OF_FORM}\b{_FEW}(?:{_LOST}|{_SPOILT})|\b{_OF_FORM} (?:{_LOST}|{_SPOILT})"),
    ("form", rf"\b(?:answers?|repl(?:y|ies)|responses?|messages?) (?:{_LOST}) (?:\w+ ){{0,2}}{_OF_FORM}\b"),
    # It repeats, or goes on.
    (
        "answers",
        rf"\bsame (?:[\w'-]+ ){{1,3}}(?:{_AGAIN}|fills?)\b|\brepeats? (?:a|one|the same|its|itself|the last|single|"
        r"(?:whole )?(?:sentences?|phrases?|words?|lines?|paragraphs?))\b|\bends? in the same (?:phrase|word|"
        r"sentence|"
        r"line|loop)|\bloops? (?:on|over|in|through|at) (?:an?|one|the same|its\w*|[\"'])|\b(?:goes|turns|"
        r"runs) (?:round )?in (?:circles|a loop|loops)\b|"
        rf"\b(?:writes?|prints?|says?|generates?) (?:[\w'-]+ ){{1,4}}{_AGAIN}|"
        rf"\bkeeps (?:on )?(?:saying|generating)\b|\bnever (?:stops|ends) (?:writing|talking)\b",
    ),
    # There is little of it, or nothing but one thing.
    (
        "answers",
        r"\b(?:writes?|prints?|gives?|returns?|emits?|answers?|says|is|are|consists? of) (?:with )?"
        r"(?:nothing but\b|(?:only|just) (?:\w+ )?(?:line breaks|blanks?|spaces|dots|commas|digits|punctuation|"
        r"emojis?|quotes|brackets|hyphens|question marks|exclamation marks|the same|one)\b)|"
        r"\b(?:writes?|gives?|returns?|answers?|says|produces?) (?:with )?(?:nearly|almost|next to) nothing\b|"
        r"\bcontent (?:is|stays|comes back) empty\b|"
        r"\ball (?:the )?tokens (?:are|go|end up) in (?:the )?(?:reasoning|thoughts|thinking)\b|"
        rf"\b{_OF_ANSWERS} (?:\w+ )?stops? (?:half-?way|in the middle|too early|mid-?\w+|short|after (?:one|two|"
        rf"three|"
        r"a few|\d+) (?:words?|tokens?|lines?))\b",
    ),
    # It is of another language, question, user, or option.
    (
        "answers",
        rf"\b(?:turns?|switch(?:es)?|slips?|changes?|falls?|drifts?) (?:back )?(?:in(?:to)?|to) (?:{_LANGUAGE})\b|"
        rf"\bin (?:{_LANGUAGE}) (?:though|although|while|even though|instead|whatever|in place of)\b",
    ),
    (
        "answers",
        r"\b(?:answers?|repl(?:y|ies)|outputs?|texts?|responses?|summar(?:y|ies)) (?:\w+ )?ha(?:s|"
        r"ve) nothing to do with\b|"
        r"\banswers? (?:for the user|in the user's|as the user)|"
        r"\b(?:answers?|repl(?:y|ies)|outputs?|behaves?) (?:[\w'-]+ ){0,4}?(?:as though|as if)\b|"
        r"\b(?:answers?|repl(?:y|ies)|outputs?|texts?) (?:[\w'-]+ ){0,3}?(?:has|have|is of|"
        r"shows?) (?:the )?(?:[\w'-]+ )?"
        r"(?:adapter|lora|neighbour|other (?:prompt|request|user))(?:'s)?\b|"
        r"\bplays? the user\b|\bcontinues? the (?:user|prompt|question)\b|"
        r"\bonly (?:the )?(?:first|last|second|shortest|longest)(?: \w+)? (?:is|are|comes?|gets?) (?:right|correct|"
        r"good|answered|whole|fine)\b|"
        r"\b(?:best|right|relevant) (?:document|one|answer|passage) (?:is|comes|ranks|lands) (?:last|at the end|"
        r"below)|"
        rf"\b{_OF_ANSWERS}\b{_FEW}(?:is|are) (?:printed|shown|left|written) as text\b",
    ),
    ("answers", rf"\b{_OF_NUMBERS}{_FAR}(?:{_LOST}|{_SPOILT})|\b{_OF_NUMBERS} (?:{_LOST}|{_SPOILT})"),
    (
        "answers",
        r"\b(?:answers?|repl(?:y|ies)|outputs?|texts?|responses?|content|transcripts?|translations?|summar(?:y|ies)|"
        rf"sentences?|words|digits|numbers|tokens?)\b(?:{_FEW}| )(?:{_LOST}|{_SPOILT})",
    ),
)
_EACH: tuple[tuple[Seen, re.Pattern[bytes]], ...] = tuple(
    (kind, pattern(f"(?i){words}".encode())) for kind, words in _FORMS
)
_METRIC = (
    rb"(?:exact_match|acc(?:uracy)?(?:_norm)?|pass@\d+|pass rate|(?:\w+ )?scores?|evals?|"
    rb"rewards?(?: of [\w ]{1,20}?)?|"
    rb"f1|bleu|rouge\w*|gsm8k|mmlu\w*|aime\w*|gpqa\w*|humaneval|math\w*|mrr|ndcg)"
)
_NOTHING = pattern(
    rb"(?i)\b" + _METRIC + rb"\b(?: \w+)?(?: (?:is|are|was|of|at|stays?(?: at)?|gives?)|[:=|]) ?"
    rb"(?:(?:about |only |now )?0(?:\.0\d*)?(?![\d.]*\d)|zero\b)(?! (?:errors?|failures?))"
)
_FELL = pattern(
    rb"(?i)\b" + _METRIC + rb"\b(?: (?:score|accuracy|result|value))?"
    rb"(?: (?:went|goes|came|comes|is|fell|dropped)(?: down)?)? from (\d+(?:\.\d+)?)(?: ?%)? to "
    rb"(\d+(?:\.\d+)?)"
)
_BELOW = pattern(
    rb"(?i)\b"
    + _METRIC
    + rb"\b[^;\d]{0,30}(\d+(?:\.\d+)?)(?: ?%)?,? (?:where|while|against|instead of|in place of|not) "
    rb"(?:the |about |some )?(\d+(?:\.\d+)?)"
)
_SIMILAR = pattern(rb"(?i)\bcosine (?:similarity )?[^;]{0,40}\b(?:is|of|at) (?:only )?-?0\.[0-7]\d*")
_WELL = pattern(
    rb"(?i)\bas (?:asked|wanted|intended|planned|published|expected|it should|they should|before)\b|\bon purpose\b|"
    rb"\bby design\b|\b(?:any ?more|no longer)\b|\b(?:is|are|was|were) (?:all )?(?:fine|right|ok|well|good|correct)"
    rb"(?! (?:only|alone|until|once))\b|\bnobody complains\b"
)
_LEAST = 0.9


def kind_of(clause: bytes) -> tuple[Seen, int] | None:
    """Return of what kind a complaint in a part of a note is, and where it begins; None where it has none."""
    if _WELL.search(clause) is not None and b" only " not in clause:
        return None
    for words in (_NOTHING, _SIMILAR):
        if found := words.search(clause):
            return "answers", found.start()
    for words in (_FELL, _BELOW):
        if found := words.search(clause):
            before, after = (float(one) for one in found.groups())
            fell = after < _LEAST * before if words is _FELL else before < _LEAST * after
            if fell:
                return "answers", found.start()
    for kind, words in _EACH:
        if found := words.search(clause):
            return kind, found.start()
    return None
