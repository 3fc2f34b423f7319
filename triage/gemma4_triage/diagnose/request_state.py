"""What is wrong with a running request's row, length or write location, by the one dump that says so."""

from __future__ import annotations

from typing import NamedTuple

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.relation import is_off_by_a_slot, is_within_its_page, places_early, relation_of
from gemma4_triage.diagnose.request_accounts import (
    CHECKED,
    NONE,
    PREFIX,
    SHARED,
    counter_of,
    is_known,
    is_left_behind,
    is_reordered,
    may_be_another,
    of_its_slot,
    slots_given_again,
)
from gemma4_triage.diagnose.request_sentences import sentence_of
from gemma4_triage.diagnose.row_evidence import Told, told_by
from gemma4_triage.finding import Confidence

_IN_ITS_PAGE = "it is another slot of the very page that belongs there"


class _Blame(NamedTuple):
    """Holds what is wrong, in which way, and how sure that is, before words are found for it."""

    structure: Structure | None
    defect: Defect | None
    confidence: Confidence


def told_of(dump: Dump) -> Told:
    """Return what a dump of a request's state tells: the first kind that fits it, from the particular to the plain."""
    kinds = (
        told_by,
        _left_behind,
        _reordered,
        _row_and_nodes,
        _three_lengths,
        _another_slot,
        _row_of_two,
        _by_its_reason,
        _page_of_others,
    )
    return next((told for kind in kinds if (told := kind(dump)) is not None), None) or _wrong_value(dump)


def _left_behind(dump: Dump) -> Told | None:
    if not is_left_behind(dump):
        return None
    cause = (
        f"The row of the request in slot {_slot(dump)} has a page that the prefix cache was never given: the nodes "
        "that the request holds have another for these tokens, and the row was not written with it."
    )
    return Told(cause, Defect.STALE, (), Confidence.LIKELY, Structure.REQUEST_ROW)


def _reordered(dump: Dump) -> Told | None:
    if not is_reordered(dump):
        return None
    scalars = dump.manifest.scalars
    cause = (
        f"The prefix cache wrote the row of the request in slot {_slot(dump)} again, with its own pages in another "
        f"order: {scalars.get('value')} where {scalars.get('expected')} belongs."
    )
    return Told(cause, Defect.SWAPPED, (), Confidence.LIKELY, Structure.REQUEST_ROW)


def _row_and_nodes(dump: Dump) -> Told | None:
    """Return that a row and the nodes which its request holds differ, where it is not the row that changed."""
    if dump.manifest.scalars.get("why") != PREFIX or _row_changed(dump):
        return None
    which = "the row is as it was, the node is not" if _as_before(dump) else "which of them is wrong is not known"
    cause = (
        f"The row of the request in slot {_slot(dump)} and the cache's nodes that it holds have other slots: {which}."
    )
    return _told(cause, _blame(dump))


def _three_lengths(dump: Dump) -> Told | None:
    if dump.manifest.scalars.get("account") != NONE:
        return None
    cause = (
        f"Batch, count and tokens of the request in slot {_slot(dump)} give three lengths: which is wrong is unknown."
    )
    return Told(cause, None, (), Confidence.POSSIBLE, None)


def _another_slot(dump: Dump) -> Told | None:
    """Return that a request's own record has another slot than it had."""
    if (moved := of_its_slot(dump)) is None:
        return None
    structure, cause, defect = moved
    if structure is None:
        return Told(cause, defect, (), Confidence.POSSIBLE, None)
    return Told(
        cause,
        defect or (Defect.SWAPPED if _named_defect(dump) is Defect.SWAPPED else None),
        (),
        Confidence.LIKELY,
        structure,
    )


def _row_of_two(dump: Dump) -> Told | None:
    """Return that two requests' rows name one page, where nobody was asked whose it is."""
    scalars = dump.manifest.scalars
    if scalars.get("why") != SHARED or scalars.get("owners") == CHECKED:
        return None
    cause = (
        f"The rows of two running requests, one of them in slot {_slot(dump)}, name the page of {scalars.get('value')}"
        ": whose it is was not looked at."
    )
    return Told(cause, None, (), Confidence.POSSIBLE, None)


def _by_its_reason(dump: Dump) -> Told | None:
    """Return what the reason says for which the entry is wrong, where it says all."""
    sentence = sentence_of(dump)
    return None if sentence is None else _told(sentence, _blame(dump))


