"""Memory of the host that somebody measured beside the log grows while the server serves."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Rule, at
from gemma4_triage.logs.told_for_vllm import of_vllm

_SIZE = pattern(r"(?<![\w.])(\d+(?:\.\d+)?) ?([KMGT])(?:i?B|i)\b")
_OF_A_LIMIT = pattern(r" / +\d")
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
_LETTERS = pattern(r"[A-Za-z_]{3,}")
_GROWN = 1.05  # of what it was
_LEAST = 64.0  # MiB
_FEWEST_LINES = 3  # between the first and the last


def _find(facts: LogFacts) -> Iterator[Finding]:
    first, last = facts.remarks.get("first_memory_seen"), facts.remarks.get("memory_seen")
    if first is None or last is None or last.place.line - first.place.line < _FEWEST_LINES:
        return
    # Two processes, or pods of other names, are not compared.
    if _LETTERS.findall(first.text) != _LETTERS.findall(last.text):
        return
    had, has = _mib(first), _mib(last)
    if had is None or has is None or has < _GROWN * had or has - had < _LEAST:
        return
    vllm = of_vllm(facts)
    yield Finding(
        rule=RULE.id,
        cause=f"Memory of the host grows while the server serves: {had:.0f} MiB at first, {has:.0f} MiB in the end. A "
        "process keeps what it should let go, a little for each request.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, first.place, first.text, "the first measure"),
            at(facts, last.place, last.text, "the last one"),
        ),
        ruled_out_if=("it stays level later, at the same load: caches and pools fill up once",),
        advice=(
            "a later release; until then restart the server on a schedule, one replica after the other, and raise the "
            "container's limit of memory: growth is slow",
            "ps -o pid,rss,cmd of each process, twice: "
            + (
                "EngineCore (the scheduler and its lists of blocks), the API server (answers that nobody took), a "
                "worker (media, shared memory)"
                if vllm
                else "the scheduler (requests whose state stays), the tokenizer manager (answers that nobody took, "
                "metrics, --log-requests), a worker (media, shared memory)"
            ),
            *((_OF_VLLM,) if vllm else ()),
        ),
        next_commands=() if vllm else ("gemma4-triage collect URL",),
    )


_OF_VLLM = (
    "if it is EngineCore: vLLM 44175 is such a list of blocks, kept for each request; once with "
    "--no-enable-prefix-caching"
)


def _mib(seen: Remark) -> float | None:
    """Return the memory in use that a line names, which stands before a limit and behind the processor's share."""
    sizes = _SIZE.findall(_OF_A_LIMIT.split(seen.text)[0])
    return float(sizes[-1][0]) * _MIB[sizes[-1][1]] if sizes else None


RULE = Rule("memory-grows", "memory of the host grows while the server serves", _find)
