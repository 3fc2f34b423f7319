"""The streaming kernel without a GPU: it compiles, its rings fit, its table is what the rows say."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gemma4_kernels.cuda_source import compiled, unavailable
from gemma4_kernels.launcher import KnownLaunches, let_next_in_where, let_nothing_in
from gemma4_kernels.small_m_linear import streamed
from gemma4_kernels.small_m_linear.launch import small_m_linear
from gemma4_kernels.small_m_linear.spec import GATES, StreamedPlan
from gemma4_kernels.small_m_linear.tuned import FOLDER, streamed_tables, tuned_plans

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "kernels" / "bench" / "rows").glob("streamed_products_*.json"))
H200, MULTIPROCESSORS = "NVIDIA H200", 132
BLOCK_BYTES, RESERVED_BYTES = 227 << 10, 1 << 10
"""Of shared memory: what Hopper has for the blocks of a multiprocessor, and keeps of it for each."""


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(ROOT / "kernels" / "bench"))
    try:
        yield importlib.import_module("measure_streamed_products")
    finally:
        sys.path.pop(0)


def planned():
    """Yield (rows, columns, depth, plan) of every table."""
    for table in streamed_tables().values():
        for (columns, depth), plans in table.items():
            for rows, plan in plans.items():
                if plan is not None:
                    yield rows, columns, depth, plan


def built(rows, columns, depth, plan, gate="none"):
    return streamed.built_for(plan, rows, columns, depth, gate, min(MULTIPROCESSORS, columns), True)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(("rows", "depth"), [(8, 2560), (16, 10240)], ids=["held", "part by part"])
def test_it_compiles_for_hopper_without_a_gpu(rows, depth, gate):
    pytest.importorskip("cuda.bindings.nvrtc")
    if gate != "none" and rows == 16:
        pytest.skip("a gate's depth is held")
    code = compiled(streamed.SOURCE, built(rows, 2560, depth, StreamedPlan(1280, 4, 2, 10, 1), gate).defined, "sm_90a")
    assert code[:4] == b"\x7fELF"
    assert b"streamed_product_kernel" in code


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "plan"),
    [(16, 6144, 2560, StreamedPlan(1280, 9, 3, 10, 1)), (12, 5120, 1536, StreamedPlan(768, 15, 5, 10, 1))],
    ids=["e4b", "e2b"],
)
def test_no_input_is_read_before_the_kernel_ahead_has_ended(rows, columns, depth, plan, tmp_path):
    """The compiler once moved a load ahead of the wait, and a product was now and then that of what had been there."""
    pytest.importorskip("cuda.bindings.nvrtc")
    disassembler = Path(pytest.importorskip("triton").__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    code = tmp_path / "code"
    code.write_bytes(compiled(streamed.SOURCE, built(rows, columns, depth, plan).defined, "sm_90a"))
    text = subprocess.run([disassembler, "-c", code], capture_output=True, text=True, check=True).stdout
    wait, loads = text.index("ACQBULK"), [found.start() for found in re.finditer(r"\bLDG\.", text)]
    assert loads
    assert wait < min(loads)


def test_a_source_that_is_refused_says_so():
    pytest.importorskip("cuda.bindings.nvrtc")
    wrong = built(8, 64, 64, StreamedPlan(64, 2, 1, 4, 1))._replace(rows=-8)
    with pytest.raises(RuntimeError, match=r"streamed\.cu does not compile for sm_90a: .*error"):
        compiled(streamed.SOURCE, wrong.defined, "sm_90a")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_table_is_made_of_the_rows(bench, file):
    """If this fails, run: python kernels/bench/measure_streamed_products.py --table FILE."""
    document = json.loads(file.read_text())
    assert (FOLDER / bench.table_name(document)).read_text() == bench.table_text(document, file)


def test_the_rows_are_of_every_product_of_these_models_but_the_lm_head(bench):
    (document,) = [json.loads(file.read_text()) for file in FILES]
    models = importlib.import_module("bench_small_m_linear").MODELS
    wanted = {(*size, rows) for size in bench.dense_products(models) for rows in bench.AXES["rows"]}
    assert {(row["columns"], row["depth"], row["rows"]) for row in document["rows"]} == wanted


def test_every_ring_of_the_table_fits_a_multiprocessor():
    plans = list(planned())
    assert len(plans) > 80
    for rows, columns, depth, plan in plans:
        made = built(rows, columns, depth, plan)
        parts = 2 * made.warps * made.rows * 8 * 4
        assert plan.co_resident * (made.ring_bytes + parts + 16 * made.stages + RESERVED_BYTES) <= BLOCK_BYTES
        assert plan.stage_depth % 32 == 0
        assert 1 <= plan.in_flight <= plan.stages
        assert 32 * made.warps + 32 <= 1024


def test_what_a_table_names_is_no_slower_than_the_other_kernel_that_was_timed_beside_it(bench):
    (document,) = [json.loads(file.read_text()) for file in FILES]
    us = {(row["rows"], row["columns"], row["depth"]): row["us"] for row in document["rows"]}
    for rows, columns, depth, _ in planned():
        arms = us[rows, columns, depth]
        assert arms["ours"]["median"] <= bench.GAIN * min(
            arms[arm]["median"] for arm in ("cublas", "table-first") if arm in arms
        )


def test_a_cpu_has_no_streaming_kernel():
    x = torch.ones(4, 64, dtype=torch.bfloat16)
    assert unavailable(x.device) == "not a CUDA device"
    out = small_m_linear(x, x, StreamedPlan(64, 2, 1, 4, 1))
    assert torch.equal(out, torch.full((4, 4), 64, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="path"):
        small_m_linear(x, x, StreamedPlan(64, 2, 1, 4, 1), path="cuda")


@pytest.mark.parametrize(
    ("x", "weight", "fits"),
    [
        (torch.ones(4, 64).bfloat16(), torch.ones(8, 64).bfloat16(), True),
        (torch.ones(4, 72).bfloat16()[:, :64], torch.ones(8, 72).bfloat16()[:, :64], True),
        (torch.ones(1, 65).bfloat16()[:, :64], torch.ones(8, 64).bfloat16(), True),
        (torch.ones(4, 65).bfloat16()[:, :64], torch.ones(8, 64).bfloat16(), False),
        (torch.ones(4, 64).bfloat16(), torch.ones(8, 65).bfloat16()[:, :64], False),
        (torch.ones(4, 65).bfloat16()[:, 1:], torch.ones(8, 64).bfloat16(), False),
        (torch.ones(4, 48).bfloat16(), torch.ones(8, 48).bfloat16(), False),
        (torch.ones(4, 64), torch.ones(8, 64), False),
        (torch.ones(4, 64).half(), torch.ones(8, 64).half(), False),
    ],
    ids=["plain", "wide", "one-row", "odd-rows", "odd-weight", "odd-start", "depth-of-48", "fp32", "fp16"],
)
def test_what_it_can_read(x, weight, fits):
    assert streamed.fits(x, weight) is fits


def test_a_norm_lets_the_product_in_where_products_of_its_rows_are_streamed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: H200)
    streamed.streams_behind.cache_clear()
    try:
        streams = streamed.streams_behind
        assert [streams(0, rows, 2560) for rows in (0, 1, 2, 8, 16, 17, 4096)] == [0, 0, 1, 1, 1, 0, 0]
        assert [streams(0, rows, 2816) for rows in (1, 8, 16)] == [1, 1, 0]
        assert not streams(0, 8, 100)
    finally:
        streamed.streams_behind.cache_clear()


def test_a_launch_is_known_in_the_order_that_it_was_made_in():
    known, made = KnownLaunches(), object()
    try:
        known.keep("key", made)  # type: ignore[arg-type]
        assert known.get("key") is made
        let_next_in_where(lambda: True, lambda *launch: True)
        assert known.get("key") is None
    finally:
        let_nothing_in()
    assert known.get("key") is made


def test_every_size_of_the_table_has_a_plan_to_fall_back_to_or_cublas():
    assert all(tuned_plans(H200, "bfloat16", columns, depth) is not None for _, columns, depth, _ in planned())
