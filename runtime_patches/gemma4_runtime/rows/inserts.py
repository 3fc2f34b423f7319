"""What `request-rows` asks of an insert into the prefix cache: what the cache has at its end is in use, and once there.

0.5.23 gives back, inside the insert, what a request has of tokens that the cache had before, and says where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import WrongEntry, check_path, torn_pages
from gemma4_runtime.leak.auditor import live_requests
from gemma4_runtime.leak.ledger import BY
from gemma4_runtime.release.allocators import free_page_parts, pending_slots
from gemma4_runtime.release.prefix_caches import inserted_path, inserted_swa, unreadable_cache
from gemma4_runtime.release.requests import held, swa_evicted
from gemma4_runtime.rows.owner import freed_before, served_by
from gemma4_runtime.rows.report import INSERT, INSERTED, report_wrong
from gemma4_runtime.rows.texts import check_inserted_text


def can_be_held(scheduler: Any, cache: Any, params: Any) -> bool:
    """Return whether an insert is one into this scheduler's own cache, all of whose pages can be told.

    Args:
        scheduler: A `Scheduler`, or None.
        cache: The prefix cache.
        params: `InsertParams`.
    """
    if scheduler is None or params.value is None or cache.disable:
        return False
    return getattr(scheduler.tree_cache, "inner", scheduler.tree_cache) is cache and not unreadable_cache(cache)


def check_insert(scheduler: Any, cache: Any, params: Any, insert: Callable[[], Any]) -> Any:
    """Return what `insert` returns, having held what the cache has for its tokens then against what was given back.

    Args:
        scheduler: Whose cache it is.
        cache: The prefix cache.
        params: `InsertParams`, whose `value` is [tokens]: the slots that are put in.
        insert: SGLang's own insert of them.
    """
    allocator = scheduler.token_to_kv_pool_allocator
    inner, page = getattr(allocator, "full_attn_allocator", allocator), allocator.page_size
    before, waiting = free_page_parts(inner), pending_slots(allocator)
    check_inserted_text(scheduler, params)
    _check_not_free(scheduler, params, _pages(before, waiting, page), page)
    # What is too long may name what no pool has, which the insert itself would trip over.
    _check_pages(scheduler, params.value.flatten().cpu().to(torch.int64).numpy(), page, only_too_long=True)
    result = insert()
    if getattr(result, "rotation_tail_declined", False) or (path := inserted_path(cache, result)) is None:
        return result
    was_back, back = _pages(before, waiting, page), _pages(free_page_parts(inner), pending_slots(allocator), page)
    on_path, put_in = (torch.as_tensor(one).flatten().cpu().to(torch.int64).numpy() for one in (path, params.value))
    wrong = check_path(on_path, put_in, back[~torch.isin(back, was_back)].numpy(), page)
    if not wrong:
        _check_window(scheduler, cache, result)
        _check_pages(scheduler, put_in, page)
        return result
    gave_back = wrong[0].why == "given back"
    # What the request has of the cache's own, and the cache had before the insert, is the cache's before and after it.
    cached = min(int(params.prev_prefix_len), int(result.prefix_len))
    had = {
        "as_before": None,
        "path_slots": len(on_path),
        "path_tokens": len(put_in),
        "cached_tokens": cached,
        "pages_missing": int(np.setdiff1d(put_in // page, [*(on_path // page), *back.tolist()]).size),
        "was_cached": all(one.column < cached for one in wrong) if gave_back else None,
    }
    by, shown = BY.get(), {"path": TensorPayload.from_array(on_path), "inserted": TensorPayload.from_array(put_in)}
    structure = Structure.FREE_CALL if gave_back else Structure.TREE_NODE
    kinds = [Defect.EARLY if gave_back else Defect.DUPLICATE] * len(wrong)
    whose = [None if by is None else by[0]]
    report_wrong(scheduler, wrong, INSERTED, INSERT, structure, kinds, None, whose, shown, had)
    return result


def _check_not_free(scheduler: Any, params: Any, free: torch.Tensor, page: int) -> None:
    """Find whole pages that the cache is about to be given, and that were given back before: nobody has them.

    What the request has of the cache's own is not put in. The page of a slot that stands alone is no page of it.
    """
    value = params.value.flatten().cpu().to(torch.int64)
    pages = value[: value.numel() // page * page].reshape(-1, page) // page
    whole = (pages == pages[:, :1]).all(1) & (torch.arange(len(pages)) * page >= int(params.prev_prefix_len))
    columns = torch.nonzero(whole & torch.isin(pages[:, 0], free)).flatten()
    if not columns.numel():
        return
    by, first = BY.get(), int(pages[columns[0], 0])
    wrong = [WrongEntry("free", 0, int(at) * page, int(value[at * page])) for at in columns]
    had = {"as_before": None, "path_tokens": int(value.numel()), "pages_free": len(wrong)}
    had |= freed_before(scheduler, first, by) | _left_window(scheduler, by)
    kinds: list[Defect | None] = [Defect.EARLY] * len(wrong)
    whose = [None if by is None else by[0]]
    report_wrong(scheduler, wrong, INSERTED, INSERT, Structure.FREE_CALL, kinds, None, whose, had=had)


def _left_window(scheduler: Any, by: tuple[int, int] | None) -> dict[str, int]:
    """Return how many first tokens have left the window of the request whose tokens are put in, by its count."""
    running = (one for one in live_requests(scheduler) if by is not None and held(one).req_pool_idx == by[0])
    evicted = next((swa_evicted(one) for one in running), None)
    return {} if evicted is None else {"evicted": evicted}


def _check_window(scheduler: Any, cache: Any, result: Any) -> None:
    """Hold what a new node has of the sliding window against what the map makes of its slots of the full pool."""
    mapping = getattr(scheduler.token_to_kv_pool_allocator, "full_to_swa_index_mapping", None)
    both = None if mapping is None else inserted_swa(cache, result)
    if mapping is None or both is None or both[0].numel() != both[1].numel():
        return
    full, swa = (one.numpy() for one in both)
    if ((full < 0) | (full >= mapping.numel())).any():
        return
    expected = mapping[both[0].to(mapping.device)].cpu().numpy()
    at = np.flatnonzero(swa != expected)
    if not at.size:
        return
    wrong = [WrongEntry("window", 0, int(i), int(swa[i]), int(expected[i])) for i in at]
    same, page = bool((swa == full).all()), scheduler.token_to_kv_pool_allocator.page_size
    had = {"as_before": None, "node_slots": len(full), "full_slot": int(full[at[0]]), "untranslated": same}
    had |= served_by(scheduler, int(full[at[0]]) // page)
    by, kinds = BY.get(), [Defect.OTHER_SPACE if same else None] * len(wrong)
    whose = [None if by is None else by[0]]
    report_wrong(scheduler, wrong, INSERTED, INSERT, Structure.TREE_NODE, kinds, None, whose, had=had)


def _check_pages(scheduler: Any, value: np.ndarray, page: int, only_too_long: bool = False) -> None:
    """Hold the slots that are put in, [tokens], against the order that they have in their pages.

    Args:
        scheduler: Whose cache it is.
        value: The slots.
        page: In tokens.
        only_too_long: Find such slots only behind the tokens of which the request has keys.
    """
    wrong, by = torn_pages(value, page), BY.get()
    if not wrong:
        return
    slot = None if by is None else by[0]
    whose = (held(one) for one in live_requests(scheduler))
    committed = next((one.kv_committed_len for one in whose if one.req_pool_idx == slot), None)
    had = {"as_before": None, "path_tokens": len(value), "committed": committed}
    shown = {"inserted": TensorPayload.from_array(value)}
    longer = committed is not None and len(value) > committed
    if only_too_long and not (longer and all(one.column >= (committed or 0) for one in wrong)):
        return
    structure = Structure.TREE_NODE if longer else Structure.REQUEST_ROW
    report_wrong(scheduler, wrong, INSERTED, INSERT, structure, [None] * len(wrong), None, [slot], shown, had)


def _pages(lists: Sequence[torch.Tensor], waiting: Sequence[torch.Tensor], page_size: int) -> torch.Tensor:
    """Return the pages of free lists, [any] each, and of slots that wait for the end of a group, [any] each."""
    parts = [*lists, *(slots // page_size for slots in waiting)]
    return torch.cat([part.flatten().cpu().to(torch.int64) for part in parts]).unique()
