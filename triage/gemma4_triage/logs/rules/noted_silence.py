"""Somebody noted beside the log that the server no longer answers, and the log itself has no failure."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import host_pools, kernels_that_stand, said_in_notes
from gemma4_triage.logs.begun_work import begun_before
from gemma4_triage.logs.facts import LogFacts, Place, RankFacts, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.narrow_window_pool import narrow
from gemma4_triage.logs.rule import COLLECT, Rule, at, last_work, on_rank, remarked
from gemma4_triage.logs.rules import hang, transfers_stand
from gemma4_triage.logs.rules.queue_stands import below_the_limit
from gemma4_triage.logs.rules.start_stopped import unfinished
from gemma4_triage.logs.rules.unexplained_line import as_long_as_the_pool
from gemma4_triage.logs.suspects import NOTED_DIFFERENCE, suspects
from gemma4_triage.logs.switched_on import MEET, NO_OVERLAP, features, switched_on
from gemma4_triage.logs.told_for_vllm import of_vllm

_OWN = frozenset({"stopped-answering", "timeout"})
"""Alarms that such a note's own words are taken for."""
_ONE_CORE = pattern(r"(?i)100 ?% .{0,20}\bcore\b|\bcore\b.{0,20}100 ?%|one CPU\b")
_IDLE = pattern(r"(?i)\bGPUs?\b.{0,20}\b0 ?%|\bidle\b")
_BUSY = pattern(r"(?i)\bGPUs?\b.{0,20}\b100 ?%")
_STACKS = (
    "py-spy dump --pid of every process of it while it stands (containers: --cap-add SYS_PTRACE): the stacks say "
    "where, which no log does"
)
_OF_THE_SCHEDULER = (
    "once with --disable-overlap-schedule: the GPU is idle, so the scheduler waits or admits nothing, rather than a "
    "kernel that does not end"
)
_OF_A_KERNEL = (
    "once with --disable-cuda-graph, and of several GPUs with --disable-custom-all-reduce and NCCL_P2P_DISABLE=1: the "
    "GPU is at work, in a kernel or a collective that does not end"
)
_OF_A_KERNEL_OF_VLLM = (
    "once with --enforce-eager, and of several GPUs with --disable-custom-all-reduce and NCCL_P2P_DISABLE=1: the GPU "
    "is at work, in a kernel or a collective that does not end; NCCL_DEBUG=INFO says over what NCCL went"
)
_OF_ONE_PROCESS = (
    "a process at 100% of one core turns in Python: py-spy top --pid names the function; of the main process it is "
    "what a request asks for (n, a long prompt, a schema, logprobs), which --log-requests shows"
)


