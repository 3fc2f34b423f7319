"""Pages that an allocator's own bookkeeping dropped: at restore_state, or when a free group began again."""

from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.concerned import are_free, free_list
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import LOST_PAGES, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "pages-lost-between-calls"


def find(incident: Incident) -> Finding | None:
    dump = next((dump for dump in incident.of(rule=LOST_PAGES) if ".alloc" not in dump.manifest.site), None)
    if dump is None:
        return None
    restored = dump.manifest.site.endswith(".restore_state")
    return Finding(
        rule=ID,
        structure=free_list(dump),
        defect=Defect.LOST,
        cause=(
            "Pages that were freed between backup_state and restore_state came back as taken, and their mapping is "
            "gone: nobody can free them."
            if restored
            else "A free group began anew while slots of the group before it were still to be freed."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "site", "the call that lost them"),
            said(dump, "offence_count", "pages or slots that are lost"),
            said(dump, "offences.0.value", "the first of them"),
            said(dump, "pool_kind", "of which pool"),
        ),
        advice=(
            "The pool stays smaller until it is cleared or the server restarts.",
            "Free nothing between backup and restore." if restored else "End each free group before the next begins.",
        ),
        next_commands=(commands.serve(incident, "--debug trap", "--probes swa-allocator"), commands.show(dump)),
    )


RULE = Rule(
    ID, find, ruled_out_if=(Exclusion("they are in a free list of the dump", in_dump(are_free)),), leads_to=LOSES_PAGES
)
