"""Hook of `vision-batching` across requests: what a batch's requests have to encode goes to the tower together.

SGLang asks for each request's images on its own. Here they are encoded ahead, in one call for the batch, and SGLang is
handed them where it asks. What its cache keeps is then a copy per image: SGLang's are views, each of which keeps all
images of its request, while the cache counts the view alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from gemma4_runtime.current import switched_on
from gemma4_runtime.release import Gemma4ForConditionalGeneration, mm_utils
from gemma4_runtime.vision.eligible import BATCHING

_FEATURES = ("get_image_feature", "get_video_feature")
"""Of Gemma4ForConditionalGeneration; other models' functions, and the audio tower, are SGLang's to call."""


def around_chunked_embedding(
    original: Callable[..., Any],
    data_embedding_func: Callable[..., Any],
    embedding_items: list[Any],
    items_size: list[int],
    prefix_length: list[int],
    extend_length: list[int],
    items_offset_list: list[list[tuple[int, int]]],
    input_ids: Tensor,
) -> Any:
    """Run around `_get_chunked_prefill_embedding`: its arguments and results."""

    def go_on(function: Callable[..., Any]) -> Any:
        return original(
            function, embedding_items, items_size, prefix_length, extend_length, items_offset_list, input_ids
        )

    owner = getattr(data_embedding_func, "__self__", None)
    ours = isinstance(owner, Gemma4ForConditionalGeneration) and data_embedding_func.__name__ in _FEATURES
    if not (ours and switched_on(BATCHING)):
        return go_on(data_embedding_func)
    missing = _missing(_requests(embedding_items, items_size, prefix_length, extend_length, items_offset_list))
    counts = [_soft_tokens(item) for item in missing]
    if not missing:
        return go_on(data_embedding_func)
    mm_utils._move_items_to_device(missing, input_ids.device)
    embedded = data_embedding_func(missing)
    embedded = embedded.reshape(-1, embedded.shape[-1])
    if sum(counts) != len(embedded):
        # SGLang's own message says where.
        return go_on(data_embedding_func)
    found: dict[int, Tensor] = {}
    by_hash: dict[int, Tensor] = {}
    for item, tokens in zip(missing, embedded.split(counts), strict=True):
        found[id(item)] = tokens
        by_hash.setdefault(item.hash, tokens)

    def served(items: list[Any]) -> Tensor:
        if not all(id(item) in found or item.hash in by_hash for item in items):
            # An image was in the cache and had to make room for one of this batch.
            return data_embedding_func(items)
        return torch.cat([found[id(item)] if id(item) in found else by_hash[item.hash] for item in items])

    result = go_on(served)
    for item in missing:
        _cut_loose(item.hash)
    return result


Request = tuple[list[Any], list[tuple[int, int]], int, int]
"""Items, where each placeholder begins and ends (both included), tokens that are prefilled, tokens of this chunk."""


def _requests(
    items: list[Any],
    sizes: list[int],
    prefixes: list[int],
    extends: list[int],
    offsets: list[list[tuple[int, int]]],
) -> Iterator[Request]:
    """Yield those that SGLang's loop does not skip."""
    for number in range(min(len(sizes) - 1, len(prefixes))):
        mine = items[sizes[number] : sizes[number + 1]]
        if mine and any(end >= prefixes[number] for _, end in offsets[number]):
            yield mine, offsets[number], prefixes[number], extends[number] if number < len(extends) else 0


def _missing(requests: Iterable[Request]) -> list[Any]:
    """Say what SGLang will encode, each request's own; what an earlier one has encoded by then is in the cache."""
    missing: list[Any] = []
    seen: set[int] = set()
    for request in requests:
        mine = [item for item in _of_request(*request) if item.hash not in seen]
        missing += mine
        seen.update(item.hash for item in mine)
    return missing


def _of_request(items: list[Any], offsets: list[tuple[int, int]], prefix: int, extend: int) -> list[Any]:
    """Return those of split items in this chunk that are not in the cache, of others all or none."""
    cache: Any = mm_utils.embedding_cache
    if not _is_split(items):
        return items if cache.get([item.hash for item in items]) is None else []
    return [
        item
        for item, (start, end) in zip(items, offsets, strict=True)
        if extend > 0 and end >= prefix and start < prefix + extend and cache.get_single(item.hash) is None
    ]


def _cut_loose(key: int) -> None:
    """Leaves this image in SGLang's cache without the request's other images, which a view holds on to."""
    cache: Any = mm_utils.embedding_cache
    entry = cache.mm_cache.get(key)
    if entry is not None and entry.embedding.untyped_storage().nbytes() > entry.embedding.nbytes:
        entry.embedding = entry.embedding.clone()


def _is_split(items: list[Any]) -> bool:
    """Return SGLang's question: has every item one placeholder?"""
    return all(len(item.offsets) == 1 for item in items)


def _soft_tokens(item: Any) -> int:
    return sum(end - start + 1 for start, end in item.offsets)
