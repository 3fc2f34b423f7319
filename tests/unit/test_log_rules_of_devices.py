"""Advice that holds on a GPU of NVIDIA alone is not given to a server on a CPU, an NPU or a GPU of AMD or Intel."""

import re

import pytest

from gemma4_triage.known_issues.catalog import quiet_suspects
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import PARTS, suspects
from gemma4_triage.logs.told_for_devices import on_device
from made_logs import decode, found_in, only, prefill, stamp, started

READY = f"{stamp(1)} The server is fired up and ready to roll!\n"
SERVED = [READY, prefill(2), decode(3)]
SLOW = "# decode is 30 times slower than on our other machine\n"
WRONG = "# every answer is garbage from the first token on\n"
NO_AMX = "# this machine has AVX512 but no AMX, and it is slow\n"
ALL = [(f"{one['change']}: {one['why']}", one["id"]) for one in (*quiet_suspects(), *quiet_suspects("shown.toml"))]
ALL += [(f"{part.instead or f'without {part.without}'}: {part.why}", part.id) for part in PARTS if part.why]
NEVER = {
    "cpu": r"NCCL_|custom-all-reduce|cuda-graph|CUDA_L|nvidia-smi|symm-mem|\bthe GPUs?\b|without --disable-overlap",
    "npu": r"NCCL_|custom-all-reduce|nvidia-smi|symm-mem|^with another --attention-backend",
    "rocm": r"nvidia-smi|symm-mem|--attention-backend (?:fa3|flashinfer|trtllm)",
    "xpu": r"NCCL_|nvidia-smi|symm-mem|--disable-cuda-graph|--attention-backend (?:fa3|flashinfer|trtllm)",
}


def _advice(*lines: str) -> str:
    return "\n".join(line for finding in found_in(lines) for line in finding.advice)


@pytest.mark.parametrize("device", sorted(NEVER))
def test_no_change_that_is_known_asks_for_what_a_device_has_not(device):
    told = [(name, on_device(text, device)) for text, name in ALL]
    changes = [(name, text.partition(": ")[0]) for name, text in told]
    assert [(name, change) for name, change in changes if re.search(NEVER[device], change)] == []
    assert sum(bool(text) for _, text in told) > len(told) / 2


def test_a_gpu_of_nvidia_is_advised_as_before():
    assert all(on_device(text, "") == text for text, _ in ALL)


def test_overlap_is_not_advised_to_a_slow_cpu_but_what_its_kernels_are_made_for():
    start = started(model_path="m", device="cpu", disable_overlap_schedule=True, attention_backend="torch_native")
    said = _advice(start, *SERVED, SLOW)
    assert "without --disable-overlap-schedule" not in said
    assert "amx_bf16 among its flags" in said
    assert "without --disable-overlap-schedule" in _advice(started(disable_overlap_schedule=True), *SERVED, SLOW)


@pytest.mark.parametrize(
    "line", [NO_AMX, "The current platform does not support Intel AMX, will fallback to torch_native backend.\n"]
)
def test_a_cpu_without_matrix_units_is_told_so(line):
    said = _advice(started(model_path="m", device="cpu"), line, *SERVED, SLOW)
    assert said.startswith("with a CPU that has AMX")
    assert "CPU_CAPABILITY_AVX512" in said


def test_amx_that_is_there_is_not_said_to_lack():
    said = _advice(started(model_path="m", device="cpu"), "# a Xeon with AMX\n", *SERVED, SLOW)
    assert "this CPU has no AMX" not in said


@pytest.mark.parametrize(
    ("start", "has", "lacks"),
    [
        ({"device": "cpu", "attention_backend": "torch_native"}, "(intel_amx)", "cuda-graph"),
        ({"device": "npu", "attention_backend": "ascend", "tp_size": 8}, "--disable-cuda-graph", "NCCL_P2P"),
        ({"device": "xpu", "attention_backend": "intel_xpu", "tp_size": 2}, "--attention-backend triton", "NCCL_P2P"),
        ({"device": "cuda", "attention_backend": "aiter", "tp_size": 2}, "than aiter (triton):", "fa3"),
        ({"device": "cuda", "attention_backend": "flashinfer", "tp_size": 2}, "(triton, fa3)", "aiter"),
    ],
)
def test_wrong_answers_have_the_options_of_their_device(start, has, lacks):
    said = _advice(started(model_path="m", **start), *SERVED, WRONG)
    assert has in said
    assert lacks not in said


def test_what_somebody_tried_there_stands():
    line = "# with --attention-backend flashinfer the answers are right\n"
    said = only([started(model_path="m", attention_backend="aiter"), *SERVED, WRONG, line]).advice
    assert any("--attention-backend flashinfer" in one for one in said)


def test_suspects_of_a_log_without_a_note_are_of_its_device_too():
    lines = [started(model_path="m", device="cpu", tp_size=2, disable_overlap_schedule=True), *SERVED]
    listed = "\n".join(one.text for one in suspects(read_log("made.log", ["".join(lines).encode()])))
    assert "in transformers" in listed
    assert not re.search(NEVER["cpu"], listed)
