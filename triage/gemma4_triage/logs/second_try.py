"""What somebody noted of a second try beside a log: in what it differs is what to change, or where to look first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean
from typing import Literal, NamedTuple

from gemma4_triage.logs.facts import LogFacts, Remark
from gemma4_triage.logs.implied_by_another import clause_of
from gemma4_triage.logs.notes_in_prose import DIFFERENCE, IMPLIED
from gemma4_triage.logs.pasted import GARBLED
from gemma4_triage.logs.scores_noted import between_scores

_NOTHING_NEW = re.compile(
    r"(?i)\b(?:same (?:error|crash|result|output|answer|garbage|failure)|no (?:change|difference)|also|too|still|"
    r"alike|fails?|garbage|wrong)\b"
)
_RIGHT = re.compile(
    r"(?i)\b(?:normal(?:ly)?|fine|right|ok|well|works?|worked|correct(?:ly)?|good|sane|clean|as expected)\b"
)
_ENGINE = re.compile(r"(?i)\b(vllm|sglang|transformers|hf|hugging ?face|llama\.cpp|ollama|lmdeploy|tensorrt-llm)\b")
_VERB = r"(?:gives?|gets?|is|are|was|were|has|had|works?|worked|starts?|started|answers?|runs?|ran|serves?|it|all)\b"
_ONE = rf"--[a-z][\w-]*(?:[ =](?!-|{_VERB})[^\s,;:)]+)?"
# Of arguments that are left out together none is to be kept.
_FLAG = re.compile(rf"(?:\b(?P<how>with|without)|^#+(?: same [a-z]+,)?)\s+(?P<named>{_ONE}(?(how)(?: {_ONE})*))")
_FIELD = re.compile(r"\b(without)\s+([a-z]+(?:_[a-z]+)+)\b")
_LEFT_OUT = re.compile(r"\s+(?:removed|left out|dropped|off|unset|taken out)\b")
_VALUE = re.compile(r'"([a-z]+(?:_[a-z]+)*)":\s*(false|true|null|"[\w.-]{1,40}"|\d{1,9})(?=\W|$)')
_OF_A_GRAMMAR = re.compile(r"strict|tool_choice|response_format|json_schema")
_CHECKPOINT = re.compile(r"(?<![\w/])([A-Za-z][\w.-]*/[A-Za-z][\w.-]*\d[\w.-]*|[\w.-]*\d(?:\.\d+)?[BM]\b[\w.-]*)")
_OF_FORM = re.compile(r"chat_template_kwargs|tool|reasoning|thinking|response_format|schema|stream|grammar")
_STREAMS = re.compile(r"(?i)\bstream(?:ing)?\b\W{1,3}false|\b(?:non-?streaming|not streaming|without stream(?:ing)?)\b")
_TIMES_SLOWER = 1.3
ELSEWHERE = "another-engine"
"""The id of a suspect that a note only mentions; what is known of such a start stands before it."""


class Tried(NamedTuple):
    """What a note leaves to suspect, with the fields of a suspect of suspects.py.

    Attributes:
        id: Of the suspect.
        change: What to try once.
        why: What the note says for it.
        of: What somebody sees of it.
    """

    id: str
    change: str
    why: str
    of: Literal["answers", "form", "speed"]


def second_tries(facts: LogFacts, of_vllm: bool) -> Iterator[Tried]:
    """Yield what the notes of a log leave to suspect, which is more than a start line does.

    Args:
        facts: of the log.
        of_vllm: whether the server is vLLM, whose arguments have other names.
    """
    if (builds := _between_builds(facts)) is not None:
        yield builds
    if (scores := between_scores(facts)) is not None:
        yield Tried("between-scores", *scores, "answers")
        return
    tried = facts.remarks.get("tried")
    if (benches := _between_benchmarks(facts)) is not None:
        yield benches
        return
    if tried is None and (elsewhere := _well_elsewhere(facts)) is not None:
        if (engine := _other_engine(elsewhere.text, of_vllm)) is not None:
            yield _of_an_engine(elsewhere, engine, of_vllm)._replace(id=ELSEWHERE)
        return
    if tried is None or _NOTHING_NEW.search(tried.text) or re.search(GARBLED, tried.text):
        return
    at = f"line {tried.place.line}"
    of: Literal["form", "answers"]
    for words in (_FLAG, _FIELD):
        if found := words.search(tried.text):
            left_out = _LEFT_OUT.search(found[2]) or _LEFT_OUT.match(tried.text, found.end())
            named = _whole(facts, _LEFT_OUT.sub("", found[2]))
            of = "form" if _OF_FORM.search(named) else "answers"
            how = "without" if left_out else found[1] or "with"
            yield Tried("second-try", f"{how} {named}, as {at} has it", _DIFFERS, of)
            return
    if not _STREAMS.search(tried.text) and (found := _VALUE.search(tried.text)):
        of_grammar = _OF_A_GRAMMAR.search(found[1]) is not None
        of = "form" if of_grammar or _OF_FORM.search(found[1]) else "answers"
        why = f"{_DIFFERS}{_GRAMMAR * of_grammar}"
        yield Tried("second-try", f'with "{found[1]}": {found[2]} in requests, as {at} has it', why, of)
        return
    if _STREAMS.search(tried.text):
        yield Tried("second-try", f"with answers that do not stream, as {at} has it", _STREAMED, "form")
        return
    if not _RIGHT.search(tried.text):
        if found := _CHECKPOINT.search(tried.text):
            yield _of_a_checkpoint(facts, tried, found[1], ", if its answers are right")
        return
    if (other := _other_engine(tried.text, of_vllm)) is not None:
        yield _of_an_engine(tried, other, of_vllm)
    elif found := _CHECKPOINT.search(tried.text):
        yield _of_a_checkpoint(facts, tried, found[1], "")


def _other_engine(text: str, of_vllm: bool) -> str | None:
    """Return the engine that a note names beside the log's own; None if it names none."""
    own = "vllm" if of_vllm else "sglang"
    return next((name for name in _ENGINE.findall(text) if name.lower() != own), None)


