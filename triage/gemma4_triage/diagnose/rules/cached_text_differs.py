"""What the prefix cache takes or gives was computed of other tokens than those by which it is found."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.cached_texts import MORE, differs_at_once, of_key, of_length, of_prefix
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "cached-text-differs"
_KEY, _LONGER = "key", "longer"
_ADVICE = {
    "changed": "Look at what writes a request's output_ids and origin_input_ids behind the forward that read them, and "
    "with drafts at how many tokens of a verification are put there (accept_lens).",
    _KEY: "Look at what makes the key of the request's tokens: fill ids, kv_committed_len, cache_finished_req, "
    "cache_unfinished_req, checkpoint_into_tree.",
    _LONGER: "Look at up to which token a request is put in: kv_committed_len, owned_kv_len, cache_finished_req, "
    "cache_unfinished_req; the last token of an answer has no keys yet.",
}
_OF_MATCH = (
    "Look at how far a match goes in a node that agrees in part (_match_prefix_helper, _split_node), and at what the "
    "request is given of it (last_node, prefix_indices)."
)
_OF_NODE = "Look at what makes and changes a node's key: insert, _split_node."


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=REQUEST_ROWS, verdict="text_differs")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    why, by_key = scalars.get("why"), scalars.get("by_key")
    cause = of_key(dump) if why == _KEY else of_length(dump) if why == _LONGER else of_prefix(dump)
    kept, own = scalars.get("by_own") == "key", scalars.get("stored_by_own")
    changed, of_another = kept and own is True, kept and own is False
    since = why == _LONGER and scalars.get("stored_since") is True
    # The node is right then, and whoever has it is not.
    unknown = kept or since or (why not in (_KEY, _LONGER) and differs_at_once(dump))
    return Finding(
        rule=ID,
        structure=Structure.REQUEST_ROW if of_another else None if unknown else Structure.TREE_NODE,
        defect=next((word for word in Defect if word == scalars.get("defect")), None),
        cause=cause,
        confidence=Confidence.CERTAIN if _is_sure(dump) else Confidence.LIKELY,
        evidence=(
            said(dump, "scalars.token", "the first token"),
            *(said(dump, f"scalars.{name}", what) for name, what in MORE.items() if scalars.get(name) is not None),
            said(dump, "scalars.request_slot", "of which request"),
            said(dump, "site", "where it was looked at"),
        ),
        advice=(
            _ADVICE.get("changed" if changed else str(why), _OF_NODE if by_key == "own" else _OF_MATCH),
            "Pages, rows and lengths may all be right: what is wrong is the answer of whoever is given that prefix.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )


def _is_sure(dump: Dump) -> bool:
    """Return whether a third account of the token agrees with one of the two that differ."""
    scalars = dump.manifest.scalars
    if scalars.get("why") == _LONGER:
        return scalars.get("stored_elsewhere") is False and scalars.get("stored_since") is False
    # Of a prompt that was changed behind its match the list by which it was matched has the other token.
    matched = (scalars.get("by_key"), scalars.get("by_fill"), scalars.get("first_look")) == ("stored", "own", True)
    return scalars.get("by_own") == "stored" or matched


def _the_other_may_be_wrong(dump: Dump) -> bool | None:
    return False if _is_sure(dump) else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the key is right, and what was stored in its slots is not", in_dump(_the_other_may_be_wrong)),
    ),
    leads_to=(*LEAVES_BUFFERS, *LOSES_PAGES),
)
