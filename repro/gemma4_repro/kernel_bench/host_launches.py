"""What a launch costs the host, ours beside SGLang's own op, measured on a CPU.

    python -m gemma4_repro.kernel_bench.host_launches --out rows.json

Everything runs as on a GPU up to the driver: arguments are checked, outputs made, the compiled kernel looked up, its
arguments packed. Kernels are compiled for a GPU of compute capability 9.0, which Triton does without one. The driver's
call is left out on both sides, and so is what torch's allocator for GPUs takes for an output.

SGLang's ops that are not Triton's have no counterpart on a CPU: they are C++, and are not built for one.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from gemma4_repro.bench.quantiles import ratio_by_round

OPS = (
    "rmsnorm-residual-scalar",
    "cross-layer-norm",
    "routing",
    "qk-norm-rope",
    "triple-rmsnorm",
    "post-attention-norms",
    "rmsnorm-add",
    "gelu-tanh-mul",
    "ple-front-end",
    "decode-attention",
    "small-m-linear",
    "swa-window-lists",
    "token-embeddings",
    "capped-logits",
)
_ROWS = 4
_CAPABILITY, _MULTIPROCESSORS = 90, 132


class _Launch:
    """In place of the compiled launcher, which would need the driver."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        pass


class _Utils:
    def load_binary(self, *arguments: Any) -> tuple[int, int, int, int, int]:
        """Return module, function, registers, spills, and the most threads of a program."""
        return 1, 1, 0, 0, 1024

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": 228 * 1024}


