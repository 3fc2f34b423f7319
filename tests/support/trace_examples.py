"""Traces as torch's profiler writes them, of a Gemma-4 decode step as SGLang 0.5.13.post1 launches it."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# FlashInfer's norms are in CUTLASS's Python DSL, whose names hold the class's without dots and brackets.
_CUTE = "kernel_cutlass_kernel_flashinfernormkernels{}_object_at__tensorptrbf16gmemalign16odiv8i641div8_0"
NORM = _CUTE.format("rmsnormRMSNormKernel")
ADD_NORM = _CUTE.format("fused_add_rmsnormFusedAddRMSNormKernel")
QUANT_NORM, HEADS_NORM = _CUTE.format("rmsnormRMSNormQuantKernel"), _CUTE.format("rmsnormQKRMSNormKernel")
GEMM = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
SPLIT_K = "void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16>(cublasLt::cublasSplitKParams<float>)"
QK_NORM = "_gemma_qkv_rmsnorm_kernel"
ROPE = "void (anonymous namespace)::fused_rope_kernel<true, 128l, __nv_bfloat16, long>(FusedRopeParams)"
STORE = "void (anonymous namespace)::store_kvcache<256l, 1, true, long>(StoreKVCacheParams)"
XQA = "kernel_mha"
TRITON_ATTENTION = ("_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2")
ACT = "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &(gelu_tanh)>(__nv_bfloat16*, int)"
_VECTOR = "void at::native::vectorized_elementwise_kernel<8, {}, std::array<char*, 3ul> >(int, {})"
ADD = _VECTOR.format(*["at::native::CUDAFunctor_add<c10::BFloat16>"] * 2)
MUL = _VECTOR.format(
    *["at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"] * 2
)
GELU = _VECTOR.format(*["at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"] * 2)
FILL = _VECTOR.format(*["at::native::FillFunctor<c10::BFloat16>"] * 2)
GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"
ARG_MAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, uint> >"
SGLANG_ROUTING = "_gemma4_routing_kernel"
MOE = "fused_moe_kernel"
DUAL = "_gemma_dual_rmsnorm_residual_kernel"

FRONT = [GATHER, MUL, GATHER, MUL, GEMM, MUL, NORM, ADD, MUL]
"""Embeddings, and the per-layer inputs of all layers."""
E_LAYER = [NORM, GEMM, QK_NORM, ROPE, STORE, XQA, GEMM, NORM, ADD_NORM, GEMM, ACT, GEMM, SPLIT_K, NORM, ADD]
E_LAYER += [GEMM, GELU, MUL, GEMM, NORM, ADD, MUL]
SHARED_LAYER = [name for launch in E_LAYER for name in ([launch, FILL] if launch == QK_NORM else [launch])]
SHARED_LAYER.remove(STORE)
"""Of a layer that reads another layer's keys: the rope kernel gets keys of zeros, and nothing is stored."""
MOE_LAYER = [NORM, GEMM, QK_NORM, ROPE, STORE, XQA, GEMM, NORM, ADD_NORM, GEMM, ACT, GEMM, NORM, GEMM, NORM]
MOE_LAYER += [SGLANG_ROUTING, "moe_align_block_size_kernel", MOE, ACT, MOE, "_moe_sum_reduce_kernel", DUAL]
FUSED_LAYER = [NORM, GEMM, "qk_norm_rope_kernel", STORE, XQA, GEMM, "post_attention_norms_kernel", GEMM, ACT, GEMM]
FUSED_LAYER += ["rmsnorm_add_kernel", GEMM, "gelu_tanh_mul_kernel", GEMM, "rmsnorm_residual_scalar_kernel"]
TAIL = [NORM, GEMM]
DRAFT = [NORM, GEMM, QK_NORM, ROPE, XQA, GEMM] * 4
COPY = "Memcpy DtoD (Device -> Device)"


def e4b(layers: int = 4) -> list[str]:
    return FRONT + E_LAYER * layers + TAIL


def moe(layers: int = 4) -> list[str]:
    return [GATHER, MUL] + MOE_LAYER * layers + TAIL


def fused(layers: int = 4) -> list[str]:
    return [GATHER, MUL, GATHER, MUL, GEMM, "ple_front_end_kernel"] + FUSED_LAYER * layers + TAIL


