"""A line says that something failed, and no rule knows why: the floor under "no findings"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs import host_pinning, native_crashes, short_probes, split_warmup
from gemma4_triage.logs.begun_work import begun_before
from gemma4_triage.logs.facts import Alarm, Death, LogFacts
from gemma4_triage.logs.handled import commanded
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.limits_of_the_host import ended_by_the_host, slots_lost
from gemma4_triage.logs.looked_at_first import clients_that_left
from gemma4_triage.logs.parts_of_sglang import part_spoken_of
from gemma4_triage.logs.parts_of_vllm import look_in_vllm
from gemma4_triage.logs.pauses import CONTINUE, STANDS, hidden_refusal, paused_before
from gemma4_triage.logs.pip_found_nothing import of_pip
from gemma4_triage.logs.refused_too import LACKING
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import at, exception_text, kind_by_words, last_sign_of_life, on_rank
from gemma4_triage.logs.rules import hang
from gemma4_triage.logs.rules.refused_by_check import NOT_YET
from gemma4_triage.logs.suspects import of_files
from gemma4_triage.logs.switched_on import features, switched_on
from gemma4_triage.logs.told_for_vllm import of_vllm

ID = "unexplained-line"
TITLE = "a line says that something failed, and no rule knows why"

CONSEQUENCES = ("sigquit", "child", "ray", "exception", "health", "unhealthy", "answered-503")
"""Kinds that tell of a failure elsewhere: they lead only where nothing else does."""


@dataclass(frozen=True)
class _Kind:
    """what: what happened, a clause. look: what to do next, in order."""

    what: str
    look: tuple[str, ...]


_STACKS = "py-spy dump --pid of the scheduler while it does not answer"
_FIRST_EXCEPTION = "find the first exception before it, in the logs of all ranks and nodes: this line only passes it on"
_CORE = (
    "look above it for a stack that faulthandler or c10 printed, and for the first rank that ended",
    "run it again with PYTHONFAULTHANDLER=1 and CUDA_LAUNCH_BLOCKING=1; gdb or py-spy on the core file names the frame",
)
_KINDS = {
    "killed": _Kind(
        "a process was killed from outside (SIGKILL)",
        (
            "dmesg -T | grep -i oom, and the limit of the container or cgroup: memory of the host is the usual reason",
            "if the host's memory ran out: a smaller --hicache-size or --cpu-offload-gb, fewer processes on the host",
        ),
    ),
    "signalled": _Kind("a process ended in native code, without a Python exception", _CORE),
    "library": _Kind(
        "a shared library could not be loaded",
        ("install the system's package of the library that the line names, in the image or the environment",),
    ),
    "nccl": _Kind(
        "communication between ranks failed",
        (
            "find the first rank that stopped: the others only report that it is gone",
            "run again with NCCL_DEBUG=INFO and TORCH_NCCL_TRACE_BUFFER_SIZE=2000; 'NCCL WARN' lines say more",
        ),
    ),
    "nan": _Kind(
        "logits became NaN or infinite",
        ("find the first step and rank with --enable-nan-detection, then compare with --attention-backend triton",),
    ),
    "device": _Kind(
        "the device reported an error, which is noticed after the kernel that made it",
        ("run again with CUDA_LAUNCH_BLOCKING=1 so that the traceback names the kernel", "dmesg -T | grep -i xid"),
    ),
    "no-memory": _Kind(
        "memory ran out, of the device, the host or a disk, as the line says",
        (
            "of the device: a lower --mem-fraction-static or --chunked-prefill-size",
            "of the host: free -g, df -h /dev/shm",
        ),
    ),
    "no-files": _Kind(
        "a process has as many files and connections open as it may, so that no further one is let in",
        (
            "ulimit -n 65536 (docker: --ulimit nofile=65536:65536)",
            "look at what keeps connections open: ss -s, and clients that never close theirs",
        ),
    ),
    "watchdog": _Kind(
        "a step or a collective did not end in time",
        ("py-spy dump --pid of every scheduler while it hangs: the rank whose stack differs is the one to look at",),
    ),
    "health": _Kind(
        "the server did not answer its health check",
        (
            "look at what ran in the seconds before: a long prefill, a compilation, a request that waits for room",
            _STACKS,
        ),
    ),
    "answered-503": _Kind(
        "the last requests were answered with status 503, and no work follows them",
        (
            "the lines before the first 503, of all ranks: a scheduler that ended or stands, or a limit of time or of "
            "the queue (SGLANG_REQ_WAITING_TIMEOUT, --max-queued-requests) that all requests run into",
            "curl -i of one such request at the server's own port: the body of its answer says why",
            _STACKS,
        ),
    ),
    "waited-in-vain": _Kind(
        "requests were given up, for they waited or ran longer than the server's own limit allows, and failed",
        (
            "if no batch line follows, the scheduler stands: py-spy dump --pid of it",
            "if work goes on: fewer requests at once, more servers, or a higher limit (SGLANG_REQ_WAITING_TIMEOUT, "
            "SGLANG_REQ_RUNNING_TIMEOUT; releases before the change of SGLang 37143 hang by it on several ranks)",
        ),
    ),
    "peer-gone": _Kind(
        "a rank waited in vain for another one, or lost its connection to it, and no work follows",
        (
            "find the rank or node that it names (the rank behind src, the host behind peer): it stopped first, and "
            "its own log, dmesg -T and nvidia-smi there say of what",
            "if all ranks still run: the network between them (ibstat, NCCL_DEBUG=INFO); with DeepEP in the line, once "
            "with --moe-a2a-backend none",
        ),
    ),
    "ray": _Kind(
        "Ray says that the process of an actor ended, and lists what may have ended it",
        (
            "the actor's own output has the cause: ray logs, or logs/worker-*.err of Ray's session on its node; the "
            "first exception of any rank there",
            "dmesg -T on that node: out of memory (the host's) is the usual reason where no exception is found",
        ),
    ),
    "no-start": _Kind("the server did not start", ("read the first error before it, of every rank",)),
    "child": _Kind("a child process ended", (_FIRST_EXCEPTION, "dmesg -T, if no rank has an exception")),
    "sigquit": _Kind("a child process of the server failed", (_FIRST_EXCEPTION,)),
    "exception": _Kind(
        "a process of the server hit an exception", ("read the traceback below it; keep all of stderr",)
    ),
    "thread": _Kind(
        "a thread of a process ended with an exception, and the process went on without it",
        ("read the traceback below it: what that thread did is done by nobody since",),
    ),
    "refused": _Kind(
        "requests were refused, for the queue of --max-queued-requests was full",
        (
            "fewer requests at once, more servers, or a larger --max-queued-requests",
            "clients that wait for ever after that: once with --tokenizer-worker-num 1",
        ),
    ),
    "http-worker": _Kind(
        "one of several HTTP workers (--tokenizer-worker-num) ended, and another one is started in its place",
        (
            "--tokenizer-worker-num 1, or fewer: then a later release; with as many as it had, some have died as they "
            "started, for ever (SGLang 10121)",
            "its own exception or signal stands near; dmesg -T | grep -i oom: each has a tokenizer of its own in the "
            "host's memory",
        ),
    ),
    "lost-answer": _Kind(
        "answers did not find their way back to the tokenizer worker that had asked, so that clients, and the start's "
        "own first request, wait for ever",
        ("once with --tokenizer-worker-num 1; then a later release", _STACKS),
    ),
    "weights-update": _Kind(
        "the weights of the running server could not be replaced, and may be replaced in part",
        (
            "use this server's answers no more: load its weights anew from disk, or restart it",
            "names, shapes, dtype and quantisation that the trainer sends have to be the server's; once with "
            "--pp-size 1 and --dp 1",
        ),
    ),
    "panic": _Kind(
        "a program in Rust, such as the router, ended itself",
        ("the line below says why; RUST_BACKTRACE=1 says where",),
    ),
    "leak": _Kind(
        "the server says that something leaked",
        ("keep the lines around it: they hold the pool's numbers", "run again with GEMMA4_TRIAGE_LEAK=dump"),
    ),
    "stopped-answering": _Kind(
        "something stopped answering", ("py-spy dump --pid of every process of the server while it hangs",)
    ),
    "transfer": _Kind(
        "the KV cache of a request was not transferred between prefill and decode servers",
        (
            "look into the other server's log at the same time: it died, has no room, or its network does not answer",
            "check that both run the same release, page size and parallelism",
        ),
    ),
    "answered-500": _Kind(
        "requests failed inside the server",
        ("read the traceback above the first one; send that request again alone",),
    ),
}
_LAST = _Kind(
    "the last thing that the log says is a failure, and no work follows it",
    ("take up the log where it ends: the lines after it, and the exit code of the server",),
)
_PROBES_SEE = ("leak",)
_SHOWN = 6


def find(facts: LogFacts, explained: Iterable[str]) -> Iterator[Finding]:
    """Yield one finding of all alarms that are left, led by the first that is no consequence.

    Args:
        facts: the log.
        explained: kinds of alarms that other findings account for.
    """
    known = set(explained)
    left = [alarm for alarm in facts.alarms if alarm.kind not in known]
    if not left:
        yield from _of_a_pasted_stack(facts)
        return
    lead = next((alarm for alarm in left if alarm.kind not in CONSEQUENCES), left[0])
    kind = _KINDS.get(lead.kind, _LAST)
    frames = [frame for frame in lead.more if ".py:" in frame][:1] if lead.kind == "signalled" else []
    where = f", in {frames[0]}" if frames else ""
    own = _own_native(facts) if lead.kind == "signalled" and not frames else ""
    where = f", in {own}" if own else where
    others = [alarm for alarm in left if alarm is not lead][:_SHOWN]
    life = last_sign_of_life(facts, lead.place)
    busy = begun_before(facts, lead.place.line) if lead.kind in _OF_A_STANDING_SERVER else None
    what, look = kind.what, kind.look
    if lead.kind == "answered-500" and (found := _REFUSED.search(lead.text)):
        what = f"{what}: {found[1].strip()[:_QUOTED]}"
        look = (*((f"what it asks for: {asked[0]}",) if (asked := _ASKED.search(found[1])) else ()), *look)
    if lead.kind in ("no-start", "library") or kind is _LAST:
        what = f"{what}: {_without_stamp(lead.text)[:_QUOTED].rstrip('.')}"
        look = (*((f"what it asks for: {asked[0]}",) if (asked := _ASKED.search(lead.text)) else ()), *look)
    if (lead.kind in ("no-start", "library", "device") or kind is _LAST) and (told := kind_by_words(lead.text)):
        what, look = f"{what}; by its words {told.clause(lead.text)}", (told.advice, *look)
    if (kind is _LAST or lead.kind == "health") and (short := short_probes.gave_up(facts, left)):
        what, look = short[0], (*short[1], *look)
    if lead.kind == "leak" and (lost := slots_lost(facts, lead)) is not None:
        what, look = lost
    beside = next(filter(None, (kind_by_words(one.text) for one in others)), None) if lead.kind == "signalled" else None
    if beside is not None:
        what = f"{what}; by the words beside it {beside.cause}"
    if lead.kind == "signalled" and "llegal instruction" in lead.text:
        look = (_OTHER_CPU, *look)
    if kind is _LAST and (spoken := part_spoken_of(Death(lead.place, lead.rank, "", lead.text))) is not None:
        look = (*((NOT_YET,) if LACKING.search(lead.text) else ()), f"it is about {spoken.what}: {spoken.look}", *look)
    of_install = of_pip(facts, lead.text) if kind is _LAST else None
    if kind is _LAST and (asserted := _ASSERTED.search(lead.text)):
        what = f"a check in native code ({asserted[1]}) does not hold, which ends its process"
        look = (*((_COMPILER,) if _OF_A_COMPILER.search(lead.text) else ()), *_CORE)
    amx = lead.kind == "signalled" and facts.settings.get("attention_backend") == "intel_amx"
    if (
        part := native_crashes.of_two_engines(facts, lead)
        or native_crashes.in_native_code(lead)
        or native_crashes.in_library(facts, lead)
        or (_AMX if amx else "")
    ):
        look = (part, *look)
    elif lead.kind == "signalled" and not frames and not life:
        look = (_NO_BATCH, *look)
    elif lead.kind == "signalled" and (stands := of_files(lead.more)) is not None:
        look = (f"once without {stands.without}: its file stands in the stack of the crash", *look)
    if beside is not None:
        look = (beside.advice, *look)
    if own:
        look = (*_of_own_native(facts, own), *look)
    if lead.kind == "signalled" and facts.served:
        elsewhere = facts.settings.get("device", "None") not in ("None", "cuda", "auto")
        look = (*switched_on(facts), *look) if elsewhere else (*look, *switched_on(facts))
    if lead.kind == "no-memory" and (locked := host_pinning.of_a_network(facts, lead.text)) is not None:
        what, look = locked
    if lead.kind == "health" and (silent := _silent_for(facts, lead.text)) is not None:
        what, look = silent
    if lead.kind in STANDS and (paused := paused_before(facts)) is not None:
        what = f"{what}, and generation was paused before it and not continued"
        look = (CONTINUE, *look)
        life += [at(facts, paused.place, paused.text, "the pause")]
    if lead.kind in ("health", "unhealthy") and (begun := split_warmup.standing(facts, lead)) is not None:
        what = f"{what}; its own first request, which it sends as it warms up, has not come back"
        look = (*split_warmup.looks(facts), *look)
        life += [at(facts, begun.place, begun.text, "where that began")]
    if lead.kind == "answered-500" and (hidden := hidden_refusal(facts, lead.text)):
        look = (hidden, *look)
    if lead.kind == "health" and facts.settings.get("pp_size", "1") not in ("1", "None"):
        look = (STAGES, *look)
    if lead.kind == "health" and (tight := as_long_as_the_pool(facts)):
        look = (tight, *look)
    if lead.kind == "health" and facts.arguments.get("hicache_storage_prefetch_policy") == "wait_complete":
        look = (_WAITS_FOR_STORAGE, *look)
    if lead.kind == "health" and facts.settings.get("enable_hierarchical_cache") == "True":
        look = (*look, _COPIES)
    if busy is not None:
        what = f"{what}, and the last that it began and did not end is: {_without_stamp(busy.line.text)}"
        look = (busy.look, *look)
        life += [at(facts, busy.line.place, busy.line.text, "what it began, and no end of it is here")]
    if lead.kind == "answered-500":
        look = (*clients_that_left(facts, lead.place.line), *look)
        look = (*((part,) if of_vllm(facts) and (part := _raised_in_vllm(facts)) else ()), *look)
        life += [at(facts, error.place, exception_text(error), _raised_in(error)) for error in facts.errors[-1:]]
    if lead.kind in _ENDS and (asked := commanded(facts, lead.place)) is not None:
        what = f"{what}, right after it was asked for {asked[0]}"
        look = (*((asked[1],) if asked[1] else ()), _OF_THE_COMMAND, *look)
    cause, confidence = (
        f"Unknown cause: {what}{on_rank(lead.rank)}{where}. No rule here knows why.",
        Confidence.POSSIBLE,
    )
    by_the_host = ended_by_the_host(lead) if lead.kind == "child" else None
    cause, confidence, look = of_install or by_the_host or (cause, confidence, look)
    yield Finding(
        rule=ID,
        cause=cause,
        confidence=confidence,
        evidence=(_evidence(facts, lead), *life, *(_evidence(facts, alarm) for alarm in others)),
        advice=look,
        next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",) if lead.kind in _PROBES_SEE else (),
    )


_ENDS = frozenset({"sigquit", "child", "signalled", "device", "killed", "exception"})
_OF_THE_COMMAND = (
    "that call, once alone on a server that has just started and serves nothing, with the whole stderr of every rank: "
    "if it ends of it, this release does not serve that call for this model and these arguments; leave the call out, "
    "or take a later release"
)
_FUNCTION = pattern(r", in (sglang::\w+(?:::\w+)+)")


def _own_native(facts: LogFacts) -> str:
    """Return the innermost function of SGLang's own C++ code in the stack of a crash; "" if none is there."""
    said = facts.remarks.get("first_own_native")
    found = _FUNCTION.search(said.text) if said is not None else None
    return found[1] if found else ""


