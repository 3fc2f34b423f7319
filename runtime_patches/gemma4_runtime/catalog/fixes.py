"""Fixes: repairs of defects that the release has."""

from __future__ import annotations

from gemma4_runtime.catalog.origins import SEED
from gemma4_runtime.patch import Hook, How, Kind, Patch

_AT = "gemma4_runtime.fixes"

FIXES: tuple[Patch, ...] = (
    Patch(
        id="swa-state-swap",
        kind=Kind.FIX,
        title="draft SWA state follows the KV pool on every leaf, eager and in graphs; hybrid backend unwrapped",
        origin=SEED,
        upstream="SWA state resolved from the allocator in 0.5.13; the hybrid crash is open up to 0.5.23",
        default=True,
        attachments=(
            Hook("mtp.target_view", How.AROUND, f"{_AT}.swa_state_swap:around_view"),
            Hook("mtp.pool_view", How.AROUND, f"{_AT}.swa_state_swap:around_view"),
            Hook("mtp.graph_runner_init", How.AROUND, f"{_AT}.swa_state_swap:around_graph_runner_init"),
            Hook("mtp.init_draft_backend", How.AFTER, f"{_AT}.swa_state_swap:unwrap_hybrid"),
        ),
    ),
    Patch(
        id="eager-out-cache-loc",
        kind=Kind.FIX,
        title="a draft batch carries no out_cache_loc into eager input copies",
        origin='"size of tensor a (29) must match the size of tensor b (30)" with CUDA graphs off',
        upstream="fixed in 0.5.15",
        default=True,
        attachments=(Hook("mtp.expand_for_topk", How.AFTER, f"{_AT}.eager_out_cache_loc:drop_out_cache_loc"),),
    ),
    Patch(
        id="spec-info-guards",
        kind=Kind.FIX,
        title="a batch of finished requests is merged and filtered without a draft input; others are refused",
        origin="SGLang 26859; feature F15",
        upstream="guards open up to 0.5.23; the empty draft input in 0.5.13, but not under data-parallel attention",
        default=True,
        attachments=(
            Hook("batch.merge", How.BEFORE, f"{_AT}.spec_info_guards:before_merge"),
            Hook("batch.filter", How.BEFORE, f"{_AT}.spec_info_guards:before_filter"),
        ),
    ),
    Patch(
        id="penalizer-none-safety",
        kind=Kind.FIX,
        title="MTP drafts and verifies where sampling_info or its penalizers are None, or says why it cannot",
        origin="feature F18",
        upstream="open up to 0.5.23",
        default=True,
        attachments=(
            Hook("mtp.draft", How.AROUND, f"{_AT}.penalizer_none_safety:around_step"),
            Hook("mtp.verify", How.AROUND, f"{_AT}.penalizer_none_safety:around_step"),
        ),
    ),
    Patch(
        id="swa-window-width",
        kind=Kind.FIX,
        title="sliding layers see W keys as in transformers, not W+1 (changes shipped outputs past the window)",
        # Alone it puts trtllm_mha right, and Triton's extend and verify; a Triton decode still sees W - 1.
        origin="Gemma4Attention passes sliding_window where kernels expect sliding_window - 1",
        upstream="fixed in 0.5.23",
        attachments=(Hook("gemma4.attention_init", How.AFTER, f"{_AT}.swa_window_width:narrow_window"),),
        meant_to_change="past the window",
    ),
    Patch(
        id="triton-decode-window",
        kind=Kind.FIX,
        title="a Triton decode sees W keys on sliding layers, not W-1 (changes shipped outputs past the window)",
        # Alone it puts a Triton decode right, on keys that prefill wrote with W + 1; only with swa-window-width do
        # Triton's prefill, verify and decode all agree with transformers. Nothing of trtllm_mha changes.
        origin="update_sliding_window_buffer counts the decode's own key into a list of W - 1",
        upstream="open up to 0.5.23",
        attachments=(
            Hook("triton.init_metadata", How.AROUND, f"{_AT}.triton_decode_window:around_init_metadata"),
            Hook("triton.decode_buffers", How.AROUND, f"{_AT}.triton_decode_window:around_decode_buffers"),
            Hook("triton.init_graph_state", How.AROUND, f"{_AT}.triton_decode_window:around_graph_state"),
        ),
        meant_to_change="past the window",
    ),
    Patch(
        id="piecewise-ple",
        kind=Kind.FIX,
        title="per-layer inputs of E2B and E4B in a static buffer, where piecewise CUDA graphs read them",
        origin="with --enforce-piecewise-cuda-graph a prefill reads the per-layer inputs of the capture",
        upstream="open up to 0.5.23",
        default=True,
        attachments=(Hook("gemma4.per_layer_inputs", How.AROUND, f"{_AT}.piecewise_ple:around_per_layer_inputs"),),
    ),
    Patch(
        id="force-eagle",
        kind=Kind.FIX,
        title="no promotion of a Gemma-4 assistant to FROZEN_KV_MTP; the start says why EAGLE cannot serve it",
        origin="feature F16: SGLANG_GEMMA4_FORCE_EAGLE of the pull requests",
        upstream="open up to 0.5.23",
        attachments=(Hook("speculative.resolve_alias", How.AROUND, f"{_AT}.force_eagle:around_resolve_alias"),),
    ),
    Patch(
        id="vision-hf-exact",
        kind=Kind.FIX,
        title="the vision tower sees no padding, as in transformers (changes shipped outputs of images and videos)",
        # vision-batching, if it is on too, packs many images into one call.
        origin="CUDA vision attention ignores its mask, and pooling adds padding to an image's first soft token",
        upstream="open up to 0.5.23",
        attachments=(
            Hook("gemma4.image_feature", How.AROUND, f"{_AT}.vision_hf_exact:around_image_feature"),
            Hook("gemma4.video_feature", How.AROUND, f"{_AT}.vision_hf_exact:around_video_feature"),
            Hook("gemma4.vision_attention", How.AROUND, f"{_AT}.vision_hf_exact:around_attention"),
        ),
        meant_to_change="of images and videos",
    ),
)
