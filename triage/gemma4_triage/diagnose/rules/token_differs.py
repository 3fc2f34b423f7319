"""A forward reads another token than its request's latest, or drafts were taken that the target had not agreed to."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "token-differs"
_ACCEPTED = "agreed"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=REQUEST_ROWS, verdict="token_differs")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    accepted = scalars.get("why") == _ACCEPTED
    # What the request that is named has; of several that are wrong in one way the dump has the word for that.
    defect = next((word for word in Defect if word == scalars.get("defect")), None)
    return Finding(
        rule=ID,
        defect=defect,
        cause=_of_drafts(dump) if accepted else _of_input(dump),
        confidence=Confidence.CERTAIN if accepted else Confidence.LIKELY,
        evidence=(
            said(dump, "scalars.value", "tokens that were taken" if accepted else "whose token it is; -1: not known"),
            said(dump, "scalars.expected", "tokens that the target agreed to" if accepted else "whose it has to be"),
            said(dump, "scalars.request_slot", "of which request"),
            said(dump, "scalars.rows_wrong", "requests of this batch of which that holds"),
            *((said(dump, "scalars.by_logits", "whether the target's own logits were asked"),) * accepted),
            said(dump, "site", "where it was looked at"),
        ),
        advice=(
            "Pages, rows and lengths may all be right: what is wrong is the answer.",
            "Look at how many drafts the verification counts."
            if accepted
            else "Look at what hands the last step's tokens to the next: by request slot, and in the batch's order.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes request-rows")),
    )


def _of_drafts(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    took, agreed = scalars.get("value"), scalars.get("expected")
    more = isinstance(took, int) and isinstance(agreed, int) and took > agreed
    came = "drafts that it rejected are in the answer" if more else "tokens that it agreed to are missing"
    return (
        f"A verification took {took} tokens of the request in slot {scalars.get('request_slot')}, and the target "
        f"agreed to {agreed}: {came}."
    )


def _of_input(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    whose, defect = scalars.get("value"), scalars.get("defect")
    of = "" if whose == -1 else f": the latest of the request in slot {whose}"
    if defect == Defect.STALE:
        of = ": the one before that"
    return f"A step reads another token than the latest of the request in slot {scalars.get('request_slot')}{of}."


def _the_answer_may_be_wrong(dump: Dump) -> bool | None:
    return False if dump.manifest.scalars.get("why") == _ACCEPTED else None


def _the_list_may_be_wrong(dump: Dump) -> bool | None:
    scalars = dump.manifest.scalars
    return None if scalars.get("why") == _ACCEPTED and scalars.get("by_logits") is not True else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the request's answer has another's token, and the step read the right one",
            in_dump(_the_answer_may_be_wrong),
        ),
        Exclusion(
            "the count is right, and the list of the tokens that were taken is not", in_dump(_the_list_may_be_wrong)
        ),
    ),
)
