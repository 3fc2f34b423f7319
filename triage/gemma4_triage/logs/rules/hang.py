"""SGLang's watchdog: a step that never ended, and where each rank stood."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs import ranks_decided, said_in_notes
from gemma4_triage.logs.alarm_words import FATAL
from gemma4_triage.logs.begun_work import BegunWork, begun_before
from gemma4_triage.logs.facts import Death, LogFacts, Remark, Stack
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.looked_at_first import groups_without_attention
from gemma4_triage.logs.parts_of_sglang import part_of_file
from gemma4_triage.logs.remarks import DUMPED
from gemma4_triage.logs.rule import COLLECT, at, last_work, of_death, on_rank, remarked, says, usage_text
from gemma4_triage.logs.switched_on import features
from gemma4_triage.logs.watchdog_of_controller import only_the_controller

_WORDS = pattern(r"[Ww]atchdog [Tt]imeout")
_SHOWN = 8
# What the innermost frames of a main thread say; the first that fits. Waiting for others is no fault of its own.
_PLACES = (
    ("the meeting of symmetric memory", pattern(r"\brendezvous\b|_symmetric_memory|symm_buffer")),
    (
        "a collective",
        pattern(r"all_?reduce|all_?gather|reduce_scatter|all_to_all|broadcast|barrier|nccl|gloo|deep_?ep"),
    ),
    ("the launch of a CUDA graph", pattern(r"\bcu(?:da)?GraphLaunch\b")),
    ("a receive from another process", pattern(r"recv|zmq|queue\.py")),
    ("the loading of a kernel", pattern(r"cuModuleLoad|cuLibraryLoad|loadBinary|load_binary")),
    ("a compilation", pattern(r"ninja|nvcc|inductor|triton/compiler|\bjit\.py|jit/(?!kernel\.py)|load_jit|compile")),
    ("host or storage I/O", pattern(r"cache_controller|hicache|mooncake|nixl|storage|hiradix")),
    ("a lock", pattern(r"acquire|threading\.py|lock")),
    ("a wait for the GPU", pattern(r"synchronize|\bitem\b|tolist|\bcpu\b|cudaStream|cuEvent|copy_done|wait")),
)
_WAITS = ("a collective", "a receive from another process")
_ADVICE = {
    "the launch of a CUDA graph": "once with --disable-cuda-graph: what a step's graph does between GPUs never ends; "
    "over nodes NCCL and its network then (NCCL_DEBUG=INFO), or another release of NCCL (SGLang 29548)",
    "the meeting of symmetric memory": "once with --enforce-disable-flashinfer-allreduce-fusion (SGLang 29073) and "
    "without --enable-symm-mem, --enable-torch-symm-mem: GPUs that are not all visible, or fabric that is not up",
    "the loading of a kernel": "a kernel's first use loads it, which waits for the GPU, while other ranks are in a "
    "collective: CUDA_MODULE_LOADING=EAGER (of releases that do not overwrite it: SGLang 35711), and requests of all "
    "kinds as a warm-up before traffic",
    "a compilation": "wait for it or compile before serving: a first shape took longer than --watchdog-timeout",
    "host or storage I/O": "once without --enable-hierarchical-cache or the storage backend: it waits for the host",
    "a wait for the GPU": "a kernel does not end: CUDA_LAUNCH_BLOCKING=1 names it; then another --attention-backend",
    "a lock": "the whole py-spy dump of that process names who holds it",
}


def where(stack: Stack) -> str:
    """Return what a stack waits for or does, in words; its innermost frame where no words fit."""
    for frame in stack.frames:
        # The C library waits for everybody.
        if frame.startswith(("libc.so", "libpthread", "ld-linux")):
            continue
        for place, words in _PLACES:
            if words.search(frame):
                return place
    return f"{stack.frames[0]}" if stack.frames else ""


def _tell(facts: LogFacts, death: Death) -> Finding:
    evidence = [at(facts, death.place, death.message, f"what said that it hangs{on_rank(death.rank)}")]
    if death.usage is not None:
        usage = usage_text(death.usage.full, death.usage.swa)
        evidence.append(at(facts, death.usage.place, usage, "the last sign of life, and its pool usage"))
    places = {index: where(stack) for index, stack in enumerate(facts.stacks)}
    odd = [facts.stacks[index] for index, place in places.items() if place not in _WAITS]
    once = switches(facts)
    cause, confidence, advice = _verdict(facts.stacks, odd, places, once)
    missing = [] if places else remarked(facts, "no_pyspy", "why the log has no stacks")
    lacks = (_NO_PYSPY,) if missing else ()
    if (controller := only_the_controller(facts, death)) is not None:
        cause, confidence, advice = controller
        return Finding(
            rule=RULE.id,
            cause=cause,
            confidence=confidence,
            evidence=(*evidence, *_stacks(facts, dict.fromkeys(places, "the controller"))),
            ruled_out_if=("no batch line of that node follows the watchdog, and none came shortly before it",),
            advice=advice,
            next_commands=(COLLECT,) if confidence is Confidence.POSSIBLE else (),
            upstream=("SGLang 20766",),
        )
    if not places and (work := _begun(facts, death)) is not None:
        cause, confidence, advice = work.cause, Confidence.LIKELY, (work.look,)
        if work.compiles:
            cause = "A scheduler compiled kernels as its watchdog fired: it did not hang, and would have gone on."
            advice = (_ADVICE["a compilation"], _BEFOREHAND)
        missing = [at(facts, work.line.place, work.line.text, "what it had begun, and no end of it is here")]
    elif not places and not facts.served and facts.settings.get("enable_torch_compile") == "True":
        cause = "A scheduler compiled the model (--enable-torch-compile) as its watchdog fired, before it served."
        confidence = Confidence.LIKELY
        advice = ("a longer --watchdog-timeout, or once without --enable-torch-compile", _BEFOREHAND)
    elif not places and (begun := _meets(facts)) is not None:
        cause = "The ranks never came together: the watchdog fired while their groups (NCCL) were set up."
        advice = _NETWORK
        missing = [at(facts, begun.place, begun.text, "what it had begun, and no end of it is here")]
        missing += remarked(facts, "nccl_warn", "what NCCL says")
    elif (entered := _of_one_group(facts, odd, places)) is not None:
        cause, confidence, advice = entered
    elif not places and (full := _full_pool(facts)) is not None:
        cause, advice = full
    elif (decided := ranks_decided.told(facts)) is not None:
        cause, confidence, missing = decided.cause, decided.confidence, [*decided.evidence]
        advice = ranks_decided.LOOK
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=confidence,
        evidence=(*evidence, *missing, *_stacks(facts, places)),
        ruled_out_if=("another rank died before: look for its exception",),
        advice=tuple(
            dict.fromkeys(
                (
                    *(one for one in once if one in (_NO_PDMUX, _TP_GATHER)),
                    *of_encoders(facts, stacks=True),
                    *groups_without_attention(facts, death),
                    *said_in_notes.named_in_notes(facts),
                    *advice,
                    *lacks,
                    *once,
                )
            )
        ),
        next_commands=(COLLECT,),
    )


_NETWORK = (
    "every rank and node has to be started, with one --dist-init-addr and a --node-rank each",
    "NCCL_DEBUG=INFO: the first NCCL WARN of any node. NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME of the interface that "
    "reaches the others; RoCE: NCCL_IB_GID_INDEX (mostly 3), NCCL_IB_HCA; once with NCCL_IB_DISABLE=1",
    "all_reduce_perf of nccl-tests over the same nodes says whether it is SGLang at all; containers: --network host",
)


_IMAGES = pattern(r"(?:mm_utils|multimodal|\w*(?:vision|vit|visual))\w*\.py|embed_mm_inputs|get_\w+_feature")


def of_encoders(facts: LogFacts, stacks: bool = False) -> tuple[str, ...]:
    """Return what to do about an encoder that is run by one rank for each image; empty if none is.

    Args:
        facts: the log.
        stacks: whether a stack has to stand in it.
    """
    if facts.arguments.get("mm_enable_dp_encoder") != "True":
        return ()
    if stacks and not any(_IMAGES.search(frame) for stack in facts.stacks for frame in stack.frames):
        return ()
    return (
        "once without --mm-enable-dp-encoder: the encoder then runs whole on each rank that has an image, and a "
        "layer of it that still sums over all ranks waits for those that have none (as with fewer images than "
        "ranks); a later release (SGLang 18721). A longer timeout changes nothing",
    )


def _of_one_group(
    facts: LogFacts, odd: Sequence[Stack], places: dict[int, str]
) -> tuple[str, Confidence, tuple[str, ...]] | None:
    """Return that a rank waits for its GPU while groups of DP attention wait for it; None where that is not so."""
    if facts.settings.get("enable_dp_attention") != "True" or len(odd) != 1 or _WAITS[0] not in places.values():
        return None
    if where(odd[0]) != "a wait for the GPU":
        return None
    own = next((frame for frame in odd[0].frames if not _TORCH.match(frame)), odd[0].frames[0])
    images = any(map(_IMAGES.search, odd[0].frames))
    split = facts.settings.get("dp_size", "1") != facts.settings.get("tp_size", "1")
    what = "the model's tower of images" if images else "what it computed there"
    cause = (
        f"{odd[0].rank or 'One process'} waits for its GPU in {own.rpartition('/')[2]} while ranks of another group "
        f"of DP attention wait in a collective for it, as where {what} asks all ranks to take part and only those that "
        "have the request run it."
    )
    whole = ", or with --dp-size as large as --tp-size, which leaves nothing to split" if split else ""
    return (
        cause,
        Confidence.LIKELY if images else Confidence.POSSIBLE,
        (
            f"once without --enable-dp-attention{whole}",
            *(("requests without images: if those are answered, it is the tower",) if images else ()),
            "a later release, whose tower or layer sums over the ranks of its own group alone",
        ),
    )


_FULL = 0.98


def _full_pool(facts: LogFacts) -> tuple[str, tuple[str, ...]] | None:
    """Return that the pool of the sliding window was full, the other was not, and requests waited; None if not so."""
    names = ("line", "swa_usage_max", "full_usage_max", "queued_max")
    last = [tuple(rank.series[name][-1] for name in names) for rank in facts.schedulers if len(rank.series["line"])]
    _, swa, whole, queued = max(last, default=(0, None, None, None))
    if swa is None or swa < _FULL or (whole or 0) > swa - _APART or not queued:
        return None
    return (
        f"A scheduler made no progress until its watchdog fired: its pool of the sliding window was at {swa:.2f} "
        f"with {queued:.0f} requests waiting, while the full pool was at {whole or 0:.2f}. What cannot come in or "
        "go on there stands.",
        (
            "a larger --swa-full-tokens-ratio: the full pool has room that nobody can use; fewer long prompts at once",
            "a later release, which frees what has left the window while a prompt is prefilled; with "
            "--disable-radix-cache earlier ones may keep it: leave that out once",
        ),
    )


_APART = 0.2


def _meets(facts: LogFacts) -> Remark | None:
    """Return where ranks began to form their groups, if nothing says that they did."""
    begun, ended = facts.remarks.get("groups_begin"), facts.remarks.get("groups_end")
    return None if begun is None or (ended is not None and ended.place.line > begun.place.line) else begun


_BEFOREHAND = (
    "python3 -m sglang.compile_deep_gemm with the same arguments, and ~/.cache on a volume; until then a longer "
    "--watchdog-timeout"
)
_NO_PYSPY = (
    "pip install py-spy in the server's environment (containers: --cap-add SYS_PTRACE): the watchdog then prints where "
    "each rank stands"
)


def _begun(facts: LogFacts, death: Death) -> BegunWork | None:
    """Return what a scheduler had begun before the watchdog fired, if no batch came behind it."""
    begun = begun_before(facts, death.place.line)
    worked = max((int(rank.series["line"][-1]) for rank in facts.ranks if len(rank.series["line"])), default=0)
    return None if begun is None or worked > begun.line.place.line else begun


def _verdict(
    stacks: Sequence[Stack], odd: list[Stack], places: dict[int, str], switches: tuple[str, ...] = ()
) -> tuple[str, Confidence, tuple[str, ...]]:
    ask = "collect, while it hangs, has the stack of every process: the one that differs holds up the others"
    if not places:
        return (
            "A scheduler made no progress until its watchdog fired; the log does not say where.",
            Confidence.POSSIBLE,
            (ask, *switches),
        )
    staged = [stack for stack in stacks if any("_pp" in frame for frame in stack.frames) and where(stack) in _WAITS]
    if staged and len(staged) == len(places):
        names = ", ".join(stack.rank for stack in staged if stack.rank)
        cause = (
            f"Pipeline stages wait for each other{f': {names}' if names else ''} waits to receive what another stage "
        )
        cause += "never sent. The watchdog only ended it."
        return cause, Confidence.LIKELY, ("without --pp-size (--tp, --ep or --dp instead), or another release", ask)
    alike = set(places.values())
    if len(places) > 1 and len(alike) == 1 and not alike.issubset(_WAITS) and (look := _ADVICE.get(*alike)):
        return (
            f"All ranks that were looked at stand in {alike.pop()}.",
            Confidence.LIKELY,
            (*switches[:1], look, *switches[1:]),
        )
    if len(places) > 1 and len(odd) == 1:
        stands = where(odd[0])
        cause = f"The other ranks wait in communication for {odd[0].rank or 'one process'}, which stands in {stands}."
        return cause, Confidence.LIKELY, (_ADVICE.get(stands, f"look at {odd[0].frames[0]} there"),)
    if len(places) > 1 and not odd and len(set(places.values())) > 1:
        inside = [stacks[index].rank for index, place in places.items() if place == _WAITS[0]]
        apart = [stacks[index].rank for index, place in places.items() if place == _WAITS[1]]
        cause = (
            f"Ranks left the same path: {', '.join(inside)} wait in a collective that {', '.join(apart)} never entered."
        )
        return cause, Confidence.LIKELY, ("the ranks chose different batches: once with --disable-overlap-schedule",)
    if len(places) > 1 and set(places.values()) == {_WAITS[0]} and len(callers := _callers(stacks)) > 1:
        each = "; ".join(f"{', '.join(ranks)} in {caller}" for caller, ranks in callers.items())
        cause = f"Ranks wait in different collectives, which never meet: {each}."
        of_the_cache = switches[:1] if any(map(_OF_HICACHE.search, callers)) else ()
        ask_all = "the part that one of them is in has to be asked of all: leave it out once"
        return cause, Confidence.LIKELY, (*of_the_cache, ask_all)
    if not odd:
        inside = {stack.frames[0] for stack in stacks if stack.frames}
        cause = "Every rank that was looked at waits in communication"
        cause += f", in {inside.pop()}" if len(inside) == 1 else ""
        cause += ": the one that they wait for is not in the log."
        return cause, Confidence.POSSIBLE, ("look at the other ranks and nodes at that time", ask)
    stands = where(odd[0])
    cause = f"A scheduler made no progress: it stands in {stands}."
    return cause, Confidence.POSSIBLE, ((_ADVICE[stands],) if stands in _ADVICE else (*_of_its_part(stands), ask))


_FILE = pattern(r"(?:\S*/)?sglang/(?:srt/)?(\S+?\.py)\S* ")
_CHECKS = (
    "it looks through its own cache, over and over, which takes longer the larger that is (SGLang 26796): a later "
    "release; until then unset SGLANG_ENABLE_TREE_CACHE_SANITY_CHECK, a smaller cache, or --disable-radix-cache"
)


_COMPILED = pattern(r"(?:^|/)flashinfer/")
_COMPILED_ANEW = (
    "it is in a kernel of FlashInfer's: rm -rf ~/.cache/flashinfer, so that it is compiled anew: after a reinstall, of "
    "the same release too, a kernel may be linked of old and new parts, and stand; then another backend of that part, "
    "and another release of flashinfer-python, -cubin and -jit-cache, all of one number"
)


def _of_its_part(frame: str) -> tuple[str, ...]:
    """Return what to do about the part of SGLang that a frame of a stack is of; empty if it is another's."""
    found = _FILE.match(frame)
    part = part_of_file(found[1]) if found else None
    if frame.endswith("sanity_check"):
        return (_CHECKS,)
    if part is None and _COMPILED.search(frame):
        return (_COMPILED_ANEW,)
    return () if part is None else (f"it is in {part.what}: {part.look}",)


