"""What somebody wrote of a server beside its log, in words: what is seen, where ranks stand, with what all is well."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gemma4_triage.finding import Finding
from gemma4_triage.logs import implied_by_another, silence_in_words, trouble_in_other_words
from gemma4_triage.logs.facts import LogFacts, Place, Remark, Stack
from gemma4_triage.logs.known_arguments import is_an_argument
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.trouble_in_words import KINDS, Seen, of_kinds

NOTED = "noted {}"
LOOSELY = "noted loosely"
"""Name under which the first complaint is kept that has none of the known wordings."""
IMPLIED = "noted elsewhere"
"""Name under which the first note is kept that says of something else that it is well."""
DIFFERENCE, WELL = "noted difference", "noted well"
"""Names under which a note is kept: what it says is seen, by kind; one of a start with which all is well."""
_DENIED = pattern(
    rb"(?i)(?:\b(?:no|not|nor|never)|n't)\W+(?:\w+\W+)?$|\b(?:nothing|none)\W+$|"
    rb"\bwithout\W+(?:(?!gives|is|are|has|gets|shows|writes|returns)\w+\W+)?$"
)
_WANTED = pattern(rb"(?i)^[^.;,]{0,30}\b(?:on purpose|as asked|as wanted|as intended|by design|any ?more|no longer)\b")
"""Behind what would be a complaint: it is none."""
_CLAUSES = pattern(r"[;()]\s*|\. (?=[A-Z])|,? but |, (?=with|without|on |one )")
_GOOD = pattern(
    r"(?i)\b(?:right|fine|well|good|works?|worked|normal(?:ly)?|correct(?:ly)?|coherent|sane|clean|starts|answers|"
    r"as expected|holds|serves|never happens|never (?:saw|seen|see|had|met|got) (?:it|this|that)|(?:is|was) gone|"
    r"never (?:hangs?|hung|crashe[sd]|dies|died|fails|failed)|"
    r"does not happen|(?:model|server|it) runs(?! (?:out|into)))\b"
)
_NOT_GOOD = pattern(
    r"(?i)\b(?:not|still|also|too|(?<!never )fails?|garbage|wrong|same (?:error|crash|result|output|failure)|alike|"
    r"(?<!never )crash\w*|only|if|when|whenever|some|sometimes|slower?|never)\b(?! (?:happens|happen|saw|seen|see|had|"
    r"met|got|hangs?|hung|crashe[sd]|dies|died|fails|failed)\b)|n't\b|"
    r"\b(?:raises|gives|shows|throws|has|meets) the same\b"
)
_SHARE = pattern(r"(?<![\d.])(0\.\d{2,4}|1\.0+)(?!\d|\.\d)")
_APART = 0.03
_FLAG = pattern(
    r"(?i)\b(with|without|no)\s+(?:the )?(?:(?:prefill|decode)(?:'s| side| server)? )?"
    r"(--[a-z][\w-]*(?:[ =](?!-)[\w./:]*\d[\w./:]*)?)"
)
_VALUED = pattern(r"(?i)\b(with)\s+(--[a-z][\w-]*-backend[ =][a-z]\w*)")
_SHORT_OR_VLLMS = pattern(
    r"[tdpe]p|(?:tensor|pipeline|data)_parallel_size|enable_expert_parallel|enforce_eager|max_model_len|max_num_\w+|"
    r"gpu_memory_utilization|compilation_config|no_enable_\w+"
)
_BEFORE = pattern(
    r"(?i)\bbefore (?:we |I |it was )?(?:set|added|gave|enabled|turned on|switched on)\s+(?:the )?(.{3,40})"
)
_BACKEND = pattern(
    r"(?i)\b(triton|flashinfer|fa3|fa4|trtllm_mh?la|trtllm_mha|aiter|ascend|torch_native|triton_attn|flash_attn)\s+"
    r"(?:attention )?backend\b"
)
# Backends of other parts, by the words that tell them from those of attention.
_OTHER_BACKENDS = (
    (pattern(r"(?i)\b(outlines|xgrammar|llguidance)\b"), "--grammar-backend"),
    (pattern(r"(?i)\b(pytorch|flashinfer)(?:'s)? sampl(?:ing|er)\b"), "--sampling-backend"),
    (pattern(r"(?i)\bsampling (?:backend )?(?:of |in )?(pytorch|flashinfer)\b"), "--sampling-backend"),
    (
        pattern(r"(?i)\b(triton|cutlass|marlin|deep_gemm|flashinfer_\w+)(?:'s)? (?:moe|experts?|fused[ _-]?moe)\b"),
        "--moe-runner-backend",
    ),
    (pattern(r"(?i)\b(mooncake|nixl|mori) (?:as |for )?(?:the )?transfers?\b"), "--disaggregation-transfer-backend"),
)
_LEFT_OUT = pattern(r"(?i)\b(?:without|no|not)\b")
_PLAIN_KV = pattern(
    r"(?i)\bwith (?:the |a |an )?(?:default|bf16|bfloat16|fp16|16-bit|plain|unquanti[sz]ed|auto|full-precision) "
    r"KV(?:[- ]cache)?\b"
)
# An option that a note names without its dashes, and with a value.
_BARE = pattern(r"(?i)\b(with)\s+([a-z]+(?:-[a-z0-9]+)+[ =]\w*\d\w*)\b")
# What options are called in words, and what the start calls them.
_SPOKEN = (
    (r"context[- ]parallel\w*", "context parallelism (--attn-cp-size 1)"),
    (r"page size", "--page-size (1, or what the backend takes by itself)"),
    (r"cuda[- ]graphs?", "CUDA graphs (--disable-cuda-graph)"),
    (r"dp[- ]attention", "--enable-dp-attention"),
    (r"(?:PD\b|disaggregation|splitting prefill)", "--disaggregation-mode (one server for both)"),
    (r"(?:radix|prefix) cache", "the prefix cache (--disable-radix-cache)"),
    (r"(?:hicache|hierarchical cache)", "--enable-hierarchical-cache"),
    (r"overlap(?: schedul\w+)?", "overlap (--disable-overlap-schedule)"),
    (r"(?:speculat\w+|drafts?|MTP|EAGLE)\b", "--speculative-algorithm"),
    (r"mixed[- ]chunk", "--enable-mixed-chunk"),
    (r"dcp\b", "--dcp-size"),
    (r"torch[. ]compile", "--enable-torch-compile"),
    (r"(?:loras?|adapters?)\b", "the LoRA adapters"),
    (r"chunked prefill", "chunks of a prefill (--chunked-prefill-size -1)"),
)
_BY_NAME = ((_SPOKEN[0][1], pattern(r"context_parallel|^(?:attn_)?cp_size$")),)
_WITHOUT = tuple((pattern(rf"(?i)\b(?:without|no)\s+(?:the )?{words}"), flag) for words, flag in _SPOKEN)
_NAMED = tuple((pattern(rf"(?i){words}"), flag) for words, flag in _SPOKEN)


class Difference(NamedTuple):
    """Holds what somebody notes that all is well with.

    Attributes:
        change: as "with --tp 1".
        place: of the note.
    """

    change: str
    place: Place


def keep(kept: dict[str, Remark], line: bytes, place: Place) -> bool:
    """Keep what a note says, and say whether it is of another start, whose options are not this server's."""
    if not line.startswith(b"#"):
        if _SCORED_NOTHING.match(line):
            kept.setdefault(NOTED.format("answers"), Remark(place, "", line[:400].decode(errors="replace").strip()))
        return False
    said = Remark(place, "", line[:400].decode(errors="replace").strip())
    worse = kept.get(NOTED.format("answers"))
    for kind, words in of_kinds():
        if kind in ("silence", "form") and silence_in_words.writes_for_ever(line):
            # It answers, and does not stop: that it comes to no call and no content follows from it.
            continue
        found = words.search(line[:400])
        if found and not _DENIED.search(line[: found.start()]) and not _WANTED.search(line[found.end() : 400]):
            kept.setdefault(NOTED.format(kind), said)
            break
    else:
        if LOOSELY not in kept and trouble_in_other_words.kind_of(line) is not None:
            kept[LOOSELY] = said
    if IMPLIED not in kept and implied_by_another.kind_of(line) is not None:
        kept[IMPLIED] = said
    if "wrong_as_it_samples" in kept:
        kept.setdefault(NOTED.format("answers"), kept["wrong_as_it_samples"])
    if change := difference_in(said.text.lstrip("# "), worse.text if worse is not None else ""):
        kept[DIFFERENCE] = said
        kept[WELL] = Remark(place, "", change)
    return bool(change) and "--" in change


