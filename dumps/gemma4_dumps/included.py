"""What a dump holds only on request, and so may hold of the requests themselves: KV values and token ids.

| tensor                   | holds                                                                           |
|--------------------------|---------------------------------------------------------------------------------|
| kv_page_ids              | [pages], pages of the layer's buffer, those nearest to the offence first        |
| key_pages, value_pages   | [pages, page_size, kv_heads, head_dim], in the buffer's dtype                   |
| query                    | [queries, q_heads, head_dim], a row's last one if there is one a row; by no probe |
| token_ids                | [any], prompt and output of each request, one behind the other                  |
| token_ids_indptr, _rows  | [requests + 1], [requests]: where each begins and ends, the row that it is in   |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schema import Heading, Manifest

PAGE_IDS, KEYS, VALUES, QUERY = "kv_page_ids", "key_pages", "value_pages", "query"
TOKEN_IDS, TOKEN_INDPTR, TOKEN_ROWS = "token_ids", "token_ids_indptr", "token_ids_rows"

KV, TOKENS = "kv", "tokens"
WORDS = {KV: "KV values", TOKENS: "token ids"}
"""By the word that asks for them."""

_TENSORS = {KV: (KEYS, VALUES, QUERY), TOKENS: (TOKEN_IDS,)}


def words(included: Iterable[str]) -> str:
    """Return for example "KV values and token ids". A word of a newer release stays as it is."""
    return " and ".join(WORDS.get(word, word) for word in included)


def included_in(tensors: Iterable[str]) -> tuple[str, ...]:
    """Say what tensors of these names hold of the requests: words of WORDS."""
    names = set(tensors)
    return tuple(word for word, held in _TENSORS.items() if names & set(held))


def sensitive(manifest: Manifest | Heading) -> tuple[str, ...]:
    """Say what a dump holds of the requests by its own word or by its tensors: the manifest may come from anywhere."""
    return tuple(dict.fromkeys([*included_in(manifest.tensors), *manifest.included]))
