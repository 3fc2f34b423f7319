"""A process died of something that no other rule knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import adapters_of_experts, ended_threads, form_of_a_request, noted_end
from gemma4_triage.logs.asked_by_words import by_its_words
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.failed_requests import of_a_benchmark, of_a_cut_call, of_a_request
from gemma4_triage.logs.handled import as_it_retracted, handling
from gemma4_triage.logs.known_arguments import is_an_argument
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.parts_of_sglang import Part, is_shortened, part_of, part_of_file, part_spoken_of
from gemma4_triage.logs.parts_of_vllm import look_in_vllm, served
from gemma4_triage.logs.pictures_over_ranks import of_pictures
from gemma4_triage.logs.pipeline_stages import WITHOUT_STAGES, is_staged, of_another_stage
from gemma4_triage.logs.rule import (
    Wording,
    at,
    exception_text,
    of_kind,
    on_rank,
    probe_could_see,
    usage_text,
)
from gemma4_triage.logs.rules import collective_timeout
from gemma4_triage.logs.rules.refused_by_check import ASKED
from gemma4_triage.logs.said_by_python import (
    OF_CODE,
    UNREACHED,
    as_it_was_imported,
    met,
    of_a_caller,
    of_a_variable,
    of_somebody,
    of_the_code,
    was_none,
)
from gemma4_triage.logs.start_shown import died_as_it_started
from gemma4_triage.logs.suspects import of_files
from gemma4_triage.logs.switched_on import (
    CHOSEN,
    NAMED,
    NO_OVERLAP,
    aborted_before,
    as_the_draft_was_captured,
    as_the_draft_was_loaded,
    in_its_warmup,
    on_trial,
    switched_on,
)
from gemma4_triage.logs.tracebacks import TORN

ID = "other-crash"
_INNER = 4  # frames
_FEWEST_WORDS, _LONGEST = 3, 200  # words, characters of a message that is quoted

TITLE = "a process died of something that no other rule knows"


def find(facts: LogFacts, unexplained: Iterable[Death]) -> Iterator[Finding]:
    """Yield one finding per kind of exception.

    Args:
        facts: the log.
        unexplained: the deaths that are left, in the order of the log.
    """
    seen: set[tuple[str, str]] = set()
    # A rank that reports that another one is gone is no beginning.
    beginning = next((death for death in facts.deaths if not collective_timeout.RULE.explains(death)), None)
    for death in unexplained:
        if (death.type_name, death.frame) in seen:
            continue
        seen.add((death.type_name, death.frame))
        if (of_a_client := of_a_benchmark(facts, death)) is not None:
            yield of_a_client
            continue
        if noted_end.is_told_by_a_note_alone(death):
            yield noted_end.told(facts, death)
            continue
        first = death is beginning
        waited = _only_waited(death)
        if waited and ((beginning is not None and not first) or any(alarm.kind in _ENDS for alarm in facts.alarms)):
            continue
        # What follows from another failure tells of its handling, and that is seldom what to mend.
        code = of_the_code(death) if first else ""
        if waited:
            code = "another process, which it had started and waited for, ended before it was ready"
            code += _of_the_signal(death)
        handled = (handling(death) or as_it_retracted(facts, death)) if first else None
        kind = None if waited else of_kind(death)
        patched = tuple(_of_a_patch(facts, death))
        words = " ".join(death.message.split())
        asked = ASKED.search(words)
        apart = switched_on(facts, death) if first else ()
        named = [one for one in apart if one.endswith((NAMED, CHOSEN))]
        lacks = _other_paths(death, apart, named)
        ended = "A request failed" if of_a_request(facts, death) else "A process died"
        ended = "A request failed, by the notes," if form_of_a_request.is_of_one(facts, death) else ended
        ended = "A task in the background ended" if ended_threads.in_the_background(facts, death) else ended
        ended = "A thread of a process that goes on ended" if ended_threads.went_on(facts, death) else ended
        yield Finding(
            rule=ID,
            cause=f"{ended} of {death.type_name or 'an error'}{on_rank(death.rank)}"
            f"{', in ' + death.frame if death.frame else ''}{_of_package(death)}; "
            f"{code or _of_kind(kind, death) or met(death) or _said(words)}.{_stands_in(death) * (not patched)}"
            f"{handled.what if handled else ''}",
            confidence=Confidence.LIKELY if (code and not of_somebody(death)) or kind else Confidence.POSSIBLE,
            evidence=tuple(_evidence(facts, death, first)),
            advice=(
                *((f"what it asks for: {asked[0].strip()}",) if asked else ()),
                *noted_end.in_a_backend(death),
                *noted_end.noted_of_it(facts, death),
                *noted_end.chosen_by_hand(facts, death),
                *_after_a_flush(facts, death),
                *form_of_a_request.look_at_the_form(facts, death),
                *by_its_words(facts, death),
                *ended_threads.look(facts, death),
                *_not_given(facts, death),
                *_as_its_condition_asks(death),
                *of_a_variable(death),
                *of_pictures(facts, death),
                *((kind.advice,) if kind else ()),
                *((handled.look,) if handled and not lacks else ()),
                *((given_up,) if (given_up := _as_it_was_given_up(facts, death)) else ()),
                *_of_its_host(death),
                *of_a_cut_call(death),
                *as_the_draft_was_loaded(facts, death),
                *as_the_draft_was_captured(facts, death),
                *patched,
                *_of_vllm(death),
                *adapters_of_experts.apart(facts, death),
                *adapters_of_experts.beside_drafts(facts, death),
                *adapters_of_experts.beside_expert_parallel(facts, death),
                *of_another_stage(facts, death),
                *in_its_warmup(facts, death),
                *on_trial(facts),
                *(lacks or named),
                *((handled.look,) if handled and lacks else ()),
                *((_TORCH,) if "INTERNAL ASSERT FAILED" in death.message else ()),
                *((_REACH,) if death.type_name.endswith(UNREACHED) and not death.caller else ()),
                *_of_releases(death, code, waited),
                *_in_order(
                    _next_step(facts, death, beginning),
                    (
                        *_suspect(facts, death),
                        *(one for one in apart if one not in named and one not in lacks and one != given_up),
                    ),
                ),
            ),
            next_commands=_commands(facts, death),
        )


def _other_paths(death: Death, apart: Sequence[str], named: Sequence[str]) -> list[str]:
    """Return what to leave out, what is named first, where a value was never set: what fills it is not always run."""
    if not was_none(death):
        return []
    return [*named, *(one for one in apart if one not in (*named, NO_OVERLAP))]


_READS = pattern(r"\b(?:server_args|args)\.([a-z]\w+)")
_OF_DRAFTS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


def _not_given(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield which arguments to give where a line reads some that the start has left at None."""
    if "NoneType" not in death.message:
        return
    names = dict.fromkeys(filter(is_an_argument, _READS.findall(death.statement)))
    lacking = [name for name in names if facts.settings.get(name, "None" if facts.settings else "") == "None"]
    # A line of several that are all unknown says nothing.
    if lacking and (len(lacking) < len(names) or len(names) == 1):
        flags = ", ".join(f"--{name.replace('_', '-')}{' 1' * name.endswith('topk')}" for name in lacking)
        rest = [f"--{name.replace('_', '-')}" for name in _OF_DRAFTS if name not in lacking]
        of_drafts = f", beside {' and '.join(rest)}; or none of these" if lacking[0] in _OF_DRAFTS else ""
        yield f"give {flags}, which the start left at None and this line reads{of_drafts}; then a later release"


