"""What the prefix cache has for tokens that were just put into it was given back meanwhile, or stands there twice."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.cached_twice import of_pages_given_twice
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.inserted_slots import FREE, INSERT_WRONG, of_free_pages, of_torn_page, of_window
from gemma4_triage.diagnose.rule import FOLLOWS_FROM_AN_ENTRY, LEAVES_BUFFERS, LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = INSERT_WRONG
_GAVE_BACK, _WINDOW, _TORN = "given back", "window", "torn"
_FREED = (
    "An insert into the prefix cache gave back pages that the cache has for the very tokens that were put in, as if "
    "they were copies of its own: the next owner overwrites what every request with that prefix reads."
)
_INSTEAD = (
    "While tokens were put into the prefix cache, pages were given back that it has for them, and others, which it "
    "does not have, were not: the call named the wrong ones, or the node has them in place of the others."
)
_TWICE = (
    "The prefix cache has {slots} slots for {tokens} tokens that were just put into it, some of them twice, and none "
    "was put in twice: a node has its parent's slots beside its own, as one does that was split and not cut."
)


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=REQUEST_ROWS, verdict="insert_wrong")
    if dump is None:
        return of_pages_given_twice(ID, incident)
    if dump.manifest.scalars.get("why") == _WINDOW:
        return of_window(incident, dump)
    if dump.manifest.scalars.get("why") == FREE:
        return of_free_pages(incident, dump)
    if dump.manifest.scalars.get("why") == _TORN:
        return of_torn_page(incident, dump)
    scalars, instead = dump.manifest.scalars, _others_are_missing(dump)
    gave_back = scalars.get("why") == _GAVE_BACK
    twice = _TWICE.format(slots=scalars.get("path_slots"), tokens=scalars.get("path_tokens"))
    structure = Structure.FREE_CALL if gave_back else Structure.TREE_NODE
    return Finding(
        rule=ID,
        structure=None if instead else structure,
        defect=None if instead else Defect.EARLY if gave_back else Defect.DUPLICATE,
        cause=_INSTEAD if instead else _FREED if gave_back else twice,
        confidence=Confidence.POSSIBLE if instead else Confidence.CERTAIN,
        evidence=(
            said(dump, "scalars.value", "the first such slot"),
            said(dump, "scalars.token", "at which token of the path"),
            said(dump, "offence_count", "how many: pages that were given back, or slots that stand twice"),
            said(dump, "scalars.path_slots", "slots that the nodes on the way to these tokens have"),
            said(dump, "scalars.path_tokens", "tokens that were put in"),
            said(
                dump,
                "scalars.cached_tokens",
                "first tokens that the request has from the cache, and that it had before",
            ),
            said(dump, "scalars.pages_missing", "pages that were put in, are not the cache's, and were not given back"),
            said(dump, "scalars.request_slot", "whose tokens they are"),
        ),
        advice=(
            "Look at what the insert takes for copies: it begins behind what the request has from the cache."
            if gave_back
            else "Look at the split of a node: of its slots the child keeps those behind the parent's.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )


def _others_are_missing(dump: Dump) -> bool:
    missing = dump.manifest.scalars.get("pages_missing")
    return dump.manifest.scalars.get("why") == _GAVE_BACK and isinstance(missing, int) and missing > 0


def _were_not_to_stay(dump: Dump) -> bool | None:
    """Return None where the pages that were given back came into the cache with this insert."""
    return None if dump.manifest.scalars.get("was_cached") is False else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "the cache was to have other pages for these tokens, and take none of these", in_dump(_were_not_to_stay)
        ),
    ),
    explains=(*FOLLOWS_FROM_AN_ENTRY, "pages-lost-between-calls", "request-state-differs", "scheduler-exception"),
    leads_to=(*LEAVES_BUFFERS, *LOSES_PAGES),
)
