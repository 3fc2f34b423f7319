"""Pages that two nodes of the prefix cache have: it was given them by whoever computed them, and once more later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma4_dumps.audit_findings import SHARES, TABLE, Life, lives
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import GIVEN, HELD_TWICE, TREE, first_census
from gemma4_triage.diagnose.evidence import cell, event, readable_events, said, tensor_or_none
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.finding import Confidence, Finding

_SLOT, _STEP = 2, 5
"""Columns of the tensor `shares`."""


def of_pages_given_twice(rule: str, incident: Incident) -> Finding | None:
    """Return a finding where pages of the full pool are in two nodes, and the ledger saw both of their gifts.

    None where a request holds one as well, or one was freed or handed out between.
    """
    dump, census = incident.first(rule=LEAK, verdict="pool_alias"), first_census(incident)
    if dump is None or census is None:
        return None
    pages = [one.page for one in census.of("full", HELD_TWICE)]
    held = [one for one in census.holders or () if one.page in pages]
    if not pages or len(held) != 2 * len(pages) or any(one.holder != TREE for one in held):
        return None
    try:
        past = [(lives(dump).get(("full", page)) or [None])[-1] for page in pages]
    except DumpError:
        return None
    again = _given_again(dump, pages, past)
    if again is None:
        return None
    number, record = again
    slot = _who_gave(dump, record, pages)
    row = _taken(dump, pages[0], int(record.get("step") or 0), slot)
    if row is None:
        # It did not have them from the cache: a hand-out, or its row, may be wrong.
        return None
    first = min(life.given_step for life in past if life is not None and life.given_step is not None)
    whose = "a request" if slot is None else f"the request in slot {slot}"
    return Finding(
        rule=rule,
        structure=Structure.TREE_NODE,
        defect=Defect.DUPLICATE,
        cause=(
            f"The prefix cache has pages of the full pool in two of its nodes: it was given them in step {first}, and "
            f"again in step {record.get('step')} ({record.get('site')}) by {whose}, which had taken them from there in "
            f"step {row[1]}. An insert leaves out what a match has given, so it found other nodes than the match did: "
            "its key is another, as of another namespace (extra_key) or other tokens, or it went another way down the "
            "tree. An eviction of the one node frees what the other has."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "offence_count", "pages in two nodes"),
            cell(dump, TABLE, (0, 0), "the first of them"),
            event(dump, number, "step", "when the cache was given them again"),
            event(dump, number, "site", "by whom"),
            cell(dump, SHARES, (row[0], _SLOT), "who had taken the first from there before"),
        ),
        advice=(
            "Compare the key of the match with that of the insert (_req_radix_key, match_prefix, cache_unfinished_req, "
            "checkpoint_into_tree): tokens, namespace (extra_key) and length have to be the same.",
        ),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
    )


def _given_again(dump: Dump, pages: list[int], past: list[Life | None]) -> tuple[int, Mapping[str, Any]] | None:
    """Return the latest event in which the cache was given the first of the pages, behind the step of its first gift.

    None where one of them was not the cache's before.
    """
    steps = [None if life is None or life.free_step is not None else life.given_step for life in past]
    if any(step is None for step in steps):
        return None
    known = [step for step in steps if step is not None]
    gifts = [
        (number, one)
        for number, one in enumerate(readable_events(dump))
        if one.get("kind") == GIVEN and one.get("pool") == "full" and pages[0] in (one.get("first_pages") or ())
    ]
    return gifts[-1] if gifts and int(gifts[-1][1].get("step") or 0) > max(known) else None


def _who_gave(dump: Dump, record: Mapping[str, Any], pages: list[int]) -> int | None:
    """Return the request slot whose row has the other pages of a gift; None where that is not one request."""
    edges, others = tensor_or_none(dump, "edges"), set(record.get("first_pages") or ()) - set(pages)
    if edges is None or edges.shape[1] != 4:
        return None
    slots = {int(row[0]) for row in edges.tolist() if row[2] in others}
    return slots.pop() if len(slots) == 1 else None


def _taken(dump: Dump, page: int, step: int, slot: int | None) -> tuple[int, int] | None:
    """Return the row of the latest request that took a page from the cache until a step, and when that was.

    Of the request in `slot` where that is known.
    """
    shares = tensor_or_none(dump, SHARES)
    if shares is None or shares.ndim != 2 or shares.shape[1] <= _STEP:
        return None
    known = ((number, row) for number, row in enumerate(shares.tolist()) if row[0] == page and row[_STEP] <= step)
    rows = [(number, row[_STEP]) for number, row in known if slot in (None, row[_SLOT])]
    return max(rows, key=lambda one: one[1]) if rows else None
