"""SGLang's own check refused something, and says what: the words are quoted, with the part that they concern.

Every `raise` and `assert` of SGLang with a message is one. Rules that know more of a failure come first; where none
does, the file names the part, and the words name what to change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs import adapters_of_experts, lengths_refused
from gemma4_triage.logs.alarm_words import SURVIVABLE
from gemma4_triage.logs.asked_by_words import by_its_words
from gemma4_triage.logs.ended_threads import look, went_on
from gemma4_triage.logs.facts import Death, LogFacts, Place
from gemma4_triage.logs.handled import handling
from gemma4_triage.logs.known_arguments import is_an_argument
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.options_near import named_by, overridden
from gemma4_triage.logs.parts_of_sglang import (
    ARGUMENTS,
    LAUNCH,
    OF_IMAGES,
    REQUEST,
    called_from_a_model,
    part_of,
    part_of_file,
)
from gemma4_triage.logs.refused_too import LACKING, OF_CUDA, WITHOUT_BUFFER, also_refused, refused_too
from gemma4_triage.logs.requests_of_another_kind import NO_CHATS, of_another_kind
from gemma4_triage.logs.room_asked import room_asked
from gemma4_triage.logs.rule import (
    Wording,
    at,
    exception_text,
    is_of_a_kind_first,
    of_failure,
    of_settings,
    on_rank,
    written,
)
from gemma4_triage.logs.rules.index_outside_tensor import WHICH_ONE, asserts_on_the_device
from gemma4_triage.logs.switched_on import CHOSEN, NAMED, NO_OVERLAP, as_the_draft_was_loaded, features, switched_on

ID = "refused-by-check"
TITLE = "a check of SGLang's own refused something, and says what"


_TYPES = frozenset(
    {"ValueError", "AssertionError", "NotImplementedError", "RuntimeError", "ImportError", "TypeError", "Exception"}
    | {"KeyError", "ModuleNotFoundError", "FileNotFoundError", "OSError", "AttributeError", "MemoryError"}
)
CALL = pattern(r"([\w.]+\(\)) (?:got an unexpected keyword|missing \d+ required|takes (?:from \d+ to )?\d+ positional)")
"""Of a function that is called with other arguments than it takes."""
_WORDS = pattern(r"[A-Za-z_]{2,}")
_FEWEST_WORDS = 3
# Words of torch's, CUDA's and Python's own, that a file of SGLang only passed on.
_NOT_ITS_OWN = pattern(
    r"CUDA error|HIP error|Triton Error|NCCL|out of memory|size of tensor|"
    r"mat1 and mat2|must match the size|has no attribute|"
    r"Expected all tensors|died during initialization|NPU function error|not supported between instances|"
    r"Boolean value of Tensor|operand type|division by zero|cannot be interpreted as|unhashable|"
    r"unexpected keyword|positional argument|object is not|index out of range|broadcast|"
    r"invalid for input of size|must be Tensor, not|index k out of range|Expected reduction dim|INTERNAL ASSERT|"
    r"abstract class|is not defined|cannot unpack|unsupported operand|is not iterable|"
    r"has no len\(\)|not subscriptable|consecutive errors|expected str|invalid literal|values to unpack|"
    r"filesystem error"
)
_TELLING = pattern(
    r"(?i)support|must|require|please|only|mismatch|invalid|incompatible|not compatible|cannot|unknown|should|need|"
    r"not found|missing|exceed|too (?:small|large|long|old)|increase|at least|not enough|expected|--\w"
)
_DTYPE = pattern(r"Supported dtypes: \[torch\.(\w+)")
_FLAG = pattern(r"--[a-z][\w-]+[a-z0-9]")
ASKED = pattern(
    r"(?:[Pp]lease|Consider|Try|Use|Set|Increase|Reduce|Raise|Upgrade|Enable|Disable)\b(?:[^.;]|\.(?=\d)){8,160}"
)
_LONGEST = 220
_OF_TORCH = "report an enhancement request to PyTorch"
"""Behind a check of torch's C++ without words of its own: no advice."""


_DEFECT = (
    ", which does not hold. A state that its code does not expect is a defect of the release, for what this server was "
    "asked."
)
_ARGUMENT = pattern(r"server_args(?:\(\))?\.(\w+)|\bget_\w+\(\)\.((?:disable|enable)_\w+)")


