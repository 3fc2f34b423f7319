"""Somebody counts an SWA page as held that the pool has back: the parts exceed the pool, or the ledger saw its free."""

from gemma4_dumps.audit_findings import equations, suspects
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import counted_as_gone, said, were_evicted
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.lost_by_the_cache import said_of_windows, were_the_caches_before, window_given_back_by
from gemma4_triage.diagnose.rule import Exclusion, Rule, Seen, in_dump
from gemma4_triage.diagnose.unmapped_pages import (
    given_back_by_the_window,
    of_a_count_that_fell,
    of_events,
    places_in_row,
)
from gemma4_triage.finding import Confidence, Finding

ID = "evicted-page-counted"


def find(incident: Incident) -> Finding | None:
    """Return a finding where the parts exceed the pool by such pages, or where the ledger saw them given back."""
    if (told := of_a_count_that_fell(incident, ID)) is not None:
        return told
    return of_events(incident, ID) if _is_of_events(incident) else _of_sums(incident)


def _is_of_events(incident: Incident) -> bool:
    """Return whether no audit of such pages has sums that exceed the pool, and its events have such a free."""
    audits = incident.of(rule=LEAK, verdict="null_page_live")
    return not any((_excess(dump) or 0) > 0 for dump in audits) and of_events(incident, ID) is not None


def _of_sums(incident: Incident) -> Finding | None:
    found = [dump for dump in incident.of(rule=LEAK, verdict="null_page_live") if _excess(dump) is not None]
    if not found:
        return None
    dump = max(found, key=lambda one: (_excess(one) or 0) > 0)
    gone = counted_as_gone(dump)
    # By the count alone anybody may have given the page back: who did, the events have to say.
    structure = None if gone is None or not given_back_by_the_window(dump) else _accused(dump, gone)
    of_cache = structure is Structure.TREE_NODE and were_the_caches_before(dump)
    structure = Structure.WINDOW_EVICTION if of_cache else structure
    by = window_given_back_by(dump) if structure is None else None
    if by is not None:
        of_cache, structure = True, Structure.WINDOW_EVICTION
    of_call, was_evicted = structure is Structure.WINDOW_EVICTION, structure is not None or were_evicted(dump)
    return Finding(
        rule=ID,
        structure=structure,
        defect=Defect.STALE if structure is Structure.TREE_NODE else Defect.EARLY if of_call else None,
        cause=said_of_windows(structure, was_evicted, of_cache, by),
        # Where neither the cache nor the count can be accused, the page may have been freed by somebody else; of a
        # request that has ended nobody knows what it counted as it gave the cache its pages.
        confidence=(
            Confidence.POSSIBLE if structure is None else Confidence.CERTAIN if by is None else Confidence.LIKELY
        ),
        evidence=(
            said(dump, "offence_count", "full pages of live tokens without an SWA slot"),
            said(dump, "scalars.swa_available", "SWA tokens that are free"),
            said(dump, "scalars.swa_evictable", "SWA tokens that the cache says it holds"),
            said(dump, "scalars.swa_protected", "SWA tokens that it says running requests hold"),
            said(dump, "scalars.swa_total", f"the pool: {_excess(dump)} tokens less than the parts"),
            said(dump, "scalars.evicted", "tokens that each request counts as evicted, by slot"),
        ),
        advice=(
            "Compare swa_evicted_seqlen of the request that cached these pages with what free_swa was given: the cache "
            "believes that less was evicted."
            if not of_cache
            else "Look at where the eviction begins: not before cache_protected_len, and not below swa_evict_floor.",
            "SGLang's idle check stops the server; with GEMMA4_TRIAGE_LEAK=dump it goes on.",
        ),
        next_commands=(commands.audit(dump), commands.corpus("page-over-count")),
        upstream=("SGLang 27789",),
    )


def _accused(dump: Dump, gone: int) -> Structure | None:
    """Return what is wrong where a request counts `gone` tokens as gone; None where that cannot be told.

    Pages that it counts so are the cache's mistake. Of one beyond them the steps of the frees tell: where the last page
    that it counts went in the same step, the call took too many, and where that went before, the count was not moved.
    """
    page = dump.manifest.page_size or 1
    places = places_in_row(dump)
    if places is None:
        # Dumps without `edges` have no more than how many pages there are.
        return Structure.TREE_NODE if gone >= dump.manifest.offence_count * page else Structure.REQUEST_COUNTERS
    by_page, by_column = places
    found = [by_page.get(one.page) for one in suspects(dump) if one.fault == "unmapped"]
    known = [place for place in found if place is not None]
    if not known or len(known) < len(found):
        return None
    beyond = [step for column, step in known if (column + 1) * page > gone]
    if len(beyond) < len(known):
        return None if beyond else Structure.TREE_NODE
    last = by_column.get(gone // page - 1, -1)
    if min(beyond) < 0 or (gone and last < 0):
        return None
    return Structure.WINDOW_EVICTION if gone and set(beyond) == {last} else Structure.REQUEST_COUNTERS


def _is_told_where(dump: Dump) -> bool | None:
    """Return None where the dump does not say at which place of the row the pages are, and it matters."""
    return None if counted_as_gone(dump) is not None and places_in_row(dump) is None else False


def _excess(dump: Dump) -> int | None:
    """Return by how many tokens the parts of the SWA pool exceed it; None where the audit does not say."""
    return next((one.accounted - one.total for one in equations(dump) if one.pool == "swa"), None)


def _agrees(seen: Seen) -> bool | None:
    """Return whether the sums agree, or lack something; False of what the events alone show."""
    if seen.dump is None or _is_of_events(seen.incident):
        return None if seen.dump is None else False
    return (_excess(seen.dump) or 0) <= 0


def _is_told_who(seen: Seen) -> bool | None:
    return None if seen.finding.structure is None else False


def _is_exact(dump: Dump) -> bool | None:
    if (_excess(dump) or 0) <= 0:
        return False
    exact = _excess(dump) == dump.manifest.offence_count * (dump.manifest.page_size or 1)
    return False if exact else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the SWA pool's equation holds, or tokens are missing from it", _agrees),
        Exclusion("the pages are at other places of the request's row than it counts", in_dump(_is_told_where)),
        Exclusion("the pages without an SWA slot are not exactly what is too much", in_dump(_is_exact)),
        Exclusion("somebody gave these pages back beside the cache", _is_told_who),
    ),
    injected_by=("page-over-count",),
    leads_to=("pool-leak",),
)
