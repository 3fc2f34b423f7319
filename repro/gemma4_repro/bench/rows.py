"""Bursts to rows: one per arm, MTP setting and batch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gemma4_repro.bench.arms import ARMS, REFERENCE
from gemma4_repro.bench.burst import Burst
from gemma4_repro.bench.quantiles import ratio_by_round, spread

HOST_DEVICE = "host engine"


def build_rows(bursts: Sequence[Burst], device: str, dumps: dict[str, int]) -> list[dict[str, Any]]:
    """Rows by MTP, batch and the arms' order. device: the GPU's name, or HOST_DEVICE.

    step_ms is over all windows of all rounds and servers. The ratio pairs an arm's time in a round with the reference's
    in the same round; a round's time is the mean over the arm's servers of each one's median window. servers_ms: that
    median over all rounds, per server: what equal programs differ by. dumps: how many each arm wrote; a probe that
    found something did more than look. probes_us: what the probes' own code took of a decode step, over bursts, and
    hooks_us the median of each hook; probes_share: the former's median over the reference's median step.
    """
    order = [arm.id for arm in ARMS]
    cells = {(burst.mtp, burst.batch, burst.arm) for burst in bursts if burst.step_ms}
    rows = []
    for mtp, batch, arm in sorted(cells, key=lambda cell: (cell[0], cell[1], order.index(cell[2]))):
        mine = [b for b in bursts if (b.mtp, b.batch, b.arm) == (mtp, batch, arm) and b.step_ms]
        reference = [b for b in bursts if (b.mtp, b.batch, b.arm) == (mtp, batch, REFERENCE) and b.step_ms]
        ratio = ratio_by_round(_by_round(mine), _by_round(reference))
        timed = [burst for burst in mine if burst.hooks_us]
        probes_us = spread([sum(burst.hooks_us.values()) for burst in timed]) if timed else None
        step_ms = spread([window for burst in mine for window in burst.step_ms])
        tokens_per_step = statistics.fmean(burst.tokens_per_step for burst in mine)
        rows.append(
            {
                "arm": arm,
                "mtp": mtp,
                "batch": batch,
                "device": device,
                "rounds": len({burst.round for burst in mine}),
                "step_ms": step_ms,
                "servers_ms": _by_server(mine),
                "decode_tokens_per_s": round(1000 * batch * tokens_per_step / step_ms["median"], 1),
                "output_tokens_per_s": spread([burst.tokens_per_s for burst in mine]),
                "tokens_per_step": round(tokens_per_step, 3),
                "new_tokens": max(burst.new_tokens for burst in mine),
                "step_ratio_to_none": None if ratio is None else asdict(ratio),
                "probes_us": probes_us,
                "hooks_us": _by_hook(timed),
                "probes_share": _share(probes_us, reference),
                "dumps": dumps.get(arm, 0),
            }
        )
    return rows


def _by_round(bursts: Sequence[Burst]) -> dict[int, float]:
    """Keep only rounds that all of the arm's servers have: servers differ, and a mean of fewer would differ too."""
    copies = {burst.copy for burst in bursts}
    found: dict[int, float] = {}
    for number in {burst.round for burst in bursts}:
        medians = {burst.copy: statistics.median(burst.step_ms) for burst in bursts if burst.round == number}
        if medians.keys() == copies:
            found[number] = statistics.fmean(medians.values())
    return found


def _by_server(bursts: Sequence[Burst]) -> list[float]:
    copies = sorted({burst.copy for burst in bursts})
    windows = {copy: [ms for burst in bursts if burst.copy == copy for ms in burst.step_ms] for copy in copies}
    return [round(statistics.median(windows[copy]), 5) for copy in copies]


def _by_hook(bursts: Sequence[Burst]) -> dict[str, float]:
    """Return the dearest first."""
    hooks = {hook for burst in bursts for hook in burst.hooks_us}
    medians = {hook: statistics.median(burst.hooks_us.get(hook, 0) for burst in bursts) for hook in hooks}
    return {hook: round(us, 3) for hook, us in sorted(medians.items(), key=lambda item: -item[1])}


def _share(probes_us: dict[str, float | int] | None, reference: Sequence[Burst]) -> float | None:
    windows = [ms for burst in reference for ms in burst.step_ms]
    if probes_us is None or not windows:
        return None
    return round(probes_us["median"] / 1000 / statistics.median(windows), 5)