def _condition(death: Death) -> str:
    """Return the condition that an assertion without words quotes, with its word assert; "" if there is none."""
    if asserts_on_the_device(death):
        return death.statement
    bare = death.type_name == "AssertionError" and not death.message.strip()
    return death.statement if bare and death.statement.startswith("assert ") else ""


def explains(death: Death) -> bool:
    """Say whether a check of SGLang's own raised it, with words that say what it refused."""
    said = _condition(death) or death.message
    if asserts_on_the_device(death):
        return part_of(death) is not None
    return (
        bool(death.path)
        and death.type_name in _TYPES
        and len(_WORDS.findall(said)) >= _FEWEST_WORDS
        and (death.type_name != "KeyError" or " " in said)
        and _NOT_ITS_OWN.search(death.message) is None
        and part_of(death) is not None
        and not is_of_a_kind_first(death)
    )


def find(facts: LogFacts, unexplained: Iterable[Death]) -> Iterator[Finding]:
    """Yield one finding for each check that refused something.

    Args:
        facts: the log.
        unexplained: the deaths that no other rule knows, in the order of the log.
    """
    seen: set[tuple[str, str]] = set()
    for death in unexplained:
        if explains(death) and (key := (death.type_name, death.frame)) not in seen:
            seen.add(key)
            thread = went_on(facts, death)
            ended = "ended a thread of a process that goes on" if thread else "ended a process"
            evidence = of_failure(facts, death, f"what the {'thread ended' if thread else 'process died'} of")
            yield tell(facts, death, f"{ended}{on_rank(death.rank)}", evidence)


def survived(facts: LogFacts) -> Iterator[Finding]:
    """Yield what the last check refused that a request failed of, if the server answered it with a status of 500."""
    if (error := next(filter(explains, reversed(facts.errors)), None)) is not None:
        evidence = [at(facts, error.place, exception_text(error), f"what the request failed of, in {error.frame}")]
        yield tell(facts, error, "failed a request, and the server went on", evidence)
        return
    error = next((error for error in reversed(facts.errors) if error.frames and part_of_file(error.caller)), None)
    if error is None or (part := part_of(error) or part_of_file(error.caller)) is None:
        yield from _of_a_class(facts)
        return
    # What serves HTTP starts the processes too, which it had done by then.
    part = REQUEST if part is LAUNCH else part
    call, unknown = CALL.search(error.message), _UNKNOWN_ARGUMENT.search(error.message)
    of_input = next((one for one in written("refused_by_check.toml") if one.words.search(error.message)), None)
    why = "its exception is of that request, not of the load"
    lacks = _LACKS.search(error.message) if error.type_name == "AttributeError" else None
    if lacks is not None and lacks[1] in _PLAIN:
        of_input = _PLAIN_VALUE
    if call is not None:
        why = f"{call[1]} is called with other arguments than it takes, a defect of this build or two that do not fit"
    elif of_input is not None:
        why = of_input.cause
    elif lacks is not None:
        why = f"{lacks[1]} has no {lacks[2]} in this build, a defect of its code or two packages that do not fit"
    yield Finding(
        rule=ID,
        cause=f"A request failed of {error.type_name} in {error.frame}, which SGLang called for {part.what}, and the "
        f"server went on: {why}.",
        confidence=Confidence.LIKELY if call or of_input or lacks else Confidence.POSSIBLE,
        evidence=(at(facts, error.place, exception_text(error), f"what the request failed of, in {error.frame}"),),
        advice=(
            *(_left_out(facts, unknown[2]) if unknown else ()),
            *(("another release or image of SGLang, with the packages that it pins",) if call or lacks else ()),
            *((of_input.advice,) if of_input else ()),
            *((_NO_TOKENIZER,) if facts.settings.get("skip_tokenizer_init") == "True" else ()),
            *((NO_CHATS,) if _is_a_chat(facts) else ()),
            part.look,
        ),
    )


_UNKNOWN_ARGUMENT = pattern(r"([\w.]+\(\)) got an unexpected keyword argument '(\w{1,60})'")
_LEAVE_OUT = (
    "look whether the request itself sends {0} (chat_template_kwargs, sampling parameters, options of tools, "
    "extra_body): leave it out there, for what reads it in this release does not take it"
)


