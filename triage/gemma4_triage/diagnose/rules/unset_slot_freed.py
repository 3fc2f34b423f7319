"""A caller frees slots of the dummy page 0: an entry of a row that was never written.

The allocator probe sees the call. In `contain` there is none, and the leak audit finds page 0 on the free list later.
"""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.earlier_calls import begins_where_it_ended, given_back_whole, window_given_back
from gemma4_triage.diagnose.evidence import by_eviction, event, readable_events, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.page_zero_listed import at_audit, beyond_what_was_given, ends_within_its_text, names_a_page
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "unset-slot-freed"
_UNSET = (
    "Somebody frees a slot of page 0, which no allocator ever hands out: an unset entry of a request's row holds 0, "
    "and so does the mapping of a slot without an SWA peer."
)
_PAGE_0 = "Released, page 0 is handed out as a normal page, while padded tokens keep writing to it."
_ADVICE = (
    _PAGE_0,
    "Look at the caller's row: it frees more of it than the request wrote (kv_allocated_len, evicted prefix).",
)
_TWICE = (
    "A free of both pools names slots whose SWA pages had been given back before: only their full pages were to go."
)
_ADVICE_TWICE = (
    "Look at what parts a free by how far the window's pages are gone (swa_evicted_seqlen, the cache's tombstones): "
    "slots below that are freed in the full pool alone (free_full_segment).",
    _PAGE_0,
)
_WHOLE = (
    "A page is given back once more: a call before had given it back in both pools, and nobody got it since. The "
    "mapping was cleared then, so that its slots look like those of page 0."
)
_FULL_ALONE = (
    "A page is given back once more: a call before had given its full page back, when its SWA page had gone already "
    "(to another full page, or with its window), and nobody got it since. Its slots look like those of page 0."
)
_OF_EVICTION = " The eviction of the prefix cache's nodes makes both calls: for a node's full pages and for its window."
_ROUNDED = " It begins with the page within which that call ended: its begin is rounded down to a page, and not up."
_ADVICE_WHOLE = (
    "Of both calls one is too many, or reaches too far: look where the second begins (page_align_floor, ceil_align).",
    "Who frees a node's or a window's pages apart frees full ones alone (free_full_segment, full_attn_allocator). Of "
    "an insert: which of the request's slots it says were there already, when it has taken some over for a node's.",
)
_ADVICE_INSERT = (
    "Look at up to which token the request is put in: checkpoint, cache_unfinished_req (up_to, a chunk's extend_end),"
    " and by which length the window is given back ahead of it (free_out_of_window_slots: the length of the key).",
    _PAGE_0,
)
_OF_AN_INSERT = (("insert_up_to", "up to which token the request is put into the prefix cache meanwhile"),)


def find(incident: Incident) -> Finding | None:
    at_free = _at_free(incident)
    audited, _ = at_audit(incident)
    if not at_free and not audited:
        return None
    by_call = any("events" in piece.field for piece in audited)
    refused = _refused(incident)
    before = () if refused is None else window_given_back(refused)
    of_window = False
    cause, advice = (_TWICE, _ADVICE_TWICE) if before else (_UNSET, _ADVICE)
    if refused is not None and not before and (number := given_back_whole(refused)) is not None:
        full_alone = readable_events(refused)[number].get("call") == "free_full_segment"
        before = (
            event(refused, number, "call", f"what gave back that page before{'' if full_alone else ', in both pools'}"),
            event(refused, number, "site", "who asked for that"),
            said(refused, "scalars.call_site", "who asks for it now"),
        )
        by_cache = {before[1].value, before[2].value} == {"evict_tree"}
        how = _ROUNDED if begins_where_it_ended(refused, number) else _OF_EVICTION if by_cache else ""
        cause, advice = (_FULL_ALONE if full_alone else _WHOLE) + how, _ADVICE_WHOLE
    elif refused is not None and not before and (beyond := beyond_what_was_given(refused)):
        cause, advice, of_window = _UNSET + beyond, _ADVICE_INSERT, ends_within_its_text(refused)
    return Finding(
        rule=ID,
        # A row that was never written holds 0 everywhere; slots 0 to 15 are those of a page that somebody named.
        structure=Structure.WINDOW_EVICTION
        if of_window
        else Structure.FREE_CALL
        if before or names_a_page(incident)
        else None,
        defect=Defect.EARLY if of_window else Defect.DUPLICATE if before else Defect.ZERO,
        cause=cause,
        # Without a call that freed it the list may have been overwritten.
        confidence=Confidence.CERTAIN if at_free or by_call else Confidence.POSSIBLE,
        evidence=(*at_free, *before, *audited),
        advice=advice,
        next_commands=(
            commands.serve(incident, "--debug trap", "--probes swa-allocator"),
            commands.corpus("free-of-page-zero"),
        ),
        upstream=() if advice is _ADVICE_WHOLE else ("SGLang 38519",),
    )


def _at_free(incident: Incident) -> tuple[Evidence, ...]:
    dump = _refused(incident)
    if dump is None:
        return ()
    return (
        said(dump, "offences.0.value", "the slot to be freed"),
        said(dump, "offences.0.lower", "the first slot that the pool hands out"),
        said(dump, "site", "the call that frees it"),
        said(dump, "pool_kind", "of which pool"),
        *(said(dump, f"scalars.{name}", meaning) for name, meaning in _OF_AN_INSERT if name in dump.manifest.scalars),
    )


def _refused(incident: Incident) -> Dump | None:
    """Return the dump of the call that was to free slots of page 0 alone; a window's eviction has a rule of its own."""
    for dump in incident.of(rule="swa-free-range", verdict="free_out_of_range"):
        if by_eviction(dump):
            continue
        offences, page = dump.manifest.offences, dump.manifest.page_size or 1
        if offences and all(0 <= offence.value < page for offence in offences):
            return dump
    return None


# Handed out, page 0 stands in live tables; several requests hold it, overwrite its mapping, and free it in turn.
_FOLLOWS = ("null-page-in-live-column", "page-freed-twice", "page-given-twice", "swa-page-shared")
_ALSO = ("swa-page-replaced-before-free",)
RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "slots above page 0 are listed too: then the list itself is wrong",
            lambda seen: not _at_free(seen.incident) and at_audit(seen.incident)[1],
        ),
        Exclusion("the row was written, and its slots were overwritten with those of page 0"),
    ),
    injected_by=("free-of-page-zero",),
    explains=(*_FOLLOWS, *_ALSO),
    leads_to=("pool-leak",),
)