_SCORED_NOTHING = pattern(
    rb"Accuracy: 0\.0\d*\s*$|"
    rb"\|[^|]*\|[^|]*\|[^|]*\|[^|]*\| *(?:exact_match|acc(?:_norm)?|pass@1)\b[^|]*\|[^|]*\| *0(?:\.0\d*)? *\|"
)
"""What SGLang's own evaluation, or a table of lm_eval, prints where hardly an answer is right."""


def difference_in(text: str, worse: str = "") -> str:
    """Return with what, or without what, a note says that all is well, as a change to try; "" if it says nothing.

    Args:
        text: of the note.
        worse: of a note above it, by which answers are wrong.
    """
    clauses = _CLAUSES.split(text)
    scores, before = _SHARE.findall(text), _SHARE.findall(worse)
    if len(scores) == 1 and before and float(scores[0]) - float(before[0]) >= _APART:
        return next(filter(None, map(_change_in, clauses)), "")
    if best := _best_of(text):
        well = [clause for clause in clauses if best in _SHARE.findall(clause)]
    else:
        well = [clause for clause in clauses if _GOOD.search(clause) and not _NOT_GOOD.search(clause)]
    return next(filter(None, map(_change_in, well)), "") or next(filter(None, map(_needed_in, clauses)), "")


