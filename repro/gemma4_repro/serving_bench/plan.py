"""What is measured, in which order, with which servers."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from gemma4_repro.bench.arms import REFERENCE, WITHOUT_PLUGIN, BenchArm
from gemma4_repro.errors import UnknownName
from gemma4_repro.serving_bench.loads import BETTER, ENCODER_FILE, HOST_LOADS, HOST_MODEL, LOADS, Load, Shape
from gemma4_repro.step_bench.model_sizes import SIZES
from gemma4_repro.toys.locate import ASSISTANT_NAME, toy_path

OWNERS_ONLY = (
    "owner-only-kv",
    "without-yoco",
    "default",
    "without-graphs",
    "default-v2",
    "default-v2-sglang-attention",
    "default-no-mtp",
    "default-policy",
    "without-products",
    "products",
    "attention",
)
"""Arms whose pools leave out KV-shared layers."""
PAGE = 64
ENCODER_LINES = "encoder.jsonl"
"""In a server's folder."""
_STEPS = 3
ACCEPTED = 2.5
"""Tokens per verification. Drawn weights would have every draft refused; SGLang can settle it by lot instead."""
_EAGER_MTP = {"GEMMA4_TRIAGE_PATCHES": "default"}


@dataclass(frozen=True)
class ServingPlan:
    """What is measured.

    Attributes:
        limit_s: For everything, starts included.
        also: Arms beside the load's own.
        gpus: On which the servers are, in turn.
    """

    load: Load
    models: tuple[str, ...]
    rounds: int
    host_engine: bool
    limit_s: float
    also: tuple[BenchArm, ...] = ()
    seed: int = 0
    gpus: int = 1

    def layers_of(self, model: str) -> int:
        """Return how many layers of a model are measured: on a shared GPU, not all of the largest's."""
        return SIZES[model].layers if self.gpus > 1 else self.load.layers.get(model, SIZES[model].layers)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.load.host if self.host_engine else self.load.shapes

    @property
    def arms(self) -> tuple[BenchArm, ...]:
        return (*(arm for arm in self.load.arms if arm.smoke or not self.host_engine), *self.also)

    def arms_of(self, model: str) -> tuple[BenchArm, ...]:
        """Return the arms, each with its own pools' tokens where they are to have equal bytes."""
        if self.load.pictures:
            times = {ENCODER_FILE: f"{{folder}}/{ENCODER_LINES}"}
            return tuple(replace(arm, environment={**arm.environment, **times}) for arm in self.arms)
        if self.load.assistant:
            # Eager MTP does not run on SGLang as shipped.
            also = _EAGER_MTP if self.host_engine else {"SGLANG_SIMULATE_ACC_LEN": str(ACCEPTED)}
            return tuple(replace(arm, environment={**arm.environment, **also}) for arm in self.arms)
        if not self.load.equal_bytes:
            return self.arms
        return tuple(replace(arm, arguments={"max_total_tokens": self._tokens(arm, model)}) for arm in self.arms)

    def _tokens(self, arm: BenchArm, model: str) -> int:
        tokens = 512 if self.host_engine else self.load.pool_tokens
        if arm.id not in OWNERS_ONLY:
            return tokens
        # Both pools lose whole groups of layers alike, so that a token's bytes shrink as the layers do.
        all_layers, shared = (8, 2) if model == HOST_MODEL else _layers(model)
        return tokens * all_layers // (all_layers - shared) // PAGE * PAGE


def other_release(folder: Path, inherited: Mapping[str, str] = os.environ) -> BenchArm:
    """Return an arm of the SGLang in a folder, with this installation's other packages and without the plugin.

    Raises:
        UnknownName: there is none.
    """
    found = [one.version for one in distributions(name="sglang", path=[str(folder)])]
    if not found:
        hint = "install one there: pip install --no-deps --target DIR sglang==VERSION"
        raise UnknownName(f"{folder} holds no installed sglang", hint)
    path = os.pathsep.join(filter(None, (str(folder.resolve()), inherited.get("PYTHONPATH"))))
    title = f"SGLang {found[0]} as shipped, from a folder of its own, with this installation's other packages"
    # It wants the kernel package of its own day, and would not start.
    environment = {**WITHOUT_PLUGIN, "PYTHONPATH": path, "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1"}
    arguments = {"disable_overlap_schedule": None}
    return BenchArm(f"sglang-{found[0]}", title, environment, arguments=arguments)


def make_plan(
    load: str,
    models: tuple[str, ...],
    rounds: int,
    host_engine: bool,
    limit_s: float,
    also: tuple[BenchArm, ...] = (),
    arms: tuple[str, ...] = (),
    requests: tuple[int, ...] = (),
    gpus: int = 1,
) -> ServingPlan:
    """Return what is measured, of the load's own models, arms and shapes.

    Args:
        load: Its id.
        models: Ids; empty for all of the load's.
        rounds: Bursts per arm and shape.
        host_engine: A trial of one round with a toy on this CPU.
        limit_s: Seconds for everything, starts included.
        also: Arms beside the load's own.
        arms: Ids; empty for all of the load's. The reference is always among them, and an aim of an arm that is left
            out is left out with it.
        requests: Of the load's shapes, those of so many at once; empty for all of them.
        gpus: On which the servers are, in turn; every model is whole there.

    Raises:
        UnknownName: no such load, model, arm or number of requests, or a load that the host engine cannot serve.
    """
    if load not in LOADS:
        raise UnknownName(f"there is no load {load!r}", f"loads: {', '.join(LOADS)}")
    found = _with_requests(_with_arms(LOADS[load], arms), requests)
    if host_engine:
        if not found.host:
            raise UnknownName(
                f"the host engine cannot serve the load {load!r}", f"loads that it can: {', '.join(HOST_LOADS)}"
            )
        return ServingPlan(found, (HOST_MODEL,), 1, True, limit_s)
    strangers = [model for model in models if model not in found.models]
    if strangers:
        raise UnknownName(f"the load {load!r} has no model {strangers[0]!r}", f"models: {', '.join(found.models)}")
    chosen = tuple(model for model in found.models if not models or model in models)
    return ServingPlan(found, chosen, rounds, False, limit_s, also, gpus=gpus)


