"""What the prefix cache takes or gives was computed of other tokens than those by which it is found."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import said
from gemma4_triage.diagnose.incident import REQUEST_ROWS, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Finding

ID = "cached-text-differs"
_KEY, _LONGER = "key", "longer"
_MORE = {
    "tokens_wrong": "tokens of which that holds",
    "path_tokens": "tokens that were put in",
    "stored": "tokens of the request that forwards have stored",
    "stored_elsewhere": "whether forwards have stored something of the request for those places in other slots",
    "stored_by_another": "whether the first slot behind them has what another request stored",
    "cached_tokens": "tokens that the request has from the cache",
    "by_key": "whose token the node's key has there",
    "by_fill": "whose token the list has there by which the request was matched",
    "by_own": "whose token the request's own prompt and answer have there",
    "shift": "by how many places the key stands behind what was stored",
}
_ADVICE = {
    "changed": "Look at what writes a request's output_ids and origin_input_ids behind the forward that read them.",
    _KEY: "Look at what makes the key of the request's tokens: fill ids, kv_committed_len, cache_finished_req, "
    "cache_unfinished_req, checkpoint_into_tree.",
    _LONGER: "Look at up to which token a request is put in: kv_committed_len, owned_kv_len, cache_finished_req, "
    "cache_unfinished_req; the last token of an answer has no keys yet.",
}
_OF_MATCH = (
    "Look at how far a match goes in a node that agrees in part (_match_prefix_helper, _split_node), and at what the "
    "request is given of it."
)
_OF_NODE = "Look at what makes and changes a node's key: insert, _split_node."


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=REQUEST_ROWS, verdict="text_differs")
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    why, by_key = scalars.get("why"), scalars.get("by_key")
    cause = _of_key(dump) if why == _KEY else _of_length(dump) if why == _LONGER else _of_prefix(dump)
    changed = scalars.get("by_own") == "key"
    return Finding(
        rule=ID,
        structure=None if changed else Structure.TREE_NODE,
        defect=next((word for word in Defect if word == scalars.get("defect")), None),
        cause=cause,
        confidence=Confidence.CERTAIN if _is_sure(dump) else Confidence.LIKELY,
        evidence=(
            said(dump, "scalars.token", "the first token"),
            *(said(dump, f"scalars.{name}", what) for name, what in _MORE.items() if scalars.get(name) is not None),
            said(dump, "scalars.request_slot", "of which request"),
            said(dump, "site", "where it was looked at"),
        ),
        advice=(
            _ADVICE.get("changed" if changed else str(why), _OF_NODE if by_key == "own" else _OF_MATCH),
            "Pages, rows and lengths may all be right: what is wrong is the answer of whoever is given that prefix.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )


def _of_key(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    token, count, shift = (scalars.get(name) for name in ("token", "tokens_wrong", "shift"))
    way = {
        "stored": " The request's own prompt and answer have the tokens that were stored: the key is wrong.",
        "key": " The request's own prompt and answer have the key's tokens, and what a forward reads is held against "
        "them: they were changed since (output_ids, origin_input_ids).",
    }.get(str(scalars.get("by_own")), "")
    if isinstance(shift, int):
        side = "ahead of" if shift < 0 else "behind"
        way = f" From there on the key stands {number_of(abs(shift), 'place')} {side} what was stored.{way}"
    return (
        f"A request's tokens are put into the prefix cache under a key that is not theirs: from token {token} on, "
        f"{count} of its tokens are others than those whose keys and values were stored in the slots.{way}"
    )


def _of_length(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    put, stored = scalars.get("path_tokens"), scalars.get("stored")
    rest = (
        "what another request stored there"
        if scalars.get("stored_by_another") is True
        else "what was there when the server started"
    )
    return (
        f"What is put into the prefix cache is longer than what was stored of it: {put} tokens of the request in slot "
        f"{scalars.get('request_slot')}, where forwards have stored {stored}. Behind these its slots have {rest}."
    )


def _of_prefix(dump: Dump) -> str:
    scalars = dump.manifest.scalars
    way = {
        "own": "The node's key has the request's token there: what was stored under it is another text's.",
        "stored": "The node's key has that other token as well: the match went further than the two texts agree"
        + (", or the request's own text was changed behind it." if scalars.get("by_fill") != "own" else "."),
        "neither": "The node's key has neither token there.",
    }.get(
        str(scalars.get("by_key")),
        "Either the match went further than the two texts agree, or what lies under the node's key is another text's.",
    )
    return (
        f"The request in slot {scalars.get('request_slot')} was given {scalars.get('cached_tokens')} tokens from the "
        f"prefix cache, and from token {scalars.get('token')} on they were computed of another text than its own. {way}"
    )


def _is_sure(dump: Dump) -> bool:
    """Return whether a third account of the token agrees with one of the two that differ."""
    scalars = dump.manifest.scalars
    if scalars.get("why") == _LONGER:
        return scalars.get("stored_elsewhere") is False
    # Of a prompt that was changed behind its match the list by which it was matched has the other token.
    return scalars.get("by_own") == "stored" or (scalars.get("by_key"), scalars.get("by_fill")) == ("stored", "own")


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
