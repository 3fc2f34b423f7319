"""page_guard where there is no CUDA: its torch path, its bench, and compiling for GPUs that are not there."""

import subprocess
import sys

import pytest
from page_guard_runs import ROOT, child_environment


@pytest.mark.slow
def test_a_cpu_takes_the_torch_path_without_importing_triton():
    program = (
        "import sys, torch; sys.modules['triton'] = None\n"
        "from gemma4_kernels.page_guard.launch import *\n"
        "table = GuardedTable(torch.tensor([[1, 7]], dtype=torch.int32), 4)\n"
        "found = PageGuard('cpu').check([table], torch.tensor([2]), 1, contain=True)\n"
        "print(found.offences[0].value)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=child_environment())
    assert (done.returncode, done.stdout.strip()) == (0, "7"), done.stderr


@pytest.mark.slow
def test_the_bench_refuses_without_cuda(tmp_path):
    environment = child_environment() | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, ROOT / "kernels/bench/bench_page_guard.py", "--output", tmp_path / "rows.json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 3
    assert "CUDA" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "rows.json").exists()


COMPILE = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gemma4_kernels.page_guard.kernel import page_guard_kernel as kernel

KINDS = {"result": "*i64", "cache_seqlens": "*i32", "seq_lens": "*i64", "entries": "*i32", "indptr": "*i32"}
constants = {"KIND_0": 1, "KIND_1": 3, "KIND_2": 2, "KIND_3": 0, "CONTAIN": True, "BLOCK": 1024}
signature = {
    name: "constexpr" if name in constants else KINDS.get(name) or KINDS.get(name[:-2], "i64")
    for name in kernel.arg_names
}
for capability in (90, 100):
    compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", capability, 32))
    atomics = re.findall(r"\\\\b(?:atom|red)[.]", compiled.asm["ptx"])
    print(capability, len(compiled.asm["cubin"]) > 0, len(atomics))
"""


@pytest.mark.slow
def test_compiles_for_hopper_and_blackwell_without_a_gpu_and_without_atomics(tmp_path):
    environment = child_environment() | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split("\n")[:2] == ["90 True 0", "100 True 0"]
