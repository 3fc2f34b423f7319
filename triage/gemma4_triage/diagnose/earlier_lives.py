"""Pages that were handed out again although an earlier life of theirs had not ended, or not as it should have."""

from collections.abc import Sequence

from gemma4_dumps.audit_findings import LIVES, TABLE, Life, Suspect, lives
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import HELD_TWICE, NOWHERE, Census, first_census
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence, Evidence, Finding

_EVICTION = "evict_tree"


def handed_out_in_use(dump: Dump, held: Sequence[Suspect]) -> int | None:
    """Return the row in `lives` of the first life of such a page that did not end before the next began; None if none.

    It is in use since: whoever freed it later freed what they were given.
    """
    try:
        past = lives(dump)
    except DumpError:
        return None
    wanted, number = {(one.pool, one.page) for one in held}, 0
    for page, of_page in past.items():
        for at, life in enumerate(of_page):
            if page in wanted and at + 1 < len(of_page) and life.free_step is None:
                return number + at
        number += len(of_page)
    return None


def given_in_use(incident: Incident, dump: Dump, number: int, rule: str) -> Finding:
    """Return the finding about a page whose first life without an end is row `number` of `lives`."""
    return Finding(
        rule=rule,
        cause=(
            "A page that was in use was handed out again, and nobody had given it back: its free list had it, or the "
            "hand-out was wrong. Who freed it since freed what was given."
        ),
        confidence=Confidence.POSSIBLE,
        evidence=(
            cell(dump, LIVES, (number, 0), "the page"),
            cell(dump, LIVES, (number, 2), "the request slot that had it first, in the life that has no end"),
            cell(dump, LIVES, (number + 1, 2), "the request slot that was given it beside that"),
            said(dump, "offence_count", "pages that are free and held"),
            said(dump, "step", "the step of the audit"),
        ),
        advice=("Audit every few steps: GEMMA4_TRIAGE_LEAK_EVERY=8 shows the step at which the list had it.",),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def freed_beside_eviction(incident: Incident, rule: str) -> Finding | None:
    """Return a finding where pages of the prefix cache were freed beside its eviction, and have two holders since."""
    census = first_census(incident)
    if census is None or not (twice := census.of("full", HELD_TWICE)):
        return None
    dump = twice[0].dump
    try:
        of_page = lives(dump)
    except DumpError:
        return None
    past = [_freed_from_cache(of_page.get((one.suspect.pool, one.page), [])) for one in twice]
    if not past[0] or not all(past):
        return None
    return Finding(
        rule=rule,
        structure=Structure.FREE_CALL,
        defect=Defect.EARLY,
        cause=(
            f"Pages of the prefix cache were given back by {past[0].free_site} at step {past[0].free_step}, which is "
            "no eviction, and handed out again: both owners hold them since."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offence_count", "pages with two holders"),
            cell(dump, TABLE, (twice[0].row, 0), "the first of them"),
            cell(dump, TABLE, (twice[0].row, 7), "the step at which it was handed out again"),
            said(dump, "step", "the step of the audit"),
            *peers_lost(census, {one.page for one in twice}),
        ),
        advice=("The audit has the page's earlier lives: look at what gave it back while the cache had it.",),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _freed_from_cache(past: Sequence[Life]) -> Life | None:
    """Return the life before the latest, if the cache had the page and something else than its eviction freed it."""
    if len(past) < 2 or past[-2].given_step is None or past[-2].free_step is None:
        return None
    return None if past[-2].free_site == _EVICTION else past[-2]


def peers_lost(census: Census, twice: set[int]) -> tuple[Evidence, ...]:
    """Return what says that the SWA pages of those pages are lost, if no others are: they went as those were mapped."""
    gone = census.of("swa", NOWHERE)
    if not gone or census.of("full", NOWHERE) or not all(one.suspect.peer in twice for one in gone):
        return ()
    return (cell(gone[0].dump, TABLE, (gone[0].row, 10), "the full page that a lost SWA page served"),)
