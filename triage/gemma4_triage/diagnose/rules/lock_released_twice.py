"""SGLang's prefix cache finds a node whose lock nobody holds where a request gives its hold back."""

import re

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import PROCESS_END, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "lock-released-twice"
_MESSAGE = re.compile(
    r"(?:dec_lock_ref on node with node\.\w*lock_ref|(?:segment|window) release hit (?:host_)?lock_ref)=(-?\d{1,9})\b"
)


def find(incident: Incident) -> Finding | None:
    """Return a finding where that assertion ended the scheduler."""
    for dump in incident.of(rule=PROCESS_END):
        if (found := _MESSAGE.search(str(dump.manifest.scalars.get("message")))) is not None:
            break
    else:
        return None
    count = int(found[1])
    return Finding(
        rule=ID,
        structure=Structure.TREE_LOCK,
        defect=Defect.ZERO if count == 0 else Defect.NEGATIVE,
        cause=(
            f"A request gives back its hold on a node of the prefix cache that has {count} of them: one was given back "
            "twice, or the count was changed beside it."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.message", "SGLang's own assertion, with the count"),
            said(dump, "scalars.traceback", "who gave the hold back"),
            said(dump, "step", "in which step"),
        ),
        advice=("Compare inc_lock_ref and dec_lock_ref on that way: each hold ends once, on the node it began on.",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("a clear or a reset of the cache ran while requests held its nodes"),),
    leads_to=("other-crash",),
)