_FEW, _MOST = 2, 3  # prefills; features
_ENCODER = (
    "without --mm-enable-dp-encoder: ranks then encode different images, and one that has none does not come to a sum "
    "that a part of the encoder still makes over all of them (SGLang 20759); then a later release"
)
_NO_WARM_UP = (
    "once with --skip-server-warmup, and one short request of text alone: if that is answered, it is its image"
)
_WARM_UP = (
    " The server's own first request, with which it warms up, has not ended: HTTP answers, the prefill was begun, and "
    "the line that the server is ready lacks."
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    note = facts.remarks.get(said_in_notes.NAME)
    if note is None or facts.deaths or any(alarm.kind not in _OWN for alarm in facts.alarms):
        return
    if note.place.line < last_work(facts) or "vllm_waits" in facts.remarks or any(True for _ in hang.RULE.find(facts)):
        return
    if any(True for _ in transfers_stand.RULE.find(facts)):
        return
    stands = _start(facts, note)
    warms_up = stands is None and _in_its_warmup(facts)
    last, small = _last_line(facts), narrow(facts)
    work = begun_before(facts, note.place.line) if stands is None else None
    adapters = work if work is not None and work.upstream else None
    phase = f" The log ends before the server was ready, in {stands[0]}: {stands[1][:120]}" if stands else ""
    yield Finding(
        rule=RULE.id,
        cause=(
            f"A note beside the log says that requests stand, and the pool of the sliding window ({small.tokens} "
            f"tokens) is smaller than a chunk of a prefill ({small.chunk}): a prompt that asks it for more is never "
            "admitted, and those behind it wait with it."
            if small is not None and not phase
            else f"{adapters.cause} A note says that requests stand."
            if adapters is not None
            else "Unknown cause: a note beside the log says that the server, or requests to it, stand, and the log "
            f"itself has no failure.{phase or (_WARM_UP if warms_up else _told(last))}"
        ),
        confidence=Confidence.LIKELY if adapters is not None else Confidence.POSSIBLE,
        evidence=(
            at(facts, note.place, note.text, "the note"),
            *((at(facts, work.line.place, work.line.text, "what it began, and no end of it is here"),) if work else ()),
            *((at(facts, last[1].place, last[1].text, "the last batch line"),) if last else ()),
            *remarked(facts, "fused_sums", "a fused sum over GPUs, in use"),
            *remarked(facts, "nccl_p2p", "how NCCL goes from GPU to GPU"),
        ),
        ruled_out_if=("the log was cut off before what failed: its last lines of every rank and node say more",),
        advice=tuple(
            dict.fromkeys(
                (
                    *((f"as it stands there: {stands[2]}",) if stands else ()),
                    *((work.look,) if work else ()),
                    *_look(facts, note),
                )
            )
        ),
        next_commands=() if of_vllm(facts) else (COLLECT,),
        upstream=work.upstream if work else (),
    )


def _start(facts: LogFacts, note: Remark) -> tuple[str, str, str] | None:
    """Return what a start that was not ready was at, its line and what to look at, if the note is behind it."""
    stands = unfinished(facts)
    return None if stands is None or note.place.line < int(stands[0].removeprefix("line ")) else stands


def _in_its_warmup(facts: LogFacts) -> bool:
    """Say whether HTTP is up, one prefill or two were begun, and nothing came of them."""
    begun = sum(rank.prefill_lines for rank in facts.ranks)
    up = "http_ready" in facts.remarks and "ready" not in facts.remarks
    return up and 0 < begun <= _FEW and not any(rank.decode_lines for rank in facts.ranks)


def _look(facts: LogFacts, note: Remark) -> Iterator[str]:
    """Yield what to try, what the notes name first, then what its ranks meet in, then what is switched on."""
    yield from host_pools.of_a_silent_start(facts, note.text)
    if (small := narrow(facts)) is not None:
        yield from small.advice
    if whole := as_long_as_the_pool(facts):
        yield whole
    if said_in_notes.waits_its_turn(note):
        yield from below_the_limit(facts)
    yield from said_in_notes.named_in_notes(facts)
    on, tries = features(facts), [one for one in suspects(facts) if one.of == "silence"]
    # With what all is well by a note is worth more than what such a start is known for.
    yield from (one.text for one in tries if one.id == NOTED_DIFFERENCE)
    if said_in_notes.goes_on(facts):
        yield from (one.text for one in tries if one.shown)
    if _in_its_warmup(facts):
        encodes = facts.settings.get("mm_enable_dp_encoder", facts.arguments.get("mm_enable_dp_encoder")) == "True"
        if encodes and facts.settings.get("tp_size", "1") not in ("1", "None"):
            yield _ENCODER
        yield from (_STACKS, _NO_WARM_UP, *(f"once {one.without}, which this server has" for one in on[:_MOST]))
        return
    yield from kernels_that_stand.of_tensorrt(facts)
    yield from hang.of_encoders(facts)
    yield from (f"once {one.without}, in which ranks meet" for one in on if one.setting in MEET)
    if facts.settings.get("is_embedding") == "True":
        yield NO_OVERLAP
    yield from _of_the_note(facts, note)
    yield from (one.text for one in tries)
    yield from (_STACKS, *hang.switches(facts), *(() if of_vllm(facts) else switched_on(facts)))


def _of_the_note(facts: LogFacts, note: Remark) -> Iterator[str]:
    """Yield what the note's own words make the first thing to look at."""
    asked = facts.remarks.get("many_samples")
    if asked is not None:
        yield (
            f"refuse such a request before it reaches the server: line {asked.place.line} asks for a number of answers "
            "(n) that no server has room for, and each is a state in the process that answers all others; then a later "
            "release, which bounds n (SGLang 36856)"
        )
    if _ONE_CORE.search(note.text):
        yield _OF_ONE_PROCESS
    if of_vllm(facts):
        if _BUSY.search(note.text):
            yield _OF_A_KERNEL_OF_VLLM
        return
    overlaps = facts.settings.get("disable_overlap_schedule", "None") != "True"
    if _IDLE.search(note.text) and facts.served and overlaps:
        yield _OF_THE_SCHEDULER
    elif _BUSY.search(note.text):
        yield _OF_A_KERNEL


def _last_line(facts: LogFacts) -> tuple[RankFacts, Remark] | None:
    """Return the scheduler that wrote the last batch line, and that line in words; None if there is none."""
    ranks = [rank for rank in facts.schedulers if len(rank.series["line"])]
    if not ranks:
        return None
    rank = max(ranks, key=lambda one: one.series["line"][-1])
    last = {name: column[-1] for name, column in rank.series.items()}
    said = f"{last['running_max'] or 0:.0f} running, {last['queued_max'] or 0:.0f} waiting"
    return rank, Remark(Place(int(last["line"]), last["time"] or ""), rank.rank, said)


def _told(last: tuple[RankFacts, Remark] | None) -> str:
    return f" Its last batch{on_rank(last[0].rank)} had {last[1].text}." if last else ""


RULE = Rule("noted-silence", "a note says that the server no longer answers", _find, alarms=_OWN)
