"""A batch goes by a row, a length or a write location that is not its request's."""

from collections.abc import Callable, Iterator

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import request_row_evidence, said
from gemma4_triage.diagnose.freed_pages import lost_by_a_count
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, Seen, in_dump
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "request-state-differs"
_BOTH_SIDES = ("changed", "unlike", "fell", "moved", "owner", "unlocked")
"""Why an entry is wrong, where the dump has what it should be as well."""
_TOKENS, _NONE = "tokens", "none"
"""Which account of a request's length the two others outvote, where it is not what stands in `structure`."""
_RELEASED, _PREFIX, _UNLOCKED, _SAME_ROW = "released", "prefix", "unlocked", "same row"
"""The row and the nodes that its request holds differ: which of the two changed, what the row had before says."""


def find(incident: Incident) -> Finding | None:
    """Return what the first such dump says; certain where it has both what stands there and what should."""
    dump = incident.first(rule=REQUEST_ROWS)
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    structure = next((word for word in Structure if word == scalars.get("structure")), None)
    why, slot, expected = scalars.get("why"), scalars.get("request_slot"), scalars.get("expected")
    # A row that is as it was is not what changed: its page went to somebody else.
    elsewhere = scalars.get("as_before") is True
    of_tree = why == _PREFIX and elsewhere
    had = scalars.get("row_had")
    # A row that nobody has looked at before was written from the nodes a moment ago.
    is_new = why == _PREFIX and scalars.get("first_look") is True
    of_row = is_new or (why == _PREFIX and isinstance(had, int) and had == expected)
    unsure = elsewhere or (why == _PREFIX and not of_row)
    # Dumps without `row_had` have the way in which the row would be wrong.
    way_is_told = not unsure or (of_tree and had is not None)
    defect = next((word for word in Defect if way_is_told and word == scalars.get("defect")), None)
    its_own = elsewhere or scalars.get("page_was_own") is True
    given_back = its_own and scalars.get("page_event") in ("free_asked", "freed")
    by = scalars.get("by_request_slot")
    by_other = given_back and by is not None and by != slot
    if given_back:
        unsure, structure, defect = False, Structure.FREE_CALL, Defect.FOREIGN if by_other else Defect.EARLY
    if elsewhere or given_back:
        became = "given back" if given_back else "given back, or handed out again"
        became += f" with those of the request in slot {by}" if by_other else ""
        kept = "its row is as it was" if elsewhere else "its row has it still, and it has no other for that place"
        cause = f"A page of the running request in slot {slot} was {became}, by the ledger; {kept}."
    else:
        named = "an entry" if structure is None else f"the {structure.value}"
        should = f" where {expected} belongs" if _is_known(dump) else ""
        way = "" if defect is None else f" ({defect.value})"
        cause = f"The request in slot {slot} has a wrong value in {named}: {scalars.get('value')}{should}{way}."
    if why == _RELEASED:
        cause = f"A batch still has a request whose row, {slot}, was given back: another request may get it."
    if why == _SAME_ROW:
        cause = f"Two running requests have one row, {slot}: it was handed out again while the first of them had it."
    if why == _UNLOCKED and slot is None:
        cause = (
            f"Running requests hold {expected} tokens of the prefix cache, of which {scalars.get('value')} are locked."
        )
    elif why == _UNLOCKED:
        cause = f"The request in slot {slot} runs without a lock on the nodes of the prefix cache that it reads."
    account = scalars.get("account")
    if account == _TOKENS:
        had_tokens = f"The request in slot {slot} has {scalars.get('value')} tokens with keys and values"
        cause = f"{had_tokens}, and {expected} by its batch and its own count: some were lost, or came from no forward."
    if account == _NONE:
        unsure, structure, defect = True, None, None
        cause = f"Batch, count and tokens of the request in slot {slot} give three lengths: which is wrong is unknown."
    if why == _PREFIX and not of_row:
        which = "the row is as it was, the node is not" if of_tree else "which of them is wrong is not known"
        cause = f"The row of the request in slot {slot} and the cache's nodes that it holds have other slots: {which}."
    return Finding(
        rule=ID,
        cause=cause,
        confidence=Confidence.POSSIBLE
        if unsure and not of_tree
        else Confidence.LIKELY
        if is_new
        else Confidence.CERTAIN,
        structure=Structure.TREE_NODE if of_tree else None if unsure else structure,
        defect=defect,
        evidence=(*request_row_evidence(dump), *_missed(incident)),
        advice=("What writes this structure in the step of the dump, or in the one before it, is at fault.",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


def _missed(incident: Incident) -> Iterator[Evidence]:
    audit = lost_by_a_count(incident)
    if audit is not None:
        yield said(
            audit, "offence_count", "pages of its own that an audit took for lost: the count does not reach them"
        )


def _is_known(dump: Dump) -> bool:
    """Return whether the dump has both sides, and which of them is wrong."""
    scalars = dump.manifest.scalars
    why, expected, had = scalars.get("why"), scalars.get("expected"), scalars.get("row_had")
    of_row = why == _PREFIX and ((isinstance(had, int) and had == expected) or scalars.get("first_look") is True)
    return (why in _BOTH_SIDES and isinstance(expected, int)) or of_row


def _is_as_it_should(dump: Dump) -> bool | None:
    scalars = dump.manifest.scalars
    return scalars.get("value") == scalars.get("expected") if _is_known(dump) else None


def _are_independent(dump: Dump) -> bool | None:
    """Return False where what contradicts the value is not known to share its source; None where it may."""
    scalars = dump.manifest.scalars
    return None if scalars.get("account") == _TOKENS or scalars.get("agreed_before") is False else False


def _may_be_the_count(dump: Dump) -> bool | None:
    """Return None where only the sum of what is locked says that a lock is missing."""
    scalars = dump.manifest.scalars
    return None if scalars.get("why") == _UNLOCKED and scalars.get("request_slot") is None else False


def _open_of(structure: Structure) -> Callable[[Seen], bool | None]:
    """Return what says that it is not known of a finding about this structure, and does not hold of another."""
    return lambda seen: None if seen.finding.structure is structure else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the value is what the request's own row, tokens and prefix say", in_dump(_is_as_it_should)),
        Exclusion("the two accounts that agree come from one source, which is wrong", in_dump(_are_independent)),
        Exclusion(
            "the prefix cache counts its locked tokens wrongly, and no lock is missing", in_dump(_may_be_the_count)
        ),
        Exclusion("the request was to get another page, and its row was not written", _open_of(Structure.FREE_CALL)),
        Exclusion("the row is what changed, and the node is as it was", _open_of(Structure.TREE_NODE)),
    ),
)
