"""Our kernels in a decoder layer, and what else makes a decode step shorter. Each can be switched off alone."""

from __future__ import annotations

from gemma4_runtime.catalog.shared_hooks import OWN_LINES, PATHS
from gemma4_runtime.patch import About, Edit, Hook, How, Kind, Patch

_AT = "gemma4_runtime.optimisations"
_LAYER = Hook("gemma4.layer_forward", How.AROUND, f"{_AT}.layer_forward:around_layer_forward")

_NEXT_NORMS = Hook("gemma4.text_model_init", How.AFTER, f"{_AT}.next_norms:after_text_model_init")
_HEADS = Hook("gemma4.attention_forward", How.AROUND, f"{_AT}.qk_norm_rope:around_attention_forward")

_TRITON = Hook("triton.init", How.AFTER, f"{_AT}.decode_attention:after_init")

_PRODUCT = Hook("linear.unquantized_apply", How.AROUND, f"{_AT}.small_m_linear:around_apply")

_PROJECTION = """
qkv, _ = self.qkv_proj(hidden_states)
q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
"""
_OUR_PROJECTION = """
from gemma4_runtime.fusion.projection import project
q, k, v = project(self, hidden_states)
"""

_LOGITS = "logits = self._copy_logits_to_buffer(logits, logits_metadata)"
_OUR_LOGITS = f"""
from gemma4_runtime.fusion.capped_logits import capped
ours = capped(self, logits, logits_metadata)
if ours is not None:
    return ours
{_LOGITS}
"""

_ROWS = (
    "Float rows with unit stride on CUDA, eager, captured or traced by torch.compile, and on the host engine; not with "
    "deterministic inference, rl_on_policy_target or on ROCm."
)
_NORMS = f"{_ROWS} Norms must be rms(x) * weight with one eps."


def _kernel(
    id: str,
    title: str,
    origin: str,
    upstream: str,
    *hooks: Hook,
    why: str,
    eligibility: str,
    proof: tuple[str, ...] = (),
    not_ported: str = "",
) -> Patch:
    """Return the patch of an op of ours in the model. Its kernel has tests and rows under its own name."""
    op = id.replace("-", "_")
    shown = (
        "tests/engine/test_layer_ops_live.py",
        "tests/gpu/test_layer_ops.py",
        f"tests/kernels/test_{op}.py",
        f"kernels/bench/rows/kernels_h200_2026-11-22.json::{op}",
        f"docs/bench/step_h200_2026-11-22.json::{id}",
    )
    about = About(why=why, eligibility=eligibility, fallback=OWN_LINES, proof=(*shown, *proof))
    return Patch(
        id=id,
        kind=Kind.OPTIMISATION,
        title=title,
        origin=origin,
        upstream=upstream,
        not_ported=not_ported,
        default=True,
        attachments=(*hooks, PATHS),
        own_paths=("fused", "reference"),
        about=about,
    )


