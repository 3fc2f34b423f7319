"""The scheduler died of an exception, and no check had found anything before."""

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.died_of_lengths import of_lengths
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.exception_as_log import told_by_rules_over_logs
from gemma4_triage.diagnose.incident import PROCESS_END, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding, at_most

ID = "scheduler-exception"
_AGAIN = "Serve it with every probe and GEMMA4_TRIAGE_LEAK=dump, and send the same load."
_ADVICE = (
    "Compare the rows in the dump with what each request counts: a slot outside the pool, or a row that is not the "
    "request's, is what such an exception comes from.",
    _AGAIN,
)
_OF_LISTS = (
    *("pop index out of range", "list index out of range", "list assignment index out of range"),
    *("pop from empty list", "deque index out of range", "pop from an empty deque", "tuple index out of range"),
)
"""What Python says of a place that one of its lists does not have."""
_OF_A_LIST = (
    "That line goes by a place in a list of Python's that the list does not have, and by no row or page. "
    "Most likely the list became shorter since the place was looked up, as where several are taken out of it from the "
    "front on and each moves those behind it, or the place is one in another list."
)


_UNKNOWN = "What led there is not known: no check found anything before."
_ADMITS = "_get_new_batch_prefill_raw"
_CUT_TWICE = (
    "The scheduler asserts there that one prompt alone is read in chunks: admission (PrefillAdder.add_one_req, "
    "add_chunked_req, and what it counts as room in each pool) let another in and cut it, while one was not read yet."
)
_DECODE_FITTED = (
    " Before each decode SGLang counts what it takes, and retracts requests until that fits (check_decode_mem, "
    "new_tokens_required_next_decode): by that count this step fitted, so it counts less than is taken, leaves a pool "
    "out, or goes by a length (kv_committed_len) or a number of evictable tokens that is wrong."
)
_PREFILL_FITTED = (
    " Admission counts beforehand what fits (PrefillAdder, the budget of each pool): by that count these requests "
    "fitted, so it counts less than is taken, leaves a pool out, or goes by a number of evictable tokens that is wrong."
)


def find(incident: Incident) -> Finding | None:
    """Return what the dump of an exception says, where it showed, and what rules over logs make of it."""
    dump = incident.first(rule=PROCESS_END, verdict="exception")
    if dump is None:
        return None
    if (told := of_lengths(ID, incident, dump)) is not None:
        return told
    scalars = dump.manifest.scalars
    told = told_by_rules_over_logs(dump, incident)
    of_list = told is None and str(scalars.get("message")) in _OF_LISTS
    died = f"The scheduler died of {scalars.get('exception')} in {dump.manifest.site}."
    return Finding(
        rule=ID,
        cause=f"{died} {_CUT_TWICE if _cut_twice(dump) else _OF_A_LIST if of_list else _UNKNOWN}"
        if told is None
        else f"{died} {told.cause}{_by_the_count_before(dump)}",
        confidence=Confidence.POSSIBLE if told is None else at_most(told.confidence, Confidence.LIKELY),
        evidence=(
            said(dump, "scalars.message", "what it said"),
            said(dump, "scalars.stage", "what the scheduler's loop was doing"),
            said(dump, "scalars.traceback", "where, outermost first"),
            said(dump, "scalars.requests", "requests of the batch, which the tensor `requests` shows"),
        ),
        advice=(*told.advice, *_ADVICE) if told is not None else _line_of(dump) if of_list else _ADVICE,
        ruled_out_if=() if told is None else told.ruled_out_if,
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
        upstream=() if told is None else told.upstream,
    )


def _line_of(dump: Dump) -> tuple[str, ...]:
    """Return that the line is to be looked at which raised the exception."""
    scalars = dump.manifest.scalars
    line = str(scalars.get("traceback")).rpartition(" > ")[2]
    return (f"Read {line}, and where what it goes by is made: {scalars.get('stage')} had called it.", _AGAIN)


def _cut_twice(dump: Dump) -> bool:
    """Return whether it is the scheduler's own assertion that one prompt alone is read in chunks."""
    scalars = dump.manifest.scalars
    asserted = scalars.get("exception") == "AssertionError" and not scalars.get("message")
    return asserted and dump.manifest.site.endswith(_ADMITS)


def _by_the_count_before(dump: Dump) -> str:
    """Return what SGLang counts before a step asks for slots, where one found none; "" for another exception."""
    scalars = dump.manifest.scalars
    said, frames = str(scalars.get("message")), str(scalars.get("traceback"))
    requests = scalars.get("requests")
    if "out of memory. Try to lower your batch size" not in said or not isinstance(requests, int):
        return ""
    # One that is alone is ended in another way.
    if "prepare_for_decode" in frames and requests > 1:
        return _DECODE_FITTED
    return _PREFILL_FITTED if "prepare_for_extend" in frames else ""


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("an earlier dump of the same process, or the log, names what was wrong before"),),
    fallback=True,
)