def _left_out(facts: LogFacts, name: str) -> tuple[str, ...]:
    """Return where a keyword came from that nobody takes: an option of the start that has it, else the request."""
    within = [option for option, value in facts.arguments.items() if re.search(rf"\b{name}\b", value)]
    if not within:
        return (_LEAVE_OUT.format(name),)
    flag = f"--{within[0].replace('_', '-')}"
    return (f"take {name} out of {flag}, by which the start gives it to every request; what reads it has it not",)


def _of_an_argument(facts: LogFacts, error: Death, called: str, name: str) -> Finding:
    return Finding(
        rule=ID,
        cause=f"Requests failed, and the server went on: {called} was given {name}, which it does not take in this "
        "release. The request sends it, for another model or parser, or two parts here are of different releases.",
        confidence=Confidence.LIKELY,
        evidence=(at(facts, error.place, exception_text(error), "what the request failed of"),),
        ruled_out_if=("the same request is answered by the same build",),
        advice=(
            _LEAVE_OUT.format(name),
            "if it does not: the packages that the server's release pins, not two checkouts or images mixed; then a "
            f"later release, whose {called} takes {name} or passes it over",
        ),
    )


_OF_MEDIA = pattern(r"(?i)processor|image|video|audio|vision|media|mm_")


def _of_a_class(facts: LogFacts) -> Iterator[Finding]:
    """Yield that requests failed of what a class of the server's lacks or does not take, whatever frames are left."""
    for one in reversed(facts.errors):
        if one.type_name == "TypeError" and (unknown := _UNKNOWN_ARGUMENT.search(one.message)):
            yield _of_an_argument(facts, one, unknown[1], unknown[2])
            return
    found = ((error, _LACKS.search(error.message)) for error in reversed(facts.errors))
    error, lacks = next(
        (
            (one, words)
            for one, words in found
            if words and words[1] not in _PLAIN and one.type_name == "AttributeError"
        ),
        (None, None),
    )
    if error is None or lacks is None:
        return
    if (told := of_another_kind(facts, error, lacks, rule=ID)) is not None:
        yield told
        return
    of_media = _OF_MEDIA.search(lacks[0]) is not None
    yield Finding(
        rule=ID,
        cause=f"Requests failed, and the server went on: its class {lacks[1]} reads {lacks[2]}, which nothing in this "
        "build sets (any more). A defect of its code, or a base class of another release.",
        confidence=Confidence.LIKELY,
        evidence=(at(facts, error.place, exception_text(error), "what the request failed of"),),
        ruled_out_if=("the same request is answered by the same build",),
        advice=(
            f"another build: the release before, or a later one, whose {lacks[1]} or its base class sets {lacks[2]}; "
            "not two checkouts or images mixed (pip show of the server and of its fork)",
            *(
                ("until then text alone, or media of another kind (pictures in place of a video, or as embeddings)",)
                if of_media
                else ("until then requests without what that class is for",)
            ),
        ),
    )


_NO_TOKENIZER = (
    "this server has --skip-tokenizer-init: ask /generate with input_ids, which answers with ids; texts and the OpenAI "
    "endpoints need the tokenizer"
)
_CHATS = pattern(r"/(?:chat/)?completions|/generate\b|/responses\b")


def _is_a_chat(facts: LogFacts) -> bool:
    """Say whether a server of embeddings was asked for a text."""
    answers = (alarm.text for alarm in facts.alarms if alarm.kind == "answered-500")
    return facts.settings.get("is_embedding") == "True" and any(map(_CHATS.search, answers))


_NAMED_FLAG = pattern(r"(?:(without|not) )?`?(--[a-z][\w-]+)")
_ANY_REFUSAL = Wording(
    pattern(""), "what the server's words say", "mend what those words name, in the client or the start"
)
_REFUSES = pattern(
    r"Error in request|BadRequest|longer than the m(?:odel's context|aximum model)|maximum context length|"
    r"This model does not appear|validation errors?(?! for \w*(?:Config|Args)\b)|"
    r"literal_error|Skip invalid|preprocessing timed out|"
    r"Error code: 4|Streaming session already|[Ee]rror: |['\"]message['\"]|exceeds the maximum allowed"
)
_NO_EMBEDDINGS = (
    "the server was not started for embeddings",
    "start it with --is-embedding; one server answers either chats or embeddings",
)