_TORCH = pattern(r"(?:\S*/)?(?:torch/|distributed_c10d|parallel_state|communication_op|c10d_logger)")


_LINE = pattern(r":\d+(?= )")


def _callers(stacks: Sequence[Stack]) -> dict[str, list[str]]:
    """Return which ranks wait below which frame: the first that is not of the communication itself."""
    found: dict[str, list[str]] = {}
    for index, stack in enumerate(stacks):
        caller = next((frame for frame in stack.frames if not _TORCH.match(frame)), "")
        found.setdefault(_LINE.sub("", caller), []).append(stack.rank or f"process {index + 1}")
    return found


def judge(stacks: Sequence[Stack]) -> tuple[str, tuple[str, ...]] | None:
    """Return which rank holds up the others and what to look at, by the stacks alone; None if they tell none apart."""
    places = {index: where(stack) for index, stack in enumerate(stacks)}
    odd = [stacks[index] for index, place in places.items() if place not in _WAITS]
    cause, confidence, advice = _verdict(stacks, odd, places)
    return (cause, advice) if confidence is Confidence.LIKELY else None


_OF_SEVERAL = (
    ": ranks ask each other there which copies to the host are done, and one that has none to ask for may not come to "
    "it; then a later release"
)


def switches(facts: LogFacts) -> tuple[str, ...]:
    """Return what this server has that may hold up a step, each to be left out once, alone."""
    asked = facts.settings
    found = []
    if facts.arguments.get("disable_attn_tp_gather") == "True":
        found.append(_TP_GATHER)
    refused = next((alarm for alarm in facts.alarms if alarm.kind == "grammar"), None)
    if refused is not None and asked.get("speculative_algorithm", "None") != "None":
        found.append(
            f"requests with a grammar without --speculative-algorithm: in line {refused.place.line} a grammar refused "
            "drafts, and a rank that aborts a request so leaves the order of the others"
        )
    if any(_OF_HICACHE.search(frame) for stack in facts.stacks for frame in stack.frames):
        found.append(
            "without --enable-hierarchical-cache, or without its storage backend: ranks ask each other there, and each "
            "enters by a count of its own (SGLang 26921, SGLang 28429, SGLang 30760); then a later release"
        )
    elif asked.get("enable_hierarchical_cache") == "True":
        several = asked.get("tp_size", "1") not in ("1", "None")
        found.append(
            "once without --enable-hierarchical-cache, once with a smaller --chunked-prefill-size"
            + _OF_SEVERAL * several
        )
    if asked.get("enable_dp_attention") == "True":
        found.append("once without --enable-dp-attention: ranks that idle have to take part in every collective")
    if (work := begun_before(facts, facts.lines)) is not None and not work.compiles:
        found.append(f"{work.look} (line {work.line.place.line} begins it, and the last of its kind here has no end)")
    if any("deep_ep" in frame for stack in facts.stacks for frame in stack.frames):
        found.append("once with --moe-a2a-backend none: they stand in DeepEP, whose release has to fit this SGLang's")
    if asked.get("speculative_algorithm", "None") != "None":
        found.append("once without --speculative-algorithm")
    if asked.get("speculative_algorithm", "None") != "None" and asked.get("tp_size", "1") not in ("1", "None"):
        found.append(
            "on AMD, a release with the change of SGLang 34238: each rank took its own drafts, and from then on none "
            "has the others' batch"
        )
    if asked.get("pp_size", "1") not in ("1", "None"):
        found.append("--max-running-requests at least twice --pp-size: a stage takes its share of them only")
        found.append("once without --pp-size")
    inside = " ".join(frame for stack in facts.stacks for frame in stack.frames)
    if _PDMUX.search(inside) or asked.get("enable_pdmux") == "True":
        found.insert(0, _NO_PDMUX)
    found += list(_of_backends(facts, inside))
    for one in features(facts) if inside else ():
        if one.words is not None and one.setting not in _HAVE_THEIRS and one.words.search(inside):
            found.append(f"once {one.without}: its code stands in the stack")
    waits = any(_COPIED.search(frame) for stack in facts.stacks for frame in stack.frames)
    if waits and asked.get("disable_overlap_schedule", "None") != "True":
        found.insert(
            0,
            "once with --disable-overlap-schedule: each waits for a step's results to be copied, and the step after it "
            "was begun before (SGLang 26454)",
        )
    return (*found, "another release; a longer --watchdog-timeout helps only where a compilation ran") if found else ()


