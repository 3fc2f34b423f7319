"""Whether an exception failed one request of a server that went on, and what the request had to do with it."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.lengths_refused import is_of_length
from gemma4_triage.logs.rule import at, exception_text, of_kind
from gemma4_triage.logs.rules import refused_by_check
from gemma4_triage.logs.said_by_python import OF_CODE, met, of_the_code

_NEAR = 3  # lines beside those of its frames
_STREAMS = pattern(r"serving\w*\.py:\S* \w*(?:stream_generator|completion_full_generator|create_\w+)$")
_ENGINE_ENDED = frozenset({"EngineDeadError"})
_CUT_CALL = pattern(r"prev_tool_call_arr|streamed_args_for_tool")
_OF_A_CUT_CALL = (
    "a larger max_tokens for requests with tools, or requests with tools that do not stream: as a stream ends, that "
    "line takes for granted that the parser of tool calls has begun one, which it has not where max_tokens cut the "
    "answer off or the parser keeps no such list; then a later release (vLLM 37937)"
)


def of_a_request(facts: LogFacts, death: Death) -> bool:
    """Say whether one request failed of it: a server answered 500 right beside it, or it made up an answer."""
    begun = min((error.chain or error.place.line for error in facts.errors if error.place == death.place), default=0)
    if not begun or any(one.type_name in _ENGINE_ENDED for one in (*facts.deaths, *facts.errors)):
        return False
    if any(map(_STREAMS.match, death.frames)) and not any(alarm.kind == "child" for alarm in facts.alarms):
        return True
    answers = (alarm.place.line for alarm in facts.alarms if alarm.kind == "answered-500")
    return any(0 < abs(begun - line) <= _NEAR + len(death.frames) * 3 for line in answers)


def of_a_cut_call(death: Death) -> Iterator[str]:
    """Yield what to do where a stream ended and the call that its line asks for was not there."""
    if death.type_name in ("IndexError", "KeyError", "AttributeError") and _CUT_CALL.search(death.statement):
        yield _OF_A_CUT_CALL


def accounted_for(facts: LogFacts) -> bool:
    """Say whether the answers with status 500 are those of an exception that is told by itself."""
    answers = [alarm for alarm in facts.alarms if alarm.kind == "answered-500"]
    return bool(answers) and any(of_a_request(facts, death) for death in facts.deaths)


_BESIDE, _LONGEST = 4, 200  # lines, characters


def refused_beside(facts: LogFacts) -> Iterator[Finding]:
    """Yield a finding of what a request was refused for, where that stands right beside an answer with status 500."""
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "answered-500"), None)
    if alarm is None:
        return
    answers = [place.line for place in (alarm.place, alarm.last or alarm.place)]
    for one in refused_by_check.refused(facts):
        if min(abs(one.place.line - line) for line in answers) <= _BESIDE:
            yield Finding(
                rule=refused_by_check.ID,
                cause=f"Requests failed inside the server, which went on: {one.why}.",
                confidence=Confidence.LIKELY,
                evidence=(at(facts, one.place, one.said[:_LONGEST], "what it said beside its answer"),),
                ruled_out_if=("the same request is answered by the same server later",),
                advice=(one.look,),
            )
            return


def is_of_a_client(facts: LogFacts, death: Death) -> bool:
    """Say whether whoever asked wrote an exception down of a refusal, which is no end of a server."""
    return (death.type_name == "BadRequestError" and not death.path) or is_of_length(facts, death)


_OWN = pattern(r"Exception: (.{1,300})")
_OF_VALUES = pattern(r"'NoneType' object|list index out of range|unhashable type")
_OF_TOOLS = pattern(r"(?i)\bfc\b|tool|function")


def refusals(facts: LogFacts) -> Iterator[Finding]:
    """Yield what requests were refused for: a defect of the server's own, where it says so, ahead of its answer."""
    if (finding := _of_a_defect(facts)) is not None:
        yield finding
        return
    yield from refused_by_check.refusals(facts)


def _of_a_defect(facts: LogFacts) -> Finding | None:
    """Return that a request was refused with status 400 for what the server's own code raised; None if not so."""
    own = facts.remarks.get("own_exception")
    answers = [facts.remarks[name].place.line for name in ("answered_400", "refused_request") if name in facts.remarks]
    said = _OWN.search(own.text) if own is not None else None
    if own is None or said is None or not any(abs(own.place.line - line) <= _BESIDE for line in answers):
        return None
    raised = Death(own.place, own.rank, "NameError" if "is not defined" in said[1] else "AttributeError", said[1])
    code = of_the_code(raised)
    if not code and _OF_VALUES.search(said[1]):
        code = f"its code met a value that it does not expect ({said[1].strip()[:_LONGEST]})"
    if not code:
        return None
    parser = facts.arguments.get("tool_call_parser", "None")
    answer = " ".join(one.text for name in ("refused_request",) if (one := facts.remarks.get(name)) is not None)
    of_tools = parser != "None" or _OF_TOOLS.search(answer) is not None
    named = f" {parser}" if parser != "None" else ""
    return Finding(
        rule=refused_by_check.ID,
        cause=f"A request was refused with status 400, and the fault is not the request's: as the server made up its "
        f"answer, {code}.",
        confidence=Confidence.LIKELY,
        evidence=(at(facts, own.place, own.text[:_LONGEST], "what the server wrote down beside its answer"),),
        ruled_out_if=("the same request is answered by the same server later",),
        advice=(
            "a later release of the server (or the one before), whose code sets or takes that"
            + (f": of its parser of tool calls{named}, where the answer speaks of calls" if of_tools else ""),
            *(
                ("until then another --tool-call-parser that reads this model's calls, or requests without tools",)
                if of_tools
                else ()
            ),
        ),
    )


_BENCHMARK = pattern(r"bench_serving(?:\.py)?:\S* |bench_serving\.py:")


def of_a_benchmark(facts: LogFacts, death: Death) -> Finding | None:
    """Return that a benchmark's client ended of its own code, where the log shows its command and no server; else None.

    What a scheduler raises has a stamp, a rank or a path within SGLang.
    """
    asked = facts.remarks.get("bench_client")
    own = any(map(_BENCHMARK.match, death.frames))
    known = of_kind(death) is not None
    if asked is None or asked.place.line > death.place.line or death.type_name not in OF_CODE or known:
        return None
    serves = facts.served or facts.starts or "ready" in facts.remarks or "http_ready" in facts.remarks
    if not own and (serves or death.rank or death.path or death.place.time):
        return None
    said = met(death) or of_the_code(death) or exception_text(death)
    return Finding(
        rule="other-crash",
        cause=f"The client of the benchmark, and no server, ended of {death.type_name}; {said}. It took for granted "
        "what the server's answers, or its own arguments, do not have.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, asked.place, asked.text[:_LONGEST], "the client's command"),
            at(facts, death.place, exception_text(death), "what it ended of"),
        ),
        ruled_out_if=("the server's own log has an exception at that time",),
        advice=(
            "a later release of the benchmark's client (bench_serving comes with SGLang: pip install -U sglang where "
            "it runs, or its file from the newest tag), once with another --backend (sglang in place of sglang-oai)",
            "send one of its requests with curl: if that is answered, the server is sound. A field of the answer that "
            "is null or absent (usage, text, choices) is what such a client mostly fails of",
        ),
    )