_NEEDS = pattern(
    r"(?i)\b(?:only|as soon as|happens|dies|crashes|hangs|fails)\b(?: (?:happens|dies|crashes|hangs|fails|only))?"
    r"(?: (?:with|when|if|while|once|since|after|as))?(?: (?:we|I))?"
    r"(?: (?:set|enabled?|turn(?:ed)? on|switch(?:ed)? on|added|use[ds]?))? (?:the )?(.{2,60}?)"
    r"(?: (?:is|are|was|were))? ?(?:on|enabled|set|used|in use)?\s*$"
)


def _needed_in(clause: str) -> str:
    """Return without what a note says that it does not happen, as "only with MTP on"; "" if it says nothing so."""
    found = _NEEDS.search(clause)
    if found is None or _GOOD.search(clause):
        return ""
    if option := re.match(r"(--[a-z][\w-]*)(?:[ =][\w./:-]+)?$", found[1]):
        name = option[1].removeprefix("--").replace("-", "_")
        return f"without {option[1]}" if is_an_argument(name) else ""
    spoken = found[1].removesuffix(" on").removesuffix(" enabled")
    return next((f"without {flag}" for words, flag in _NAMED if words.fullmatch(spoken)), "")


def _best_of(text: str) -> str:
    """Return the better of two scores in a note; "" where there are not two that differ."""
    shares = sorted(_SHARE.findall(text), key=float)
    return shares[-1] if len(shares) > 1 and float(shares[-1]) - float(shares[0]) >= _APART else ""


_OF_THE_HOST = next(flag for _, flag in _SPOKEN if "hierarchical" in flag)


