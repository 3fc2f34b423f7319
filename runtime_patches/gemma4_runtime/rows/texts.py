"""What `request-rows` asks of texts: what the prefix cache takes, and what it gives, was computed of the same tokens.

Pages, rows and links of the cache may all be right, and a prefix still be that of another text. No dump has a token: it
says at which place two of them differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.leak.auditor import live_requests
from gemma4_runtime.leak.ledger import BY
from gemma4_runtime.release import envs
from gemma4_runtime.release.prefix_caches import key_of_path, path_slots, unreadable_cache
from gemma4_runtime.release.requests import held, stay_of, write_slots
from gemma4_runtime.rows.places import spans_of
from gemma4_runtime.rows.report import COUNTER, INIT, INSERT, NEXT, TEXT, report_wrong
from gemma4_runtime.rows.seen import launched_at, seen_of
from gemma4_runtime.rows.tokens import has_other_inputs, own_tokens, side_of_fill
from gemma4_runtime.slot_texts import UNKNOWN, SlotTexts, texts_for, texts_of

_KEY, _PREFIX, _LONGER, _NAMESPACE = "key", "prefix", "longer", "namespace"
_FEWEST_SHIFTED = 3
"""Tokens that agree with a key at other places than theirs, before that is no chance."""


def note_texts(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Note which token a forward of the target is about to store where.

    Left out where keys and values come from elsewhere as well: another server, the host, another store.
    """
    locations, mode = write_slots(made), getattr(scheduler, "disaggregation_mode", None)
    cache = getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)
    if locations is None or unreadable_cache(cache) or (mode is not None and mode.value != "null"):
        return
    texts = texts_for(scheduler.token_to_kv_pool_allocator)
    at = locations.flatten().cpu().numpy().astype(np.int64)
    inside = (at >= 0) & (at < texts.tokens.size)
    spans, count = spans_of(made) or [], 0 if made.input_ids is None else made.input_ids.numel()
    sizes = [max(stop - start, 0) for start, stop in spans]
    if made.input_ids is None or len(spans) != len(requests) or not at.size == count == sum(sizes):
        texts.tokens[at[inside]] = UNKNOWN
        return
    tokens = made.input_ids.flatten().cpu().numpy().astype(np.int64)
    others = np.repeat(_have_others(requests, made), sizes)
    stays = [texts.begin_stay(held(one).req_pool_idx, stay_of(one)) for one in requests]
    places = [np.arange(start, start + size) for (start, _), size in zip(spans, sizes, strict=True)]
    # One beyond the vocabulary is another token in the answer.
    end = getattr(getattr(scheduler, "model_config", None), "vocab_size", None)
    beyond = tokens >= end if isinstance(end, int) else tokens < 0
    texts.tokens[at[inside]] = np.where((tokens < 0) | others | beyond, UNKNOWN, tokens)[inside]
    texts.places[at[inside]] = np.concatenate(places)[inside]
    texts.stays[at[inside]] = np.repeat(stays, sizes)[inside]


def forget_texts(scheduler: Any, made: Any) -> None:
    """Note that it is not known what a forward stores: one of which something else is wrong."""
    texts, locations = texts_of(scheduler.token_to_kv_pool_allocator), write_slots(made)
    if texts is not None and locations is not None:
        at = locations.flatten().cpu().numpy().astype(np.int64)
        texts.tokens[at[(at >= 0) & (at < texts.tokens.size)]] = UNKNOWN


def _have_others(requests: Sequence[Any], made: Any) -> list[bool]:
    """Return of which requests a forward's tokens do not say what is stored for them.

    Of pictures and embeddings; of a block of a diffusion model; of drafts that branch, whose slots are moved later; of
    accepted drafts that are simulated.
    """
    mode = made.forward_mode
    # Where SGLang is told how many drafts to take, answers have other tokens than these.
    made_up = mode.is_target_verify() and envs.SGLANG_SIMULATE_ACC_LEN.get() > 0
    branch = mode.is_target_verify() and getattr(made.spec_info, "topk", 1) not in (1, None)
    every = mode.is_dllm_extend() or made_up or branch
    of_prompt = mode.is_extend() and not mode.is_target_verify()
    return [every or (of_prompt and has_other_inputs(one)) for one in requests]


