"""A request goes on behind a token at which its answer ends."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.finding import Confidence, Finding

ID = "stop-token-missed"
_RUN = (
    " The answer grew by {grown} in that step, and this is not the last of them: update_finish_state was told of fewer "
    "new tokens (new_accepted_len; by its default it looks at the last one alone), or what it found was lost."
)
_LAST = " It is the latest of the answer: update_finish_state was not asked about it, or what it found was lost."


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=REQUEST_ROWS, verdict="stop_missed")
    if dump is None:
        return None
    slot, place, behind, grown = (
        dump.manifest.scalars.get(name) for name in ("request_slot", "stop_at", "behind", "grown")
    )
    return Finding(
        rule=ID,
        cause=(
            f"The request in slot {slot} goes on behind token {place} of its answer (counted from 0), at which it "
            f"ends: one of its stop_token_ids, or of the model's or tokenizer's, and it does not ask to go on "
            f"(ignore_eos).{_RUN.format(grown=grown) if behind else _LAST}"
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.request_slot", "of which request"),
            said(dump, "scalars.stop_at", "where the token stands that ends its answer"),
            said(dump, "scalars.behind", "how many of its answer stand behind it"),
            said(dump, "scalars.grown", "by how many the answer grew since it was looked at"),
            said(dump, "site", "where it was looked at"),
        ),
        advice=(
            "Pages, rows and lengths may all be right: the answer is too long, with what was drafted behind its end.",
            "Look at process_batch_result_decode, and at what it tells update_finish_state.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap", "--probes request-rows")),
    )


RULE = Rule(ID, find)
