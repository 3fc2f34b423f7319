"""A token is not its request's: of a step's input, of drafts that were taken, or of an answer."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.diagnose.wrong_tokens import ACCEPTED, CHUNK, INPUT, MORE, PARTS, PROMPT, TOLD
from gemma4_triage.finding import Confidence, Finding

ID = "token-differs"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=REQUEST_ROWS, verdict="token_differs")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    why, sampled = scalars.get("why"), scalars.get("by_sample")
    told = TOLD.get(str(why), INPUT)
    # What the request that is named has; of several that are wrong in one way the dump has the word for that.
    defect = next((word for word in Defect if word == scalars.get("defect")), None)
    anothers = sampled == "input" and scalars.get("answer_at") is not None
    return Finding(
        rule=ID,
        defect=Defect.FOREIGN if anothers or scalars.get("left_before") is not None else defect,
        cause=told.words(dump),
        confidence=Confidence.CERTAIN if _is_sure(dump) else Confidence.LIKELY,
        evidence=(
            said(dump, "scalars.value", told.value),
            said(dump, "scalars.expected", told.expected),
            said(dump, "scalars.request_slot", "of which request"),
            *(
                said(dump, f"scalars.{name}", meaning)
                for name, meaning in MORE.items()
                if scalars.get(name) is not None
            ),
            said(dump, "site", "where it was looked at"),
        ),
        advice=(
            "Pages, rows and lengths may all be right: what is wrong is the answer.",
            PARTS if sampled == "input" else told.advice,
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes request-rows")),
    )


def _is_sure(dump: Dump) -> bool:
    """Return whether two accounts of the token agree against the third."""
    scalars = dump.manifest.scalars
    if scalars.get("why") == CHUNK:
        # An answer may grow behind the last one.
        read, prompt = scalars.get("read"), scalars.get("prompt")
        return isinstance(read, int) and isinstance(prompt, int) and read <= prompt
    if scalars.get("why") == PROMPT:
        # The list is made of the prompt and of the answer, of which it says nothing then.
        place, prompt = scalars.get("place"), scalars.get("prompt")
        answers = isinstance(place, int) and isinstance(prompt, int) and place >= prompt
        return scalars.get("by_fill") == "own" and (not answers or scalars.get("by_sample") == "answer")
    return scalars.get("why") in TOLD or scalars.get("by_sample") is not None


def _the_answer_may_be_wrong(dump: Dump) -> bool | None:
    return False if _is_sure(dump) else None


def _the_list_may_be_wrong(dump: Dump) -> bool | None:
    scalars = dump.manifest.scalars
    # As the verification ended, its list and its count were one.
    told = scalars.get("by_logits") is True or scalars.get("since_verified") is True
    return None if scalars.get("why") == ACCEPTED and not told else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the request's prompt or answer has another token, and the step read the right one",
            in_dump(_the_answer_may_be_wrong),
        ),
        Exclusion(
            "the count is right, and the list of the tokens that were taken is not", in_dump(_the_list_may_be_wrong)
        ),
    ),
)
