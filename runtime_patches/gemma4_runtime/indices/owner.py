"""Whose backend it is: the model runner that built it, its role, its attention layers, its step."""

from __future__ import annotations

import weakref
from typing import Any

from gemma4_runtime import steps
from gemma4_runtime.release.arguments import settled
from gemma4_runtime.steps import step_number

_ROLE = "_gemma4_role"
_RUNNER = "_gemma4_runner"
_LAYERS = "_gemma4_attention_layers"


def remember_owner(backend: Any, model_runner: Any) -> None:
    """Keep whose backend it is; the backend does not."""
    setattr(backend, _ROLE, "draft" if model_runner.is_draft_worker else "target")
    setattr(backend, _RUNNER, weakref.ref(model_runner))


def role_of(backend: Any) -> str | None:
    return getattr(backend, _ROLE, None)


def runner_of(backend: Any) -> Any:
    return getattr(backend, _RUNNER, lambda: None)()


def step_of(backend: Any) -> int | None:
    """Return the scheduler's step; outside one, the forward passes that the model runner has begun, this one included.

    Not those inside a step: the replay of a draft's CUDA graph is not counted there.
    """
    number, runner = step_number(), runner_of(backend)
    if number is not None:
        return number
    return None if runner is None else int(runner.forward_pass_id)


def attention_layers(backend: Any) -> tuple[Any, ...]:
    """Return the model's RadixAttention layers. Their layer_id is read anew: frozen-KV binding changes it once."""
    runner = runner_of(backend)
    if runner is None:
        return ()
    layers = getattr(runner, _LAYERS, None)
    if layers is None:
        from gemma4_runtime.release import RadixAttention

        layers = tuple(module for module in runner.model.modules() if isinstance(module, RadixAttention))
        setattr(runner, _LAYERS, layers)
    return layers


def writes_kv(backend: Any) -> bool:
    """Say whether this backend's layers store keys and values: all but a frozen-KV draft's do."""
    runner = runner_of(backend)
    return not (runner is not None and runner.is_draft_worker and runner.spec_algorithm.is_frozen_kv_mtp())


def window_is_strict(backend: Any, at_once: bool = False) -> bool:
    """Say whether a null page in a live window is wrong.

    With overlap, a request may end while its next step is built; a null page in its window then means nothing. It does
    where the table is read before anything else is done, and all requests of the step run.

    Args:
        backend: Whose table it is.
        at_once: Whether the check is read where it is launched.
    """
    runner = runner_of(backend)
    if runner is None or settled(runner.server_args).disable_overlap_schedule:
        return runner is not None
    return at_once and steps.running is not None and all(map(_goes_on, steps.running.requests))


def _goes_on(request: Any) -> bool:
    from gemma4_runtime.release.requests import held

    return held(request).req_pool_idx is not None and not request.finished()


def rows_per_request(backend: Any, mode: Any) -> int:
    """Rows of a build that belong to one request: a draft's decode has one for each of its top-k candidates."""
    runner = runner_of(backend)
    if runner is None or not runner.is_draft_worker or not mode.is_decode():
        return 1
    return settled(runner.server_args).speculative_eagle_topk or 1
