"""Which prefills the short cross-decoder may serve; for any other, the reason.

Everything is asked before anything runs. None means that there is no reason against it.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.release import (
    CaptureHiddenMode,
    ForwardMode,
    get_global_server_args,
    has_forward_context,
    is_in_piecewise_cuda_graph,
    piecewise_context,
)
from gemma4_runtime.release.arguments import settled
from gemma4_runtime.yoco.attention_view import attention_reason

_MODES = (ForwardMode.EXTEND, ForwardMode.MIXED)


def is_prefill(batch: Any) -> bool:
    """Say whether it is a prefill of the target (ForwardBatch or ScheduleBatch): other steps need all rows."""
    return batch.forward_mode in _MODES


def reason(model: Any, forward_batch: Any, rows: int, least_saved: int) -> str | None:
    """rows: tokens of the batch. least_saved: so many rows must be left out in the shared layers."""
    return _model_reason(model) or _batch_reason(forward_batch, rows, least_saved) or attention_reason()


def _model_reason(model: Any) -> str | None:
    arguments = settled(get_global_server_args())
    if model.pp_group.world_size > 1:
        return "pipeline parallelism"
    if model.layers_to_capture:
        return "hidden states of layers are captured"
    if arguments.enable_lora:
        # Its segments are those of all tokens.
        return "LoRA"
    if arguments.enable_dp_attention:
        return "attention data parallelism"
    if arguments.enable_deterministic_inference:
        return "deterministic inference"
    if arguments.rl_on_policy_target is not None:
        return "rl_on_policy_target"
    if is_in_piecewise_cuda_graph() or piecewise_context() is not None:
        return "a piecewise CUDA graph"
    return None


def _batch_reason(batch: Any, rows: int, least_saved: int) -> str | None:
    if batch.spec_info is not None or not (batch.spec_algorithm is None or _reads_last_row(batch.spec_algorithm)):
        return f"speculation by {batch.spec_algorithm}"
    if batch.capture_hidden_mode not in (None, CaptureHiddenMode.NULL, CaptureHiddenMode.LAST):
        return "hidden states of all tokens are asked for"
    if batch.return_hidden_states_before_norm or batch.return_pooled_hidden_states:
        return "hidden states before the norm, or pooled, are asked for"
    if batch.multi_item_delimiter_indices is not None:
        return "multi-item scoring"
    if batch.extend_seq_lens_cpu is None or batch.seq_lens_cpu is None or batch.extend_seq_lens is None:
        return "lengths that the host does not know"
    if batch.return_logprob and any(
        start is not None and start < length
        for start, length in zip(batch.extend_logprob_start_lens_cpu, batch.extend_seq_lens_cpu, strict=True)
    ):
        return "log probabilities of prompt tokens"
    if batch.tbo_children or batch.tbo_split_seq_index is not None or batch.attn_cp_metadata is not None:
        return "a batch that is split"
    if rows != sum(batch.extend_seq_lens_cpu) or batch.padded_static_len != -1:
        return "padded rows"
    if not has_forward_context():
        return "no forward context"
    saved = rows - batch.batch_size
    return f"fewer than {least_saved} rows to save" if saved < least_saved else None


def _reads_last_row(algorithm: Any) -> bool:
    """EAGLE's kind reads the hidden states of every row; FROZEN_KV_MTP reads the last one of each request."""
    return algorithm.is_none() or algorithm.is_frozen_kv_mtp()
