"""What our runtime makes of the same start: the ratio that `swa-ratio-policy` chooses, the pools of `owner-only-kv`."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_runtime.pools.arithmetic import SGLANG_DEFAULT, PoolSizes, TokenBytes, pool_sizes
from gemma4_runtime.pools.ratio_policy import Choice, Start, choose
from gemma4_runtime.pools.serving import Serving
from gemma4_triage.errors import UsageMistake
from gemma4_triage.pools.model_shape import ModelShape


@dataclass(frozen=True)
class AtStart:
    """What a start would choose of itself, with and without `owner-only-kv`.

    Attributes:
        policy: what the ratio policy chooses; None if nothing was said about the start.
        owners: the pools at the ratio in use with `owner-only-kv`; None for a model without shared layers.
        owners_policy: what the policy chooses with `owner-only-kv`; None if `policy` or `owners` is.
    """

    policy: Choice | None
    owners: PoolSizes | None
    owners_policy: Choice | None


def policy_choice(
    shape: ModelShape,
    cell: TokenBytes,
    available_bytes: int,
    serving: Serving,
    ratio: float | None,
    context_length: int | None,
    max_running_requests: int | None,
) -> Choice | None:
    """Return the choice of the very function that a server calls; None if nothing was said about the start.

    Args:
        shape: the model's layers and heads.
        cell: the bytes of a token in each pool.
        available_bytes: what both pools may have, on one GPU.
        serving: how the server is set up.
        ratio: --swa-full-tokens-ratio; None if not given.
        context_length: --context-length; None if not given.
        max_running_requests: --max-running-requests; None if not given.

    Raises:
        UsageMistake: the context is longer than the model's.
    """
    if context_length is None and max_running_requests is None:
        return None
    if context_length is not None and context_length > shape.context:
        raise UsageMistake(
            f"--context-length {context_length} is more than the model's context, {shape.context}", "give no more"
        )
    return choose(
        Start(
            available_bytes=available_bytes,
            cell=cell,
            serving=serving,
            context=context_length or shape.context,
            context_given=context_length is not None,
            requests=max_running_requests,
            most_tokens=None,
            ratio=SGLANG_DEFAULT if ratio is None else ratio,
            ratio_given=ratio is not None,
        )
    )


def owners_only(
    shape: ModelShape, cell: TokenBytes, available_bytes: int, ratio: float, page_size: int
) -> PoolSizes | None:
    """cell: with owners only. None if no layer shares its KV."""
    return pool_sizes(available_bytes, cell, ratio, page_size) if shape.shared_layers else None