LAYER_OPS: tuple[Patch, ...] = (
    _kernel(
        "routing",
        "top-k, softmax and per-expert scale of the MoE router in one launch, on packed 32-bit keys",
        "the fused router of the pull requests",
        "one launch with a full sort of 64-bit keys since 0.5.13",
        Hook("gemma4.moe_init", How.AFTER, f"{_AT}.moe_routing:after_moe_init"),
        why="SGLang sorts all experts as 64-bit keys to find the top few. This packs logit and index into 32 bits.",
        eligibility="Weights that are renormalised, and numbers of experts that the kernel has. " + _ROWS,
        proof=("tests/kernels/test_routing_properties.py",),
    ),
    _kernel(
        "triple-rmsnorm",
        "the norms, the sum and the router's scale before a MoE block in one launch, out of place",
        "the router's scale is folded in bf16 and never again in the release",
        "open up to 0.5.23",
        _LAYER,
        not_ported="0.5.21, the layer goes through layers/layer_boundary, which takes another return value",
        why="Before the experts stand four launches: a norm, a sum in place, norms of router, dense MLP and experts.",
        eligibility=f"Layers with experts and without per-layer embeddings. {_NORMS}",
    ),
    _kernel(
        "post-attention-norms",
        "post-attention norm, sum and pre-feed-forward norm of dense layers in one launch, out of place",
        "the dense sibling of triple-rmsnorm",
        "open up to 0.5.23",
        _LAYER,
        not_ported="0.5.21, the layer goes through layers/layer_boundary, which takes another return value",
        why="Norm, sum and norm are two launches, the sum in place, which spoils hidden states captured there.",
        eligibility=f"Layers without experts. {_NORMS}",
    ),
    _kernel(
        "rmsnorm-add",
        "post-feed-forward norm and sum before per-layer embeddings in one launch",
        "the tail of E2B's and E4B's layers",
        "open up to 0.5.23",
        _LAYER,
        not_ported="0.5.21, the layer goes through layers/layer_boundary, which takes another return value",
        why="Norm and sum are two launches in each layer with per-layer embeddings.",
        eligibility=f"Layers with per-layer embeddings. {_NORMS}",
    ),
    _kernel(
        "gelu-tanh-mul",
        "gelu of the per-layer gate and its product in one launch",
        "the tail of E2B's and E4B's layers",
        "open up to 0.5.23",
        _LAYER,
        not_ported="0.5.21, the layer goes through layers/layer_boundary, which takes another return value",
        why="The gate of a per-layer embedding is two launches.",
        eligibility=f"Layers with per-layer embeddings. {_ROWS}",
    ),
    _kernel(
        "rmsnorm-residual-scalar",
        "a layer's last norm, sum and scalar in one launch, with per-layer embeddings too",
        "the tail of E2B's and E4B's layers",
        "without per-layer embeddings since 0.5.13; with them open up to 0.5.23",
        _LAYER,
        not_ported="0.5.21, the layer goes through layers/layer_boundary, which takes another return value",
        why="A layer ends with a norm, a sum and a product: three launches where there are per-layer embeddings.",
        eligibility=f"Ends of layers without experts that cross-layer-norm does not take. {_NORMS}",
    ),
    _kernel(
        "cross-layer-norm",
        "a layer's end and the norm after it, the next layer's or the model's, in one launch",
        "kernels of this project; nobody has them up to 0.5.23",
        "open up to 0.5.23",
        _LAYER,
        _NEXT_NORMS,
        not_ported="0.5.21, the layer goes through layers/layer_boundary, which takes another return value",
        why="A layer's end and the norm that the next one begins with read and write the same rows twice.",
        eligibility=f"Layers whose next norm is on the same pipeline rank; not traced by torch.compile. {_NORMS}",
        proof=("tests/kernels/test_cross_layer_norm_boundary.py",),
    ),
    _kernel(
        "ple-front-end",
        "scale, norm, sum and scale of the per-layer inputs in one launch",
        "the front end of E2B's and E4B's per-layer embeddings",
        "open up to 0.5.23",
        Hook("gemma4.project_ple", How.AROUND, f"{_AT}.ple_front_end:around_project"),
        why="The per-layer inputs of all layers are made by four launches at each step.",
        eligibility=f"Models with per-layer embeddings. {_NORMS}",
    ),
    _kernel(
        "qk-norm-rope",
        "the norms of queries, keys and values and the rotation of the first two in one launch, out of place",
        "a kernel of this project; the release's rope kernel asks a layer without keys for keys of zeros",
        "two launches in the release, three in layers without keys of their own",
        _HEADS,
        why="Norms and rotation are two launches; a layer without keys has a third, to fill zeros that nobody reads.",
        eligibility=f"Rotations of whole heads of a power of two, one table of angles on the rows' device. {_NORMS}",
        proof=("tests/kernels/test_qk_norm_rope_gpu.py",),
    ),
    Patch(
        id="q-only-projection",
        kind=Kind.OPTIMISATION,
        title="layers that read another layer's keys project queries alone: the first rows of the same weight",
        origin="the Q-only projection beside YOCO that no pull request has",
        upstream="open up to 0.5.23",
        default=True,
        attachments=(
            # An edit, so that all behind these two lines stays SGLang's own.
            Edit("gemma4.attention_forward", _PROJECTION, _OUR_PROJECTION),
            PATHS,
        ),
        own_paths=("fused",),
        about=About(
            why="SGLang multiplies by the rows of K and V there too and throws the result away: a fifth of the "
            "projection on E2B, a third on E4B; 38 and 110 MB of bf16 weights that a step need not read.",
            eligibility="Layers that share keys, of the target and of an MTP draft, whose projection is SGLang's own, "
            f"unquantised, not wrapped by LoRA nor packed for AMX. {_ROWS}",
            fallback=OWN_LINES,
            proof=(
                "tests/unit/test_q_only_projection.py",
                "tests/engine/test_layer_ops_live.py",
                "tests/gpu/test_layer_ops.py",
                "docs/bench/step_q_only_h200_2026-11-22_e4b.json::q-only-projection",
            ),
        ),
    ),
    Patch(
        id="small-m-linear",
        kind=Kind.OPTIMISATION,
        title="matrix products of 1 to 16 rows by a kernel that starts early, where a table has it faster than cuBLAS",
        origin="a kernel of this project; SGLang 38168 has one for Gemma-4 E2B on SM120, with dependent launch too",
        upstream="open up to 0.5.23",
        default=True,
        attachments=(_PRODUCT, PATHS),
        own_paths=("fused",),
        about=About(
            why="A decode step is bound by reading its weights, and cuBLAS reads a layer's at about half of the "
            "bandwidth: each product waits for the end of the kernel ahead, and small ones do not fill the GPU. Where "
            "our forward of a layer runs, the gate of its MLP and of its per-layer embedding is part of the product.",
            eligibility="Products without bias of SGLang's unquantised linear layers, of 1 to 16 rows, and of a size, "
            "dtype and GPU that the table has, eager or captured; not traced by torch.compile, with deterministic "
            "inference, with rl_on_policy_target or on ROCm.",
            fallback=OWN_LINES + " Products with more rows or a bias, and quantised layers, are not counted.",
            proof=(
                "tests/kernels/test_small_m_linear.py",
                "tests/unit/test_few_row_products.py",
                "tests/kernels/test_small_m_linear_gpu.py",
                "kernels/bench/rows/small_m_linear_h200_2026-11-23.json::small_m_linear",
                "docs/bench/step_products_h200_2026-11-23_e4b.json::all-cublas",
                "docs/bench/step_gates_h200_2026-11-25_e4b.json::all",
                "docs/bench/serving_decode_e4b_h200_2026-11-23.json::products",
            ),
        ),
    ),
    Patch(
        id="streamed-products",
        kind=Kind.OPTIMISATION,
        title="products of small-m-linear by a CUDA C++ kernel that streams weights, where a table has it faster still",
        origin="a kernel of this project, built on the spot by CUDA's compiler library",
        upstream="open up to 0.5.23",
        default=True,
        attachments=(_PRODUCT, PATHS),
        own_paths=("fused",),
        about=About(
            why="Between two products of a decode step the memory is idle until the last multiprocessor is done, the "
            "norm has run and the first weights arrive. Here each multiprocessor has a ring in its shared "
            "memory that fills with the next weights in the meantime; norms of up to 16 rows let the product behind "
            "them start at once.",
            eligibility="Products that small-m-linear takes, of bf16 with rows at multiples of 16 bytes, of a size, "
            "number of rows and GPU that the table has, with cuda.bindings installed.",
            fallback="Another product is small-m-linear's, or cuBLAS's, as without this.",
            proof=(
                "tests/kernels/test_small_m_linear_streamed.py",
                "tests/unit/test_few_row_products.py",
                "tests/kernels/test_small_m_linear_gpu.py",
                "kernels/bench/rows/streamed_products_h200_2026-11-26.json::streamed_products",
                "docs/bench/step_streamed_h200_2026-11-26_e4b.json::all-unstreamed",
            ),
        ),
    ),
    Patch(
        id="layer-tail",
        kind=Kind.OPTIMISATION,
        title="all of a layer behind its attention, and the next projection, in one launch that streams their weights",
        origin="a kernel of this project, built on the spot by CUDA's compiler library",
        upstream="open up to 0.5.23",
        not_ported="0.5.21, the layer goes through layers/layer_boundary, which takes another return value",
        default=True,
        attachments=(
            _LAYER,
            _HEADS,
            _NEXT_NORMS,
            PATHS,
        ),
        own_paths=("fused", "reference"),
        about=About(
            why="Nine launches follow a layer's attention, and at each the memory waits for the last multiprocessor, "
            "for a norm and for the first weights. In one launch the next weights are under way meanwhile, and rows go "
            "from one multiprocessor to the others as soon as they are there.",
            eligibility="Layers with per-layer embeddings and without experts, of 1 to 8 rows of bf16 on one rank, of "
            "a size, number of rows and GPU that the table has, while the ops that it takes the place of are in force: "
            "post-attention-norms, rmsnorm-add, gelu-tanh-mul, cross-layer-norm, qk-norm-rope, small-m-linear and "
            "streamed-products. Linear layers must be unquantised and not wrapped by LoRA. " + _NORMS,
            fallback="Each of those ops, or SGLang's own lines, as without this.",
            proof=(
                "tests/kernels/test_layer_tail.py",
                "tests/kernels/test_layer_tail_gpu.py",
                "tests/unit/test_layer_tail_patch.py",
                "tests/engine/test_layer_ops_live.py",
                "kernels/bench/rows/layer_tail_h200_2026-11-28.json::layer_tail",
                "docs/bench/step_tail_h200_2026-11-28_e4b.json::all-separate",
            ),
        ),
    ),
    Patch(
        id="routed-experts",
        kind=Kind.OPTIMISATION,
        title="the experts of 1 to 8 rows in two launches, each expert read once, where a table has them faster",
        origin="a kernel of this project; the release sorts rows by expert, and has five launches",
        upstream="open up to 0.5.23",
        default=True,
        attachments=(Hook("gemma4.moe_init", How.AFTER, f"{_AT}.routed_experts:after_moe_init"), PATHS),
        own_paths=("fused",),
        about=About(
            why="The experts of a decode step are most of what 26B reads. SGLang sorts its rows by expert first, cuts "
            "tiles that are mostly padding, and activates and adds up in launches of their own. Here a program finds "
            "in the ids whether its expert is wanted and by which rows; gates and sums are part of the products.",
            eligibility="Unquantised bf16 experts gated by gelu on one rank, with SGLang's Triton runner, of 1 to 8 "
            "rows, and of a size and GPU that the table has, eager or captured; not traced by torch.compile, with "
            "deterministic inference, with rl_on_policy_target or on ROCm.",
            fallback=OWN_LINES + " Experts of more rows are not counted.",
            proof=(
                "tests/kernels/test_routed_experts.py",
                "tests/unit/test_routed_experts_patch.py",
                "kernels/bench/rows/routed_experts_h200_2026-11-29.json::routed_experts",
                "docs/bench/step_experts_h200_2026-11-29_26b.json::all-sglang-experts",
            ),
        ),
    ),
    Patch(
        id="dense-beside-experts",
        kind=Kind.OPTIMISATION,
        title="dense MLP and router of 1 to 8 rows beside the experts, four launches for six, where a table says so",
        origin="kernels of this project",
        upstream="open up to 0.5.23",
        not_ported="0.5.21, the layer goes through layers/layer_boundary, which takes another return value",
        default=True,
        attachments=(_LAYER, PATHS),
        own_paths=("fused", "reference"),
        about=About(
            why="Between the products of a layer with experts stand launches that have little to read: the router, the "
            "choice of experts, the dense down product. While they run, the memory is mostly idle. Here the router's "
            "logits are computed beside the dense gate, and the down product beside the experts' gates.",
            eligibility="Layers with experts, of 1 to 8 rows of bf16 on one rank, of a size, number of rows and GPU "
            "that the table has, while the ops that it takes the place of are in force: triple-rmsnorm, routing, "
            "small-m-linear and routed-experts. Experts and linear layers must be unquantised and not wrapped by LoRA. "
            + _NORMS,
            fallback="Each of those ops, or SGLang's own lines, as without this.",
            proof=(
                "tests/kernels/test_beside_experts.py",
                "tests/unit/test_dense_beside_experts_patch.py",
                "kernels/bench/rows/beside_experts_h200_2026-11-29.json::beside_experts",
                "docs/bench/step_beside_h200_2026-11-30_26b.json::all-dense-alone",
            ),
        ),
    ),
    Patch(
        id="decode-attention",
        kind=Kind.OPTIMISATION,
        title="attention of a decode step on Triton in one launch, the keys shared among all multiprocessors",
        origin="a kernel of this project; the release has one split of at most 8 parts and a second launch",
        upstream="open up to 0.5.23",
        default=True,
        attachments=(_TRITON, PATHS),
        own_paths=("fused",),
        about=About(
            why="A decode step's attention takes 18 us in each layer on an H200, of which the keys and values of a "
            "window are 1: eight parts at most read them step by step, and a second launch adds them up.",
            eligibility="Triton attention, one query per request, float keys and values of the queries' dtype and head "
            "dim, 1 to 16 query heads for each key head, a power of two. Not with a cap on scores, sinks, scales of "
            "quantised keys, deterministic inference, rl_on_policy_target or on ROCm.",
            fallback=OWN_LINES,
            proof=(
                "tests/kernels/test_decode_attention.py",
                "tests/kernels/test_decode_attention_gpu.py",
                "tests/unit/test_decode_attention_patch.py",
                "kernels/bench/rows/decode_attention_h200_2026-11-23.json::decode_attention",
                "docs/bench/step_attention_h200_2026-11-25_e4b.json::all-sglang-attention",
            ),
        ),
    ),
    Patch(
        id="attention-front",
        kind=Kind.OPTIMISATION,
        title="norms and rotation of a layer's heads, the store of its keys, and its attention in one launch",
        origin="kernels of this project: of few requests a cluster's blocks share the keys, and add up in each other's "
        "memory",
        upstream="open up to 0.5.23; the release has rope and store in one launch, and leaves it off",
        default=True,
        attachments=(_HEADS, _TRITON, PATHS),
        own_paths=("fused", "reference"),
        about=About(
            why="Ahead of a decode step's attention two short launches norm, turn and store a few rows while the "
            "memory is idle, and a window's few keys are read late.",
            eligibility="What decode-attention and qk-norm-rope take, both in force, without speculation, in SGLang's "
            "own pools, of at most 12 requests: full layers, whose heads have 512 elements; sliding ones of 2 key "
            "heads, as E4B's; others, 3 requests of 26B, in bf16 on Hopper or newer.",
            fallback="Both of those, and the pool's own store, as without this.",
            proof=(
                "tests/kernels/test_decode_attention.py",
                "tests/kernels/test_decode_attention_gpu.py",
                "tests/engine/test_layer_ops_live.py",
                "docs/bench/step_tail_h200_2026-11-28_e4b.json::all-apart",
            ),
        ),
    ),
    Patch(
        id="token-embeddings",
        kind=Kind.OPTIMISATION,
        title="rows of the token and of the per-layer embedding, scaled, in one launch at the start of a decode step",
        origin="a kernel of this project",
        upstream="open up to 0.5.23",
        not_ported="0.5.23, the multimodal model chooses its head in another way",
        default=True,
        attachments=(
            Hook("gemma4.mm_forward", How.AROUND, f"{_AT}.token_embeddings:around_forward"),
            Hook("gemma4.causal_forward", How.AROUND, f"{_AT}.token_embeddings:around_causal_forward"),
            PATHS,
        ),
        own_paths=("fused", "reference"),
        about=About(
            why="A decode step begins with 17 launches of a few numbers each, 35 us on an H200: the ids without those "
            "of pictures, videos and sounds, two embeddings looked up, and each of them scaled.",
            eligibility="Decode steps and verifications of drafts from ids, of one pipeline rank, with unquantised "
            "embeddings of one dtype, not wrapped by LoRA, on the ids' device, eager or captured; not traced by "
            "torch.compile, with deterministic inference, with rl_on_policy_target or on ROCm. The bits are SGLang's.",
            fallback=OWN_LINES + " Prefills, and steps that are given embeddings, are not counted.",
            proof=(
                "tests/kernels/test_token_embeddings.py",
                "tests/unit/test_token_embeddings_patch.py",
                "tests/engine/test_layer_ops_live.py",
                "tests/gpu/test_layer_ops.py",
                "docs/bench/step_begins_h200_2026-11-30_e4b.json::all-front-apart",
            ),
        ),
    ),
    Patch(
        id="capped-logits",
        kind=Kind.OPTIMISATION,
        title="logits as fp32 and capped in one launch",
        origin="a kernel of this project, with the arithmetic of SGLang's",
        upstream="in one launch since 0.5.23 or earlier",
        absorbed="0.5.23 or earlier, kernels/ops/activation/softcap.py",
        default=True,
        attachments=(
            # An edit, so that all ahead of these lines stays SGLang's own.
            Edit("logits.get_logits", _LOGITS, _OUR_LOGITS),
            PATHS,
        ),
        own_paths=("fused", "reference"),
        about=About(
            why="SGLang copies the logits to fp32 and caps them in place: of 8 rows of 262144 they are written twice, "
            "read twice, and take 12 us on an H200.",
            eligibility="Models with a cap, logits of bf16 or fp16, eager or captured; not traced by torch.compile, "
            "with deterministic inference, with rl_on_policy_target or on ROCm. The bits are SGLang's.",
            fallback=OWN_LINES,
            proof=(
                "tests/kernels/test_capped_logits.py",
                "tests/unit/test_capped_logits_patch.py",
                "tests/engine/test_layer_ops_live.py",
                "tests/gpu/test_layer_ops.py",
                "docs/bench/step_begins_h200_2026-11-30_e4b.json::all-front-apart",
            ),
        ),
    ),
)