def _of_an_engine(said: Remark, engine: str, of_vllm: bool) -> Tried:
    """Return what to try where the same files are right under another engine."""
    change = _KERNELS_OF_VLLM if of_vllm else _KERNELS
    why = (
        f"line {said.place.line} says that the same files are right under {engine}: neither checkpoint, template nor "
        "sampling is at fault, but a kernel or the class of this engine"
    )
    return Tried("second-try", change, why, "answers")


def _well_elsewhere(facts: LogFacts) -> Remark | None:
    """Return the note of something else that is well, where no try is told otherwise."""
    said = facts.remarks.get(IMPLIED)
    if said is None or DIFFERENCE in facts.remarks:
        return None
    return Remark(said.place, said.rank, clause_of(said.text.encode()).decode())


def _whole(facts: LogFacts, named: str) -> str:
    """Return the argument that a note means by the beginning of several (--speculative-*), if the start has such."""
    begin = named.rstrip("*").removeprefix("--").replace("-", "_")
    if not begin.endswith("_"):
        return named
    name = next((name for name in facts.arguments if name.startswith(begin)), "")
    return f"--{name.replace('_', '-')}" if name else named.rstrip("*-")


_STREAMED = (
    "what follows there is the same request without a stream. If its answer is whole, the server's code for streams "
    "loses what the model wrote (a call without arguments, marks of thoughts that come in halves): neither model, "
    "template nor another parser is at fault. Leave stream at false where tools are sent, or give each tool an "
    "argument; a later release, whose parser of streams is another"
)
_DIFFERS = (
    "what follows there is a second try that differs in this alone. If its answer is the right one, the path of this "
    "option in this release is at fault, and neither model, prompt nor sampling: leave it so, look for a later "
    "release, and report both answers with GPU and versions"
)
_GRAMMAR = (
    ". It is a grammar that this field lays on the answer (a structural tag or a schema, of xgrammar): where that has "
    "another form than the model's template, calls are lost or stay text. Leave it so (of SGLang with "
    "SGLANG_TOOL_STRICT_LEVEL=0 for all clients), or take the xgrammar of the build that was right, or a later one of "
    "both"
)
_KERNELS = (
    "with a later release, whose class of this model may be another, and other kernels than it chose: of quantised "
    "weights those without Marlin (--quantization gptq or awq) or another GEMM backend, another --attention-backend, "
    "--disable-cuda-graph"
)
_KERNELS_OF_VLLM = (
    "with other kernels than it chose: another --quantization or linear backend, another --attention-backend, "
    "--enforce-eager; then a later release"
)