_OF_A_RERANKER = (
    "the server took the reranker for a model of another kind than it is",
    "one that generates yes or no (Qwen3-Reranker, Qwen3-VL-Reranker): without --is-embedding and with its own "
    "--chat-template (qwen3_reranker.jinja of SGLang's examples/chat_template); one that is a classifier (BGE): with "
    "--is-embedding; /v1/rerank takes query and documents",
)


_LACKS = pattern(r"'((?!NoneType)\w+)' object has no attribute '(\w+)'")
_PLAIN = ("str", "list", "dict", "int", "float", "bool", "tuple")
_PLAIN_VALUE = Wording(
    pattern(""),
    "it was given a plain value where it takes another, as a request's field in another form gives",
    "mend the client: the form that this endpoint's fields have (messages, content, tools); once without a chat "
    "template or processor of one's own",
)


class Refused(NamedTuple):
    """Requests that a server refused, the last of a kind.

    Attributes:
        place: where it says so.
        said: its words.
        why: what it refused them for, as a clause.
        look: what to change.
        of_the_start: whether that is an argument of the start.
        of_length: whether they were too long, which is what a client of any healthy server may send.
    """

    place: Place
    said: str
    why: str
    look: str
    of_the_start: bool = False
    of_length: bool = False

    @property
    def text(self) -> str:
        """Return it in one line."""
        return f"line {self.place.line}: {self.said[:_LONGEST]}: {self.why}. {self.look[:1].upper()}{self.look[1:]}"


_OF_ITS_FORM = (
    "their body has not the form that this endpoint's schema asks for (status 422)",
    "read the body of such an answer: detail names the field (loc) and what it has to be (msg). A client that is newer "
    "than the server sends fields, types and roles that its release does not take: a later release of the server, or "
    "the client's version before; of /v1/messages (Anthropic's form) it is mostly a message with the role system",
)
_SAID = ("refused_argument", "refused_length", "refused_request", "refused_form", "busy_session")


def refused(facts: LogFacts) -> Iterator[Refused]:
    """Yield what requests were refused for, which a server outlives and says in few words, or to the client alone."""
    failed = {alarm.place.line for alarm in facts.alarms if alarm.kind == "answered-500"}
    for name in _SAID:
        found = facts.remarks.get(name)
        if name == "refused_form" and "refused_request" in facts.remarks:
            continue
        if found is None or found.place.line in failed or not _REFUSES.search(found.text):
            continue
        said = found.text.partition("Error in request: ")[2] or found.text
        if "embedding model" in said and "rerank" in facts.settings.get("model_path", "").lower():
            yield Refused(found.place, said, *_OF_A_RERANKER, of_the_start=True)
            continue
        if name == "refused_argument" and (flag := _NAMED_FLAG.search(said)) is not None:
            turn = "without" if flag[1] else "with"
            why = f"the server was not started {turn} an argument that they need it to be {turn}"
            yield Refused(found.place, said, why, f"start it {turn} {flag[2]}", of_the_start=True)
            continue
        if (room := room_asked(said)) is not None:
            yield Refused(found.place, said, *room)
            continue
        known = next((one for one in written("refused_by_check.toml") if one.words.search(said)), _ANY_REFUSAL)
        of_length = name == "refused_length"
        why = known.cause + lengths_refused.counted(said)
        look = lengths_refused.advised(facts, known.advice) if of_length else known.advice
        yield Refused(found.place, said, why, look, of_length=of_length)
    if (lost := facts.remarks.get("no_such_path")) is not None:
        yield Refused(lost.place, lost.text, *_NO_ADAPTERS, of_the_start=True)
    if (probe := facts.remarks.get("no_probe_path")) is not None:
        yield Refused(probe.place, probe.text, *_NO_SUCH_PROBE, of_the_start=True)
    if (formless := facts.remarks.get("answered_422")) is not None and _unsaid(facts):
        yield Refused(formless.place, formless.text, *_OF_ITS_FORM)
    embeddings = facts.remarks.get("refused_embeddings")
    if embeddings is not None and facts.settings.get("is_embedding") == "False" and _unsaid(facts):
        yield Refused(embeddings.place, embeddings.text, *_NO_EMBEDDINGS, of_the_start=True)
    elif (answer := facts.remarks.get("answered_400") or embeddings) is not None and _unsaid(facts):
        if "/rerank" in answer.text and "rerank" in facts.settings.get("model_path", "").lower():
            yield Refused(answer.place, answer.text, *_OF_A_RERANKER, of_the_start=True)
            return
        why, look = _UNSAID
        yield Refused(answer.place, answer.text, why, look)