def check_prefixes(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Hold what a prefill finds in front of its tokens against the text that was stored there."""
    mode, spans = made.forward_mode, spans_of(made)
    texts = texts_of(scheduler.token_to_kv_pool_allocator)
    if not mode.is_extend() or mode.is_target_verify() or spans is None or texts is None:
        return
    table = scheduler.req_to_token_pool.req_to_token
    for row, (request, (start, _)) in enumerate(zip(requests, spans, strict=True)):
        slot, start = held(request).req_pool_idx, min(start, table.shape[1])
        if slot is None or start <= 0:
            continue
        own = own_tokens(scheduler, request, 0, start)
        entries = table[slot, : own.size].cpu().numpy().astype(np.int64)
        if not _has_its_path(scheduler, request, entries):
            # Then it is the row that is wrong, which is told as it is looked at.
            continue
        tokens, places, _ = texts.of(entries)
        at = np.flatnonzero((tokens >= 0) & (places == np.arange(own.size)) & (tokens != own))
        if at.size and at[0] < held(request).cache_protected_len:
            _report_prefix(scheduler, requests, made, row, at, own, tokens)


def check_namespaces(scheduler: Any, requests: Sequence[Any]) -> None:
    """Hold each running request's namespace in the prefix cache (`extra_key`) against what it was when it began.

    It is a part of every key by which its text is found and put in, and is made with the request.
    """
    seen = seen_of(scheduler)
    known = seen.namespaces
    live = [one for one in requests if held(one).req_pool_idx is not None and not one.finished()]
    seen.namespaces = {id(one): known.get(id(one), (one, getattr(one, "extra_key", None))) for one in live}
    for row, request in enumerate(live):
        if getattr(request, "extra_key", None) == seen.namespaces[id(request)][1]:
            continue
        had = {"as_before": None, "cached_tokens": int(held(request).cache_protected_len)}
        wrong, slots = (WrongEntry(_NAMESPACE, row, 0, 1, 0),), [held(one).req_pool_idx for one in live]
        summary = f"the namespace (extra_key) of the request in slot {slots[row]} has changed while it runs"
        structure = Structure.REQUEST_COUNTERS
        report_wrong(scheduler, wrong, COUNTER, NEXT, structure, [None], None, slots, had=had, summary=summary)
        return


def _has_its_path(scheduler: Any, request: Any, entries: np.ndarray) -> bool:
    """Return whether a request's row begins with the slots of the nodes that it holds, as far as these go."""
    path = path_slots(getattr(scheduler.tree_cache, "inner", scheduler.tree_cache), request)
    if path is None:
        return True
    held_by_nodes = path.cpu().numpy()[: entries.size]
    return np.array_equal(entries[: held_by_nodes.size], held_by_nodes)


def _report_prefix(
    scheduler: Any,
    requests: Sequence[Any],
    made: Any,
    row: int,
    at: np.ndarray,
    own: np.ndarray,
    stored: np.ndarray,
) -> None:
    """Report a prefix from the cache that is of another text from the first place of `at` on."""
    request, first = requests[row], int(at[0])
    cache = getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)
    key, slot = key_of_path(cache, request), held(request).req_pool_idx
    known = None
    if key is not None and first < len(key):
        known = {int(own[first]): "own", int(stored[first]): "stored"}.get(int(key[first]), "neither")
    had = {
        "as_before": None,
        "tokens_wrong": int(at.size),
        "cached_tokens": int(held(request).cache_protected_len),
        "by_key": known,
        "by_fill": side_of_fill(request, first, int(own[first]), int(stored[first])),
        # Before later chunks some releases make that list anew.
        "first_look": launched_at(seen_of(scheduler), request) is None,
    }
    summary = (
        f"the cache gave the request in slot {slot} a prefix that was computed of another text from token {first} on"
    )
    wrong = (WrongEntry(_PREFIX, row, first, first, first),)
    slots = [held(one).req_pool_idx for one in requests]
    report_wrong(scheduler, wrong, TEXT, INIT, Structure.TREE_NODE, [None], made, slots, had=had, summary=summary)


