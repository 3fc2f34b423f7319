"""One burst: a number of requests at once to one server, and what the server itself says about its decode steps.

The step time is SGLang's own record (SGLANG_RECORD_STEP_TIME, read from /server_info): the scheduler's clock over
`decode_log_interval` decode steps, divided by them, filed under the number of running requests. It holds neither
HTTP, tokenizer nor detokenizer. The cache is flushed before each burst, which also starts the step counter anew, so the
first window holds the prefill and is left out; windows with fewer than all requests running are filed elsewhere. With
MTP a step is one round: drafts, verify and the draft's extend.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemma4_repro.bench.server import BenchServer

COST = "gemma4_triage_cost"
FIRST_TOKEN, LAST_TOKEN = 16, 511  # words of the toys' language; below are special tokens


@dataclass(frozen=True)
class Burst:
    """What one burst took.

    Attributes:
        copy: which of the arm's servers, from 1.
        step_ms: one value per window.
        tokens_per_s: output tokens by the client's clock, prefill included.
        tokens_per_step: of one request; 1 without MTP.
        hooks_us: per "probe.hook" the microseconds that its own code took of a decode step, on average; empty without
            GEMMA4_TRIAGE_COST.
    """

    arm: str
    copy: int
    mtp: bool
    batch: int
    round: int
    new_tokens: int
    step_ms: tuple[float, ...]
    tokens_per_s: float
    tokens_per_step: float
    wall_s: float
    hooks_us: Mapping[str, float] = field(default_factory=dict)


def prompts(batch: int, length: int, seed: int) -> list[list[int]]:
    """`batch` prompts of `length` random token ids, the same for the same seed."""
    draw = random.Random(seed)
    return [[2, *(draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(length - 1))] for _ in range(batch)]


def run_burst(
    server: BenchServer, mtp: bool, batch: int, round_number: int, prompt_tokens: int, new_tokens: int, limit_s: float
) -> Burst:
    """Raises ServerLost, also if the answers are shorter than asked for."""
    _flush(server)
    before = _state(server)
    body = {
        "input_ids": prompts(batch, prompt_tokens, seed=1000 * round_number + batch),
        "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
    }
    started = time.perf_counter()
    answers = server.ask("/generate", body, timeout_s=limit_s)
    wall_s = time.perf_counter() - started
    told = [answer["meta_info"] for answer in answers]
    if len(told) != batch or any(info["completion_tokens"] != new_tokens for info in told):
        raise server.lost(f"answered with {[info['completion_tokens'] for info in told]} tokens, asked {new_tokens}")
    steps = sum(info.get("spec_verify_ct") or info["completion_tokens"] - 1 for info in told)
    after = _state(server)
    windows = _windows_ms(after, batch)[len(_windows_ms(before, batch)) :]
    return Burst(
        server.arm.id,
        server.copy,
        mtp,
        batch,
        round_number,
        new_tokens,
        step_ms=tuple(windows[1:]),
        tokens_per_s=batch * new_tokens / wall_s,
        tokens_per_step=batch * (new_tokens - 1) / steps,
        wall_s=wall_s,
        hooks_us=_hooks_us(before, after),
    )


def _flush(server: BenchServer) -> None:
    # The last answer leaves before the scheduler has put the batch away; until then it would refuse, so let it wait.
    server.ask("/flush_cache?timeout=5", {})


def _state(server: BenchServer) -> dict[str, Any]:
    (state,) = server.ask("/server_info")["internal_states"]
    return state


def _windows_ms(state: dict[str, Any], batch: int) -> list[float]:
    return [1000 * seconds for seconds in state["step_time_dict"].get(str(batch), [])]


def _hooks_us(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    """gemma4_runtime/cost.py says what a state holds."""
    (old_steps, old), (new_steps, new) = map(_totals_us, (before, after))
    steps = new_steps - old_steps
    return {hook: (us - old.get(hook, 0)) / steps for hook, us in new.items()} if steps else {}


def _totals_us(state: dict[str, Any]) -> tuple[int, dict[str, float]]:
    decode = state.get(COST, {}).get("decode", {"steps": 0, "probes": {}})
    hooks = [(probe, hook, spent) for probe, hooks in decode["probes"].items() for hook, spent in hooks.items()]
    return decode["steps"], {f"{probe}.{hook}": spent["own_us"] for probe, hook, spent in hooks}
