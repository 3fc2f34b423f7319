"""One model at one batch: every arm's step compared with that of `none`, then timed and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from gemma4_repro.kernel_bench.launch_count import kernels_in
from gemma4_repro.kernel_bench.replay_clock import DeviceLost, device_answers, first_line, interleaved
from gemma4_repro.step_bench.answers import compare, is_right, tolerance
from gemma4_repro.step_bench.in_force import only
from gemma4_repro.step_bench.loaded_model import Arm, LoadedModel
from gemma4_repro.step_bench.plan import ALL, NONE, SHIPPED
from gemma4_repro.step_bench.weights import moved_norms

REPLAYS = 5
"""Of one sample."""
_CELL_LIMIT_S = 30.0
_NAME_LENGTH = 100
Result = tuple[str, dict[str, Any]]


def answers(loaded: LoadedModel, arms: Sequence[Arm], requests: Any) -> Iterator[tuple[Arm, dict[str, Any]]]:
    """Yield every arm with what `compare` says of it beside the first, which is `none`; tolerance; right.

    The tolerance is a multiple of what `none` differs from itself by when each norm's weights move by one or two units
    in the last place: more than the roundings that a fused op leaves out, and far less than a wrong weight.
    """
    reference = loaded.step(requests, arms[0])
    with moved_norms(loaded.model):
        limit = tolerance(compare(loaded.step(requests, arms[0]), reference))
    for arm in arms:
        answer = compare(loaded.step(requests, arm), reference)
        yield arm, answer | {"tolerance": limit, "right": is_right(answer, limit)}


def measure_batch(
    loaded: LoadedModel, arms: Sequence[Arm], batch: int, context: int, rounds: int, count_all: bool
) -> Iterator[Result]:
    """Yield ("answers" | "samples" | "launches" | "lost", fields) of every arm; a wrong one is not timed.

    With `count_all` the kernels of every arm are counted, and not only of the three that the targets are about.

    Raises:
        DeviceLost: the device is lost.
    """
    only((), loaded.model)
    requests = loaded.begin(batch, context)
    right: list[Arm] = []
    for arm, answer in answers(loaded, arms, requests):
        yield "answers", {"arm": arm.name, **answer}
        if answer["right"]:
            right.append(arm)
    graphs = {arm.name: arm.graph(batch) for arm in right}
    if not graphs:
        return
    for name, us in interleaved(graphs, rounds, _CELL_LIMIT_S, REPLAYS).items():
        yield "samples", {"arm": name, "us": us}
    # Last, because a profiler may leave a device slower than it found it.
    counted = {name: graph for name, graph in graphs.items() if count_all or name in (NONE, SHIPPED, ALL)}
    try:
        kernels = {name: kernels_in(graph.replay) for name, graph in counted.items()}
    except RuntimeError as error:
        if not device_answers():
            raise DeviceLost("a profiled replay", first_line(error)) from error
        yield "lost", {"arm": "kernels", "why": first_line(error)}
        return
    for name, found in kernels.items():
        yield "launches", {"arm": name, "kernels": found.total(), "against_none": against(found, kernels.get(NONE))}


def against(found: Counter[str], reference: Counter[str] | None) -> dict[str, int] | None:
    """Kernels more or fewer than in the reference, by name; None without one."""
    if reference is None:
        return None
    changed = {name: found[name] - reference[name] for name in sorted({*found, *reference})}
    shortened: dict[str, int] = {}
    for name, difference in changed.items():
        if difference:
            # Templates of two kernels may begin alike; then the sum is what is told.
            shortened[name[:_NAME_LENGTH]] = shortened.get(name[:_NAME_LENGTH], 0) + difference
    return shortened
