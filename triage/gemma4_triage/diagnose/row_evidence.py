"""What else dumps of `request-rows` tell: new slots at another place, nodes that were evicted, counts of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.request_accounts import may_have_been_evicted
from gemma4_triage.diagnose.tree_kinds import KINDS, MISLEADS, counts_of
from gemma4_triage.finding import Confidence, Evidence

_FEWEST = 2
"""New slots of a run, before where it stands tells how it came there."""


@dataclass(frozen=True)
class Told:
    """What is wrong, and how.

    Attributes:
        cause: The sentence.
        defect: In which way it is wrong.
        evidence: What says so.
        confidence: Certain where nothing else can be wrong.
        structure: What is wrong; None where that is not known.
    """

    cause: str
    defect: Defect | None
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    structure: Structure | None = Structure.REQUEST_ROW


def told_by(dump: Dump) -> Told | None:
    """Return what a dump of `request-rows` tells by more than its first entry; None where it does not."""
    kinds = (
        _broken_path,
        _turned_path,
        _misplaced_slots,
        _evicted_nodes,
        _counts_of_others,
        _rows_of_others,
        _released_another,
        _not_counted,
        _evicted_behind,
    )
    return next((told for kind in kinds if (told := kind(dump)) is not None), None)


def _broken_path(dump: Dump) -> Told | None:
    """Return what is wrong with the links of the cache's nodes, where a request's row or count and its nodes differ."""
    scalars = dump.manifest.scalars
    kind = next((one for one in KINDS if one in MISLEADS and one in counts_of(dump)), None)
    of_count = scalars.get("counter") == "cache_protected_len"
    if not (scalars.get("why") == "prefix" or of_count) or kind is None:
        return None
    structure, defect, words, _ = KINDS[kind]
    differs = f"{scalars.get('expected')} tokens, and it counts {scalars.get('value')} as the cache's"
    cause = (
        f"A node of the prefix cache {words}. Most likely it is on the path up from the last node of the request in "
        f"slot {scalars.get('request_slot')}, which has {differs if of_count else 'other slots than its row'}."
    )
    shown = (said(dump, "scalars.tree_broken", "what is wrong with how many nodes"),)
    return Told(cause, defect, shown, Confidence.LIKELY, structure)


def _turned_path(dump: Dump) -> Told | None:
    """Return that a row that has not changed has its nodes' slots in another order; None where it has other slots."""
    scalars, listed = dump.manifest.scalars, dump.manifest.offences
    same = scalars.get("same_slots")
    if same is None and len(listed) == dump.manifest.offence_count and len({bad.row for bad in listed}) == 1:
        same = sorted(bad.value for bad in listed) == sorted(bad.lower for bad in listed)
    # One that has changed since the last check, or is looked at for the first time, may be what is wrong.
    of_path = scalars.get("why") == "prefix" and scalars.get("as_before") is True
    if not of_path or same is not True or len(listed) < _FEWEST:
        return None
    slot = scalars.get("request_slot")
    cause = (
        f"The row of the request in slot {slot} has the very slots of the cache's nodes that it holds, in another "
        "order, and has not changed: the slots of a path are put together in another order than its nodes have from "
        "the root down (collect_full_device_indices, path_device_indices), or its nodes have changed places."
    )
    shown = (said(dump, "offence_count", "how many of its places have another slot"),)
    return Told(cause, Defect.SWAPPED, shown, Confidence.LIKELY, Structure.TREE_NODE)


def _rows_of_others(dump: Dump) -> Told | None:
    """Return that a step's slots were read from other requests' rows; None where they were not, or it is not told."""
    scalars = dump.manifest.scalars
    read, own = (_numbers(scalars.get(name)) for name in ("rows_read", "rows_in_order"))
    slot = scalars.get("request_slot")
    # Of one request alone its list may be wrong, and not what is read.
    if (
        not isinstance(slot, int)
        or slot not in own
        or len(read) != len(own)
        or sum(map(int.__ne__, read, own)) < _FEWEST
    ):
        return None
    order = ", as their numbers go up and not in the batch's order" if read == sorted(own) else ""
    cause = (
        f"The slots that a step writes were read from the rows of other requests of the batch{order}: those of the "
        f"request in slot {slot} from row {read[own.index(slot)]}, at its own tokens' places."
    )
    shown = (
        said(dump, "scalars.rows_in_order", "the rows of the batch's requests"),
        said(dump, "scalars.rows_read", "those that have, at each one's new tokens, what it is to write"),
    )
    return Told(
        cause,
        Defect.SWAPPED if sorted(read) == sorted(own) else Defect.FOREIGN,
        shown,
        Confidence.CERTAIN,
        Structure.WRITE_LOCATIONS,
    )