_NO_ADAPTERS = (
    "adapters were to be loaded at a path that this server does not have, or that is another server's",
    "SGLang: POST /load_lora_adapter, without /v1, at a server that was started with --enable-lora (--max-lora-rank "
    "and --lora-target-modules where it starts without an adapter); vLLM: /v1/load_lora_adapter, with --enable-lora "
    "and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment",
)
_NO_SUCH_PROBE = (
    "a health check asks for a path that this server does not have (404): whoever checks takes a server for dead, or "
    "never for ready, that may well serve",
    "curl -i of /health on the server's own host and port: if that gives 200, set the path of readiness, liveness and "
    "startup probes to it (/health_generate, where a release has it, runs a request and needs seconds of time-out); "
    "otherwise something else answers at this port, such as a router or another server's image",
)
_UNSAID = (
    "the reason stands in the answer alone, which the client has",
    "read the body of such an answer; --log-requests --log-requests-level 2 shows the requests",
)


def _unsaid(facts: LogFacts) -> bool:
    return not any(name in facts.remarks for name in _SAID)


def refusals(facts: LogFacts) -> Iterator[Finding]:
    """Yield a finding where the server's start, or nothing but a refusal, is what the log shows.

    A server that works and refuses a request now and then is healthy.
    """
    last = max((line for rank in facts.schedulers for line in rank.series.get("line", ()) if line), default=0)
    ends = {alarm.place.line for alarm in facts.alarms if alarm.kind in SURVIVABLE}
    for one in refused(facts):
        alone = not facts.served and one.look != _UNSAID[1]
        # A server that answers others and refuses what is too long is well.
        alone = alone and not (one.of_length and "answer" in facts.understood)
        if not (alone or one.place.line in ends or (one.of_the_start and one.place.line > last)):
            continue
        yield Finding(
            rule=ID,
            cause=f"Requests were refused, and the server went on: {one.why}.",
            confidence=Confidence.LIKELY,
            evidence=(at(facts, one.place, one.said[:_LONGEST], "the last of them"),),
            ruled_out_if=("the same request is answered by the same server later",),
            advice=(one.look,),
        )


def tell(facts: LogFacts, death: Death, what: str, evidence: list[Evidence]) -> Finding:
    """Return the finding of a check.

    Args:
        facts: the log.
        death: what it raised.
        what: what that did, as a clause.
        evidence: where it stands.
    """
    below = called_from_a_model(death)
    part = below or part_of(death)
    assert part is not None
    condition = _condition(death)
    said = " ".join((condition or death.message).split())
    asks = tuple(f"--{name.replace('_', '-')}" for found in _ARGUMENT.findall(condition) for name in found if name)
    spoken = _arguments_in(facts, said) if part is ARGUMENTS else ()
    flags = tuple(dict.fromkeys((*_FLAG.findall(said), *asks, *spoken)))
    named = (name for name in facts.settings if re.search(rf"\b{name}\b|--{name.replace('_', '-')}\b", said))
    asked = None if _OF_TORCH in said else ASKED.search(said)
    later = tuple(flag for flag in asks if said.startswith("assert not ") and _is_off(facts, flag))
    handled = handling(death)
    tried = refused_too(facts, death, asked[0]) if asked else None
    says = f"{said[:_LONGEST]}{'…' if len(said) > _LONGEST else ''}{_DEFECT * bool(condition)}"
    where = f", {'below' if below else 'in'} {death.frame.partition(':')[0]}," if death.frame else ""
    return Finding(
        rule=ID,
        cause=f"A check of SGLang's own{where} {what}. It concerns {part.what}, and "
        f"says: {says.rstrip('.') + '.' + handled.what if handled else says}",
        confidence=Confidence.LIKELY if _TELLING.search(said) and not condition else Confidence.POSSIBLE,
        evidence=(*evidence, *of_settings(facts, *named)),
        ruled_out_if=("an earlier line tells of another failure: this one may then follow from it",),
        advice=(
            *(() if tried is None else also_refused(said, asked, tried)),
            *((f"what it asks for: {asked[0].strip()}",) if asked and tried is None else ()),
            *(look(facts, death) if went_on(facts, death) else ()),
            *by_its_words(facts, death),
            *((_NO_V2,) if _of_a_v2_step(facts, death) else ()),
            *((handled.look,) if handled else ()),
            *adapters_of_experts.beside_drafts(facts, death),
            *((WHICH_ONE,) if asserts_on_the_device(death) else ()),
            *((_ONE_BRANCH,) if part is ARGUMENTS and _TOPK.search(said) else ()),
            *(
                (f"give {', '.join(later)} from the start: it was not asked for, and something has set it since",)
                if later
                else (f"change or leave out {', '.join(flags)}",)
                if flags and tried is None
                else ()
            ),
            *((_OF_THE_DRAFT,) if later and facts.settings.get("speculative_algorithm", "None") != "None" else ()),
            *as_the_draft_was_loaded(facts, death),
            *((_APART,) if _SHARED.search(f"{said} {death.statement}") else ()),
            *((_IDLE_ROWS,) if _OF_TORCH in said and _is_parallel(facts, death) else ()),
            *((_NO_TOKENS,) if part.what.startswith("the experts") and _may_idle(facts, death) else ()),
            *overridden(facts, death),
            *named_by(facts, death),
            *(
                f"once {one.without}: its code raised it"
                for one in features(facts)
                if one.is_named(death) and not (handled and handled.look.startswith(f"once {one.without};"))
            ),
            *((NOT_YET,) if LACKING.search(said) and part not in (ARGUMENTS, OF_IMAGES) and tried is None else ()),
            *((f"--dtype {dtype[1]}",) if (dtype := _DTYPE.search(said)) else ()),
            *(
                (
                    _AT_START
                    if part.look.startswith(_ALONE) and not facts.served and not facts.errors
                    else WITHOUT_BUFFER
                    if "extra_buffer" in said and OF_CUDA.search(said)
                    else part.look,
                )
                if tried is None
                else ()
            ),
            *_others(facts, death, bool(condition)),
        ),
    )


