"""Every page of a pool is in one place, and what SGLang counts of the pool does not add up."""

from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "pool-count-wrong"


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit found nothing but that."""
    dump = incident.first(rule=LEAK, verdict="pool_unbalanced")
    if dump is None:
        return None
    pool = "swa" if dump.manifest.pool_kind == "swa" else "full"
    return Finding(
        rule=ID,
        cause=(
            "A count of tokens is wrong, of the prefix cache's evictable or protected ones or of the allocator's free "
            "ones: every page is free, cached or held by one request, and SGLang's sums are not the pool's size."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, f"scalars.{pool}_available", "what the allocator says is free; compare it with its lists"),
            said(dump, f"scalars.{pool}_evictable", "what the prefix cache says that it can evict"),
            said(dump, f"scalars.{pool}_protected", "what it says that requests hold of it"),
            said(dump, f"scalars.{pool}_uncached", "what requests hold beside it, as the audit counted"),
            said(dump, f"scalars.{pool}_total", "what all sides have to add up to"),
            said(dump, "step", "the step of the audit that saw it first"),
        ),
        advice=(
            "No page is lost, but SGLang admits requests by these counters, and its own checker stops the server.",
            "Look at what changes them: insertions, evictions and locks of the prefix cache, tombstones among them.",
        ),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the audit counts wrongly what requests hold beside the prefix cache"),),
    leads_to=LOSES_PAGES,
    fallback=True,
)