_WIDE = frozenset({"triton", "flashinfer", "auto", "torch_native"})


def _of_backends(facts: LogFacts, inside: str) -> Iterator[str]:
    """Yield which backends that the start names have their own code in a stack; of wide packages that says little."""
    for name, value in facts.arguments.items():
        of_stack = len(value) > _SHORTEST and re.search(rf"(?<![a-z]){re.escape(value)}(?![a-z])", inside)
        if name.endswith("_backend") and value not in _WIDE and of_stack:
            yield f"once with another --{name.replace('_', '-')} than {value}: its code stands in the stack"


_SHORTEST = 4  # characters
_TP_GATHER = (
    "once without --disable-attn-tp-gather: ranks of one attention group then each see the queue of their own, and one "
    "that finds work the others do not know of waits alone in its collective (SGLang 36928)"
)
_PDMUX = pattern(r"pdmux|multiplexing_mixin|split_prefill")
_NO_PDMUX = (
    "once without --enable-pdmux: prefill and decode then share the GPU by streams, which wait for each other "
    "(a long prompt that comes in while others decode, on models that keep states too); then a later release "
    "(SGLang 37904)"
)
_HAVE_THEIRS = frozenset(
    {"enable_pdmux", "enable_hierarchical_cache", "enable_dp_attention", "speculative_algorithm", "pp_size"}
)
_COPIED = pattern(
    r"\b(?:process_batch_result\w*|copy_done|event_loop_overlap\w*) |(?:process_batch_result\w*|copy_done)$"
)
_OF_HICACHE = pattern(
    r"\b(?:writing_check|loading_check|check_hicache_events|check_prefetch_progress|can_terminate_prefetch)\b"
)


