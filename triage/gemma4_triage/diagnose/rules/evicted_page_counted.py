"""The prefix cache counts an SWA page as held that the pool has back: the parts exceed the pool."""

from gemma4_dumps.audit_findings import equations
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.finding import Confidence, Finding

ID = "evicted-page-counted"


def find(incident: Incident) -> Finding | None:
    for dump in incident.of(rule=LEAK, verdict="null_page_live"):
        swa = next((equation for equation in equations(dump) if equation.pool == "swa"), None)
        if swa is not None and swa.accounted > swa.total:
            break
    else:
        return None
    excess = dump.manifest.offence_count * (dump.manifest.page_size or 1)
    return Finding(
        rule=ID,
        structure=Structure.TREE_NODE,
        defect=Defect.STALE,
        cause=(
            "The prefix cache counts SWA pages as present that were evicted while their request ran: the pool has them "
            "back, so the parts of the SWA pool exceed it."
        ),
        # The pages without an SWA slot are exactly what is too much.
        confidence=Confidence.CERTAIN if swa.accounted - swa.total == excess else Confidence.LIKELY,
        evidence=(
            said(dump, "offence_count", "full pages of live tokens without an SWA slot"),
            said(dump, "scalars.swa_available", "SWA tokens that are free"),
            said(dump, "scalars.swa_evictable", "SWA tokens that the cache says it holds"),
            said(dump, "scalars.swa_protected", "SWA tokens that it says running requests hold"),
            said(dump, "scalars.swa_total", f"the pool: {swa.accounted - swa.total} tokens less than the parts"),
        ),
        ruled_out_if=("the SWA pool's equation holds, or tokens are missing from it",),
        advice=(
            "Compare swa_evicted_seqlen of the request that cached these pages with what free_swa was given: the cache "
            "believes that less was evicted.",
            "SGLang's own idle check stops the server for this; with GEMMA4_TRIAGE_LEAK=dump it goes on.",
        ),
        next_commands=(commands.audit(dump), commands.corpus("page-over-count")),
        upstream=("SGLang 27789",),
    )


RULE = Rule(ID, find, injected_by=("page-over-count",), leads_to=("pool-leak",))
