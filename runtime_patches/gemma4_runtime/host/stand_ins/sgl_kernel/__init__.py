"""Torch forms of the operators that SGLang imports from its kernel package on a CPU, from 0.5.14 on.

The package itself does not load on a machine without CUDA, and SGLang imports these names while its scheduler is
imported, before any plugin is asked. What is not here raises ImportError, as the absent package would.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from gemma4_runtime.host.speculative_tree import build_tree, verify_tree_greedy


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Writes slots into columns start to end of each request's row.

    Args:
        req_pool_indices: [requests], rows.
        req_to_token: [rows, pool_len], written.
        start_offset: [requests], the first column.
        end_offset: [requests], the column after the last.
        out_cache_loc: [sum(end - start)], slots.
        pool_len: The width of a row.
    """
    for row, columns, places in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, columns] = out_cache_loc[places].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Reads the slots in columns start to end of each request's row, one request after the other.

    Args:
        req_pool_indices: [requests], rows.
        req_to_token: [rows, pool_len].
        start_offset: [requests], the first column.
        end_offset: [requests], the column after the last.
        out_cache_loc: [sum(end - start)], written.
        pool_len: The width of a row.
    """
    for row, columns, places in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[places] = req_to_token[row, columns].to(out_cache_loc.dtype)


def _spans(rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Yields of each request its row, its columns there, and their places in the flat list of all requests' slots."""
    taken = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        count = max(end - start, 0)
        yield row, slice(start, start + count), slice(taken, taken + count)
        taken += count


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Reads the slots of each request's draft tokens, which lie behind its sequence.

    Args:
        req_pool_indices: [requests], rows.
        req_to_token: [rows, pool_len].
        seq_lens: [requests], where a request's drafts begin.
        out_cache_loc: [requests * topk * num_steps], written.
        pool_len: The width of a row.
        topk: Drafts per step.
        num_steps: Steps.
    """
    ends = seq_lens + topk * num_steps
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, ends, out_cache_loc, pool_len)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """Takes the last accepted token of each request.

    Args:
        accept_tokens: [requests * accept_stride].
        accept_lens: [requests], the bonus token counted.
        bonus_tokens: [requests], written.
        accept_stride: Tokens that a request has room for.
    """
    rows = torch.arange(len(accept_lens)) * accept_stride + accept_lens.to(torch.int64) - 1
    bonus_tokens[: len(rows)] = accept_tokens.flatten()[rows].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Moves the slots of accepted tokens to the front.

    Args:
        accept_index: Indices into out_cache_loc, -1 where nothing was accepted.
        out_cache_loc: Slots of all draft tokens.
        accept_out_cache_loc: Its first entries are written.
    """
    kept = accept_index.flatten()
    kept = kept[kept > -1].to(torch.int64)
    accept_out_cache_loc[: len(kept)] = out_cache_loc[kept]


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shifts each request's tokens one to the front and puts a new one in the last place, or where it is told to.

    Args:
        input_ids: [tokens], written.
        extend_start_loc: [requests], where a request begins.
        extend_seq_lens: [requests], how many tokens it has.
        topk_index: [requests], the new tokens.
        select_index: [requests], the places for them; None: the last of each request.
    """
    tokens = topk_index.flatten()
    for row, (start, count) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        if count > 0:
            input_ids[start : start + count - 1] = input_ids[start + 1 : start + count].clone()
            input_ids[start + count - 1 if select_index is None else int(select_index[row])] = tokens[row]


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copies rows of every layer's buffer within it, as if all were read before one is written.

    Args:
        data_ptrs: [buffers], addresses.
        strides: [buffers], bytes of a row.
        tgt_loc: [rows], where to.
        src_loc: [rows], where from.
    """
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + target * stride, row, stride)


build_tree_kernel_efficient_cpu = build_tree


def verify_tree_greedy_cpu(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walks each draft tree along the target's greedy tokens; shapes are those of `verify_tree_greedy`."""
    verify_tree_greedy(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrive_index,
        retrive_next_token,
        retrive_next_sibling,
        target_predict,
    )
