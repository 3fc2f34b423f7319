"""Probe: every live page id that trtllm_mha is about to read lies inside the buffer that it is about to index.

The buffer is the dispatched layer's own, so a sliding layer that was handed the full pool's table is measured against
the sliding-window buffer, which is what the kernel will do. A *route* is the pair of a table and a buffer. Eager, each
route is checked once per metadata build, when its first layer is dispatched. Under CUDA graphs no Python runs at
replay; the routes seen at capture are remembered per graph bucket and checked on the live tables right after SGLang
has filled them, before the replay.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gemma4_dumps.schema import Graph, Layer, Provenance
from gemma4_runtime.checks.page_bounds import check_page_bounds
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.evidence import payload
from gemma4_runtime.guard import Scene
from gemma4_runtime.session import Session

RULE = "page-table-bounds"
_ROLE = "_gemma4_role"
_RUNNER = "_gemma4_runner"
_CHECKED = "_gemma4_checked_routes"
_GRAPH_ROUTES = "_gemma4_graph_routes"


@dataclass(frozen=True)
class Route:
    """Which table a layer reads and which buffer it indexes with it. Two layers on one route need one check."""

    table_space: str
    buffer_space: str
    buffer_pages: int


@dataclass(frozen=True)
class _Dispatch:
    """One layer's dispatch: its route, and what a report about it needs."""

    route: Route
    layer_id: int
    window_left: int
    site: str


