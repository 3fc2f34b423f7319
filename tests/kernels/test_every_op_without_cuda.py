"""Every row op where there is no CUDA: the torch path without Triton, and compiling for GPUs that are not there."""

import subprocess
import sys

import pytest
from page_guard_runs import child_environment

TORCH_PATH = """
import sys, torch
sys.modules["triton"] = None
from gemma4_kernels.beside_experts.launch import dense_beside_experts
from gemma4_kernels.beside_experts.spec import Weights
from gemma4_kernels.capped_logits.launch import capped_logits
from gemma4_kernels.cross_layer_norm.launch import cross_layer_norm, moe_cross_layer_norm
from gemma4_kernels.decode_attention.launch import decode_attention
from gemma4_kernels.gelu_tanh_mul.launch import gelu_tanh_mul
from gemma4_kernels.ple_front_end.launch import ple_front_end
from gemma4_kernels.post_attention_norms.launch import post_attention_norms
from gemma4_kernels.qk_norm_rope.launch import qk_norm_rope
from gemma4_kernels.rmsnorm_add.launch import rmsnorm_add
from gemma4_kernels.rmsnorm_residual_scalar.launch import rmsnorm_residual_scalar
from gemma4_kernels.routing.launch import routing
from gemma4_kernels.small_m_linear.launch import small_m_linear
from gemma4_kernels.token_embeddings.launch import token_embeddings
from gemma4_kernels.triple_rmsnorm.launch import triple_rmsnorm
rows, weight, one = torch.ones(2, 16), torch.ones(16), torch.ones(1)
rmsnorm_add(rows, weight, rows)
gelu_tanh_mul(rows, rows)
rmsnorm_residual_scalar(rows, weight, rows, one)
post_attention_norms(rows, weight, rows, weight)
ple_front_end(rows[:, None], weight, None, 16)
triple_rmsnorm(rows, weight, rows, weight, weight, weight)
cross_layer_norm(rows, weight, rows, one, weight)
qk_norm_rope(rows, rows, rows, weight, weight, rows, torch.arange(2))
moe_cross_layer_norm(rows, weight, rows, weight, weight, rows, one, weight)
small_m_linear(rows, rows)
square = torch.ones(4, 16)
experts = Weights(square, torch.ones(16, 2), square, torch.ones(4), torch.ones(4, 2, 16), torch.ones(4, 16, 1))
dense_beside_experts(rows, rows, rows, experts, 2)
decode_attention(rows[:, None], rows[:, None], rows[:, None], torch.arange(3), torch.arange(2), 1.0)
token_embeddings(torch.arange(2), rows, 2.0, rows, 2.0)
capped_logits(rows.bfloat16(), 30.0)
print(routing(rows, weight, 4)[1][0].tolist())
"""


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=child_environment() | environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_a_cpu_takes_the_torch_path_without_importing_triton():
    assert run(TORCH_PATH) == "[0, 1, 2, 3]\n"