def check_inserted_text(scheduler: Any, params: Any) -> None:
    """Hold what is about to be put into the prefix cache against the text that was stored in its slots.

    Args:
        scheduler: Whose cache it is.
        params: `InsertParams`: `key`, and `value`, [tokens]: their slots.
    """
    texts, by = texts_of(scheduler.token_to_kv_pool_allocator), BY.get()
    if texts is None or params.key is None:
        return
    key = np.asarray(params.key.raw_token_ids(), dtype=np.int64)
    slots = params.value.flatten().cpu().numpy().astype(np.int64)[: key.size]
    key = key[: slots.size]
    tokens, places, stays = texts.of(slots)
    at = np.flatnonzero((tokens >= 0) & (places == np.arange(slots.size)) & (tokens != key))
    whose = None if by is None else by[0]
    if at.size:
        first, shift = int(at[0]), _shift(key, tokens, int(at[0]))
        had = {
            "as_before": None,
            "tokens_wrong": int(at.size),
            "path_tokens": int(key.size),
            "shift": shift,
            "by_own": _by_own(scheduler, whose, first, int(key[first]), int(tokens[first])),
            "stored_by_own": None if whose is None else bool(stays[first] == texts.stay_in(whose) > 0),
        }
        summary = f"the prefix cache is given another token {first} than the one that was stored in its slot"
        wrong = (WrongEntry(_KEY, 0, first, first + (shift or 0), first),)
        kinds = [Defect.OFF_BY_ONE if shift in (1, -1) else None]
        report_wrong(
            scheduler, wrong, TEXT, INSERT, Structure.TREE_NODE, kinds, None, [whose], had=had, summary=summary
        )
        return
    if whose is not None and not getattr(params, "session_id", None):
        _check_length(scheduler, params, texts, slots, whose)


def _check_length(scheduler: Any, params: Any, texts: SlotTexts, slots: np.ndarray, whose: int) -> None:
    """Find what is put into the cache for tokens of a request of which no forward has stored anything."""
    stay = texts.stay_in(whose)
    tokens, places, stays = texts.of(slots)
    stored = int(np.flatnonzero((stays == stay) & (places == np.arange(slots.size))).max(initial=-1)) + 1
    # What it found in the cache, and what was put in of it before, other stays have stored.
    if not stay or not params.prev_prefix_len < stored < slots.size or (tokens[stored:] == UNKNOWN).any():
        return
    had = {"as_before": None, "path_tokens": int(slots.size), "stored": stored}
    had |= {"stored_by_another": int(tokens[stored]) >= 0, "tokens_wrong": int(slots.size) - stored}
    # Drafts that were rejected stood there, or these tokens have other slots than their row's.
    # Stays are numbered as they begin: what a later one stored there was stored over this one's.
    had["stored_since"] = bool((stays[stored:] > stay).any())
    had["stored_elsewhere"] = bool(((texts.stays == stay) & (texts.places >= stored)).any())
    summary = f"the prefix cache is given {slots.size} tokens of the request in slot {whose}, and {stored} were stored"
    wrong = (WrongEntry(_LONGER, 0, stored, int(slots.size), stored),)
    kinds = [Defect.OFF_BY_ONE if slots.size == stored + 1 else None]
    report_wrong(scheduler, wrong, TEXT, INSERT, Structure.TREE_NODE, kinds, None, [whose], had=had, summary=summary)


def _shift(key: np.ndarray, stored: np.ndarray, first: int) -> int | None:
    """Return by how many places a key's tokens stand behind those that were stored, from `first` on; None if none."""
    for by in (1, -1, 2, -2):
        lower, upper = max(first, first - by), key.size - max(by, 0)
        if upper - lower >= _FEWEST_SHIFTED and np.array_equal(key[lower + by : upper + by], stored[lower:upper]):
            return by
    return None


def _by_own(scheduler: Any, slot: int | None, place: int, key: int, stored: int) -> str | None:
    """Return whose side the request's own prompt and answer take; None where it is not known who it is."""
    found = [one for one in live_requests(scheduler) if held(one).req_pool_idx == slot]
    # Of two that have one slot by their records nobody knows which of them it is.
    one = found[0] if len(found) == 1 else None
    if one is None or slot is None or has_other_inputs(one):
        return None
    own = [*one.origin_input_ids, *one.output_ids]
    return {key: "key", stored: "stored"}.get(own[place], "neither") if place < len(own) else None