_EQUALS = pattern(r"assert (?:\w+\.)*(\w+) == [\"'](\w[\w-]*)[\"']")


def _as_its_condition_asks(death: Death) -> Iterator[str]:
    """Yield what to choose where an assertion compares what was chosen with the one name that it allows."""
    if found := _EQUALS.match(death.statement):
        yield (
            f"give {found[1]} as {found[2]}, or leave it to the program, where the start or the call sets another: its "
            "condition allows that one alone for this model"
        )


_PATCH = pattern(r"Patched sglang\.\S+ -> (\w+)")
_OF_PATCHES = pattern(r"PATCH|ENABLE_(?!SGLANG)")


def _of_a_patch(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what to do where another package has put a class of its own in the place of SGLang's that is named."""
    said = facts.remarks.get("patched")
    found = _PATCH.search(said.text) if said is not None else None
    if said is not None and found is not None and found[1] in f"{death.message} {death.statement}":
        names = ", ".join(name for name in facts.arguments if name.isupper() and _OF_PATCHES.search(name))
        yield (
            f"{found[1]} is not SGLang's own: line {said.place.line} says that another package put it in the place "
            "of one, and it does not know this release. A later release of that package (of kvcached: pip show "
            f"kvcached), the SGLang that it names, or once without it{f' (unset {names})' if names else ''}: model "
            "and arguments are not at fault"
        )


_OF_A_TREE = pattern(r"\w*radix_cache\w*\.py:|.* cache_(?:un)?finished_req$")
_SOON = 20  # lines


def _after_a_flush(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what to do where the prefix cache was flushed right before its code died."""
    flushed = facts.remarks.get("flushed")
    if flushed is None or not 0 < death.place.line - flushed.place.line <= _SOON:
        return
    if any(map(_OF_A_TREE.match, death.frames[-_INNER:])):
        yield (
            f"flush the cache only while nothing runs (/flush_cache, line {flushed.place.line}): requests that were in "
            "flight, on their way to a decode server too, hold nodes of a tree that is gone; then a later release"
        )


_GIVES_UP = pattern(r".* \w*(?:abort|finish|cancel|free_request|release)\w*$")


def _as_it_was_given_up(facts: LogFacts, death: Death) -> str:
    """Return what to do about a request that was aborted just before, where the code that died ends requests."""
    return aborted_before(facts, death) if any(map(_GIVES_UP.match, death.frames[-_INNER:])) else ""


def _of_releases(death: Death, code: str, waited: bool) -> Iterator[str]:
    """Yield which releases to take, where the exception tells of the code alone, or was raised in another's package."""
    if of_a_caller(death):
        yield _PAIR
        return
    if of_somebody(death):
        yield _EITHER
        return
    if code and not waited and (other := _of_another_program(death)):
        yield _OTHER_PROGRAM.format(other)
        return
    if code:
        yield _WHERE if waited else _PACKAGES if "as it was imported" in code else _OTHER_BUILD
    if _in_a_package(death):
        yield _OF_A_PACKAGE.format(death.package)


def _of_kind(kind: Wording | None, death: Death) -> str:
    """Return the kind's clause, with what its words name; "" if it has none."""
    return "" if kind is None else kind.clause(f"{death.type_name}: {death.message}")


def _said(words: str) -> str:
    """Return what the exception says of itself, or that this is not enough."""
    if words == TORN:
        return "its traceback is cut off before the line that says why"
    if len(words.split()) < _FEWEST_WORDS:
        return "no rule here knows its cause"
    return f"it says: {words[:_LONGEST].rstrip('.')}{'…' if len(words) > _LONGEST else ''}"


_WAITED = pattern(r".* _?(?:wait_\w*|launch_(?:server|subprocess|worker)\w*|execute_server_warmup)$")
_PIPE = pattern(r"connection\.py:\d+ _?recv")
_ENDS = frozenset({"killed", "signalled", "device", "nccl"})
"""Alarms that say of what the other process ended."""
_WHERE = (
    "its exception or signal stands above, or in another file: keep all of stdout and stderr of every rank; dmesg -T "
    "and docker inspect if none does (the host's memory)"
)
_GONE = pattern(
    r"(?i)(?:server|engine|worker|scheduler)s?(?: process\w*)? "
    r"(?:terminated|exited|died|failed|is not (?:healthy|ready))|Initialization failed|failed to start"
)


_CODE = pattern(r"exit code:? ?\(?(-\d+)\b")
_SIGNALS = {"-9": "SIGKILL: memory of the host", "-11": "a segmentation fault", "-6": "an abort", "-7": "a bus error"}
_SIGNALS |= {"-4": "an illegal instruction: a build for another CPU"}


def _of_the_signal(death: Death) -> str:
    """Return which signal ended the process that was waited for; "" if the message names none."""
    code = _CODE.search(death.message)
    return f", of signal {code[1][1:]} ({_SIGNALS[code[1]]})" if code and code[1] in _SIGNALS else ""


def _only_waited(death: Death) -> bool:
    """Say whether a process died because another one, which it had started or asked, did not come up."""
    if "consecutive errors" in death.message or death.type_name in OF_CODE:
        return False
    pipe = death.type_name == "EOFError" and any(map(_PIPE.match, death.frames[-1:]))
    return pipe or bool(_GONE.search(death.message)) or any(map(_WAITED.match, death.frames[-1:]))


_TORCH = (
    "the torch that SGLang's pyproject names (pip show torch), or a later release of SGLang; once with "
    "--disable-cuda-graph; weights as safetensors, where it happens as they load"
)
_REACH = (
    "the server's own log says whether it still starts or what it died of; curl its /health; in a container --host "
    "0.0.0.0 and a published port; proxies: no_proxy=localhost,127.0.0.1"
)
_A_SCRIPT = pattern(r"(?:test|bench|run|profile)_\w+\.py:\d+ (?:<module>|main)$")
_VLLM = pattern(r"gpu_(?:model_runner|worker)\.py:|multiproc_executor\.py:|backend_(?:guidance|xgrammar|outlines)\.py:")
_SERVED = pattern(
    r".* (?:\w*event_loop\w*|process_input_requests|run_batch|get_next_batch_to_run|prepare_for_\w+|evict\w*|"
    r"process_batch_result\w*|cache_(?:un)?finished_req)$"
)
_OTHER_BUILD = (
    "take another release or image of SGLang, or another backend than the one whose file stands in the traceback"
)
_PAIR = (
    "versions that belong together: the SGLang that the caller names itself (its pyproject, image or guide), or a "
    "release of the caller for this SGLang, mostly a later one; pip list shows both"
)
_EITHER = (
    f"a later release of SGLang; the frames above that line, which were left out here, say whose call it was: where a "
    f"program that builds on SGLang (a trainer, a router) made it, {_PAIR}"
)
_OF_A_HOST = (
    "{0} is another program's, and calls parts of SGLang that no release promises to keep: of an installed release "
    "that it was not made for they find unset what they need. {1}"
)


def _of_its_host(death: Death) -> Iterator[str]:
    """Yield what to do where another program called SGLang's inner parts, which failed of what they were given."""
    if death.host and death.path and death.type_name in OF_CODE:
        yield _OF_A_HOST.format(death.host, f"{_PAIR[:1].upper()}{_PAIR[1:]}")


_PACKAGES = (
    "hold pip list against the releases in SGLang's pyproject, or take a fresh environment or SGLang's image: the "
    "frames name the packages"
)
_OF_A_PACKAGE = (
    "the exception is {0}'s: hold pip show {0} against the release that SGLang's pyproject asks for, then "
    "pip install -U {0}"
)
_NOT_AT_FAULT = frozenset({"", "torch", "sglang", "multiprocess", "uvloop", "starlette", "uvicorn", "fastapi", "zmq"})


def _of_package(death: Death) -> str:
    """Return whose code it was raised in, if that is a package of others; "" else."""
    named = death.package not in _NOT_AT_FAULT and f"{death.package}." not in death.frame
    return f" of the package {death.package}" if named else ""


def _in_a_package(death: Death) -> bool:
    """Say whether it was raised in another's package that may be of a release that does not fit."""
    own = (death.package == "vllm" and not death.caller) or was_none(death)
    return death.package not in _NOT_AT_FAULT and death.type_name in OF_CODE and not own


_PROGRAMS = frozenset({"transformers", "tensorrt_llm", "lmdeploy", "mlx_lm", "llama_cpp", "ktransformers", "diffusers"})
"""Packages that serve models by themselves."""
_OTHER_PROGRAM = (
    "take another release of {0}, mostly a later one (pip install -U {0}), or mend that line of it by hand: its own "
    "code is at fault, and neither checkpoint nor request"
)


def _of_another_program(death: Death) -> str:
    """Return the package whose code it is, of those that serve models themselves; "" where SGLang or vLLM is there."""
    return death.package if death.package in _PROGRAMS and not (death.path or death.caller) else ""


def _evidence(facts: LogFacts, death: Death, first: bool) -> Iterator:
    order = ", the first failure in the log" if first and len(facts.deaths) > 1 else ""
    yield at(facts, death.place, exception_text(death), f"the exception, and where its traceback begins{order}")
    if death.usage is not None:
        usage = usage_text(death.usage.full, death.usage.swa)
        yield at(facts, death.usage.place, usage, "the last batch line before it")


_BEFORE_ITS_FIRST = "it died before its first batch: check versions, the checkpoint and the arguments of the start"
_AT_NO_KNOWN_TIME = (
    "the log does not show when in its life it failed. If the server had served: send the last requests before it "
    "again, one at a time, until one of them fails alike; if it had not come up: versions, the checkpoint and the "
    "arguments of the start"
)


def _in_order(step: str, narrower: tuple[str, ...]) -> tuple[str, ...]:
    """Return what to do, what is said of every start behind what is said of this one's parts."""
    return (*narrower, step) if step in (_BEFORE_ITS_FIRST, _AT_NO_KNOWN_TIME) else (step, *narrower)


def _next_step(facts: LogFacts, death: Death, beginning: Death | None) -> str:
    if beginning is not None and death is not beginning:
        return f"begin with line {beginning.place.line}, where the first failure is: this one may follow from it"
    if ended_threads.in_the_background(facts, death):
        return "the call that began that task, once alone, with the whole stderr: its frames name the line"
    if death.frame.endswith("_execute_server_warmup"):
        return "the server's own first request failed: its exception stands above, in the log of a scheduler"
    if death.frames and _A_SCRIPT.match(death.frames[0]):
        return "a script ended there and no server: take it from the tag of SGLang's source that is installed"
    if _in_vllm(death) and served(death):
        return "send the last requests before it again, one at a time, until one of them ends the server"
    if of_a_request(facts, death):
        return "send that request again alone: the server goes on"
    if form_of_a_request.is_of_one(facts, death):
        return "send that request again alone, and look whether the server goes on"
    if death.usage is None and not any(map(_SERVED.match, death.frames)) and not _answered(facts, death):
        if _of_vllm(death):
            return "if that changes nothing: the checkpoint, and vLLM's release beside the torch that it pins"
        return _BEFORE_ITS_FIRST if died_as_it_started(facts, death) else _AT_NO_KNOWN_TIME
    if death.usage is not None and (cached := _cached_of_none(facts, death.usage.place.line)):
        return (
            f"the last prefill before it had no token to compute (#new-token: 0), and {cached} from the cache: its "
            "part of a prompt counts as read before it was, as where a chunk was put off for want of room. A later "
            "release; until then more room (a larger --swa-full-tokens-ratio where the sliding pool is full), or "
            "--disable-radix-cache"
        )
    if death.usage is not None and _cached_of_none(facts, death.usage.place.line) == 0:
        return (
            "the last prefill before it had no token to compute (#new-token: 0): a request with an empty prompt. "
            "Refuse those at the client; then a later release"
        )
    return "send the last requests before it again, one at a time, until one of them ends the server"


_ANSWERS = ("http_ready", "ready", "vllm_serves")


def _answered(facts: LogFacts, death: Death) -> bool:
    """Say whether a server that prints no batch line had come up before it died."""
    lines = [remark.place.line for name in _ANSWERS if (remark := facts.remarks.get(name)) is not None]
    if not lines and facts.starts <= 1:
        # Of a part of a log.
        return "answer" in facts.understood
    return "answer" in facts.understood and any(line < death.place.line for line in lines)


def _of_vllm(death: Death) -> tuple[str, ...]:
    look = look_in_vllm(death.frames) if _in_vllm(death) else ""
    return (look,) if look else ()


def _in_vllm(death: Death) -> bool:
    return death.package == "vllm" or any(map(_VLLM.match, death.frames))


def _cached_of_none(facts: LogFacts, number: int) -> int | None:
    """Return how many tokens from the cache a prefill without a new one had; None of another batch line."""
    names = ("line", "batch_lines", "new_tokens", "generated_per_s", "cached_tokens")
    ranks = [rank for rank in facts.schedulers if rank.prefill_lines]
    rows = (row for rank in ranks for row in zip(*(rank.series[name] for name in names), strict=True))
    return next((int(row[4] or 0) for row in rows if row[:4] == (number, 1, 0, None)), None)


# What a GPU, a compiler or the host refuses it refuses on every stage.
_OF_A_KERNEL = pattern(
    r"(?i)\b(?:cuda|hip|nccl|cublas|cudnn)\w* ?error|shared memory|out of memory|compil|ninja|ptxas|InternalError|"
    r"OutOfResources|AcceleratorError|ImportError|ModuleNotFoundError|OSError|No such file"
)


def _suspect(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Name the feature whose file the exception stands in, or nothing: a file is a suspect and no cause."""
    if _of_another_program(death):
        return ()
    part = of_files(death.frames[-_INNER:])
    # What a start asks for was not at work yet as a package was imported.
    own = None if as_it_was_imported(death) else part_of(death) or _part_called_for(death) or part_spoken_of(death)
    staged = is_staged(facts, death) and not of_another_stage(facts, death)
    said = f"{death.type_name}: {death.message}"
    looked_at = _LOOKS_AT.match(death.frame) if death.path.startswith("server_args") else None
    these = looked_at[1].replace("_", " ") if looked_at else ""
    return (
        *((f"the arguments of {these}: give all of them, as launch_server --help lists them",) if these else ()),
        *((WITHOUT_STAGES,) if staged and not _OF_A_KERNEL.search(said) else ()),
        *((f"once without {part.without}: if it then does not happen, that is the part at fault",) if part else ()),
        *((own.look,) if own is not None and (part is None or "--hicache-storage-backend" in own.look) else ()),
    )


_LOOKS_AT = pattern(r".* _?(?:handle|check|validate|set|adjust|init)_(\w+?)(?:_(?:args|compatibility|defaults))?$")


def _part_called_for(death: Death) -> Part | None:
    """Return the part of SGLang whose file called what raised it; None if it was left out of the traceback."""
    return None if is_shortened(death) else part_of_file(death.caller)


def _stands_in(death: Death) -> str:
    """Return in which part of SGLang its code stands; "" if it is another's code."""
    part = part_of(death)
    if part is None:
        if (called := _part_called_for(death)) is not None:
            return f" SGLang called it for {called.what}."
        return f" Its words are of {spoken.what}." if (spoken := part_spoken_of(death)) else ""
    at_work = death.type_name == "AssertionError" and not as_it_was_imported(death)
    met = " A state that its code does not expect is a defect of the release." * at_work
    return f" The code is SGLang's own, of {part.what}.{met}"


def _commands(facts: LogFacts, death: Death) -> tuple[str, ...]:
    if probe_could_see(death):
        return ("gemma4-triage serve --debug 1 -- --model-path MODEL",)
    starts = death.usage is None and not any(map(_SERVED.match, death.frames)) and died_as_it_started(facts, death)
    return ("gemma4-triage doctor",) if starts or death.type_name in OF_CODE else ()
