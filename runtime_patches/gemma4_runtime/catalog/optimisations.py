"""Optimisations: the same result with fewer launches or bytes. Each can be switched off alone."""

from __future__ import annotations

from gemma4_runtime.patch import Hook, How, Kind, Patch

_AT = "gemma4_runtime.optimisations"
_LAYER = Hook("gemma4.layer_forward", How.AROUND, f"{_AT}.layer_forward:around_layer_forward")
_DECISIONS = Hook("scheduler.internal_state", How.AFTER, f"{_AT}.pool_decisions:after_internal_state")
_PATHS = Hook("scheduler.internal_state", How.AFTER, f"{_AT}.paths_report:after_internal_state")


def _kernel(id: str, title: str, origin: str, upstream: str, *hooks: Hook) -> Patch:
    return Patch(
        id=id,
        kind=Kind.OPTIMISATION,
        title=title,
        origin=origin,
        upstream=upstream,
        default=True,
        attachments=(*hooks, _PATHS),
        own_paths=("fused",),
    )


OPTIMISATIONS: tuple[Patch, ...] = (
    _kernel(
        "routing",
        "top-k, softmax and per-expert scale of the MoE router in one launch, on packed 32-bit keys",
        "feature F1: the fused router of the pull requests",
        "one launch with a full sort of 64-bit keys since 0.5.13",
        Hook("gemma4.moe_init", How.AFTER, f"{_AT}.moe_routing:after_moe_init"),
    ),
    _kernel(
        "triple-rmsnorm",
        "the norms, the sum and the router's scale before a MoE block in one launch, out of place",
        "feature F12; the router's scale is folded in bf16 and never again in the release",
        "open up to 0.5.23",
        _LAYER,
    ),
    _kernel(
        "post-attention-norms",
        "post-attention norm, sum and pre-feed-forward norm of dense layers in one launch, out of place",
        "the dense sibling of triple-rmsnorm",
        "open up to 0.5.23",
        _LAYER,
    ),
    _kernel(
        "rmsnorm-add",
        "post-feed-forward norm and sum before per-layer embeddings in one launch",
        "feature F9: the tail of E2B's and E4B's layers",
        "open up to 0.5.23",
        _LAYER,
    ),
    _kernel(
        "gelu-tanh-mul",
        "gelu of the per-layer gate and its product in one launch",
        "feature F9: the tail of E2B's and E4B's layers",
        "open up to 0.5.23",
        _LAYER,
    ),
    _kernel(
        "rmsnorm-residual-scalar",
        "a layer's last norm, sum and scalar in one launch, with per-layer embeddings too",
        "feature F9: the tail of E2B's and E4B's layers",
        "without per-layer embeddings since 0.5.13; with them open up to 0.5.23",
        _LAYER,
    ),
    _kernel(
        "cross-layer-norm",
        "a layer's end and the norm after it, the next layer's or the model's, in one launch",
        "kernels of this project; nobody has them up to 0.5.23",
        "open up to 0.5.23",
        _LAYER,
        Hook("gemma4.text_model_init", How.AFTER, f"{_AT}.next_norms:after_text_model_init"),
    ),
    _kernel(
        "ple-front-end",
        "scale, norm, sum and scale of the per-layer inputs in one launch",
        "feature F9: the front end of E2B's and E4B's per-layer embeddings",
        "open up to 0.5.23",
        Hook("gemma4.project_ple", How.AROUND, f"{_AT}.ple_front_end:around_project"),
    ),
    _kernel(
        "qk-norm-rope",
        "the norms of queries, keys and values and the rotation of the first two in one launch, out of place",
        "a kernel of this project; the release's rope kernel asks a layer without keys for keys of zeros",
        "two launches in the release, three in layers without keys of their own",
        Hook("gemma4.attention_forward", How.AROUND, f"{_AT}.qk_norm_rope:around_attention_forward"),
    ),
    Patch(
        id="yoco",
        kind=Kind.OPTIMISATION,
        title="in a prefill, layers that share keys run on the last token of each request alone",
        origin="feature F13: YOCO fast prefill of the pull requests, whose Triton path reads another token's keys",
        upstream="open up to 0.5.23",
        default=True,
        attachments=(
            Hook("gemma4.text_forward", How.AROUND, f"{_AT}.yoco_prefill:around_text_forward"),
            Hook("forward_batch.init_new", How.AROUND, f"{_AT}.yoco_prefill:around_batch_init"),
            Hook("piecewise.can_run", How.AROUND, f"{_AT}.yoco_prefill:around_can_run"),
            _PATHS,
        ),
        own_paths=("fused", "skipped: a chunk that is not the last"),
        last_rows_only=True,
    ),
    Patch(
        id="piecewise-multimodal",
        kind=Kind.OPTIMISATION,
        title="prefills of multimodal models in piecewise CUDA graphs; the vision tower stays eager",
        origin="feature F11: the knob of the pull requests; SGLang has these graphs for text models alone",
        upstream="switched off by its is_multimodal rule up to 0.5.23",
        attachments=(
            Hook("server_args.piecewise", How.AROUND, f"{_AT}.piecewise_multimodal:around_handle"),
            Hook("piecewise.can_run", How.AROUND, f"{_AT}.piecewise_multimodal:around_can_run"),
            _PATHS,
        ),
        own_paths=("fused",),
    ),
    Patch(
        id="vision-batching",
        kind=Kind.OPTIMISATION,
        title="images of a batch through the vision tower together, as many as memory allows; one embedder call",
        origin="feature F14: the batched vision encoder of the pull requests",
        upstream="one tower call per image and one embedder call per image up to 0.5.23",
        default=True,
        attachments=(
            Hook("gemma4.image_feature", How.AROUND, f"{_AT}.vision_features:around_image_feature"),
            Hook("gemma4.video_feature", How.AROUND, f"{_AT}.vision_features:around_video_feature"),
            Hook("gemma4.vision_attention", How.AROUND, f"{_AT}.vision_features:around_attention"),
            Hook("gemma4.vision_positions", How.AROUND, f"{_AT}.vision_features:around_position_embeddings"),
            Hook("gemma4.vision_pooling", How.AROUND, f"{_AT}.vision_features:around_pooling"),
            Hook("multimodal.chunked_embedding", How.AROUND, f"{_AT}.vision_requests:around_chunked_embedding"),
            _PATHS,
        ),
        own_paths=("batched",),
    ),
    Patch(
        id="owner-only-kv",
        kind=Kind.OPTIMISATION,
        title="layers that share another layer's KV get no pool memory: more tokens from the same bytes",
        origin="feature B1; E2B and E4B hold 2.33 and 1.75 times the tokens",
        upstream="open up to 0.5.23",
        default=True,
        attachments=(Hook("runner.swa_layers", How.AFTER, f"{_AT}.owner_only_kv:after_adjust_layers"), _DECISIONS),
    ),
    Patch(
        id="swa-ratio-policy",
        kind=Kind.OPTIMISATION,
        title="the ratio between the two KV pools from context length, running requests and memory, unless it is given",
        origin="feature F2: the ratio of the pull requests; one of theirs per model, ours per load",
        upstream="open up to 0.5.23",
        attachments=(
            Hook("server_args.post_init", How.BEFORE, f"{_AT}.swa_ratio_policy:before_post_init"),
            Hook("runner.profile_bytes", How.AFTER, f"{_AT}.swa_ratio_policy:after_profile"),
            _DECISIONS,
        ),
    ),
)