def remember_role(result: Any, backend: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
    """After `TRTLLMHAAttnBackend.__init__`: keep whose backend this is, and where to read the step number."""
    setattr(backend, _ROLE, "draft" if model_runner.is_draft_worker else "target")
    setattr(backend, _RUNNER, weakref.ref(model_runner))


def before_decode(backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kw: Any) -> None:
    """Before `forward_decode`, on the leaf backend and inside whatever pool swap is in force."""
    _at_dispatch(backend, layer, forward_batch, "TRTLLMHAAttnBackend.forward_decode")


def before_extend(backend: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kw: Any) -> None:
    """Before `forward_extend`: prefill and target verify."""
    _at_dispatch(backend, layer, forward_batch, "TRTLLMHAAttnBackend.forward_extend")


def after_graph_metadata(result: Any, backend: Any, bs: int, req_pool_indices: Any, seq_lens: Any, **kw: Any) -> None:
    """After `_apply_cuda_graph_metadata`: the static tables hold this step's pages, the graph has not run yet."""
    for dispatch in getattr(backend.forward_metadata, _GRAPH_ROUTES, {}).values():
        _check(backend, dispatch, req_pool_indices[:bs], kw["forward_mode"], bucket=bs)


def self_test() -> None:
    """Fire on a planted page, stay silent on a clean table.

    Raises:
        VerificationFailed: the check no longer tells them apart.
    """
    lens = torch.tensor([33])
    clean = check_page_bounds(torch.tensor([[1, 2, 3, 99]]), lens, 16, 4, 0)
    planted = check_page_bounds(torch.tensor([[1, 2, 4, 99]]), lens, 16, 4, 0)
    if clean is not None or planted is None or planted.first.value != 4:
        raise VerificationFailed(f"{RULE}: self test: clean table gave {clean}, planted page gave {planted}")


def _at_dispatch(backend: Any, layer: Any, forward_batch: Any, site: str) -> None:
    metadata = backend.forward_metadata
    dispatch = _dispatch(backend, layer, site)
    if dispatch is None:
        return
    from sglang.srt.model_executor.cuda_graph_runner import get_is_capture_mode

    if get_is_capture_mode():
        vars(metadata).setdefault(_GRAPH_ROUTES, {}).setdefault(dispatch.route, dispatch)
        return
    checked = vars(metadata).setdefault(_CHECKED, set())
    if dispatch.route not in checked:
        checked.add(dispatch.route)
        _check(backend, dispatch, forward_batch.req_pool_indices, forward_batch.forward_mode, bucket=None)


def _dispatch(backend: Any, layer: Any, site: str) -> _Dispatch | None:
    metadata = backend.forward_metadata
    try:
        table = backend._get_layer_page_table(layer, None)
        keys, _ = backend.token_to_kv_pool.get_kv_buffer(layer.layer_id)
    except (IndexError, KeyError):
        # The pool has no such layer. SGLang's own lookup raises the same a moment later, with its own traceback.
        return None
    swa_table = metadata.swa_page_table
    route = Route(
        table_space="swa" if swa_table is not None and table is swa_table else "full",
        buffer_space=_buffer_space(backend, layer.layer_id),
        buffer_pages=keys.shape[0] // backend.page_size,
    )
    window_left = -1 if layer.sliding_window_size is None else layer.sliding_window_size
    return _Dispatch(route, layer.layer_id, window_left, site)


def _buffer_space(backend: Any, layer_id: int) -> str:
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    pool = backend.token_to_kv_pool
    if isinstance(pool, SWAKVPool):
        return "swa" if pool.layers_mapping[layer_id][1] else "full"
    return "draft" if getattr(backend, _ROLE, None) == "draft" else "full"


def _check(backend: Any, dispatch: _Dispatch, request_slots: Any, forward_mode: Any, bucket: int | None) -> None:
    metadata, route = backend.forward_metadata, dispatch.route
    table = metadata.swa_page_table if route.table_space == "swa" else metadata.page_table
    rows = table.shape[0]
    seqlens = metadata.cache_seqlens_int32[:rows]
    real_from = _first_real_column(backend, dispatch, seqlens, request_slots[:rows])
    violation = check_page_bounds(table, seqlens, backend.page_size, route.buffer_pages, real_from)
    if violation is None:
        return
    describe = partial(_scene, backend, dispatch, violation, table, request_slots, forward_mode, bucket)
    Session.guard().report(violation, RULE, dispatch.site, describe)


def _first_real_column(backend: Any, dispatch: _Dispatch, seqlens: torch.Tensor, request_slots: Any) -> torch.Tensor:
    """[rows]: the first column of each row that must not be the null page.

    Padded rows (graph buckets, DP padding, SGLang's own warm-up) carry request slot 0, which ReqToTokenPool never
    hands out; their pages are the null page by design. In a translated table the window leaves zeros behind.
    """
    never = torch.full_like(seqlens, torch.iinfo(torch.int32).max)
    if dispatch.route.table_space == "swa":
        if not _window_is_strict(backend) or dispatch.window_left < 0:
            return never
        bounds = backend.forward_metadata.cu_seqlens_q
        queries = bounds[1 : len(seqlens) + 1] - bounds[: len(seqlens)]
        # The release shows its kernels one key more than the window holds (see swa-window-width), and may have let go
        # of that one: the oldest key that counts is one nearer.
        first_key = seqlens - queries - (dispatch.window_left - 1)
        first = first_key.clamp(min=0) // backend.page_size
    else:
        first = torch.zeros_like(seqlens)
    return torch.where(request_slots.to(seqlens.device) == 0, never, first.to(never.dtype))


def _window_is_strict(backend: Any) -> bool:
    """With overlap, a request may end while its next step is built; a zero in its window then means nothing."""
    runner = _runner(backend)
    return runner is not None and bool(runner.server_args.disable_overlap_schedule)


def _scene(
    backend: Any, dispatch: _Dispatch, violation: Any, table: Any, request_slots: Any, forward_mode: Any, bucket: Any
) -> Scene:
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    route, metadata, bad = dispatch.route, backend.forward_metadata, violation.first
    pool, role = backend.token_to_kv_pool, getattr(backend, _ROLE, None)
    layer_type = "sliding" if dispatch.window_left >= 0 else "full"
    extents = {"pages_in_buffer": route.buffer_pages, "table_columns": int(table.shape[1])}
    tensors = {
        "page_table": payload(metadata.page_table),
        "cache_seqlens": payload(metadata.cache_seqlens_int32),
        "request_slots": payload(request_slots),
    }
    if metadata.swa_page_table is not None:
        tensors["swa_page_table"] = payload(metadata.swa_page_table)
    explanation = ""
    if isinstance(pool, SWAKVPool):
        extents["pages_full_pool"] = _pages(pool.full_kv_pool, backend)
        extents["pages_swa_pool"] = _pages(pool.swa_kv_pool, backend)
        if route.table_space == "full" and route.buffer_space == "swa":
            translated = _translate(pool, metadata.page_table, backend.page_size)
            tensors["translated_page_table"] = payload(translated)
            explanation = (
                f"page {bad.value} is a full-pool page (of {extents['pages_full_pool']}); the full-to-SWA map would "
                f"have made it page {int(translated[bad.row, bad.column])} of {route.buffer_pages}: translation missing"
            )
    name = "swa_page_table" if route.table_space == "swa" else "page_table"
    return Scene(
        rule=RULE,
        site=dispatch.site,
        summary=(
            f"page {bad.value} of {route.buffer_pages} in {name}[{bad.row}, {bad.column}], {role} layer "
            f"{dispatch.layer_id} ({layer_type}): {route.table_space} page ids on the {route.buffer_space} buffer"
        ),
        table=name,
        layer=Layer(id=dispatch.layer_id, type=layer_type),
        pool_kind=route.buffer_space,
        provenance=Provenance(
            table_space=route.table_space,  # pyright: ignore[reportArgumentType]
            buffer_space=route.buffer_space,  # pyright: ignore[reportArgumentType]
            table_origin=f"{type(backend).__name__}.forward_metadata.{name}",
            buffer_origin=f"{type(pool).__name__}.get_kv_buffer({dispatch.layer_id})",
            explanation=explanation,
        ),
        request_slots=tuple(request_slots.tolist()),
        facts={
            "role": role,
            "backend": "trtllm_mha",
            "forward_mode": forward_mode.name,
            "graph": Graph(captured=bucket is not None, bucket=bucket),
            "step": _step(backend),
            "page_size": backend.page_size,
            "extents": extents,
            "tensors": tensors,
            "scalars": {"max_seq_len_q": int(metadata.max_seq_len_q), "window_left": dispatch.window_left},
        },
    )


def _translate(pool: Any, page_table: torch.Tensor, page_size: int) -> torch.Tensor:
    """Full-pool page ids [rows, columns] -> the SWA page ids that they map to; ids outside the map give -1."""
    mapping = pool.full_to_swa_index_mapping
    slots = page_table.to(torch.int64) * page_size
    inside = (slots >= 0) & (slots < mapping.shape[0] - 1)
    return torch.where(inside, mapping[slots.clamp(0, mapping.shape[0] - 2)] // page_size, -1).to(torch.int32)


def _pages(pool: Any, backend: Any) -> int:
    """Pages in a pool's buffers, the dummy page 0 included."""
    return pool.k_buffer[0].shape[0] // backend.page_size


def _step(backend: Any) -> int | None:
    """Forward passes that the model runner has begun, this one included; None if the runner is not known."""
    runner = _runner(backend)
    return None if runner is None else int(runner.forward_pass_id)


def _runner(backend: Any) -> Any:
    return getattr(backend, _RUNNER, lambda: None)()
