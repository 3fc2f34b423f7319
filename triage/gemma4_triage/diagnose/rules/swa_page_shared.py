"""Two pages or holders share one page."""

from gemma4_dumps.audit_findings import Life, lives
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import HELD_TWICE, first_census
from gemma4_triage.diagnose.evidence import said, tensor_or_none
from gemma4_triage.diagnose.freed_pages import peers_lost
from gemma4_triage.diagnose.hand_out import hand_out_wrong, led_elsewhere
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule, calls_went_unseen, in_dump
from gemma4_triage.diagnose.where_wrong import Wrong, free_list_of_pool
from gemma4_triage.finding import Confidence, Finding

ID = "swa-page-shared"
_LISTED = (
    " The free list of its pool had it when it was handed out again, and the ledger saw nobody give it back: what is "
    "wrong is the list, not a free."
)
_GIVEN = (
    " It was handed out again by a call whose free list did not have it: what the call returned is wrong, not the list."
)
_OPEN = " Whether the hand-out, the mapping or, of the prefix cache's, what was put into it is wrong is not known."
_OPEN_OF_FULL = " Whether the hand-out, a request's row, or what was put into the prefix cache is wrong is not known."


def find(incident: Incident) -> Finding | None:
    dump = incident.first(verdict="pool_alias")
    if dump is None:
        return None
    wrong, again = hand_out_wrong(dump), _given_while_held(incident)
    of_full = dump.manifest.pool_kind == "full"
    why = led_elsewhere(dump) if wrong.structure else _OPEN_OF_FULL if of_full else _OPEN
    if wrong.structure is None and (given := _by_lists(dump)) is not None:
        wrong, why = given, _LISTED if _is_free_list(given) else _GIVEN
    elif again is not None:
        why = (
            f" It was handed out again at step {again.alloc_step}, and the ledger saw nobody give it back before: the "
            "free list had it still, or the hand-out named another page."
        )
    census = first_census(incident)
    return Finding(
        rule=ID,
        structure=wrong.structure,
        defect=wrong.defect or Defect.DUPLICATE,
        cause=f"A page has two owners, and both write their keys and values there.{why}",
        confidence=_confidence(dump, wrong),
        evidence=(
            said(dump, "site", "where it was seen"),
            said(dump, "offences.0.value", "the slot, or in an audit the number of places"),
            said(dump, "pool_kind", "of which pool"),
            said(dump, "offence_count", "so many are shared"),
            *wrong.proof,
            *(() if again is None or census is None else peers_lost(census, _twice(incident))),
        ),
        advice=("Look at what writes free_pages beside free and alloc: restore_state, clear, a resized pool.",)
        if _is_free_list(wrong)
        else ("Look at how each of its two holders got the page: a hand-out, a row, an insert into the prefix cache.",)
        if of_full and wrong.structure is None
        else (
            "Look at who wrote the mapping last: set_full_to_swa_mapping, or a hand-out of a page in use.",
            "page_states in an allocator's dump names, per slot, the full page that the SWA page serves.",
        ),
        next_commands=(commands.serve(incident, "--debug trap", "--probes swa-allocator"), commands.show(dump)),
    )


def _is_free_list(wrong: Wrong) -> bool:
    return wrong.structure in (Structure.FULL_FREE_LIST, Structure.SWA_FREE_LIST)


def _by_lists(dump: Dump) -> Wrong | None:
    """Return what an audit saw of the call that gave the page again: the list before had it, or had not."""
    pool = dump.manifest.pool_kind or ""
    key = f"{pool}_given_in_use"
    told = dump.manifest.scalars.get(key)
    structure = {"free list": free_list_of_pool(pool), "hand-out": Structure.ALLOCATION}.get(str(told))
    proof = said(dump, f"scalars.{key}", "what named the page when it was handed out again")
    return None if structure is None else Wrong(structure, Defect.DUPLICATE, (proof,))


def _confidence(dump: Dump, wrong: Wrong) -> Confidence:
    """Return how sure it is: a call that nobody looked at may have given the page back."""
    if wrong.structure is None:
        return Confidence.POSSIBLE
    return Confidence.LIKELY if dump.manifest.rule == LEAK and calls_went_unseen(dump) else Confidence.CERTAIN


def _twice(incident: Incident) -> set[int]:
    """Return those of two holders."""
    census = first_census(incident)
    return set() if census is None else {one.page for one in census.of("full", HELD_TWICE)}


def _given_while_held(incident: Incident) -> Life | None:
    """Return the latest life behind one without an end."""
    census, twice = first_census(incident), _twice(incident)
    for dump in () if census is None else census.dumps:
        try:
            past = next((of for (pool, page), of in lives(dump).items() if pool == "full" and page in twice), [])
        except DumpError:
            continue
        if len(past) > 1 and past[-2].alloc_step is not None and past[-2].free_step is None:
            return past[-1]
    return None


def _is_its_own(dump: Dump) -> bool | None:
    """Return whether the SWA page serves the slot's full page; None if not known."""
    states, slots, bad = tensor_or_none(dump, "page_states"), tensor_or_none(dump, "slots"), dump.manifest.offences
    if states is None or slots is None or states.shape != slots.shape or not bad or states.ndim != 2:
        return None
    if states.shape[1] != 2 or not 0 <= (row := bad[0].row) < len(slots):
        return None
    return int(states[row, 1]) == int(slots[row, 0]) // (dump.manifest.page_size or 1)


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("page_states names the same full page for both", in_dump(_is_its_own)),
        Exclusion(
            "the lists before the call show that the hand-out is right, and the mapping is not",
            in_dump(lambda dump: False if hand_out_wrong(dump).proof else None),
        ),
    ),
    leads_to=("pool-leak",),
    follows_calls=True,
)