@dataclass
class TraceMaker:
    """Makes the events of a trace.

    Attributes:
        gap_us: between two of a graph. pid: of the GPU;
        rank: before every pid, as in a merged trace.
    """

    kernel_us: float = 3.0
    gap_us: float = 1.0
    device: int = 0
    rank: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    now_us: float = 1000.25
    correlation: int = 100

    def graph(self, names: list[str], label: str = "", stream: int = 7) -> None:
        """Make one cudaGraphLaunch, called a little before its first kernel."""
        self._next_call("cudaGraphLaunch", label)
        for place, name in enumerate(names):
            self.now_us += self.gap_us if place else 0
            self._gpu(name, stream)

    def eager(self, names: list[str], label: str = "", late_us: float = 0, stream: int = 7) -> None:
        """Make a call each, `late_us` after the end of the kernel before."""
        if label:
            width = len(names) * (self.kernel_us + late_us + self.gap_us)
            self.host(label, "user_annotation", self.now_us - 6 + late_us, width)
        for name in names:
            self.now_us += late_us
            self._next_call("cudaMemcpyAsync" if name == COPY else "cudaLaunchKernel")
            self.now_us += self.gap_us
            self._gpu(name, stream)

    def idle(self, idle_us: float) -> None:
        self.now_us += idle_us

    def document(self, noise: bool = True) -> dict[str, Any]:
        events = [*self.events, *(_noise(self.now_us) if noise else [])]
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": self.device, "name": "NVIDIA H200", "totalGlobalMem": 150110011392}],
            "traceEvents": events,
            "traceName": "/somewhere/trace.json",
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1760000000000000000,
        }

    def _pid(self, pid: int) -> Any:
        return f"{self.rank} {pid}" if self.rank else pid

    def _next_call(self, name: str, label: str = "") -> None:
        self.correlation += 1
        if label:
            self.host(label, "user_annotation", self.now_us - 7, 6.5)
        arguments = {"cbid": 211, "correlation": self.correlation}
        self.host(name, "cuda_runtime", self.now_us - 5, 5, arguments)

    def host(self, name: str, kind: str, start_us: float, duration_us: float, arguments: Any = None) -> None:
        times = {"ts": start_us, "dur": duration_us}
        event = {"ph": "X", "cat": kind, "name": name, "pid": self._pid(4321), "tid": 4321} | times
        self.events.append(event | {"args": arguments or {"External id": 7}})

    def _gpu(self, name: str, stream: int) -> None:
        kind = "gpu_memcpy" if name == COPY else "kernel"
        arguments = {"device": self.device, "stream": stream, "correlation": self.correlation, "grid": [1, 1, 1]}
        place = {"pid": self._pid(self.device), "tid": stream, "ts": self.now_us, "dur": self.kernel_us}
        self.events.append({"ph": "X", "cat": kind, "name": name, "args": arguments} | place)
        self.now_us += self.kernel_us


def _noise(until_us: float) -> list[dict[str, Any]]:
    """Say what a profiler writes beside."""
    common = {"pid": 4321, "tid": 4321, "ts": until_us / 2}
    stack = {"Python id": 1, "Python parent id": None, "Python module id": 0}
    return [
        {"name": "process_name", "ph": "M", "ts": 0, "pid": 4321, "tid": 0, "args": {"name": "sglang::scheduler"}},
        common | {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "dur": 9.5, "args": {"Sequence number": 2**64 - 1}},
        common | {"ph": "X", "cat": "python_function", "name": "scheduler.py(1): run", "dur": 99.0, "args": stack},
        common | {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "dur": 4.0, "args": {}},
        common | {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 3, "bp": "e"},
        common
        | {"ph": "i", "cat": "instant", "name": "[memory]", "s": "t", "args": {"Bytes": -4, "Ratio": float("nan")}},
    ]


def decode(model: list[str], steps: int = 5, label: str = "step[DECODE bs=8]", **options: Any) -> TraceMaker:
    """Graph launches with what SGLang does between them, one more than whole steps."""
    maker = TraceMaker(**options)
    for _ in range(steps + 1):
        maker.eager([COPY, "_fused_metadata_kernel_general"])
        maker.graph(model, label)
        maker.eager([ARG_MAX], late_us=10.0)
    return maker


def write(path: Path, document: Any) -> Path:
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
