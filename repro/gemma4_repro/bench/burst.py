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
from dataclasses import dataclass

from gemma4_repro.bench.server import BenchServer

FIRST_TOKEN, LAST_TOKEN = 16, 511  # words of the toys' language; below are special tokens


@dataclass(frozen=True)
class Burst:
    """copy: which of the arm's servers, from 1. step_ms: one value per window. tokens_per_s: output tokens by the
    client's clock, prefill included. tokens_per_step: of one request; 1 without MTP."""

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


def prompts(batch: int, length: int, seed: int) -> list[list[int]]:
    """`batch` prompts of `length` random token ids, the same for the same seed."""
    draw = random.Random(seed)
    return [[2, *(draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(length - 1))] for _ in range(batch)]


def run_burst(
    server: BenchServer, mtp: bool, batch: int, round_number: int, prompt_tokens: int, new_tokens: int, limit_s: float
) -> Burst:
    """Raises ServerLost, also if the answers are shorter than asked for."""
    _flush(server)
    seen = len(_windows_ms(server, batch))
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
    windows = _windows_ms(server, batch)[seen:]
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
    )


def _flush(server: BenchServer) -> None:
    # The last answer leaves before the scheduler has put the batch away; until then it would refuse, so let it wait.
    server.ask("/flush_cache?timeout=5", {})


def _windows_ms(server: BenchServer, batch: int) -> list[float]:
    (state,) = server.ask("/server_info")["internal_states"]
    return [1000 * seconds for seconds in state["step_time_dict"].get(str(batch), [])]