def _of_own_native(facts: LogFacts, function: str) -> Iterator[str]:
    """Yield what to change about SGLang's own C++ code: the sizes that it was given by hand, then its argument."""
    parts = [part for part in function.lower().split("::")[1:] if len(part) > 3]
    given = [(name, value) for name, value in facts.arguments.items() if value.isdecimal()]
    sizes = [f"--{name.replace('_', '-')} {value}" for name, value in given if any(one in name for one in parts)]
    if sizes:
        yield (
            f"without {', '.join(sizes)}: sizes of that code, which the start takes as they are; by default they fit "
            "each other. Else a capacity (cache, buffer) well above every depth, width and length, never equal to one"
        )
    for one in features(facts):
        if one.words is not None and one.words.search(function):
            yield f"once {one.without}: the crash is in its code; then a later release, which may refuse such sizes"


_ASSERTED = pattern(r"(?<![\w/])(?:\S*/)?([\w.-]+\.(?:cpp|cc|cxx|hpp|h|cu)):\d+: (?!.*thread: \[).{0,400}Assertion ")
_OF_A_COMPILER = pattern(r"mlir|llvm|triton")
_COMPILER = (
    "it is Triton's compiler, of which this release has no code for this kernel on this GPU: the triton that the "
    "installed torch pins, or a later one; rm -r ~/.triton/cache; another --attention-backend (flashinfer, fa3) or "
    "--moe-runner-backend needs no such kernel"
)
_OF_GDB = pattern(r"#\d+ +(?:0x[0-9a-f]+ in )?[\w:]+")