def _with_arms(load: Load, arms: tuple[str, ...]) -> Load:
    """Return the load with these arms and the reference; all if none is named."""
    own = [arm.id for arm in load.arms]
    strangers = [arm for arm in arms if arm not in own]
    if strangers:
        raise UnknownName(f"the load {load.id!r} has no arm {strangers[0]!r}", f"arms: {', '.join(own)}")
    if not arms:
        return load
    kept = {REFERENCE, *arms}
    needed_by = [(aim, {aim.arm, *(load.better_of if aim.value == BETTER else ())}) for aim in load.aims]
    return replace(
        load,
        arms=tuple(arm for arm in load.arms if arm.id in kept),
        aims=tuple(aim for aim, needed in needed_by if needed <= kept),
    )


def _with_requests(load: Load, requests: tuple[int, ...]) -> Load:
    """Return the load with its shapes of so many requests at once; all of them if no number is named."""
    own = sorted({shape.requests for shape in load.shapes})
    strangers = [number for number in requests if number not in own]
    if strangers:
        numbers = ", ".join(map(str, own))
        raise UnknownName(f"the load {load.id!r} never has {strangers[0]} requests at once", f"it has: {numbers}")
    if not requests:
        return load
    shapes = tuple(shape for shape in load.shapes if shape.requests in requests)
    kept = {shape.id for shape in shapes}
    aims = (replace(aim, shapes=tuple(id for id in aim.shapes if id in kept)) for aim in load.aims)
    return replace(load, shapes=shapes, aims=tuple(aim for aim in aims if aim.shapes))


def schedule(plan: ServingPlan, servers: tuple[str, ...], number: int) -> Iterator[tuple[Shape, str]]:
    """Yield one round: per shape all servers in an order drawn anew, so that none always follows another."""
    draw = random.Random(plan.seed * 1_000_003 + number)
    for shape in plan.shapes:
        yield from ((shape, name) for name in draw.sample(servers, len(servers)))


def assistant_of(checkpoint: Path) -> Path:
    """Return the folder of a model's assistant."""
    return checkpoint.with_name(f"{checkpoint.name}-assistant")


def server_arguments(plan: ServingPlan, checkpoint: Path) -> dict[str, Any]:
    """Return SGLang's, the same for each arm but for what `arms_of` gives it."""
    most = max(shape.requests for shape in plan.shapes)
    common = {
        "model_path": str(checkpoint),
        "host": "127.0.0.1",
        "grammar_backend": "none",
        "sampling_backend": "pytorch",
        "skip_server_warmup": True,
        # An idle scheduler polls without end otherwise, and all arms share the cores.
        "sleep_on_idle": True,
        "random_seed": 0,
        "max_running_requests": most,
        "attention_backend": "trtllm_mha" if plan.host_engine else "triton",
        **({} if plan.load.pictures else {"skip_tokenizer_init": True}),
    }
    if plan.load.assistant:
        assistant = toy_path(ASSISTANT_NAME) if plan.host_engine else assistant_of(checkpoint)
        common |= {
            "speculative_algorithm": "NEXTN",
            "speculative_draft_model_path": str(assistant),
            "speculative_num_steps": _STEPS,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": _STEPS + 1,
        }
    if plan.host_engine:
        return common | {
            "device": "cpu",
            "dtype": "float32",
            "page_size": 16,
            "max_total_tokens": 2560,
            "swa_full_tokens_ratio": 1.0,
            "disable_cuda_graph": True,
            "disable_overlap_schedule": True,
        }
    return common | {
        "load_format": "dummy",
        "custom_weight_loader": [*LOADERS.values(), *(shape.encoder for shape in plan.shapes if shape.encoder)],
        "dtype": "bfloat16",
        "page_size": PAGE,
        "context_length": max(shape.prompt_tokens + 300 * shape.pictures for shape in plan.shapes) + 1024,
        # All arms' servers share the GPU: their pools have a fixed size.
        "max_total_tokens": plan.load.pool_tokens,
        "mem_fraction_static": 0.88,
        "swa_full_tokens_ratio": 0.5,
        "chunked_prefill_size": 8192,
        "cuda_graph_bs": sorted({1, most, *(size for size in (2, 4, 8, 12, 16, 24, 32, 48, 64, 96) if size < most)}),
        **plan.load.arguments,
    }


LOADERS = {name: f"gemma4_repro.serving_bench.draw.{name}" for name in ("draw", "move_norms")}
"""What SGLang calls in the scheduler's process, by its own `custom_weight_loader`."""


def _layers(model: str) -> tuple[int, int]:
    size = SIZES[model]
    return size.layers, size.group * size.shared_groups
