"""The table of plans is what the committed rows say, its plans fit their sizes, and each is faster than cuBLAS."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from gemma4_kernels.small_m_linear.spec import AXES, MAX_ROWS, Plan
from gemma4_kernels.small_m_linear.tuned import FOLDER, tables, tuned_plans

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "kernels" / "bench" / "rows").glob("small_m_linear_*.json"))
H200 = "NVIDIA H200"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(ROOT / "kernels" / "bench"))
    try:
        yield importlib.import_module("bench_small_m_linear")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_table_is_made_of_the_rows(bench, file):
    """If this fails, run: python kernels/bench/bench_small_m_linear.py --table FILE."""
    document = json.loads(file.read_text())
    assert (FOLDER / bench.table_name(document)).read_text() == bench.table_text(document, file)


def test_every_table_has_rows():
    made_of = {json.loads(path.read_text())["rows_file"] for path in FOLDER.glob("tuned_*.json")}
    assert made_of == {file.name for file in FILES}


def test_the_rows_are_of_every_product_of_these_models(bench):
    (document,) = [json.loads(file.read_text()) for file in FILES]
    wanted = {(*size, rows) for size in bench.products(bench.MODELS) for rows in AXES["rows"]}
    assert {(row["columns"], row["depth"], row["rows"]) for row in document["rows"]} == wanted
    assert next(row["uses"] for row in document["rows"] if row["depth"] == 12288) == ["20 x e2b.down-wide"]


@pytest.mark.parametrize("key", tables(), ids=" ".join)
def test_every_plan_fits_its_size(key):
    for (columns, depth), plans in tables()[key].items():
        for rows, plan in plans.items():
            if plan is None:
                continue
            blocks = depth // plan.block_k
            assert rows <= plan.block_m in (1, 8, 16)
            assert depth % plan.block_k == 0
            assert (plan.splits - 1) * -(-blocks // plan.splits) < blocks
            assert plan.splits == 1 or columns <= 4096 * plan.block_n


def test_a_number_of_rows_that_was_not_measured_has_the_plan_of_the_next():
    plans = tuned_plans(H200, "bfloat16", 2560, 10240)
    assert plans is not None
    assert len(plans) == MAX_ROWS + 1
    assert plans[0] is None
    assert all(isinstance(plan, Plan) for plan in plans[1:])
    assert plans[3] == plans[4]
    assert plans[5] == plans[6] == plans[7] == plans[8]
    assert plans[9] == plans[12]


@pytest.mark.parametrize(
    ("gpu", "dtype", "columns", "depth"),
    [("NVIDIA H100", "bfloat16", 2560, 10240), (H200, "float16", 2560, 10240), (H200, "bfloat16", 2560, 10241)],
)
def test_what_was_not_measured_has_no_plans(gpu, dtype, columns, depth):
    assert tuned_plans(gpu, dtype, columns, depth) is None


def test_a_plan_is_in_the_table_only_where_it_gains(bench):
    row = {"columns": 8, "depth": 16, "rows": 1, "plan": [1, 8, 16, 1, 3, 4, False]}
    about = {"gpu": {"name": H200}, "versions": {}, "dtype": "bfloat16", "date": "", "command": "", "gain": 0.97}

    def table(ours, cublaslt):
        us = {"cublas": {"median": 10.0}, "cublaslt": {"median": cublaslt}, "ours": {"median": ours}}
        return json.loads(bench.table_text(about | {"rows": [row | {"us": us}]}, FILES[0]))["entries"][0]["plans"]["1"]

    assert table(9.7, 10.0) == row["plan"]
    assert table(9.8, 10.0) is None
    assert table(9.7, 9.9) is None
