"""A node of the prefix cache has a page that stood elsewhere in the cache at the audit before."""

from gemma4_dumps.audit_findings import TABLE, lives
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import MOVED_IN_TREE, first_census, lost_pages
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import FOLLOWS_FROM_AN_ENTRY, LEAVES_BUFFERS, LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "cached-pages-moved"


def find(incident: Incident) -> Finding | None:
    """Return a finding where the first audit held the cache's nodes against what they held before, and they differ."""
    census = first_census(incident)
    moved = () if census is None else census.of("full", MOVED_IN_TREE)
    if not moved:
        return None
    first = moved[0]
    return Finding(
        rule=ID,
        structure=Structure.TREE_NODE,
        defect=Defect.SWAPPED if len(moved) > 1 else Defect.DUPLICATE,
        cause=(
            "A node of the prefix cache has a page of the cache in another one's place: at the audit before, that page "
            "stood elsewhere, and nobody gives a node that has its sliding window other pages."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            cell(first.dump, TABLE, (first.row, 0), "the page that stands in another's place"),
            said(first.dump, "step", "the step of the audit that saw it first"),
        ),
        advice=("Look at who writes a node's value; whoever matches that prefix reads other tokens' keys.",),
        next_commands=(commands.audit(first.dump), commands.serve(incident, "--debug trap")),
    )


def _were_given_anew(dump: Dump) -> bool | None:
    """Return whether each page has left the cache and come back, by its lives; None where they do not say of each."""
    try:
        of_page = lives(dump)
    except DumpError:
        return None
    moved = [of_page.get((one.pool, one.page), []) for one in lost_pages(dump) if one.fault == MOVED_IN_TREE]
    if not moved or not all(moved):
        return None
    anew = [any(life.given_step is not None and life.free_step is not None for life in past[:-1]) for past in moved]
    return True if all(anew) else None if any(anew) else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the pages were given back and to the cache anew since: a node that had lost its sliding window may get "
            "such pages",
            in_dump(_were_given_anew),
        ),
    ),
    explains=(*FOLLOWS_FROM_AN_ENTRY, "holder-entry-wrong"),
    leads_to=(*LEAVES_BUFFERS, *LOSES_PAGES),
)