class HostDriver:
    """Is as much of Triton's driver for CUDA as a launch asks, without a device."""

    utils, launcher_cls = _Utils(), _Launch

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        """Return what kernels are compiled for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", _CAPABILITY, 32)


def pretend_cuda() -> None:
    """Have this process take tensors of the host for a GPU's. It can run no kernel from here on."""
    from triton.runtime import driver

    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=0: (_CAPABILITY // 10, _CAPABILITY % 10)
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(
        name="none", multi_processor_count=_MULTIPROCESSORS
    )
    torch.Tensor.get_device = lambda self: 0  # pyright: ignore[reportAttributeAccessIssue]
    torch.Tensor.is_cuda = property(lambda self: True)  # pyright: ignore[reportAttributeAccessIssue]
    driver.set_active(HostDriver())  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Case:
    """An op of ours on one model's sizes.

    Attributes:
        ours: Calls it.
        sglang: Calls SGLang's own op; None where that is no Triton kernel.
        theirs: What that one is called.
    """

    op: str
    model: str
    ours: Callable[[], Any]
    sglang: Callable[[], Any] | None = None
    theirs: str = ""


def cases() -> list[Case]:
    """Return all ops of a decode step, E4B's and 26B's. Call `pretend_cuda` first."""
    from sglang.srt.layers import gemma4_fused_ops as sglang
    from sglang.srt.layers.attention.triton_backend import update_sliding_window_buffer
    from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd
    from sglang.srt.layers.triton_ops.softcap import softcap_inplace_logits

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
    from gemma4_kernels.small_m_linear.launch import any_plan, small_m_linear
    from gemma4_kernels.token_embeddings.launch import token_embeddings
    from gemma4_kernels.triple_rmsnorm.launch import triple_rmsnorm
    from gemma4_kernels.window_lists.launch import window_lists

    def of(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    x, r, w, scalar = of(_ROWS, 2560), of(_ROWS, 2560), of(2560), of(1)
    wide, other, branch, wide_w = of(_ROWS, 2816), of(_ROWS, 2816), of(_ROWS, 2816), of(2816)
    gate, ple = of(_ROWS, 256), of(_ROWS, 42, 256)
    qkv = of(_ROWS, 3072)
    q, k, v = qkv[:, :2048], qkv[:, 2048:2560], qkv[:, 2560:]
    head, angles, positions = of(256), of(4096, 256, dtype=torch.float32), of(_ROWS, dtype=torch.int64)
    logits, scale = of(_ROWS, 128), of(128)
    # Of each request 100 slots, which SGLang's two kernels share among 8 programs.
    query, attended, keys, values = of(_ROWS, 8, 256), of(_ROWS, 8, 256), of(4096, 2, 256), of(4096, 2, 256)
    starts, slots = torch.arange(_ROWS + 1, dtype=torch.int32) * 100, torch.arange(_ROWS * 100)
    parts, extremes = of(_ROWS, 8, 8, 256, dtype=torch.float32), of(_ROWS, 8, 8, dtype=torch.float32)
    shares = torch.full((_ROWS,), 8, dtype=torch.int32)
    weight, plan = of(2560, 2560), any_plan(_ROWS, 2560, 2560)
    table, rows = of(64, 4096, dtype=torch.int32), torch.arange(_ROWS)
    of_vocabulary, as_fp32 = of(_ROWS, 4096), of(_ROWS, 4096, dtype=torch.float32)
    lengths, mapping, listed = rows + 1000, of(4096, dtype=torch.int64), of(_ROWS * 512, dtype=torch.int64)
    return [
        Case(
            "rmsnorm-residual-scalar",
            "e4b",
            lambda: rmsnorm_residual_scalar(x, w, r, scalar, 1e-6),
            lambda: sglang.gemma_rmsnorm_residual_scalar(x, w, r, scalar, 1e-6),
            "gemma_rmsnorm_residual_scalar",
        ),
        Case(
            "cross-layer-norm",
            "26b",
            lambda: moe_cross_layer_norm(wide, wide_w, branch, wide_w, wide_w, other, scalar, wide_w, 1e-6),
            lambda: sglang.gemma_dual_rmsnorm_residual_scalar(
                wide, wide_w, branch, wide_w, wide_w, other, scalar, 1e-6, 1e-6, 1e-6
            ),
            "gemma_dual_rmsnorm_residual_scalar, without the norm behind it",
        ),
        Case(
            "routing",
            "26b",
            lambda: routing(logits, scale, 8),
            lambda: sglang.gemma4_fused_routing(logits, scale, 8),
            "gemma4_fused_routing",
        ),
        Case(
            "qk-norm-rope",
            "e4b",
            lambda: qk_norm_rope(q, k, v, head, head, angles, positions, 1e-6),
            lambda: sglang.gemma_qkv_rmsnorm(q, k, v, head, head, 8, 2, 256, 1e-6),
            "gemma_qkv_rmsnorm, in place, without the rotation behind it",
        ),
        Case("cross-layer-norm", "e4b", lambda: cross_layer_norm(x, w, r, scalar, w, 1e-6)),
        Case("triple-rmsnorm", "26b", lambda: triple_rmsnorm(wide, wide_w, other, wide_w, wide_w, wide_w, 1e-6)),
        Case("post-attention-norms", "e4b", lambda: post_attention_norms(x, w, r, w, 1e-6)),
        Case("rmsnorm-add", "e4b", lambda: rmsnorm_add(x, w, r, 1e-6)),
        Case("gelu-tanh-mul", "e4b", lambda: gelu_tanh_mul(gate, ple[:, 3])),
        Case("ple-front-end", "e4b", lambda: ple_front_end(ple, head, ple, 2560, 1e-6)),
        Case(
            "decode-attention",
            "e4b",
            lambda: decode_attention(query, keys, values, starts, slots, 1.0, out=attended),
            lambda: decode_attention_fwd(
                query, keys, values, attended, starts, slots, parts, extremes, shares, 8, 1.0, 1.0, 1.0
            ),
            "decode_attention_fwd, of two kernels",
        ),
        Case("small-m-linear", "e4b", lambda: small_m_linear(x, weight, plan)),
        Case(
            "swa-window-lists",
            "e4b",
            lambda: window_lists(table, rows, lengths, 512, mapping, starts, listed),
            lambda: update_sliding_window_buffer(starts, table, 512, lengths, rows, _ROWS, window_kv_indices=listed),
            "update_sliding_window_buffer without the translation behind it, torch's ops of it on the host",
        ),
        Case("token-embeddings", "e4b", lambda: token_embeddings(rows, weight, 50.0, weight, 16.0)),
        Case(
            "capped-logits",
            "e4b",
            lambda: capped_logits(of_vocabulary, 30.0),
            lambda: softcap_inplace_logits(as_fp32, 30.0),
            "softcap_inplace_logits, without the copy ahead of it",
        ),
    ]


def measure(case: Case, calls: int, rounds: int, draw: random.Random) -> dict[str, Any]:
    """Return a row: microseconds of a call, and SGLang's over ours in the same round, above 1 where ours is cheaper."""
    arms = {"ours": case.ours} | ({} if case.sglang is None else {"sglang": case.sglang})
    for call in arms.values():
        # The first compiles, and what is only done once is done once.
        call()
        call()
    found: dict[str, dict[int, float]] = {name: {} for name in arms}
    for number in range(rounds):
        for name in draw.sample(sorted(arms), len(arms)):
            call = arms[name]
            began = time.thread_time_ns()
            for _ in range(calls):
                call()
            found[name][number] = (time.thread_time_ns() - began) / calls / 1000
    ratio = ratio_by_round(found["sglang"], found["ours"]) if "sglang" in found else None
    times = {f"{name}_us": round(statistics.median(one.values()), 2) for name, one in found.items()}
    about = {"op": case.op, "model": case.model, "rows": _ROWS, "sglang_op": case.theirs or None}
    return about | times | {"sglang_over_ours": None if ratio is None else asdict(ratio)}


def main(words: list[str]) -> int:
    """Measure, print a line per op, and write the rows; 1 if a launch of ours is dearer than SGLang's, beyond noise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="where the rows go, as JSON")
    parser.add_argument("--ops", default="", help="some of them, comma-separated; default: all")
    parser.add_argument("--calls", type=int, default=2000, help="calls in a round; default: 2000")
    parser.add_argument("--rounds", type=int, default=15, help="default: 15")
    asked = parser.parse_args(words)
    if min(asked.calls, asked.rounds) < 1:
        parser.error("--calls and --rounds are 1 or more")
    if asked.out is not None and not asked.out.parent.is_dir():
        parser.error(f"there is no folder {asked.out.parent} for --out")
    chosen = [one for one in asked.ops.split(",") if one]
    if strangers := sorted(set(chosen) - set(OPS)):
        parser.error(f"there is no op {strangers[0]!r}; ops: {', '.join(OPS)}")
    if find_spec("sglang.srt.layers.gemma4_fused_ops") is None:
        print(f"SGLang {version('sglang')} has no gemma4_fused_ops to compare with; 0.5.13.post1 has", file=sys.stderr)
        return 3
    pretend_cuda()
    known = cases()
    draw, rows = random.Random(0), []
    print("the driver's call is left out: no kernel runs, and these are the host's times alone", file=sys.stderr)
    for case in known:
        if chosen and case.op not in chosen:
            continue
        row = measure(case, asked.calls, asked.rounds, draw)
        rows.append(row)
        print(_line(row))
    if asked.out is not None:
        asked.out.write_text(json.dumps(_document(asked, rows), indent=1) + "\n", encoding="utf-8")
        print(f"Wrote {asked.out}", file=sys.stderr)
    compared = [row["sglang_over_ours"] for row in rows if row["sglang_over_ours"] is not None]
    return 1 if any((ratio["high"] or ratio["median"]) < 1 for ratio in compared) else 0


def _document(asked: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("torch", "triton", "sglang")
    return {
        "kind": "host-launches",
        "command": "python -m gemma4_repro.kernel_bench.host_launches",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": "this thread's CPU time of a call, the median of rounds; no kernel runs, for the driver's call is "
        "left out; sglang_over_ours: of the same round, the median with a 95% bootstrap interval, above 1 where ours "
        "is cheaper",
        "versions": {name: version(name) for name in names} | {"python": platform.python_version()},
        "calls": asked.calls,
        "rounds": asked.rounds,
        "rows": rows,
    }


def _line(row: dict[str, Any]) -> str:
    begin = f"{row['op']}, {row['model']}: ours {row['ours_us']:.1f} us"
    ratio = row["sglang_over_ours"]
    if ratio is None:
        return f"{begin}; SGLang's own is no Triton kernel"
    interval = "" if ratio["low"] is None else f" ({ratio['low']:.2f} to {ratio['high']:.2f})"
    return f"{begin}, SGLang {row['sglang_us']:.1f} us, x{ratio['median']:.2f}{interval}: {row['sglang_op']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
