"""What somebody complains of, by what it is of and what is said of it: for notes in none of the known wordings.

A wording that is known says more; this only keeps a complaint from being taken for no complaint.
"""

from __future__ import annotations

import re

from gemma4_triage.logs import complaints_of_answers
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.trouble_in_words import Seen

_WORDS = r"(?: [\w'-]+){0,6}? "
_NOT_KEPT = (
    r"(?:(?:is|are|seems?|appears?|gets?|was|were)(?: simply| just| to be)? (?:not|never)(?: to be)? (?:honou?red|"
    r"respected|applied|used|kept|followed|obeyed|enforced|taken|seen|read|heard|heeded)|(?:not|"
    r"never) (?:to be )?(?:honou?red|respected|applied|followed|obeyed|enforced|heeded)|ha(?:s|ve) no (?:effect|"
    r"influence)|(?:is|are) (?:ignored|passed over|disregarded)|does nothing|do nothing)"
)
_BELOW = (
    r"(?:(?:far |much |well |way |clearly |\w+ (?:points?|percent) |\d+(?:\.\d+)?(?: ?%| points?|"
    r" percent)? ?)?(?:under|below|lower|worse|short of|behind)\b(?! load)|(?:too|very|so|suspiciously) (?:low|bad|"
    r"poor)|drop(?:s|ped)?|f(?:alls|ell)|collapse[sd]?|\d+(?:\.\d+)? \((?:published|expected|reported|official|"
    r"reference|paper|before))"
)
_LACKS = (
    r"(?:missing|misses|lacks?|lost|absent|empty|broken|malformed|invalid|doubled|duplicated|twice|truncated|"
    r"unclosed|null)"
)
_BAD = (
    r"(?:wrong|incorrect|made up|invented|hallucinated|off by|shifted|distorted|nonsensical|unrelated|inconsistent|"
    r"mangled|mixed up|swapped|all zeros?|-?inf\b|nan\b|cut (?:off|short)|breaks? off|unreadable|(?:read|heard|"
    r"seen|transcribed|understood) (?:as|sideways|upside)|loses? (?:its|their)|lose their|(?:of )?(?:somebody|"
    r"someone) else|another user|blurred|repeated|odd|strange|off topic|useless|unusable|contaminated|not what)"
)
_KINDS: tuple[tuple[Seen, str], ...] = (
    (
        "memory",
        rf"\b(?:RAM|VRAM|memory|RSS|swap|heap|footprint)\b{_WORDS}(?:creeps?|climbs?|grows?|rises?|swells?|"
        rf"balloons?|leaks?|"
        r"increases?|keeps growing|goes up|never comes back|is not given back)",
    ),
    (
        "requests",
        r"\b(?:call|request|client|user|chat|post|one)s?\b(?: [\w'-]+){0,6}? (?:ends? (?:up )?(?:in|with)|(?:is|"
        r"are|gets?) answered with|fails? with|returns?|comes? back with|gets?|sees?) (?:an? |only )?(?:5\d\d\b|"
        r"4\d\d\b|errors?\b|empty (?:body|bodies|answers?|responses?)|status)|\b(?:stream|connection|socket|"
        r"answer)s? (?:ends?|closes?|(?:is|are) closed|drops?|(?:is|are) dropped|"
        r"stops?)\b(?: [\w'-]+){0,3}? (?:before|early|in mid|half-?way|in the middle|unexpectedly)",
    ),
    (
        "form",
        r"\b(?:tool|function|calls?|arguments?|JSON|schema|braces?|brackets?|delta|thinking|reasoning|thoughts?|"
        r"tags?|"
        rf"usage|finish_reason|structured output|parser)\b{_WORDS}(?:{_LACKS}|{_BAD}|{_NOT_KEPT}|"
        rf"as (?:plain )?text|ends? up|lands? in|leaks?|in the "
        r"(?:content|text|answer))|\b(?:answers?|content|text|replies|messages?)\b(?: [\w'-]+){0,3}? (?:thinking|"
        r"reasoning|tool|think) (?:tags?|marks?|calls?)|"
        rf"\b{_LACKS} (?:\w+ ){{0,2}}(?:braces?|brackets?|arguments?|tool calls?|function names?|tags?)\b",
    ),
    (
        "speed",
        r"\b(?:TTFT|ITL|TPOT|latency|throughput|speed|rate|tok(?:ens?)?/s|GPU util\w*|utili[sz]ation|prefills?|"
        r"decod(?:e|ing)|first (?:token|request))\b(?: [\w'-]+){0,6}? (?:went from|(?:sits|stands|stays|is|"
        r"hovers) (?:at|around|under|below) (?:only )?[1-6]?\d ?%|halves|halved|doubles|doubled|drops?|f(?:alls|"
        r"ell)|degrades?|collapses?|(?:is|are|gets?|becomes?) (?:far |much |very |too )?(?:low|long|longer|worse|"
        r"high|higher)\b)|\b(?:prefills?|decod(?:e|ing)|first (?:token|request)|requests?|answers?|repl(?:y|"
        r"ies))\b(?: [\w'-]+){0,6}? takes? (?:\w+ ){0,3}(?:minutes?|(?:\d\d+|thirty|sixty|forty|twenty|ten) ?(?:s|"
        r"sec|seconds))\b|\b(?:sluggish|laggy|crawls)\b",
    ),
    (
        "answers",
        r"\b(?:answers?|repl(?:y|ies)|outputs?|texts?|summar(?:y|ies)|translations?|transcripts?|responses?|"
        r"completions?|tokens?|sentences?|words?|turns?|descriptions?|captions?|box(?:es)?|coordinates?|images?|"
        r"pictures?|videos?|embeddings?|vectors?|scores?|rankings?|numbers?|tables?|digits?|characters?|documents?|"
        r"assistant|audio|sounds?|prompt_logprobs|logprobs?|log ?probabilities|quality|model|results?|counts?)\b"
        rf"{_WORDS}(?:{_BAD}|{_BELOW} (?:than|the|what|that|those|published|reported)|something else|"
        rf"another question|"
        r"different (?:on|in|for|at|between|every|each) |differs?\b|in another language|Chinese characters)|"
        r"\b(?:embeddings?|vectors?|scores?|logprobs|answers?)\b(?: [\w'-]+){0,4}? (?:all the same|identical)\b|"
        r"\b(?:AIME|GPQA|MMLU|GSM8K|HumanEval|IFEval|MATH|MMMU|OCRBench|LiveCodeBench|BFCL|benchmark|evaluation|"
        r"eval|accuracy|"
        rf"scores?|perplexity|WER)\b[^;]{{0,40}}?(?:{_BELOW})|\b(?:stop strings?|stop tokens?|stop_token_ids|"
        rf"max_\w*tokens|seed|temperature|top_p|top_k|\w*penalt\w+|adapters?|LoRAs?|system prompts?|instructions?|"
        rf"logit_bias|min_new_tokens|ignore_eos|images?|pictures?|audio)\b{_WORDS}{_NOT_KEPT}|"
        r"\b(?:talks? to itself|nothing of it (?:stands|is) in|answers? (?:to )?(?:the )?(?:first|previous|earlier|"
        r"other|another|a different) (?:\w+ )?(?:question|prompt|request|user|one)|never gives the turn|"
        r"of another (?:user|request|prompt)|(?:perplexity|WER|error rate)\b(?: [\w'-]+){0,4}? (?:higher|worse|"
        r"more) than|prompts? (?:is|are) answered in [A-Z]\w+|speaks? in tongues|drivel|babbles?|"
        r"goes off the rails|derails?)\b",
    ),
)
_LOOKED_AT = 400  # bytes
_EACH: tuple[tuple[Seen, re.Pattern[bytes]], ...] = tuple(
    (kind, pattern(f"(?i){words}".encode())) for kind, words in _KINDS
)
_DENIED = pattern(
    rb"(?i)(?:\b(?:no|none|nothing|neither|without|never|no longer|any ?more|not (?:a|one))\b|n't\b).{0,40}$|"
    rb"^#+ *(?:with|without|same|if|until|before)\b"
)
# Before a form that says much by itself less may stand: "a request without an adapter answers as if it had one".
_DENIED_BY_FORM = pattern(
    # What a client sends is no answer.
    rb"\b(?:sends?|sent|asks?|asked|posts?|uses?|repeats?) (?:[\w'-]+ ){0,3}$|"
    rb"\b(?:[Nn]o|none|[Nn]othing|[Nn]either|[Nn]ever|no longer)\W+(?:[\w'-]+\W+){0,4}$|^#+ *(?i:if|until|before)\b"
)
_RIGHT = pattern(
    rb"(?i)\b(?:gone|fixed|solved|as expected|as it should|on purpose|by design|fine again|at first and then|"
    rb"then stays|stays flat|is (?:fine|right|ok))\b"
)
_CLAUSES = pattern(rb";\s+|\.\s+(?=[A-Z])|,? but ")


def kind_of(note: bytes) -> Seen | None:
    """Return of what kind somebody's complaint is; None of a note that is none, or that denies it."""
    for clause in _CLAUSES.split(note[:_LOOKED_AT]):
        if _RIGHT.search(clause) and b" only " not in clause:
            continue
        for kind, words in _EACH:
            found = words.search(clause)
            if found is not None and not _DENIED.search(clause[: found.start()]):
                return kind
        by_form = complaints_of_answers.kind_of(clause)
        if by_form is not None and not _DENIED_BY_FORM.search(clause[: by_form[1]]):
            return by_form[0]
    return None