def _of_a_pasted_stack(facts: LogFacts) -> Iterator[Finding]:
    """Yield that a debugger's stack of a process ends in what carries or stores KV, of a log that has nothing else."""
    said = facts.remarks.get("native_library")
    if said is None or facts.understood or facts.deaths or facts.alarms or not _OF_GDB.match(said.text):
        return
    name = said.text.lower()
    if "mooncake" not in name and "nixl" not in name:
        return
    yield Finding(
        rule=ID,
        cause="Unknown cause: the log is a debugger's stack alone, of a process that was in the transport or the store "
        "of KV; by itself it does not say whether it crashed there or waits.",
        confidence=Confidence.POSSIBLE,
        evidence=(at(facts, said.place, said.text, "the frame that names it"),),
        advice=(
            native_crashes.of_the_transport(name),
            "the line of the signal above the stack, and the server's own lines before it",
        ),
    )


_HEARTBEAT = pattern(r"tic start time: (\d\d):(\d\d):(\d\d)\. last_heartbeat time: (\d\d):(\d\d):(\d\d)")


def silence(text: str) -> int:
    """Return for how many seconds no answer had come, or 0."""
    found = _HEARTBEAT.search(text)
    if found is None:
        return 0
    hours = [int(part) for part in found.groups()]
    asked, heard = (60 * (60 * hour + minute) + second for hour, minute, second in (hours[:3], hours[3:]))
    return (asked - heard) % 86400