def _stacks(facts: LogFacts, places: dict[int, str]) -> list[Evidence]:
    shown = list(enumerate(facts.stacks))[:_SHOWN]
    return [
        at(facts, stack.place, "; ".join(stack.frames[:3]), f"py-spy{on_rank(stack.rank)}: in {places[index]}")
        for index, stack in shown
    ]


def _explains(death: Death) -> bool:
    # SGLang asks py-spy for stacks as the watchdog fires; where it lacks, that fails too.
    of_the_dump = "pyspy_dump_schedulers" in death.frame
    return of_the_dump or (says(_WORDS)(death) and "collective" not in death.message)


def _find(facts: LogFacts) -> Iterator[Finding]:
    death = next(filter(_explains, facts.failures), None)
    if death is not None and is_an_echo(facts, death):
        return
    asked = next((alarm for alarm in facts.alarms if alarm.kind == "health"), None)
    if death is None and asked is not None and _several_wait(facts.stacks):
        # Somebody looked where it stands while it did not answer.
        death = Death(asked.place, asked.rank, "", asked.text)
    elif death is None and not facts.deaths and not facts.served and (stood := facts.remarks.get("stands")) is not None:
        # Whoever writes that it stands has looked where: a stack in an idle loop says nothing.
        waits = [stack for stack in facts.stacks if where(stack) not in ("a receive from another process", "")]
        death = Death(stood.place, stood.rank, "", stood.text) if waits else None
    elif death is None and (dumped := _dumped_at_the_end(facts)) is not None:
        death = Death(dumped.place, dumped.rank, "", dumped.text)
    elif death is None and not facts.deaths and any(where(stack) in _WAITS for stack in facts.stacks):
        noted = facts.remarks.get(said_in_notes.NAME)
        stands = noted is not None and noted.place.line > last_work(facts)
        death = Death(noted.place, noted.rank, "", noted.text) if noted is not None and stands else None
    elif death is None and (pasted := _pasted_alone(facts)) is not None:
        death = Death(pasted.place, pasted.rank, "", "a stack that somebody took, with no line of the server beside it")
    if death is not None:
        yield _tell(facts, death)