def _change_in(clause: str) -> str:
    if "--disable-radix-cache" in clause and any(w.search(clause) for w, flag in _WITHOUT if flag == _OF_THE_HOST):
        # Without a prefix cache there is none of the host either, which alone is enough.
        return f"without {_OF_THE_HOST}"
    if found := _VALUED.search(clause) or _FLAG.search(clause):
        name = found[2].removeprefix("--").partition(" ")[0].partition("=")[0].replace("-", "_")
        if is_an_argument(name) or _SHORT_OR_VLLMS.fullmatch(name) or found[2].startswith("--speculative"):
            how = "without" if found[1].lower() in ("without", "no") else "with"
            return f"{how} {found[2] if found[2] != '--speculative' else '--speculative-algorithm'}"
    if found := _BEFORE.search(clause):
        return next((f"without {flag}" for words, flag in _NAMED if words.match(found[1])), "")
    if flag := next((flag for words, flag in _WITHOUT if words.search(clause)), ""):
        return f"without {flag}"
    if _PLAIN_KV.search(clause):
        return "with --kv-cache-dtype auto"
    if (bare := _BARE.search(clause)) and is_an_argument(re.split(r"[ =]", bare[2])[0].replace("-", "_")):
        return f"with --{bare[2]}"
    for words, option in _OTHER_BACKENDS:
        if (found := words.search(clause)) and not _LEFT_OUT.search(clause):
            return f"with {option} {found[1].lower()}"
    found = _BACKEND.search(clause)
    return f"with --attention-backend {found[1].lower()}" if found else ""


def kinds_noted(facts: LogFacts) -> tuple[Seen, ...]:
    """Return what somebody wrote is seen, by kinds of suspects."""
    return tuple(kind for kind in KINDS if NOTED.format(kind) in facts.remarks)


def difference(facts: LogFacts) -> Difference | None:
    """Return with what a note says that all is well; None if none does."""
    said, change = facts.remarks.get(DIFFERENCE), facts.remarks.get(WELL)
    if said is None or change is None or _is_own(facts, change.text):
        return None
    # What a note calls in words the start may have by its name.
    names = next((names for flag, names in _BY_NAME if change.text == f"without {flag}"), None)
    given = [name for name, value in facts.arguments.items() if names and names.search(name) and value != "1"]
    told = f"without --{given[0].replace('_', '-')}" if given else change.text
    return Difference(told, said.place)


def _is_own(facts: LogFacts, change: str) -> bool:
    """Say whether a change is to what the start line has already: the note then is of this very server."""
    words = change.split()
    if len(words) != len(("with", "--name", "value")) or words[0] != "with":
        return False
    name = words[1].removeprefix("--").replace("-", "_")
    return name.endswith("_backend") and facts.settings.get(name) == words[2]


def beside(facts: LogFacts, found: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings, the first with what a note says all is well with ahead of its own advice."""
    noted = difference(facts)
    for number, finding in enumerate(found):
        if number or noted is None:
            yield finding
            continue
        first = f"{noted.change}, with which all is well by the note in line {noted.place.line}"
        yield finding.model_copy(update={"advice": (first, *finding.advice)})


_STACK = pattern(rb"#+ *py-?spy\b[^:\n]{0,40}?\b((?:DP|TP|PP|EP|ATTN_CP)\d+(?: (?:TP|PP|EP)\d+)*)?\s*:\s*(.*)")
_STEP = pattern(r"([\w.<>]+)(?: \(([^()]{1,120})\))?")


def stack_in(line: bytes, place: Place) -> Stack | None:
    """Return a stack that somebody wrote in one line, as "# py-spy TP0: inner (file.py) <- outer (file.py)"."""
    found = _STACK.match(line[:2000])
    if found is None or b" <- " not in found[2]:
        return None
    frames = [_STEP.match(step.strip()) for step in found[2].decode(errors="replace").split(" <- ")]
    named = tuple(f"{frame[2] or '?'} {frame[1]}" for frame in frames if frame)
    return Stack(place, (found[1] or b"").decode(), named) if len(named) > 1 else None
