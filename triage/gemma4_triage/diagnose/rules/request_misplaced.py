"""A request runs and waits at once, or one that ran is in no batch and does not wait."""

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "request-misplaced"
_TWICE = (
    "The request in slot {slot} runs and is in the waiting queue all the same: taken from there it is matched, "
    "locked and given slots for its row once more, and is in a batch twice."
)
_ADDED = (
    " It ran before and was put there: look at who adds to the queue (_add_request_to_queue: retractions, preemption) "
    "and does not take the request out of its batch."
)
_KEPT = (
    " It was admitted in this step: look at who takes those that were (can_run_list, _get_new_batch_prefill_raw) out "
    "of the queue."
)
_RETRACTED = (
    "A request was retracted{row} and is neither in the waiting queue nor in a batch: nobody holds it any more, so "
    "that it is never answered. Look at who puts retracted requests back (update_running_batch, _add_request_to_queue)."
)
_DROPPED = (
    "The request in slot {slot} ran, has not ended, and is neither in a batch nor in the waiting queue: nobody holds "
    "it any more, so that it is never answered, and its row and pages are not given back. Look at who takes requests "
    "out of batches (filter_batch, merge_batch, chunked_req)."
)


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=REQUEST_ROWS, verdict="request_misplaced")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    slot = scalars.get("request_slot")
    lost = scalars.get("why") == "in no queue"
    retracted = scalars.get("retracted") is True
    twice = _TWICE + (_ADDED if scalars.get("ran_before") is True else _KEPT)
    words = (_RETRACTED if retracted else _DROPPED) if lost else twice
    return Finding(
        rule=ID,
        cause=words.format(slot=slot, row=", with its row given back," if slot is None else ""),
        confidence=Confidence.LIKELY if lost else Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.value", "in so many places it is"),
            said(dump, "scalars.answered", "tokens that its answer has"),
            said(dump, "scalars.again", "how often it was retracted before"),
            said(dump, "scalars.waiting", "requests that wait"),
            *(said(dump, f"scalars.{name}", _MEANS[name]) for name in _MEANS if name in scalars),
            said(dump, "site", "where it was looked at"),
        ),
        advice=("Pages, rows and lengths may all be right still: what is wrong is where the scheduler has a request.",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes request-rows")),
    )


_MEANS = {
    "ran_before": "whether it ran before this step",
    "in_chunks": "whether its prompt is read in chunks",
    "retracted": "whether it is marked as retracted",
}


def _is_held_elsewhere(dump: Dump) -> bool | None:
    return None if dump.manifest.scalars.get("why") == "in no queue" else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "a part of SGLang that was not asked holds the request, or has ended it", in_dump(_is_held_elsewhere)
        ),
    ),
    leads_to=LOSES_PAGES,
)
