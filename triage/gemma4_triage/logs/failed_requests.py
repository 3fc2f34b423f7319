"""Whether an exception failed one request of a server that went on, and what the request had to do with it."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import at, pattern
from gemma4_triage.logs.rules import refused_by_check

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
