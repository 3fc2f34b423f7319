"""A draft batch carries the write locations that target verify left on it."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import SHAPES, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "write-locations-left-over"


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=SHAPES, verdict="stale_write_rows")
    if dump is None:
        return None
    return Finding(
        rule=ID,
        structure=Structure.WRITE_LOCATIONS,
        defect=Defect.STALE,
        cause=(
            "With CUDA graphs off, target verify leaves its write locations on the batch, and the draft's next forward "
            "copies more of them than it has tokens."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "role", "whose batch it is"),
            said(dump, "scalars.tokens", "tokens of the batch"),
            said(dump, "scalars.rows", "write locations that it carries"),
            said(dump, "site", "where they would be copied"),
        ),
        advice=(
            "Without the fix SGLang dies of `The size of tensor a must match the size of tensor b`.",
            "SGLang 0.5.15 and later have the fix.",
        ),
        next_commands=(
            commands.serve(incident, "--patches default", "--debug 1"),
            commands.corpus("eager-out-cache-loc"),
        ),
        fix="eager-out-cache-loc",
        upstream=("SGLang 29616",),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("CUDA graphs are on and the batch was replayed", in_dump(lambda dump: dump.manifest.graph.captured)),
        Exclusion("the batch is the target's", in_dump(lambda dump: dump.manifest.role != "draft")),
    ),
    in_logs=("stale-write-rows",),
)