def _of_a_checkpoint(facts: LogFacts, tried: Remark, named: str, if_right: str) -> Tried:
    """Return what to try where another checkpoint is right with the same start."""
    ranks = facts.settings.get("tp_size", "1")
    split = ranks.isdecimal() and int(ranks) > 1
    change = (
        "with --tp 1, or the least that holds it (a trainer's engine: --rollout-num-gpus-per-engine 1)"
        if split
        else "with a later release of the server, or the last one in which it was right"
    )
    why = (
        f"line {tried.place.line} has another checkpoint with the same start ({named}){if_right}: server, sampling and "
        "trainer are right then, and what this checkpoint alone has is at fault: its class in this release (dense or "
        "experts, tied output or one of its own)"
    )
    why += f", or how that class is split over {ranks} ranks; then a later release" if split else ""
    return Tried("second-try", change, why, "answers")


def _between_builds(facts: LogFacts) -> Tried | None:
    """Return that two builds are to be held against each other, where notes name both; None where they do not."""
    first, second = facts.remarks.get("noted_build"), facts.remarks.get("second_build")
    if first is None or second is None:
        return None
    change = f"with the build of line {first.place.line} in place of that of line {second.place.line}"
    rates = _rates(facts, second.place.line)
    slower = rates is not None and rates[0] > _TIMES_SLOWER * rates[1]
    told = f"{rates[0]:.1f} tokens a second before and {rates[1]:.1f} after, " if slower and rates else ""
    why = (
        f"{told}with the same command and load: a change between both builds is at fault, not sizes or arguments. Stay "
        "with the last good one, or take a newer build that may have it mended; git bisect over the nightlies or "
        "commits between them names the change; report it with both commits and a profile (/start_profile)"
    )
    return Tried("between-builds", change, why, "speed" if slower else "answers")


_LATENCY = re.compile(r"latency:\s*(\d+(?:\.\d+)?) s")
_BENCH_SLOWER = 1.1
_BUILD_SAID = re.compile(r"(?i)\b(?:build|version|release|commit|image|nightly|main|\d+\.\d+\.\d+|upgrad\w+)\b")


def _between_benchmarks(facts: LogFacts) -> Tried | None:
    """Return that a benchmark became slower between two builds, where a note says that its command is the same."""
    tried, first, last = (facts.remarks.get(name) for name in ("tried", "first_bench_prefill", "bench_prefill"))
    if tried is None or first is None or last is None or _FLAG.search(tried.text) or not _BUILD_SAID.search(tried.text):
        return None
    times = [float(found[1]) for one in (first, last) if (found := _LATENCY.search(one.text))]
    if not first.place.line < tried.place.line < last.place.line or len(times) < 2 or times[0] <= 0:
        return None
    if times[1] < _BENCH_SLOWER * times[0]:
        return None
    backend = facts.arguments.get("attention_backend", "")
    change = f"with the build of line {first.place.line} in place of that of line {last.place.line}"
    why = (
        f"a prefill took {times[0]:.2f} s before and {times[1]:.2f} s after, {times[1] / times[0] - 1:.0%} more, with "
        "the same command: a change between both builds is at fault, not batch, memory or arguments. Stay with the "
        "faster one, or take a newer build that may have it mended; the same command with another --attention-backend"
        f"{f' than {backend}' if backend else ''} on both says whether it is that backend's; git bisect names the "
        "change"
    )
    return Tried("between-builds", change, why, "speed")


def _rates(facts: LogFacts, line: int) -> tuple[float, float] | None:
    """Return the mean rates of decodes above and below a line; None if one of them is missing."""
    above: list[float] = []
    below: list[float] = []
    for rank in facts.schedulers:
        for number, rate in zip(rank.series["line"], rank.series["generated_per_s"], strict=True):
            if number and rate:
                (above if number < line else below).append(rate)
    return (fmean(above), fmean(below)) if above and below else None