def _silent_for(facts: LogFacts, text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return what SGLang's line says of its silence, and what to do; None if nothing."""
    if not (silent := silence(text)):
        return None
    what = (
        f"the server did not answer its health check, and when that was asked its scheduler had said nothing "
        f"for {silent} s"
    )
    if silent > _LONG_SILENCE:
        hung = "it hung, or was idle, before it was asked: look at its last line of work"
        return what, (hung, *hang.switches(facts)[:-1], _STACKS)
    return what, (
        "it worked until then: look for a long prefill, a compilation, or a request that waits for room",
        "a prefill of many long prompts says nothing until it ends: SGLANG_HEALTH_CHECK_TIMEOUT above its time",
        *(() if facts.settings.get("tp_size", "1") == "1" else (_CLOCKS,)),
        _STACKS,
    )


_CLOCKS = (
    "unset SGLANG_REQ_WAITING_TIMEOUT and SGLANG_REQ_RUNNING_TIMEOUT: each rank read its own clock, and left the "
    "others' batch (SGLang 37143)"
)
_REFUSED = pattern(r"Error in request: (.{12,})")
_ASKED = pattern(r"(?:[Pp]lease|Use|Set|Add|Enable)\b[^.;]{8,160}")
_QUOTED = 160
_OTHER_CPU = (
    "the CPU lacks instructions that a wheel was built with (AVX2, AVX-512, AMX: lscpu): another machine, or the "
    "wheel from source; in a virtual machine let it see the host's CPU"
)
_LONG_SILENCE = 60


_CONTEXT_ABOVE = pattern(r"\bcontext_len(?:gth)? ?> ?(\d+)")
"""As somebody shortens the line of the pools."""


def as_long_as_the_pool(facts: LogFacts) -> str:
    """Return what to do where one request may ask for the whole pool; "" if none may."""
    pools = facts.remarks.get("pools")
    tokens = number_in(pools.text, "max_total_num_tokens") if pools else None
    context = number_in(pools.text, "context_len") if pools else None
    above = _CONTEXT_ABOVE.search(pools.text) if pools is not None and context is None else None
    context = float(above[1]) if above else context
    if tokens is None or context is None or tokens > context:
        return ""
    most = f"{'more than ' if above else ''}{context:.0f}"
    return (
        f"the pool holds {tokens:.0f} tokens, and a request may ask for {most} with its max_new_tokens: such a "
        "one is never taken in, nor what waits behind it (SGLang 28530). A smaller --context-length or max_new_tokens, "
        "a larger pool, --page-size 1"
    )


STAGES = (
    "--max-running-requests at least twice --pp-size: each stage takes its share of them only, and a share of one lets "
    "a prefill that comes in chunks wait for itself (SGLang 23006)"
)
_WAITS_FOR_STORAGE = (
    "once with --hicache-storage-prefetch-policy best_effort or timeout, or without --hicache-storage-backend: under "
    "wait_complete a request waits until its fetch is counted as complete, which on models that keep states (Mamba, "
    "GDN) never comes in some releases, while few run and the queue stands (SGLang 27366); then a later release"
)
_COPIES = (
    "once without --enable-hierarchical-cache, or with a smaller --hicache-size: evictions and copies to and from the "
    "host have held up the scheduler's loop for minutes (SGLang 30314)"
)
_NO_BATCH = (
    "before any batch it is mostly a native library that does not fit this GPU, its driver or the CPU: look whether "
    "SGLang serves this GPU (of AMD, Instinct with the image of its gfx name; of NVIDIA, 8.0 and later), and take "
    "its image"
)
_AMX = (
    "once with --attention-backend torch_native, and SGLANG_CPU_OMP_THREADS_BIND of fewer cores: the CPU's matrix "
    "units (AMX) have crashed as several threads set them up at once; then a later release and torch"
)
_OF_A_STANDING_SERVER = frozenset({"health", "watchdog", "stopped-answering", "timeout"})


def _without_stamp(text: str) -> str:
    return text.partition("] ")[2] if text.startswith("[2") else text


def _raised_in(error: Death) -> str:
    return f"the last exception that the server survived{f', in {error.frame}' if error.frame else ''}"


def _raised_in_vllm(facts: LogFacts) -> str:
    """Return what to switch off for the part of vLLM that the last exception of a request came out of."""
    return look_in_vllm(facts.errors[-1].frames) if facts.errors else ""


def _evidence(facts: LogFacts, alarm: Alarm) -> Evidence:
    kind = _KINDS.get(alarm.kind, _LAST)
    again = f"; {alarm.count} such lines, the last in line {alarm.last.line}" if alarm.last else ""
    return at(facts, alarm.place, alarm.text, f"{kind.what}{on_rank(alarm.rank)}{again}")
