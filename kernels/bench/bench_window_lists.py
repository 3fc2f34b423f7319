"""Measure window_lists beside SGLang's update_sliding_window_buffer: what one list costs the host that asks for it.

    python kernels/bench/bench_window_lists.py --output FILE

Both fill a buffer that is given, as before a replay, from the same rows. Clock "idle": the caller's time for one call
with nothing queued on the GPU. Clock "busy": with a spin of about SPIN_MS queued ahead, as a step is with overlap
scheduling; an arm that waits for the device takes at least that long. Clock "device": by CUDA events around a call that
is queued behind such a spin, which for SGLang's includes its waits. Arms in rotating order. Before an arm is timed its
lists are compared. Exit codes: 0 measured, 1 a list was wrong, 2 usage, 3 no CUDA.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from bench_page_guard import interleaved, options_of, origin, summary, write

from gemma4_kernels.window_lists.launch import window_lists
from gemma4_kernels.window_lists.spec import AXES

SPIN_MS = 2.0
CONTEXT = 8192
# A server's rows have room for a step's tokens behind the context.
ROW = CONTEXT + 12
Arm = Callable[[], Any]


def main(argv: list[str] | None = None) -> int:
    options = options_of(argv, "bench_window_lists", __doc__ or "", 100)
    if options is None:
        return 3
    rows = []
    spin = spin_of(SPIN_MS)
    for requests in AXES["requests"]:
        for window in AXES["window"]:
            arms, wrong = make_arms(requests, window)
            if wrong:
                print(f"{requests} requests, window {window}: {wrong}", file=sys.stderr)
                return 1
            for clock in ("idle", "busy", "device"):
                samples = interleaved(clocked(arms, clock, spin), options.rounds)
                found = [
                    {"requests": requests, "window": window, "clock": clock, "arm": arm} | summary(samples[arm])
                    for arm in arms
                ]
                rows += found
                medians = ", ".join(f"{row['arm']} {row['median_us']:.1f} us" for row in found)
                print(f"{requests} requests, window {window}, {clock}: {medians}", file=sys.stderr)
    write(heading(options.rounds) | {"rows": rows}, options.output)
    return 0


def heading(rounds: int) -> dict[str, Any]:
    return origin("1.0", "window_lists", "sglang") | {"rounds": rounds, "spin_ms": SPIN_MS}


def make_arms(requests: int, window: int) -> tuple[dict[str, Arm], str]:
    """Return the arms, and what is wrong with their lists, if anything."""
    from sglang.srt.layers.attention.triton_backend import update_sliding_window_buffer

    slots = requests * ROW
    req_to_token = torch.randperm(slots, device="cuda").to(torch.int32).view(requests, ROW)
    mapping = torch.cat([torch.randint(0, slots, (slots,)), torch.tensor([-1])]).cuda()
    lengths = torch.randint(window // 2, CONTEXT, (requests,), device="cuda")
    rows = torch.randperm(requests, device="cuda")
    pool = SimpleNamespace(translate_loc_from_full_to_swa=lambda indices: mapping[indices])
    starts = {name: torch.zeros(requests + 1, dtype=torch.int32, device="cuda") for name in ("sglang", "ours")}
    lists = {name: torch.zeros(requests * window, dtype=torch.int64, device="cuda") for name in starts}
    arms: dict[str, Arm] = {
        "sglang": lambda: update_sliding_window_buffer(
            starts["sglang"],
            req_to_token,
            window,
            lengths,
            rows,
            requests,
            token_to_kv_pool=pool,
            window_kv_indices=lists["sglang"],
        ),
        "ours": lambda: window_lists(req_to_token, rows, lengths, window, mapping, starts["ours"], lists["ours"]),
    }
    for arm in arms.values():
        arm()
    if not torch.equal(starts["ours"], starts["sglang"]) or not torch.equal(lists["ours"], lists["sglang"]):
        return arms, "the lists differ from SGLang's"
    return arms, ""


def clocked(arms: dict[str, Arm], clock: str, spin: int) -> dict[str, Callable[[int], float]]:
    if clock == "device":
        return {name: lambda _, arm=arm: device_us(arm, spin) for name, arm in arms.items()}
    return {name: lambda _, arm=arm: host_us(arm, spin * (clock == "busy")) for name, arm in arms.items()}


def host_us(arm: Arm, spin: int) -> float:
    torch.cuda.synchronize()
    if spin:
        torch.cuda._sleep(spin)
    begin = time.perf_counter_ns()
    arm()
    return (time.perf_counter_ns() - begin) / 1000


def device_us(arm: Arm, spin: int) -> float:
    """Queued behind a spin, so that launches follow each other as fast as the device takes them."""
    torch.cuda.synchronize()
    torch.cuda._sleep(spin)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    arm()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000


def spin_of(milliseconds: float) -> int:
    """Cycles of torch's spin kernel."""
    cycles = 10_000_000
    took_us = [device_us(lambda: torch.cuda._sleep(cycles), cycles) for _ in range(9)]
    return int(cycles * milliseconds * 1000 / statistics.median(took_us))


if __name__ == "__main__":
    sys.exit(main())
