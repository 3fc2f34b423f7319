"""How people write down what they see of a server that is not as it should be, by the kinds of suspects.py."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

Seen = Literal["silence", "memory", "form", "answers", "speed", "requests"]
_SUBJECT = r"(?:answers?|outputs?|responses?|results?|texts?|completions?|transcriptions?)"
_ARE = r"(?:is|are|was|were|gets?|becomes?|comes? back|stays?)"
_FEW_WORDS = r"(?: \w+){0,3}"
_WORDS: dict[Seen, tuple[str, ...]] = {
    # The first kind that fits counts.
    "silence": (
        r"\bhangs?\b|\bstuck\b|\bfrozen\b|no line at all",
        r"nothing (?:more )?(?:is|comes|was) (?:printed|logged|answered|out)",
        r"no (?:further )?request is (?:ever )?answered|never (?:answered|answers|returns|opens|ends)|for ever\b",
        r"no answer (?:ever )?comes",
        r"\brequests? (?:only |just )?(?:waits?|sits?|stays?) in the queue",
        r"\brequests? (?:\w+ )?(?:waits?|queues?) behind (?:it|that|this|one)\b",
        r"\bthe same (?:line|message|warning) (?:without end|over and over|repeats)\b",
    ),
    "memory": (
        r"\b(?:memory|RSS|RAM|VRAM)\b.{0,30}\b(?:grow(?:s|ing)?|climb(?:s|ing)|ris(?:es|ing)|goes up|leak(?:s|"
        r"ing)?)\b(?! at first)",
        r"\b(?:memory|RSS|RAM|VRAM)\b.{0,20}\b(?:increas(?:es|ing)|keeps (?:on )?\w+ing|doubles|never shrinks)\b",
        r"\bgrow(?:s|ing)\b.{0,20}\b(?:memory|RSS)\b|\bout of memory after (?:\w+ ){0,2}(?:hours?|days?|minutes?)\b",
        # As top and ps call it.
        r"\b(?:RSS|RES)\b.{0,160}\b(?:grows|climbs|rises|goes up)\b",
        r"nvidia-smi shows .{0,40}\b(?:still in use|same use)\b",
        r"\b(?:memory|VRAM)\b.{0,30}\b(?:is never|is not|never) (?:freed|given back|released)\b",
    ),
    "form": (
        r"tool_calls?\W{1,4}(?:null|none|empty)|\breasoning_content\b(?! is (?:filled|right|set|there))",
        r"content\W{1,4}(?:null|empty)|no tool_calls",
        r"\btool[ _]calls? (?:is|are|gets?) (?:dropped|lost|missing|doubled|broken|left out|cut)\b",
        r"\btool[ _]calls? (?:comes?|stays?|ends? up|is|are) (?:back )?(?:as|in) (?:plain |the )?(?:text|content)\b",
        r"\banswers? (?:is|are|comes? as) free text\b|(?:\\r\\n *|\\n *){4}|\binvalid JSON\b",
        r"\b(?:schema|response_format|grammar) is (?:ignored|not (?:kept|followed|respected|obeyed|enforced))\b",
        r"\bJSON is (?:invalid|broken|cut|not valid|incomplete)\b|\bhallucinat\w+ (?:tools?|calls?|functions?)\b",
        r"\b(?:thinking|thoughts?|reasoning)\b.{0,20}\b(?:leaks?|ends? up|lands?) in(?:to)? (?:the )?(?:content|"
        r"answers?)\b",
    ),
    "answers": (
        r"\b(?:garbage|garbled|gibberish|nonsens\w*|senseless|rubbish|incoherent|random tokens|repetition(?!_)|"
        r"far lower)",
        r"\baccuracy (?:is |of )?0\.[0-6]|replacement characters|mojibake|(?:gsm8k|mmlu)\b.{0,60}?[:=] ?0\.[0-4]",
        r"answers? (?:\w+ ){0,3}(?:is|are) (?:\w+ )?(?:wrong|repeated|empty)\b",
        r"\b(?:outputs?|answers?|prints?|generates?|returns?|produces|writes) (?:is |are )?"
        r"(?:only|just|nothing but|always) (?:[\"'`]?(?:<pad>|!{2,}|<unk>|<unused)|exclamation|zeros|newlines|"
        r"white ?space|pad tokens|special tokens|one (?:token|word))",
        r"\bonly (?:newlines|white ?space|special tokens|pad tokens) (?:come|are)\b|\bprints? <(?:pad|unk)>",
        r"(?:gsm8k|mmlu|accuracy)\b.{0,20}?\b0/\d|wrong answers?|text is broken",
        r'"(\S)\1{7}|\boutput_ids?\W{1,4}(\d{2,7})(?:, \2){2}|["\'`]!{3,}["\'`]',
        # What they are like.
        r"\b(?:degenerate|meaningless|corrupt(?:ed)?|scrambled) (?:text|outputs?|answers?|tokens|words)\b",
        rf"\b(?:images?|embeddings?|{_SUBJECT}){_FEW_WORDS} {_ARE} (?:\w+ )?(?:degraded|distorted|corrupt(?:ed)?)\b",
        rf"\b{_SUBJECT} {_ARE} (?:\w+ )?(?:cut off|truncated|incomplete|empty|wrong|bad)\b",
        r"\breturns? an empty string\b",
        r"[\"'`](?P<word>[^\W\d]{2,20})(?: (?P=word)){2}",
        r"\b(?:answers?|generation|outputs?|streams?) (?:\w+ )?(?:stops?|ends?) "
        r"(?:in the middle|too early|early(?! on purpose)|after \d+ tokens)",
        r"\b(?:scores?|embeddings?|logprobs|outputs?) (?:\w+ )?(?:differs?|are different) (?:wildly|much|from)\b",
        r"\b(?:embeddings?|scores?) (?:is|are) (?:all )?(?:zeros?|nan|wrong|the same)\b",
        r"\blog ?prob\w* (?:is|are) (?:\w+ )?(?:wrong|nan)\b|\blog ?prob\w* do(?:es)? not match\b",
        r"\b(?:chains? of token|only token|token id) 0\b",
        r"\b(?:odd|stray|strange|foreign) (?:tokens?|characters?|words?)\b",
        r"\b(?:a )?mix of scripts\b|\breasoning loops\b|\brepeated (?:\w+ ){0,3}(?:markers?|tokens?|words?|blocks?)\b",
        r"\bthe same (?!prompts?\b|requests?\b|questions?\b)(?:\w+ ){1,2}again and again\b",
        r"\bempty (?:final )?(?:answers?|finals?|outputs?|replies)\b",
        r"\b(?:keeps|starts) repeating\b|\brepeats itself\b|\banswers? in (?:Chinese|another language|the wrong)\b",
        # NUL or one escape again and again, in a pasted answer or in words of it.
        r"(?:\\u0000){3}|\\u0000 characters",
        r"\b(?:gsm8k|mmlu|aime|gpqa|accuracy|scores?)\b.{0,20}\bnear (?:zero|0)\b",
        r"\bwanders? off\b",
        r"\bas if (?:it (?:was|were) |they were )?(?:never|not) (?:seen|there|sent|given|read|heard)\b",
        r"\bwrong (?:outputs?|results?|language|transcriptions?|numbers)\b|\b(?:bad|poor) quality\b",
        r"\bquality is (?:bad|poor)\b",
        # They differ where they should not.
        rf"\b{_SUBJECT} (?:is|are) not (?:deterministic|reproducible)\b|\bdiffers? (?:between runs|from run to run)\b",
        r"\bsame (?:prompt|request) gives (?:different|other)\b",
        # They do not end.
        r"\bgoes on generating\b|\brequests? runs? on and on\b|\bgeneration goes on after\b",
        r"\b(?:model|answers?|generation|it) (?:never stops|does not stop)\b(?! (?:early|before))",
        # What was asked for is not done.
        r"\bmissed when\b|\bmix(?:es)? old and new\b|\bold (?:answers|weights) (?:come|are still)\b",
        r"\b(?:budget|processor|penalty|temperature|seed|stop) .{0,50}\b(?:is|are) ignored\b",
        r"\bignores (?:the )?(?:system|prompt|instructions?|images?|pictures?|adapter|seed|stop|EOS)\b",
        r"\b(?:images?|pictures?|audio|adapters?|lora) (?:is|are) (?:ignored|not (?:used|seen|applied))\b",
        r"\b(?:images?|pictures?|audio) (?:is|are) (?:described|heard|read) wrong",
        r"\bdoes not see the (?:image|picture|video)",
        r"\b(?:adapters?|lora) has no effect\b|\b(?:outputs?|answers?) equals? (?:that of )?the base\b",
        r"\bweights are not updated\b",
        # Scores.
        r"\b(?:gsm8k|mmlu|accuracy)(?: (?:accuracy|score|is|of|drops to|falls to|gives))* 0\.[0-3]\d",
        r"\binvalid:? ?0\.[5-9]",
        r"\b0\.\d{3,4} (?:here|now)\b.{0,20}\b0\.\d{3,4} (?:before|earlier|without|with)\b",
        r"\b(?:accuracy|gsm8k|mmlu|scores?|quality)\b.{0,20}\b(?:drops|dropped|falls|fell|goes) (?:\w+ )?(?:from|to|"
        r"by|below)\b",
        r"\b(?:accuracy|gsm8k|mmlu|scores?) (?:is|are) (?:much |far |clearly |\d+ points )?(?:lower|worse) than\b",
    ),
    "speed": (
        r"\bslow(?:er|ly)?\b|\bonly \d+(?:\.\d+)? (?:tok|t)(?:ens?|s)?(?:/s|ps| per second)",
        r"\b\d+(?:\.\d+)? (?:tok|t)(?:ens?|s)?(?:/s|ps| per second) only\b",
        # A rate that is noted of an earlier build is held against this one's.
        r"\b(?:builds?|images?|releases?|versions?|commits?|nightly)\b.{0,30}\b(?:earlier|before|ago|yesterday|"
        r"last (?:week|month))\b.{0,40}?\b\d[\d.]* (?:tok|t)(?:ens?|s)?(?:/s|ps| per second)",
        r"\b(?:old|previous|earlier|last (?:week|month)'s|yesterday's) (?:builds?|images?|releases?|versions?|commits?|"
        r"nightly)\b.{0,40}?\b\d[\d.]* (?:tok|t)(?:ens?|s)?(?:/s|ps| per second)",
        r"\b(?:several|many|\d+|two|three|four|five|ten) times (?:this|that|the) (?:speed|rate|throughput)",
        r"\b(?:twice|double|half|third|quarter|fraction) (?:of )?(?:this|that|the) (?:speed|rate)",
        r"time per token\b.{0,20}\b(?:doubles|grows)|seconds of silence",
        r"\b(?:latency|TTFT|TPOT|ITL|throughput|tokens? per second|tok/s)\b.{0,40}\b(?:times (?:as|that|what|the|"
        r"higher|lower|worse)|twice|doubles|doubled|halves|halved|drops|dropped|falls|fell|worse|regress\w*|collapses)\b",
        r"\b(?:performance|speed|throughput) (?:regress\w*|collapses|halves|is (?:bad|poor))\b|\bspeed halves\b",
        r"\b(?:TTFT|first token) (?:is|takes) (?:(?:[5-9]|\d{2,})(?:\.\d+)? ?(?:s|sec|seconds)|\d+ minutes?)\b",
        r"\btakes (?:minutes|hours) (?:for|per) (?:a|one|each|every)\b|\bno (?:speed-?up|faster than)\b",
        r"\bhardly (?:helps|faster)\b|\bnothing is (?:ever )?read back\b",
        r"\bGPU (?:util\w*|use) (?:falls|drops|is (?:about|only) [1-6]?\d ?%)",
        r"\baccept(?:ance)? (?:length|len|rate)\b.{0,40}\b\d\.\d+ \(\d\.\d+ (?:without|before|with)\b",
        r"\baccept(?:ance)? rate (?:is|stays at) (?:0|0\.0\d*)(?![.\d])",
        r"\baccept(?:ance)? len(?:gth)? (?:is|stays at) 1(?:\.0+)?(?![.\d])",
        r"\b(?:prefix|radix) cache is never hit\b|\bcached[- ]tokens? (?:is|are|stays?) (?:always |at )+0\b",
        r"\bnothing is preempted\b|#cached-token: 0 on\b|\b(?:server|scheduler|engine) (?:\w+ )?stall(?:s|ed)\b",
        r"\brequests pile up\b|\bqueue (?:only |always )?grows\b",
    ),
    "requests": (
        r"\b(?:every|each|all|some|that|this|one|part of the|the (?:first|next|second|same|other)) (?:\w+ ){0,2}"
        r"(?:requests?|calls?|chats?)\b(?: \w+){0,2} "
        r"(?:fails?(?! over)|failed|breaks?|(?:is|are|were|was|get|gets) (?:lost|dropped|cut|refused))\b",
        r"\b[1-9]\d* (?:other )?(?:requests|users|clients)\b(?: \w+)? (?:dropped|lost|failed|fail)\b",
        r"\brequests (?:are|get) (?:rejected|refused|dropped|lost|aborted)\b|\brequests? (?:times|time|timed) out\b",
        r"\b(?:streams?|answers?|responses?) (?:\w+ )?(?:breaks?|broke) off\b|\bfail(?:s|ed)? mid-stream\b",
        r"\b(?:all|same|answers?|gets?|sees?|returns?|with|HTTP) (?:a |an |is |only |HTTP )?50[0-4]\b"
        r"(?! (?:\w+ )?(?:requests|clients|users|prompts|tokens|samples|questions|images|sessions|calls|streams|"
        r"steps)\b)",
        r"\b(?:gets?|sees?|returns?) (?:a |an |only |HTTP )?4(?:00|13|22|29)\b"
        r"(?! (?:\w+ )?(?:requests|clients|users|prompts|tokens|samples|questions|images|sessions|calls|streams|"
        r"steps)\b)",
        r"\bRemoteDisconnected\b|\bErrno 111\b|\bReadTimeout\b|\bRemoteProtocolError\b|\bServerDisconnected\w*",
        r"\bconnection (?:reset|aborted)\b|\bincomplete chunked read\b|\bEmpty reply from server\b",
        r"\bClientPayloadError\b",
    ),
}
KINDS: tuple[Seen, ...] = tuple(_WORDS)


@cache
def of_kinds() -> tuple[tuple[Seen, re.Pattern[bytes]], ...]:
    """Return each kind with the words that tell of it, compiled where a note asks for them."""
    return tuple((kind, re.compile(f"(?i){_joined(words)}".encode())) for kind, words in _WORDS.items())


def _joined(words: tuple[str, ...]) -> str:
    """Return one expression, in which what a part says of its own groups is counted over all."""
    parts: list[str] = []
    groups = 0
    for one in words:
        parts.append(re.sub(r"\\([1-9])(?!\d)", lambda number, before=groups: rf"\{int(number[1]) + before}", one))
        groups += re.compile(one).groups
    return "|".join(parts)