def _page_of_others(dump: Dump) -> Told | None:
    """Return that a page of a running request went to somebody else, and its row is as it was."""
    scalars, as_it_was = dump.manifest.scalars, _as_before(dump)
    if not (as_it_was or _was_given_back(dump)):
        return None
    became = "given back" if _was_given_back(dump) else "given back, or handed out again"
    if _was_given_back(dump) and _is_by_another(dump):
        became += f" with those of the request in slot {scalars.get('by_request_slot')}"
    kept = "its row is as it was" if as_it_was else "its row has it still, and it has no other for that place"
    cause = f"A page of the running request in slot {_slot(dump)} was {became}, by the ledger; {kept}."
    return _told(cause, _blame(dump))


def _wrong_value(dump: Dump) -> Told:
    """Return the plain numbers, what they have in common with the right ones, and how new slots came there."""
    scalars, blame = dump.manifest.scalars, _blame(dump)
    structure = _named_structure(dump)
    named = "an entry" if structure is None else f"the {structure.value}{counter_of(dump)}"
    should = f" where {scalars.get('expected')} belongs" if is_known(dump) else ""
    way = "" if blame.defect is None else f" ({blame.defect.value})"
    value, owner = scalars.get("value"), scalars.get("page_owner")
    of = "" if owner in (None, _slot(dump)) else f", of a page of the request in slot {owner}"
    again, own = slots_given_again(dump) or (None, True)
    relation = again or relation_of(dump) or (_IN_ITS_PAGE if is_within_its_page(dump) else None)
    came = "" if relation is None else f"; {relation}"
    cause = f"The request in slot {_slot(dump)} has a wrong value in {named}: {value}{of}{should}{way}{came}."
    if not own and blame.confidence is Confidence.CERTAIN:
        blame = blame._replace(confidence=Confidence.LIKELY)
    return _told(cause, blame)


def _blame(dump: Dump) -> _Blame:
    """Return which structure is wrong, and in which way, by what stood there before and whose page it is."""
    scalars = dump.manifest.scalars
    # Of a row that nobody had looked at before either may be wrong, the row being much the more likely.
    either = may_be_another(dump) or (scalars.get("why") == PREFIX and scalars.get("first_look") is True)
    sure = Confidence.LIKELY if either else Confidence.CERTAIN
    if _was_given_back(dump):
        return _Blame(Structure.FREE_CALL, Defect.FOREIGN if _is_by_another(dump) else Defect.EARLY, sure)
    of_prefix, as_it_was = scalars.get("why") == PREFIX, _as_before(dump)
    unsure = as_it_was or (of_prefix and not _row_changed(dump))
    # Dumps without `row_had` have the way in which the row would be wrong.
    way_is_told = not unsure or (of_prefix and as_it_was and scalars.get("row_had") is not None)
    defect = _named_defect(dump) if way_is_told else None
    if not as_it_was:
        off_by_one = abs(places_early(dump) or 0) == 1 or (defect is not Defect.SWAPPED and is_off_by_a_slot(dump))
        # What is handed out and nobody's is not another request's.
        defect = None if slots_given_again(dump) is not None else Defect.OFF_BY_ONE if off_by_one else defect
    if of_prefix and as_it_was:
        return _Blame(Structure.TREE_NODE, defect, sure)
    return _Blame(None, defect, Confidence.POSSIBLE) if unsure else _Blame(_named_structure(dump), defect, sure)


def _told(cause: str, blame: _Blame) -> Told:
    return Told(cause, blame.defect, (), blame.confidence, blame.structure)


def _slot(dump: Dump) -> object:
    return dump.manifest.scalars.get("request_slot")


def _named_structure(dump: Dump) -> Structure | None:
    return next((word for word in Structure if word == dump.manifest.scalars.get("structure")), None)


def _named_defect(dump: Dump) -> Defect | None:
    return next((word for word in Defect if word == dump.manifest.scalars.get("defect")), None)


def _as_before(dump: Dump) -> bool:
    """Return whether the row is as it was: then it is not what changed."""
    return dump.manifest.scalars.get("as_before") is True


def _row_changed(dump: Dump) -> bool:
    """Return whether a row that differs from its nodes is what changed, or is new and was written from them."""
    scalars = dump.manifest.scalars
    had = scalars.get("row_had")
    return scalars.get("first_look") is True or (isinstance(had, int) and had == scalars.get("expected"))


def _was_given_back(dump: Dump) -> bool:
    """Return whether the page that the request reads was given back while it ran."""
    scalars = dump.manifest.scalars
    own = _as_before(dump) or scalars.get("page_was_own") is True
    return own and scalars.get("why") != PREFIX and scalars.get("page_event") in ("free_asked", "freed")


def _is_by_another(dump: Dump) -> bool:
    return dump.manifest.scalars.get("by_request_slot") not in (None, _slot(dump))
