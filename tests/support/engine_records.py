"""What an engine's `before` puts on record while the engine serves, and what a test reads of it.

Each record is a line of JSON in the file that the variable FILE names; an engine keeps one kind of record.
"""

import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FILE = "ENGINE_RECORD"


def record_row_logits() -> None:
    """Record the logits that a request's next token is drawn from.

    One line per request and forward of the target: {rid, length: of the request, mode: the forward's, logits:
    [vocabulary]}.
    """
    from sglang.srt.model_executor.model_runner import ModelRunner

    original = ModelRunner.forward

    @functools.wraps(original)
    def forward(runner: Any, forward_batch: Any, *more: Any, **named: Any) -> Any:
        output = original(runner, forward_batch, *more, **named)
        rows = zip(
            forward_batch.rids or [],
            forward_batch.seq_lens.tolist(),
            output.logits_output.next_token_logits.tolist(),
            strict=True,
        )
        mode = forward_batch.forward_mode.name
        _write({"rid": rid, "length": length, "mode": mode, "logits": logits} for rid, length, logits in rows)
        return output

    ModelRunner.forward = forward


def read_row_logits(path: Path) -> dict[tuple[str, int], tuple[str, list[float]]]:
    """Return (mode, logits) by request and its length."""
    return {(one["rid"], one["length"]): (one["mode"], one["logits"]) for one in read(path)}


def record_draft_inputs() -> None:
    """Record what the MTP assistant is given to draft from.

    One line per row of a draft's first forward: {rid, position: of the token in its request, token, hidden: [backbone
    width]}. A position that a request drafts from again is left out.
    """
    from sglang.srt.models.gemma4_mtp import Gemma4AssistantForCausalLM

    original = Gemma4AssistantForCausalLM.forward
    seen: set[tuple[str, int]] = set()

    @functools.wraps(original)
    def forward(model: Any, input_ids: Any, positions: Any, forward_batch: Any, *more: Any, **named: Any) -> Any:
        rows = zip(
            forward_batch.rids,
            positions.tolist(),
            input_ids.tolist(),
            forward_batch.spec_info.hidden_states.tolist(),
            strict=True,
        )
        new = [row for row in rows if row[:2] not in seen]
        seen.update(row[:2] for row in new)
        _write({"rid": rid, "position": at, "token": token, "hidden": hidden} for rid, at, token, hidden in new)
        return original(model, input_ids, positions, forward_batch, *more, **named)

    Gemma4AssistantForCausalLM.forward = forward


def read_draft_inputs(path: Path) -> dict[tuple[str, int], tuple[int, list[float]]]:
    """Return (token, hidden state) by request and position."""
    return {(one["rid"], one["position"]): (one["token"], one["hidden"]) for one in read(path)}


def record_length_bounds() -> None:
    """Record which bound trtllm_mha was given for lengths, beside the longest: {bound, longest} per metadata build."""
    from gemma4_runtime.optimisations import mtp_v2_lengths

    original = mtp_v2_lengths.bounded

    def bounded(lengths: Any, bound: int) -> Any:
        _write([{"bound": bound, "longest": int(lengths.max())}])
        return original(lengths, bound)

    mtp_v2_lengths.bounded = bounded


def record_pool_use() -> None:
    """Record what of the sliding-window pool is in use after each step.

    One line per step: {mode: the forward's, swa: tokens in use as SGLang counts them, running: requests, retracted: how
    often any has been}.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from gemma4_runtime.targets import dotted_path

    retractions: dict[str, int] = {}

    def after(result: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        retractions.update({request.rid: request.retraction_count for request in batch.reqs})
        line = {
            "mode": batch.forward_mode.name,
            "swa": scheduler.pool_stats_observer.get_pool_stats().swa_num_used,
            "running": len(scheduler.running_batch.reqs),
            "retracted": sum(retractions.values()),
        }
        _write([line])

    HookRegistry.register(dotted_path("0.5.13.post1", "scheduler.run_batch"), after, HookType.AFTER)


def record_frames_of_calls() -> None:
    """Record how many frames each call of the vision tower's layers has: {frames}."""
    from sglang.srt.models.gemma4_vision import Gemma4VisionTransformer

    original = Gemma4VisionTransformer.forward

    def forward(tower: Any, inputs_embeds: Any, attention_mask: Any, patch_positions: Any) -> Any:
        _write([{"frames": len(inputs_embeds)}])
        return original(tower, inputs_embeds, attention_mask, patch_positions)

    Gemma4VisionTransformer.forward = forward


def record_file() -> Path:
    """Return the file of this engine's records."""
    return Path(os.environ[FILE])


def forget() -> None:
    """Empty the file of this engine's records."""
    record_file().write_text("")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records as they were written."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _write(rows: Iterable[dict[str, Any]]) -> None:
    with record_file().open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