def _released_another(dump: Dump) -> Told | None:
    """Return that one request was released and another left the batch; None where that is not seen."""
    scalars = dump.manifest.scalars
    left, slot = scalars.get("left_with_row"), scalars.get("request_slot")
    if scalars.get("why") != "released" or scalars.get("row_is_free") is not True or left in (None, slot):
        return None
    cause = (
        f"Row and pages of the request in slot {slot} were given back, and it stays in the batch; the one that left it "
        f"unfinished, in slot {left}, has its own still: as where a retraction (retract_decode, release_req) releases "
        "another request than it takes off."
    )
    shown = (said(dump, "scalars.left_with_row", "the row of the request that left the batch unfinished"),)
    return Told(cause, Defect.FOREIGN, shown, Confidence.LIKELY, Structure.FREE_CALL)


def _not_counted(dump: Dump) -> Told | None:
    """Return what wrong lengths have to do with those of the forwards before; None where it is nothing."""
    scalars, listed = dump.manifest.scalars, dump.manifest.offences
    launched, relayed = _numbers(scalars.get("launched"))[: len(listed)], scalars.get("relayed")
    if scalars.get("structure") != Structure.BATCH_LENGTHS or not len(launched) == len(listed) > 1:
        return None
    relay = "FutureMap.publish, new_seq_lens_buf" if relayed else "new_seq_lens"
    shown = (said(dump, "scalars.launched", "the lengths with which their forwards before were launched"),)
    if sorted(bad.value for bad in listed) == sorted(bad.lower for bad in listed) and len(set(launched)) > 1:
        order = "exchanged" if len(listed) == _FEWEST else "in another order than the requests"
        stands = f"{scalars.get('value')} where {scalars.get('expected')} belongs"
        cause = (
            f"A batch has the lengths of {len(listed)} requests {order}: that in slot {scalars.get('request_slot')} "
            f"has {stands}. Look at what puts two batches together or takes requests out (merge_batch, filter_batch), "
            f"and at what hands lengths on ({relay}): each list has to keep one order."
        )
        return Told(cause, Defect.SWAPPED, shown, Confidence.CERTAIN, Structure.BATCH_LENGTHS)
    by = [bad.value - had for bad, had in zip(listed, launched, strict=True)]
    right = [bad.lower - had for bad, had in zip(listed, launched, strict=True)]
    if set(by) <= {0, 1} and len(set(by)) == 1 and min(right) > by[0]:
        counts = "one token is counted" if by[0] else "nothing is counted"
        cause = (
            f"A batch's lengths do not have what a verification accepted: of each of {len(listed)} requests {counts}, "
            f"whatever that was, {right[0]} of the one in slot {scalars.get('request_slot')}. Look at what hands on "
            f"the lengths behind it ({relay})."
        )
        defect = None if by[0] else Defect.STALE
    elif not any(right) and _are_left_over(listed, dump.manifest.page_size or 1):
        cause = (
            f"The lengths of {len(listed)} requests, with which their prefill was launched, did not reach the step "
            f"behind it: what hands them on ({relay}) still has an earlier user's of the row, or nothing. That in slot "
            f"{scalars.get('request_slot')} has {scalars.get('value')} where {scalars.get('expected')} belongs."
        )
        # What an earlier user of a row had is not known: most have nothing at all where it is that and no other cause.
        sure = 2 * sum(not bad.value for bad in listed) > len(listed)
        return Told(cause, None, shown, Confidence.CERTAIN if sure else Confidence.LIKELY, Structure.BATCH_LENGTHS)
    else:
        return None
    return Told(cause, defect, shown, Confidence.CERTAIN, Structure.BATCH_LENGTHS)


def _evicted_behind(dump: Dump) -> Told | None:
    """Return that the window was given back behind a forward that is no prefill; None where it was not."""
    if may_have_been_evicted(dump) is not None:
        return None
    scalars = dump.manifest.scalars
    given_back = bool(scalars.get("own_left")) and scalars.get("own_kept") == 0
    true = ": and none of those between has a slot there, so that the count is true" if given_back else ""
    cause = (
        f"The request in slot {scalars.get('request_slot')} counts {scalars.get('value')} tokens as gone from its "
        f"sliding window (swa_evicted_seqlen), and {scalars.get('expected')} before its forward, behind which nothing "
        f"leaves it{true}. The window was given back at another time than it is in a decode, as where its result is "
        "looked at as a prefill's (forward_mode, process_batch_result), or the count alone has changed."
    )
    return Told(cause, None, (), Confidence.LIKELY, None)


def _are_left_over(listed: Sequence[Offence], page: int) -> bool:
    """Return whether lengths may be what a list had before: and are not made of the right ones."""
    values = {bad.value for bad in listed}
    apart, times = {bad.value - bad.lower for bad in listed}, {bad.value / bad.lower for bad in listed if bad.lower}
    if values != {0} and (min(values) < 0 or 1 in (len(values), len(apart), len(times))):
        return False
    return not any(_is_near(bad, page) for bad in listed)