def _dumped_at_the_end(facts: LogFacts) -> Remark | None:
    """Return SGLang's own line above its stacks, which its watchdog asks for, if no work follows it and no end."""
    dumped = facts.remarks.get(DUMPED)
    ended = facts.deaths or "sigterm" in facts.remarks or any(alarm.kind in FATAL for alarm in facts.alarms)
    return None if dumped is None or ended or dumped.place.line < last_work(facts) or not facts.stacks else dumped


_MEETS_ONLY = frozenset({"the meeting of symmetric memory", "a collective", "a lock", "a compilation"})


def _pasted_alone(facts: LogFacts) -> Stack | None:
    """Return the first stack that waits for others, of a log that has stacks alone, which are taken of what stands."""
    if not facts.stacks or facts.deaths or facts.alarms or set(facts.understood) - {"stack"} or facts.remarks:
        return None
    return next((stack for stack in facts.stacks if where(stack) in _MEETS_ONLY), None)


_OF_THE_CODE = frozenset({"TypeError", "AttributeError", "IndexError", "KeyError", "NameError", "UnboundLocalError"})


def is_an_echo(facts: LogFacts, hung: Death) -> bool:
    """Say whether a rank hung for another one that had died of its own code before, which is what to mend."""
    if facts.stacks or not _explains(hung):
        return False
    before = (one for one in facts.deaths if one.place.line < hung.place.line and one.type_name in _OF_THE_CODE)
    return any(one.path and one.rank not in ("", hung.rank) for one in before)


def _several_wait(stacks: Sequence[Stack]) -> bool:
    """Say whether stacks of several ranks show that they wait."""
    return len(stacks) > 1 and any(where(stack) in _WAITS[:1] for stack in stacks)


_OF_DEATH = of_death("hang", "a step never ended", _explains, _tell, alarms=("watchdog", "thread", "health"))
RULE = replace(_OF_DEATH, find=_find)