_NO_V2 = (
    "once with --disable-overlap-schedule: drafts then take the path without overlap (earlier spec v1, "
    "SGLANG_ENABLE_SPEC_V2=0), which sets up its batches otherwise"
)


def _of_a_v2_step(facts: LogFacts, death: Death) -> bool:
    """Say whether it was raised in a step of drafts with overlap, in the code of drafts itself."""
    overlaps = facts.settings.get("disable_overlap_schedule", "None") != "True"
    steps = death.usage is not None and any("_v2.py" in frame for frame in death.frames)
    return overlaps and steps and death.path.startswith("speculative/")


_SHARED = pattern(r"(?:fused?|num)_shared_(?:experts?|slots?)|shared_experts?_fus|n_share_experts_fus")
_APART = (
    "once with --disable-shared-experts-fusion: what it counts has the model's shared expert among the routed ones, "
    "which not every --moe-a2a-backend and --ep has a place for; then a later release, which leaves it out by itself"
)
_IDLE_ROWS = (
    "once without --enable-dp-attention: ranks that have no request take part in a step with rows that only fill it, "
    "and two counts of rows that were made at different places then differ, with drafts above all; a defect of the "
    "release: then a later one"
)


_NO_TOKENS = (
    "once without --enable-dp-attention: a rank without a request hands the experts no token, and a check of what "
    "they are given may judge that for another fault; or another --moe-a2a-backend (none); then a later release"
)


def _may_idle(facts: LogFacts, death: Death) -> bool:
    """Say whether experts were given tokens by ranks of which some may have had none."""
    sent = facts.settings.get("moe_a2a_backend", "none") not in ("none", "None")
    return _is_parallel(facts, death) and sent and any(map(_ROUTES.match, death.frames[-2:]))


_ROUTES = pattern(r".* \w*(?:topk|dispatch|moe_align|select_experts|route)\w*$|topk\.py:")


def _is_parallel(facts: LogFacts, death: Death) -> bool:
    return facts.settings.get("enable_dp_attention") == "True" and "DP" in death.rank


def _others(facts: LogFacts, death: Death, bare: bool) -> Iterator[str]:
    """Yield what else to leave out of a server that had served: all of it where the check has no words of its own."""
    for one in switched_on(facts, death) if bare or facts.served else ():
        if not one.endswith((NAMED, CHOSEN)) and (bare or one != NO_OVERLAP):
            yield one


