"""A plan of the KV pools as the JSON document of `pools --json`."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.pools.arithmetic import SGLANG_DEFAULT, PoolSizes
from gemma4_runtime.pools.demand import Fit
from gemma4_runtime.pools.ratio_policy import Choice
from gemma4_triage.pools.at_start import AtStart
from gemma4_triage.pools.memory import Memory
from gemma4_triage.pools.plan import Plan
from gemma4_triage.report.pools_view import server_flag


def pools_document(plan: Plan, memory: Memory, owner_only: bool, start: AtStart) -> dict[str, Any]:
    """Return the document. Bytes and tokens are of one GPU.

    Without a workload load and fits are null and curve is empty; policy is null without a start.
    """
    shape, cell, serving = plan.shape, plan.cell, plan.serving
    return {
        "model": {
            "name": shape.name,
            "layers": len(shape.layer_types),
            "full_layers": shape.layers("full_attention", owner_only),
            "swa_layers": shape.layers("sliding_attention", owner_only),
            "window_tokens": shape.window,
            "context_tokens": shape.context,
        },
        "owner_only": owner_only,
        "bytes_per_token": {"full": cell.full, "swa": cell.swa},
        "pools_bytes": memory.pools_bytes,
        "pools_bytes_from": memory.how,
        "page_size": serving.page_size,
        "chunk_tokens": serving.chunk,
        "chunks_in_flight": serving.chunks_in_flight,
        "draft_tokens": serving.draft_tokens,
        "prefix_cache": serving.prefix_cache,
        "split_leaf": serving.split_leaf,
        "remarks": list(serving.remarks),
        "ratio": plan.sizes.ratio,
        "full_tokens": plan.sizes.full_tokens,
        "swa_tokens": plan.sizes.swa_tokens,
        "sglang_default_ratio": SGLANG_DEFAULT,
        "with_owner_only_kv": None if start.owners is None else _sizes(start.owners),
        "policy": _policy(start.policy),
        "policy_with_owner_only_kv": _policy(start.owners_policy),
        "fits": plan.enough if plan.need is not None else None,
        "load": _load(plan),
        "curve": [_fit(one) for one in plan.curve],
    }


def _policy(choice: Choice | None) -> dict[str, Any] | None:
    return None if choice is None else {**_sizes(choice.sizes), "why": choice.why}


def _load(plan: Plan) -> dict[str, Any] | None:
    need, recommended, default = plan.need, plan.recommended, plan.default
    if need is None or recommended is None or default is None:
        return None
    return {
        "workloads": [str(load) for load in plan.workloads],
        "requests": need.requests,
        "full_tokens_needed": need.full,
        "swa_tokens_needed": need.swa + need.swa_fixed,
        "swa_tokens_in_prefill": need.swa_fixed,
        "recommended": _fit(recommended),
        "server_flag": server_flag(plan),
        "at_sglang_default": _fit(default),
        "asked": None if plan.asked is None else _fit(plan.asked),
        "with_split_leaf": None if plan.split is None else _fit(plan.split),
    }


def _fit(one: Fit) -> dict[str, Any]:
    return {
        **_sizes(one.sizes),
        "full_requests": one.full_requests,
        "swa_requests": one.swa_requests,
        "requests": one.requests,
        "binding": one.binding,
    }


def _sizes(sizes: PoolSizes) -> dict[str, Any]:
    return {"ratio": sizes.ratio, "full_tokens": sizes.full_tokens, "swa_tokens": sizes.swa_tokens}
