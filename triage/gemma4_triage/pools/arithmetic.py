"""What one token takes: model_executor/pool_configurator.py, HybridSWAPoolConfigurator, 0.5.13.post1."""

from __future__ import annotations

from gemma4_runtime.pools.arithmetic import TokenBytes
from gemma4_triage.errors import UsageMistake
from gemma4_triage.pools.model_shape import ModelShape

KV_DTYPE_BYTES = {"auto": 2, "bf16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "float32": 4}
"""As of --kv-cache-dtype. auto is the model's dtype, which SGLang makes 16 bits wide for Gemma-4; float32 is what
`--dtype float32` gives, on a CPU."""


def token_bytes(shape: ModelShape, kv_bytes: int, tensor_parallel: int = 1, owners_only: bool = False) -> TokenBytes:
    """kv_bytes: of one element. Heads fewer than ranks are replicated.

    Raises UsageMistake for ranks that the heads do not divide among, nor the ranks among the heads: SGLang asserts it.
    """
    for heads in {shape.full_heads, shape.swa_heads}:
        if heads % tensor_parallel and tensor_parallel % heads:
            raise UsageMistake(
                f"{heads} KV heads do not divide among {tensor_parallel} GPUs", "--tp takes what SGLang's --tp takes"
            )

    def one_layer(heads: int, head_dim: int) -> int:
        return max(1, heads // tensor_parallel) * 2 * head_dim * kv_bytes

    return TokenBytes(
        full=one_layer(shape.full_heads, shape.full_head_dim) * shape.layers("full_attention", owners_only),
        swa=one_layer(shape.swa_heads, shape.swa_head_dim) * shape.layers("sliding_attention", owners_only),
    )