COMPILE = """
import importlib, re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ROW = {"WIDTH": 2816, "BLOCK": 4096, "EAGER": False}
TILE = {"WIDTH": 256, "BLOCK": 256, "TILE": 16, "EAGER": True}
CROSS = ROW | {"GATHERS": True, "HAS_HIDDEN": True, "HAS_NEXT": True, "EARLY": False}
PRODUCT = {"BLOCK_N": 16, "BLOCK_K": 128, "STAGES": 4, "AHEAD": True, "WHOLE_BLOCKS": True}
ATTENTION = {"GROUP": 4, "ROWS": 16, "BLOCK": 32, "STAGES": 5, "LEAST": 32, "MAX_PARTS": 64, "FRONT": False,
             "OWN_KEYS": False}
FRONT = ATTENTION | {"FRONT": True, "OWN_KEYS": True}
EXPERTS = {"TOP_K": 8, "PLACES": 8, "PAIRS": 64, "BLOCK_K": 128, "STAGES": 4, "WHOLE_BLOCKS": True}
DOWN = {"TOP_K": 8, "PAIRS": 64, "BLOCK_N": 32, "BLOCK_K": 64, "STAGES": 6, "WHOLE_BLOCKS": True}
BESIDE = {"BLOCK_N": 16, "BLOCK_K": 128, "STAGES": 4, "AHEAD": 0, "WHOLE_BLOCKS": True}
DENSE = {"DENSE_N": 32, "DENSE_K": 64, "DENSE_STAGES": 6, "DENSE_AHEAD": 0, "DENSE_WHOLE_BLOCKS": True,
         "DENSE_FIRST": True}
HEADS = {"Q_HEADS": 8, "KV_HEADS": 2, "HALF": 128}
KERNELS = [
    ("rmsnorm_add", ROW),
    ("rmsnorm_residual_scalar", ROW),
    ("post_attention_norms", ROW | {"EARLY": True}),
    ("triple_rmsnorm", ROW | {"EARLY": True, "EAGER": True}),
    ("cross_layer_norm", CROSS | {"TWO_BRANCHES": True}),
    ("gelu_tanh_mul", TILE),
    ("ple_front_end", TILE | {"LAYERS": 35, "HAS_PLE": True}),
    ("qk_norm_rope", HEADS | {"TILE": 1, "EAGER": False}),
    ("qk_norm_rope", HEADS | {"TILE": 8, "EAGER": True}),
    ("small_m_linear", PRODUCT | {"BLOCK_M": 1, "SPLIT": False, "GATE": "none"}),
    ("small_m_linear", PRODUCT | {"BLOCK_M": 8, "SPLIT": True, "GATE": "none"}),
    ("small_m_linear", PRODUCT | {"BLOCK_M": 8, "SPLIT": False, "GATE": "halves"}),
    ("small_m_linear", PRODUCT | {"BLOCK_M": 1, "SPLIT": True, "GATE": "halves"}),
    ("small_m_linear", PRODUCT | {"BLOCK_M": 8, "SPLIT": True, "GATE": "factor"}),
    ("decode_attention", ATTENTION | {"HEAD_DIM": 256}),
    ("decode_attention", ATTENTION | {"HEAD_DIM": 512}),
    ("decode_attention", FRONT | {"HEAD_DIM": 256}),
    ("decode_attention", FRONT | {"HEAD_DIM": 512, "OWN_KEYS": False}),
    ("decode_attention", FRONT | {"HEAD_DIM": 512}),
    ("routed_experts", EXPERTS | {"BLOCK_M": 8, "BLOCK_N": 32}),
    ("routed_experts", EXPERTS | {"BLOCK_M": 1, "BLOCK_N": 16}),
    ("routed_experts.down:experts_down", DOWN | {"BLOCK_M": 8, "SPLIT": True}),
    ("routed_experts.down:experts_down", DOWN | {"BLOCK_M": 1, "SPLIT": False}),
    ("beside_experts:dense_beside_router", BESIDE | {"BLOCK_M": 8}),
    ("beside_experts:dense_beside_router", BESIDE | {"BLOCK_M": 1}),
    ("beside_experts.third:experts_beside_dense", EXPERTS | DENSE | {"BLOCK_M": 8, "BLOCK_N": 32, "DENSE_M": 8}),
    ("beside_experts.third:experts_beside_dense", EXPERTS | DENSE | {"BLOCK_M": 1, "BLOCK_N": 16, "DENSE_M": 1}),
    ("token_embeddings", {"WIDTH": 2560, "PER_LAYER": 10752, "BLOCK": 1024}),
    ("token_embeddings", {"WIDTH": 2816, "PER_LAYER": 0, "BLOCK": 1024}),
    ("capped_logits", {"WIDTH": 262144, "BLOCK": 1024}),
    ("routing", {"EXPERTS": 128, "TOP_K": 8, "BLOCK": 128, "TILE": 4, "EAGER": False}),
]
TYPES = {"row_ids": "*i64", "router_scale": "*fp32", "weights": "*fp32", "ids": "*i32", "rows": "i32", "pairs": "i32",
         "tokens": "i32", "eps": "fp32", "factor": "fp32", "root": "fp32", "positions": "*i64",
         "cos_sin_cache": "*fp32", "partial": "*fp32", "counters": "*i32", "columns": "i32", "depth": "i32",
         "splits": "i32", "kv_heads": "i32", "scaling": "fp32", "extremes": "*fp32", "starts": "*i32",
         "slots": "*i64", "angles": "*fp32", "places": "*i64", "shares": "*fp32", "order": "*i32",
         "order_shares": "*fp32", "experts": "i32", "dense_depth": "i32", "token_ids": "*i64",
         "per_layer_tokens": "i32", "picture": "i32", "video": "i32", "sound": "i32", "pad": "i32",
         "per_layer_factor": "fp32", "cap": "fp32"}
def before_the_wait(ptx):
    assert ptx.count("griddepcontrol.wait") == ptx.count("griddepcontrol.launch_dependents") == 1
    ahead = ptx.split("griddepcontrol.wait")[0]
    return "+".join(str(len(re.findall(rf"{kind}[.]global", ahead))) for kind in ("ld", "st"))

for op, constants in KERNELS:
    constants = constants | {"EARLY_LAUNCH": True}
    op, _, kernel_name = op.partition(":")
    folder, _, part = op.partition(".")
    name = f"{kernel_name or op}_kernel"
    kernel = getattr(importlib.import_module(f"gemma4_kernels.{folder}.{part + '_' * bool(part)}kernel"), name)
    types = TYPES | {"small_m_linear": {"factor": "*bf16"}, "capped_logits": {"out": "*fp32"}}.get(op, {})
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i64" if name.endswith("_stride") else "*bf16")
        for name in kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, type) in enumerate(signature.items())
        if type.startswith("*") or name.endswith("_stride")
    }
    for capability in (90, 100):
        source, target = ASTSource(kernel, signature, constants, aligned), GPUTarget("cuda", capability, 32)
        compiled = triton.compile(source, target=target, options={"num_warps": 1 if constants.get("TILE") == 1 else 4})
        ptx = compiled.asm["ptx"]
        vectors = re.findall(r"ld[.]global[.a-zA-Z0-9_:]*[.]v[248][.]b(?:32|64)", ptx)
        # A copy to shared memory past L1 is of 16 bytes.
        wide = len(vectors) > 0 or "cp.async.cg" in ptx
        print(op, capability, wide, ".local" in ptx, "redux.sync" in ptx, compiled.metadata.shared > 0,
              before_the_wait(ptx))
"""


# Weights ahead of the wait are what a plan asks for, or there are none: which experts are wanted is not known yet, nor
# which tokens.
NOT_AHEAD = ("gelu_tanh_mul", "routed_experts", "routed_experts.down", "beside_experts", "beside_experts.third")
NOT_AHEAD += ("token_embeddings", "capped_logits")


@pytest.mark.slow
def test_each_compiles_for_hopper_and_blackwell_with_vector_loads_and_without_local_memory(tmp_path):
    out = run(COMPILE, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    lines = [line.split() for line in out.splitlines()]
    assert len(lines) == 62
    for op, capability, vectors, local, redux, shared, ahead in lines:
        loads, stores = map(int, ahead.split("+"))
        # Weights and lists only, of which gelu_tanh_mul has none, and experts are not known yet.
        assert stores == 0, op
        assert (loads > 0) == (op not in NOT_AHEAD), (op, loads)
        assert (op, capability, vectors, local) == (op, capability, "True", "False")
        # A round of routing is one instruction per warp; experts are looked for in the same way.
        assert redux == str(op == "routing") or op in ("routed_experts", "beside_experts.third"), op
        # And nothing of it goes through shared memory, behind a barrier.
        assert op != "routing" or shared == "False"