def _is_near(bad: Offence, page: int) -> bool:
    """Return whether a length is made of the right one: some tokens apart, or divided or multiplied by a page."""
    apart = abs(bad.value - bad.lower)
    return apart <= page or bad.value in (bad.lower // page, -(-bad.lower // page), bad.lower * page, bad.lower * 2)


def _evicted_nodes(dump: Dump) -> Told | None:
    """Return that the cache evicted what a running request reads of it, where its nodes are gone."""
    scalars = dump.manifest.scalars
    names = ("why", "as_before", "nodes_are_gone", "page_free_site")
    if tuple(scalars.get(name) for name in names) != ("shared", True, True, "evict_tree"):
        return None
    cause = (
        f"The prefix cache evicted nodes that the running request in slot {scalars.get('request_slot')} reads, and "
        "another has their pages: what chooses the leaves to evict does not heed the request's lock, or the lock was "
        "released before."
    )
    shown = (
        said(dump, "scalars.page_free_site", "who gave that page back"),
        said(dump, "scalars.page_free_step", "when that was"),
        said(dump, "scalars.nodes_are_gone", "whether the cache has the request's nodes no more"),
    )
    return Told(cause, Defect.EARLY, shown, Confidence.LIKELY, Structure.TREE_LOCK)


def _counts_of_others(dump: Dump) -> Told | None:
    """Return that requests count as theirs what others of the batch were given slots up to; None where they do not."""
    scalars = dump.manifest.scalars
    begins, ends, counts = (_numbers(scalars.get(name)) for name in ("taken_from", "taken_until", "counted"))
    if scalars.get("structure") != Structure.REQUEST_COUNTERS or not len(begins) == len(ends) == len(counts) > 1:
        return None
    raised = [count for begin, count in zip(begins, counts, strict=True) if count > begin]
    kept = [count for begin, count in zip(begins, counts, strict=True) if count == begin]
    left = Counter(ends) - Counter(raised)
    # A count is never made smaller: who got a smaller length than its own has what it had.
    in_order = zip(sorted(left.elements()), sorted(kept), strict=False)
    if not raised or len(raised) + len(kept) < len(counts) or left.total() != len(kept):
        return None
    if not all(end <= count for end, count in in_order) or all(map(int.__eq__, counts, ends)):
        return None
    cause = (
        "The lengths up to which a step took slots ahead were noted at other requests of the batch than it took them "
        f"for: that in slot {scalars.get('request_slot')} counts {scalars.get('value')}, too few for what it writes."
    )
    shown = (
        said(dump, "scalars.taken_until", "up to where each request of the batch was given slots"),
        said(dump, "scalars.counted", "what each counts: the same lengths in another order, or what it had before"),
    )
    return Told(cause, Defect.SWAPPED, shown, Confidence.CERTAIN, Structure.REQUEST_COUNTERS)


def _numbers(listed: object) -> list[int]:
    """Return the numbers of a list as a dump has it, with commas between; none where it is no such list."""
    try:
        return [int(one) for one in listed.split(",") if one] if isinstance(listed, str) else []
    except ValueError:
        return []


def _misplaced_slots(dump: Dump) -> Told | None:
    """Return where the new slots of a wrong row's request stand, or whose stand in their place; None if it is not seen.

    It is certain where more than the owners of pages says that the row is wrong, and not the list of new slots.
    """
    scalars = dump.manifest.scalars
    slot = scalars.get("request_slot")
    confidence = Confidence.LIKELY if scalars.get("why") == "owner" else Confidence.CERTAIN
    names = ("new_slots_at", "new_slots_belong", "new_slots_of", "new_slots_apart", "new_slots")
    at, belong, of, apart, count = (scalars.get(name) for name in names)
    if not isinstance(count, int) or count < _FEWEST:
        return None
    its = f"The row of the request in slot {slot}"
    if isinstance(at, int) and isinstance(belong, int):
        place = "its begin" if at == 0 else f"token {at}"
        rest = "what it had of a prefix is overwritten" if at < belong else "tokens before them are without one"
        cause = (
            f"{its} has the step's {count} new slots from {place} on, and they belong from token {belong} on: {rest}, "
            "and the new tokens keep what stood there."
        )
        shown = (
            said(dump, "scalars.new_slots_at", "the token from which on the row has this forward's new slots"),
            said(dump, "scalars.new_slots_belong", "the token from which on it should"),
        )
        return Told(cause, Defect.OFF_BY_ONE if abs(at - belong) == 1 else None, shown, confidence)
    # What changed since it was looked at, or was exchanged, was not written so as the slots came.
    if not isinstance(apart, int) or scalars.get("why") == "changed" or scalars.get("defect") == Defect.SWAPPED:
        return None
    cause = (
        f"{its} has other new slots of the step's list than its own: those that stand {abs(apart)} entries "
        f"{'before' if apart < 0 else 'behind'} them, beginning with those of the request in slot {of}. What writes "
        "the list into rows counts wrongly where each request's begin."
    )
    shown = (
        said(dump, "scalars.new_slots_of", "the request whose new slots stand there, by the forward's list"),
        said(dump, "scalars.new_slots_apart", "so far from its own in that list"),
    )
    return Told(cause, Defect.FOREIGN if of != slot else None, shown, confidence)
