"""A request is to have more KV slots than its row of req_to_token has columns."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import SHAPES, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "row-too-short"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=SHAPES, verdict="row_overflow")
    if dump is None:
        return None
    # The fix alone would leave out the patch that made it spec v2.
    frozen = str(dump.manifest.scalars.get("spec_info")).startswith("FrozenKVMTP")
    needed = "default,mtp-v2" if frozen else "default,spec-v2-row-width"
    return Finding(
        rule=ID,
        structure=Structure.REQUEST_ROW,
        defect=Defect.PAST_END,
        cause=(
            "Under spec v2 twice a step's tokens are allocated ahead, and rows have room for little more than one "
            "step's: near the end of its context a request's last slots go into the next request's row."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.longest", "KV slots of the longest request"),
            said(dump, "scalars.width", "columns of a row"),
            said(dump, "scalars.overflowing", "requests that reach into another's row"),
            said(dump, "site", "where they are allocated"),
        ),
        advice=(
            "The request in the row behind answers from slots that are not its own. A page whose slots are all behind "
            "the row's end is never freed, as SGLang 33579 tells of pages of one token, until SGLang's own check ends "
            "the server.",
            "Without the fix draft with topk 1 and at most 7 tokens a step: rows have room for that. That requests "
            "name max_new_tokens does not keep them clear of wide trees, nor under --allow-auto-truncate.",
            *(("mtp-v2 brings the fix along, unless -spec-v2-row-width takes it away.",) if frozen else ()),
        ),
        next_commands=(
            commands.serve(incident, f"--patches {needed}", "--debug 1"),
            commands.corpus("row-too-short"),
        ),
        fix="spec-v2-row-width",
        upstream=("SGLang 33579",),
    )


def _fits(dump: Dump) -> bool | None:
    longest, width = dump.manifest.scalars.get("longest"), dump.manifest.scalars.get("width")
    return longest <= width if isinstance(longest, int) and isinstance(width, int) else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("no request is longer than a row", in_dump(_fits)),),
    explains=("request-state-differs",),
)