_TOPK = pattern(r"(?i)\btop_?k\b ?(?:=+|must be|to be|of|is) ?1\b")
_ONE_BRANCH = (
    "--speculative-eagle-topk 1, with --speculative-num-steps and --speculative-num-draft-tokens (the steps and one "
    "more), where that is what it means; or another --attention-backend (flashinfer, triton, fa3): what the start does "
    "not give, this release has chosen itself"
)
_OF_THE_DRAFT = (
    "once without --speculative-algorithm: the draft's part is set up after the target's, from the same arguments, and "
    "may change them for both"
)


def _is_off(facts: LogFacts, flag: str) -> bool:
    """Say whether the start line is there and has an argument switched off, or does not name it."""
    name = flag.removeprefix("--").replace("-", "_")
    return bool(facts.settings) and facts.settings.get(name, "False") in ("False", "None")


NOT_YET = "leave out what its words name, or have it otherwise, as they say; else a later release, which may serve it"
_ALONE = "send that request alone: its media"
_AT_START = (
    "it is of no request, for none was served: lines above it that something was not imported (Ignore import error) "
    "say why; transformers, torchvision and sglang-kernel of the releases in SGLang's pyproject, and the processor's "
    "files of the publisher's repository"
)
_SNAKE = pattern(r"\b(?<!-)[a-z]+(?:_[a-z0-9]+)+\b(?!\()")
_SPOKEN = (
    (pattern(r"(?i)\bdp[- ]attention"), "--enable-dp-attention"),
    (pattern(r"(?i)speculative decoding|\beagle\b|\bspec v2"), "--speculative-algorithm"),
    (pattern(r"(?i)overlap schedul"), "--disable-overlap-schedule"),
    (pattern(r"(?i)radix (?:cache|attention|tree)"), "--disable-radix-cache"),
    (pattern(r"(?i)(?<!piecewise )cuda graph"), "--disable-cuda-graph"),
    (pattern(r"(?i)piecewise"), "--disable-piecewise-cuda-graph"),
    (pattern(r"(?i)chunked[- ]prefill"), "--chunked-prefill-size"),
    (pattern(r"(?i)mixed[- ]chunk"), "--enable-mixed-chunk"),
    (pattern(r"(?i)\blora\b"), "--lora-paths"),
    (pattern(r"(?i)hierarchical cache|hicache"), "--enable-hierarchical-cache"),
    (pattern(r"(?i)pipeline parallel"), "--pp-size"),
    (pattern(r"(?i)expert parallel"), "--ep-size"),
    (pattern(r"(?i)tensor parallel"), "--tp-size"),
    (pattern(r"(?i)torch[. ]compile"), "--enable-torch-compile"),
    (pattern(r"(?i)deepep|a2a backend"), "--moe-a2a-backend"),
    (pattern(r"(?i)kv cache (?:d?type|quant)"), "--kv-cache-dtype"),
    (pattern(r"(?i)page size"), "--page-size"),
    (pattern(r"(?i)attention backend"), "--attention-backend"),
    (
        pattern(
            r"\b(?:trtllm_m[hl]a|flashmla|cutlass_mla|tokenspeed_mla|fa[34]|torch_native|flex_attention|aiter|wave|"
            r"dual_chunk_flash_attn)\b(?!.{0,20}(?i:moe|gemm))|(?i:trtllm.m[hl]a|flashinfer|triton) backend(?! for moe)"
        ),
        "--attention-backend",
    ),
    (pattern(r"(?i)\btop_?k\b.{0,40}specul|eagle_topk"), "--speculative-eagle-topk"),
    (pattern(r"(?i)moe runner"), "--moe-runner-backend"),
    (pattern(r"(?i)two[- ]batch"), "--enable-two-batch-overlap"),
    (pattern(r"(?i)(?<!encoder )disaggregat"), "--disaggregation-mode"),
    (pattern(r"(?i)encoder disaggregat"), "--encoder-only, --language-only"),
)
"""What checks of arguments call them in prose, and what the start calls them."""


def _arguments_in(facts: LogFacts, said: str) -> Iterator[str]:
    """Yield the arguments that a check of arguments speaks of, by their names in its code and in prose."""
    names = (name for name in _SNAKE.findall(said) if name in facts.arguments or is_an_argument(name))
    yield from (f"--{name.replace('_', '-')}" for name in names)
    yield from (flag for words, flag in _SPOKEN if words.search(said))
