"""What is said of slots that a node of the prefix cache got: of the window's, and of a page that is torn."""

from __future__ import annotations

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.written_by import where_to_look
from gemma4_triage.finding import Confidence, Evidence, Finding

INSERT_WRONG, FREE = "cache-insert-wrong", "free"
_OTHER = "A node of the prefix cache has other slots of the sliding window than the map has for its full ones:"


def of_window(incident: Incident, dump: Dump) -> Finding:
    """Return what is said where a node's slots of the window are not what the map makes of its full ones."""
    scalars = dump.manifest.scalars
    same = scalars.get("untranslated") is True
    told, size = scalars.get("handed_out_with"), dump.manifest.page_size or 1
    handed_out = told if isinstance(told, int) else 0
    known = handed_out > 0 and not same
    in_map, in_node = (_page(dump, name, size) for name in ("expected", "value"))
    structure, defect, why = None, None, "which of the two is wrong is not known."
    if same:
        structure, defect = Structure.TREE_NODE, Defect.OTHER_SPACE
    elif known and in_map == handed_out != in_node:
        structure = Structure.TREE_NODE
        apart = None if in_node is None else in_node - handed_out
        defect = Defect.OFF_BY_ONE if apart in (-1, 1) else Defect.ZERO if in_node == 0 else None
        by = f", {abs(apart)} pages off" if apart and abs(apart) < 4 and defect is not Defect.OFF_BY_ONE else ""
        by = ", the one beside it" if defect is Defect.OFF_BY_ONE else by
        why = f"the map has the page that was handed out with the full one, {handed_out}, the node page {in_node}{by}."
    elif known and in_node == handed_out != in_map:
        # A free of the window's page clears the map, and a page that lost its own may get another: both are right.
        structure = Structure.SWA_MAPPING if in_map else None
        why = f"the node has the page that was handed out with the full one, {handed_out}, and the map page {in_map}"
        why += (
            ", where that page was not freed since, and the full one got no other."
            if in_map
            else (": it was freed since, before the insert or by it, or the map was changed.")
        )
    return Finding(
        rule=INSERT_WRONG,
        structure=structure,
        defect=defect,
        cause=(
            "A node of the prefix cache has its slots of the full pool as those of the sliding window too: they were "
            "not translated."
            if same
            else f"{_OTHER} {why}"
        ),
        confidence=(
            Confidence.POSSIBLE
            if structure is None
            else Confidence.LIKELY
            if structure is Structure.SWA_MAPPING
            else Confidence.CERTAIN
        ),
        evidence=(
            said(dump, "scalars.value", "what the node has of the sliding window, first"),
            said(dump, "scalars.expected", "what the map has there"),
            said(dump, "scalars.full_slot", "the node's full slot there"),
            *([said(dump, "scalars.handed_out_with", "the SWA page that this one's page was handed out with")] * known),
            said(dump, "offence_count", "slots of which that holds"),
            said(dump, "scalars.node_slots", "slots of the node"),
            said(dump, "scalars.request_slot", "whose tokens were put in"),
        ),
        advice=(
            where_to_look(structure)
            if structure is Structure.SWA_MAPPING
            else "Look at what gives a node its value of SWA as it is put in: SWARebuild, _translate_full_to_swa.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )


def of_free_pages(incident: Incident, dump: Dump) -> Finding:
    """Return what is said where pages are put into the cache that are on the free list."""
    scalars = dump.manifest.scalars
    site, step, own = (scalars.get(name) for name in ("page_free_site", "page_free_step", "page_was_own"))
    happened = scalars.get("page_event")
    given_back, known = happened in ("freed", "free_asked"), isinstance(happened, str)
    by = "" if site is None else f" by {site}, in step {step}"
    pages, slot = scalars.get("pages_free"), scalars.get("request_slot")
    which = "a page" if pages == 1 else f"{pages} pages"
    structure, defect = None, None
    why = "whether they had been given back is not known: the leak ledger was not asked."
    if known and not given_back:
        why = (
            "by the ledger nobody had given them back: the list was written beside all calls, or a group of frees gave "
            "back others at its end than it was given (free_group_end)."
        )
    elif given_back and own is True and _left_its_window(dump):
        structure, defect = Structure.WINDOW_EVICTION, Defect.EARLY
        why = (
            f"they are those that have left its sliding window, and were given back before{by}, their full side too: "
            "what leaves the window gives back its SWA side alone (free_swa_segment)."
        )
    elif given_back and own is True:
        structure, defect = Structure.FREE_CALL, Defect.EARLY
        why = f"they were its own and had been given back before{by}: ahead of the insert that takes them over."
    elif given_back:
        structure, defect = Structure.REQUEST_ROW, Defect.STALE
        why = f"they had been given back before{by}, and were not its own last: its row has pages of others."
    return Finding(
        rule=INSERT_WRONG,
        structure=structure,
        defect=defect,
        cause=(
            f"The prefix cache is given {which} of the request in slot {slot} that the free list has, so that the pool "
            f"hands them out again while the cache has them for its own: {why}"
        ),
        confidence=(
            Confidence.CERTAIN
            if defect is Defect.EARLY and _just_released(dump)
            else Confidence.POSSIBLE
            if structure is None
            else Confidence.LIKELY
        ),
        evidence=(
            said(dump, "scalars.value", "the first such slot"),
            said(dump, "scalars.token", "at which token"),
            said(dump, "scalars.pages_free", "pages that were free"),
            said(dump, "scalars.path_tokens", "tokens that were put in"),
            said(dump, "scalars.page_event", "what became of the first of them last, by the ledger"),
            said(dump, "scalars.page_was_own", "whether the first of them was the request's last, by the ledger"),
            said(dump, "scalars.page_free_site", "who gave it back last, by the ledger"),
            said(dump, "scalars.page_free_step", "when"),
            said(dump, "scalars.request_slot", "whose tokens they are"),
        ),
        advice=(
            where_to_look(structure)
            if structure in (Structure.REQUEST_ROW, Structure.FULL_FREE_LIST)
            else "Look at the order of the two as a request is released or cached: checkpoint_into_tree, then "
            "free_kv_row (release_kv_cache); cache_finished_req, cache_unfinished_req.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )


def _left_its_window(dump: Dump) -> bool:
    """Return whether the pages that are free are the first of the request, up to where its window begins by its count.

    Of a request that goes on, whose window is given back ahead of its insert.
    """
    scalars, size = dump.manifest.scalars, dump.manifest.page_size or 1
    pages, evicted, token = (scalars.get(name) for name in ("pages_free", "evicted", "token"))
    if not (isinstance(pages, int) and isinstance(evicted, int) and isinstance(token, int)):
        return False
    return scalars.get("page_free_site") == "cache_unfinished_req" and evicted == token + pages * size


_RELEASES = ("release_kv_cache", "cache_finished_req", "cache_unfinished_req")


def _just_released(dump: Dump) -> bool:
    """Return whether it was the request's own release, of this very moment, that gave the page back."""
    scalars, now = dump.manifest.scalars, dump.manifest.step
    step = scalars.get("page_free_step")
    recent = isinstance(step, int) and now is not None and now - 1 <= step <= now
    return scalars.get("page_free_site") in _RELEASES and recent


def _page(dump: Dump, name: str, size: int) -> int | None:
    value = dump.manifest.scalars.get(name)
    return value // size if isinstance(value, int) else None


def of_torn_page(incident: Incident, dump: Dump) -> Finding:
    """Return what is said where slots that were put into the cache do not follow each other in their page."""
    scalars = dump.manifest.scalars
    tokens, committed = scalars.get("path_tokens"), scalars.get("committed")
    more = tokens - committed if isinstance(tokens, int) and isinstance(committed, int) else 0
    token = scalars.get("token")
    # A token that has no keys yet has what an earlier request left in its place.
    keys = committed if isinstance(committed, int) and committed > 0 else None
    longer = more > 0 and isinstance(token, int) and keys is not None and token >= keys
    cause = (
        f"What was put into the prefix cache is {more} token{'s' * (more > 1)} too long: it has {tokens} tokens, and "
        f"the request keys of {committed}. Behind these its row has nothing, or what an earlier request left "
        "there, slots of another page, and the node has that for its own."
        if longer
        else "What was put into the prefix cache has, in the midst of a page, a slot of another one: the request's row "
        "has that there, or what was read of it was changed on its way."
    )
    evidence: tuple[Evidence, ...] = (
        said(dump, "scalars.value", "the first such slot"),
        said(dump, "scalars.expected", "the slot of its page that belongs there"),
        said(dump, "scalars.token", "at which token"),
        said(dump, "offence_count", "slots of which that holds"),
        said(dump, "scalars.path_tokens", "tokens that were put in"),
        said(dump, "scalars.committed", "tokens of which the request has keys"),
        said(dump, "scalars.request_slot", "whose tokens they are"),
    )
    return Finding(
        rule=INSERT_WRONG,
        structure=Structure.TREE_NODE if longer else Structure.REQUEST_ROW,
        defect=Defect.OFF_BY_ONE if longer and more == 1 else None,
        cause=cause,
        confidence=Confidence.CERTAIN
        if longer
        else Confidence.LIKELY
        if isinstance(committed, int)
        else Confidence.POSSIBLE,
        evidence=evidence,
        advice=(
            "Look at up to which token a request is put in: checkpoint_into_tree, cache_finished_req, "
            "cache_unfinished_req, by kv_committed_len and whole pages."
            if longer
            else where_to_look(Structure.REQUEST_ROW),
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )
