"""A request is sampled with a temperature, or another parameter, that it did not ask for."""

from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.finding import Confidence, Finding

ID = "sampling-differs"
_NOBODYS = -1
_SWAPPED = (
    ": the batch's values stand in another order than its requests. Look at what puts two batches together or takes "
    "requests out (SamplingBatchInfo.merge_batch and filter_batch, beside those of ScheduleBatch)."
)
_ANOTHERS = ", which is what the request in slot {whose} asked for."
_ORDER = (
    "The batch's rows stand in another order than its requests, or one was written over: look at what puts two batches "
    "together or takes requests out (SamplingBatchInfo.merge_batch and filter_batch, and a penalizer's own)."
)
_ADDED = {"logit_bias": "a logit_bias", "penalties": "penalties"}
_TOKENS = "The request in slot {slot} is sampled with {what} of {given} tokens that are not its own, but"
_FLAG = (
    "A batch says {name} = {given} of all of its requests, and the request in slot {slot} asked for what that leaves "
    "out ({asked}): it is sampled as if it had not. Look at where the flag is made and merged (SamplingBatchInfo)."
)


def find(incident: Incident) -> Finding | None:
    """Return what the first such dump says: the batch's value is wrong where the request's own is as it was."""
    dump = incident.first(rule=REQUEST_ROWS, verdict="sampling_differs")
    if dump is None:
        return None
    told = dump.manifest.scalars
    names = ("request_slot", "parameter", "given", "asked", "request_says", "value")
    slot, name, given, asked, now, whose = (told.get(one) for one in names)
    if told.get("why") == "tokens":
        cause = _TOKENS.format(slot=slot, what=_ADDED.get(str(name), name), given=given)
        of = "those that the request in slot {whose} has" if whose not in (None, _NOBODYS, slot) else "nobody's"
        cause += f" {of.format(whose=whose)}. {_ORDER}"
    elif told.get("why") == "flag":
        cause = _FLAG.format(name=name, given=given, slot=slot, asked=asked)
    elif now != asked:
        cause = (
            f"The request in slot {slot} asked for {name} {asked}, and says {now} itself now: what it asked for was "
        )
        cause += f"written over while it ran. Its batch has {given}."
    else:
        cause = f"The request in slot {slot} asked for {name} {asked}, and its batch has {given}"
        if told.get("defect") == Defect.SWAPPED:
            cause += _SWAPPED
        else:
            cause += (
                _ANOTHERS.format(whose=whose) if whose not in (None, _NOBODYS, slot) else ", which nobody asked for."
            )
    return Finding(
        rule=ID,
        cause=cause,
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.parameter", "of which parameter"),
            said(dump, "scalars.given", "what the batch has"),
            said(dump, "scalars.asked", "what the request had as it was first seen"),
            said(dump, "scalars.request_says", "what the request itself says now"),
            said(dump, "scalars.rows_wrong", "of how many requests it is wrong"),
            said(dump, "scalars.requests", "of so many"),
            said(dump, "site", "where it was looked at"),
        ),
        advice=("Pages, rows and lengths may all be right: only what is chosen among the logits is not.",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes request-rows")),
    )


RULE = Rule(ID, find)
