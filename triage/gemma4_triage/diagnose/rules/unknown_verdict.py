"""A dump that no other rule understands: says what is known, and no more."""

from gemma4_dumps.schema import VERDICTS
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.inspection.provenance_sentence import provenance_sentence

ID = "unknown-verdict"


def find(incident: Incident) -> Finding | None:
    if not incident.dumps:
        return None
    dump = incident.by_access[0]
    manifest = dump.manifest
    known = VERDICTS.get(manifest.verdict)
    what = known or f"a probe reported {manifest.verdict.replace('_', ' ')!r}, which this release does not know"
    return Finding(
        rule=ID,
        cause=f"No rule knows the cause of this: {what}.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            said(dump, "rule", "the probe's rule"),
            said(dump, "verdict", "what it concluded"),
            said(dump, "summary", provenance_sentence(manifest) or "what it saw"),
            said(dump, "site", "where"),
        ),
        advice=() if known else ("Read it with the release of gemma4-triage that wrote it: see versions in the dump.",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap"), commands.PATCHES),
    )


# What would rule it out stands in no dump: that is a rule, and this release has none.
RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("a rule of a later release of gemma4-triage knows its cause"),),
    fallback=True,
)
