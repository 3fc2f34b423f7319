"""What is said of texts of the prefix cache that are not those whose keys and values its slots have."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of

MORE = {
    "tokens_wrong": "tokens of which that holds",
    "path_tokens": "tokens that were put in",
    "stored": "tokens of the request that forwards have stored",
    "stored_elsewhere": "whether forwards have stored something of the request for those places in other slots",
    "stored_by_own": "whether that request's own forward stored what differs",
    "stored_since": "whether a request that came later stored what stands behind",
    "stored_by_another": "whether the first slot behind them has what another request stored",
    "cached_tokens": "tokens that the request has from the cache",
    "by_key": "whose token the node's key has there",
    "by_fill": "whose token the list has there by which the request was matched",
    "by_own": "whose token the request's own prompt and answer have there",
    "shift": "by how many places the key stands behind what was stored",
}
"""What numbers of such a dump mean."""
_OF_KEPT = {
    "True": " Its own forward stored the others: either the request's tokens were changed since then (output_ids, "
    "origin_input_ids), or its answer got a token that was never computed in that slot, as where a step counts more "
    "accepted drafts than its verification took.",
    "False": " Another request's forward stored the others: these slots are not its own.",
}
"""What is said where the key is the request's own text, by who stored what differs."""


def of_key(dump: Dump) -> str:
    """Return what is said of a key that is not what was stored."""
    scalars = dump.manifest.scalars
    token, count, shift = (scalars.get(name) for name in ("token", "tokens_wrong", "shift"))
    way = {
        "stored": " The request's own prompt and answer have the tokens that were stored: the key is wrong.",
        "key": " The request's own prompt and answer have the key's tokens.",
    }.get(str(scalars.get("by_own")), "")
    if scalars.get("by_own") == "key":
        way += _OF_KEPT.get(str(scalars.get("stored_by_own")), "")
    if isinstance(shift, int):
        side = "ahead of" if shift < 0 else "behind"
        way = f" From there on the key stands {number_of(abs(shift), 'place')} {side} what was stored.{way}"
    return (
        f"A request is put into the prefix cache under a key that is not the text of its slots: {count} of the key's "
        f"tokens, the first at place {token}, are others than those whose keys and values were stored there.{way}"
    )


def of_length(dump: Dump) -> str:
    """Return what is said of more tokens than were stored."""
    scalars = dump.manifest.scalars
    put, stored = scalars.get("path_tokens"), scalars.get("stored")
    rest = (
        "what a later request stored there: they were given back too early or handed out twice, or are another's"
        if scalars.get("stored_since") is True
        else "what another request stored there"
        if scalars.get("stored_by_another") is True
        else "what was there when the server started"
    )
    return (
        f"What is put into the prefix cache is longer than what was stored of it: {put} tokens of the request in slot "
        f"{scalars.get('request_slot')}, where forwards have stored {stored}. Behind these its slots have {rest}."
    )


def differs_at_once(dump: Dump) -> bool:
    """Return whether a prefix differs from the request's text within its first page, by the node's key too."""
    token, page = dump.manifest.scalars.get("token"), dump.manifest.page_size or 1
    return dump.manifest.scalars.get("by_key") == "stored" and isinstance(token, int) and token < page


def _of_a_match(dump: Dump) -> str:
    """Return what a prefix of another text came of; a match that compares anything agrees in the first page."""
    if differs_at_once(dump):
        return (
            "not even their first pages agree, so that the request has another node than a match found for it "
            "(last_node, prefix_indices), or the match compared nothing"
        )
    return "the match went further than the two texts agree"


def of_prefix(dump: Dump) -> str:
    """Return what is said of a prefix that is of another text."""
    scalars = dump.manifest.scalars
    way = {
        "own": "The node's key has the request's token there: what was stored under it is another text's.",
        "stored": f"The node's key has that other token as well: {_of_a_match(dump)}"
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
