"""layer_tail against fp64, on the torch path here and on the kernel in test_layer_tail_gpu.py; what it refuses."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import gelu

from gemma4_kernels.cuda_source import compiled
from gemma4_kernels.decode_attention.launch import cluster_parts
from gemma4_kernels.decode_attention.spec import SPARED
from gemma4_kernels.layer_tail import kernel
from gemma4_kernels.layer_tail.kernel import FOLDER, tables, tuned_plans
from gemma4_kernels.layer_tail.launch import layer_tail, readable
from gemma4_kernels.layer_tail.spec import CASES, TOLERANCES, TailPlan, TailWeights

EPS = 1e-6
ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "kernels" / "bench" / "rows").glob("layer_tail_*.json"))
SMALL = [case for case in CASES if case.wide < 1000]
MULTIPROCESSORS, BLOCK_BYTES, RESERVED_BYTES = 132, 227 << 10, 1 << 10
"""Of a Hopper GPU: how many, and the shared memory of one, of which it keeps some for each block."""


def case_of(name):
    return next(case for case in CASES if case.name == name)


def draw_case(case, dtype, device="cpu", seed=0):
    """(attended, residual, ple, weights, next norm, next projection, eps) of a case."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator, device=device) * scale).to(dtype)

    def matrix(rows, depth):
        return draw(rows, depth, scale=depth**-0.5)

    def norm():
        return (1 + 0.3 * draw(case.hidden)).to(dtype)

    weights = TailWeights(
        matrix(case.hidden, case.inner),
        matrix(2 * case.wide, case.hidden),
        matrix(case.hidden, case.wide),
        matrix(case.ple, case.hidden),
        matrix(case.hidden, case.ple),
        *(norm() for _ in range(4)),
        torch.tensor([0.7], device=device).to(dtype),
    )
    rows = draw(case.rows, case.inner), draw(case.rows, case.hidden, scale=3.0), draw(case.rows, case.ple)
    return *rows, weights, norm(), matrix(case.next_columns, case.hidden) if case.next_columns else None, EPS


def exact(attended, residual, ple, weights, next_norm, next_projection, eps):
    """Return (hidden, normed, projected) in fp64, without a rounding, written down from the model's own lines."""
    w = TailWeights(*(one.double() for one in weights))

    def rms(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight

    hidden = residual.double() + rms(attended.double() @ w.o.T, w.post_attention)
    gate, up = (rms(hidden, w.pre_feed_forward) @ w.gate_up.T).chunk(2, -1)
    hidden = hidden + rms((gelu(gate, approximate="tanh") * up) @ w.down.T, w.post_feed_forward)
    gated = gelu(hidden @ w.ple_gate.T, approximate="tanh") * ple.double()
    hidden = (hidden + rms(gated @ w.ple_projection.T, w.post_ple)) * w.scalar
    normed = rms(hidden, next_norm.double())
    return hidden, normed, None if next_projection is None else normed @ next_projection.double().T


def assert_tail(found, drawn):
    for name, made, wanted in zip(found._fields, found, exact(*drawn), strict=True):
        assert (made is None) == (wanted is None), name
        if made is None:
            continue
        assert made.dtype is drawn[0].dtype
        assert made.shape == wanted.shape
        limit = TOLERANCES[str(made.dtype).removeprefix("torch.")].relative * wanted.pow(2).mean().sqrt()
        assert (made.double() - wanted).pow(2).mean().sqrt() <= limit / 4, name
        assert (made.double() - wanted).abs().max() <= limit * 4, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_it_is_the_formula(case, dtype):
    drawn = draw_case(case, dtype)
    assert_tail(layer_tail(*drawn), drawn)


def drawn_with(**other):
    """Return what a small case has, but for some of attended, residual, ple, next_norm, next_projection, a weight."""
    attended, residual, ple, weights, next_norm, projection, eps = draw_case(case_of("some-rows"), torch.float32)
    rows = {"attended": attended, "residual": residual, "ple": ple, "next_norm": next_norm, "projection": projection}
    mine = {name: other.pop(name) for name in list(other) if name in rows}
    rows |= {name: change(rows[name]) for name, change in mine.items()}
    weights = weights._replace(**{name: change(getattr(weights, name)) for name, change in other.items()})
    return rows["attended"], rows["residual"], rows["ple"], weights, rows["next_norm"], rows["projection"], eps


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"attended": lambda x: x[:0]}, r"attended is \[0, 128\]"),
        ({"attended": lambda x: x.repeat(2, 1)}, r"attended is \[10, 128\], expected \[1\.\.8"),
        ({"residual": lambda x: x[:3]}, r"residual is \[3, 64\]"),
        ({"ple": lambda x: x.half()}, "ple is torch.float16 on cpu, expected torch.float32"),
        ({"residual": lambda x: x.T.contiguous().T}, "residual has stride 5 inside a row"),
        ({"o": lambda x: x[:, 1:]}, r"o is \[64, 127\], expected \[64, 128\]"),
        ({"gate_up": lambda x: x[1:]}, r"gate_up is \[191, 64\], expected \[192, 64\]"),
        ({"ple_projection": lambda x: x.T}, r"ple_projection is \[32, 64\]"),
        ({"projection": lambda x: x[:, 1:]}, r"next_projection is \[32, 63\]"),
        ({"next_norm": lambda x: x[1:]}, r"next_norm is \[63\]"),
        ({"post_ple": lambda x: x.half()}, "post_ple is torch.float16"),
        ({"scalar": lambda x: x.repeat(2)}, r"scalar is \[2\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_by_name(other, why):
    with pytest.raises(ValueError, match=why):
        layer_tail(*drawn_with(**other))


def test_a_cpu_has_no_kernel():
    drawn = draw_case(case_of("one-row"), torch.bfloat16)
    plain = layer_tail(*drawn)
    assert all(map(torch.equal, layer_tail(*drawn, TailPlan(32, 2, 1, 4)), plain))
    with pytest.raises(ValueError, match="path"):
        layer_tail(*drawn, path="cuda")


@pytest.mark.parametrize(
    ("change", "reads"),
    [
        (lambda rows, weights: (rows, weights), True),
        (lambda rows, weights: (rows.float(), weights), False),
        (lambda rows, weights: (torch.ones(5, 129).bfloat16()[:, :128], weights), False),
        (lambda rows, weights: (rows, weights._replace(down=torch.ones(64, 97).bfloat16()[:, :96])), False),
        (lambda rows, weights: (rows, weights._replace(down=torch.ones(64, 80).bfloat16())), False),
        (lambda rows, weights: (rows, weights._replace(post_ple=torch.ones(65).bfloat16()[1:])), False),
    ],
    ids=["plain", "fp32", "odd-rows", "odd-weight", "width-of-80", "odd-norm"],
)
def test_what_the_kernel_can_read(change, reads):
    attended, residual, _, weights, _, projection, _ = draw_case(case_of("some-rows"), torch.bfloat16)
    attended, weights = change(attended, weights)
    assert readable(attended, residual, weights, projection) is reads


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [case for case in CASES if case not in SMALL], ids=lambda case: case.name)
def test_it_compiles_for_hopper_without_a_gpu(case):
    pytest.importorskip("cuda.bindings.nvrtc")
    plan = TailPlan(1536, 8, 3, 12) if case.hidden == 1536 else TailPlan(1280, 10, 3, 10)
    code = compiled(kernel.SOURCE, kernel.defined(plan, case.hidden, case.ple, MULTIPROCESSORS, True), "sm_90a")
    assert code[:4] == b"\x7fELF"
    assert kernel.KERNEL.encode() in code


def planned():
    """Yield (hidden, rows, plan) of every table."""
    for table in tables().values():
        for (hidden, _, _), plans in table.items():
            for rows, plan in plans.items():
                if plan is not None:
                    yield hidden, rows, plan


def test_every_ring_of_the_table_fits_a_multiprocessor():
    plans = list(planned())
    assert len(plans) > 12
    for _, rows, plan in plans:
        shared = 2 * plan.num_warps * 8 * (8 + 1) * 4 + 16 * plan.stages
        assert kernel.ring_bytes(plan) + shared + RESERVED_BYTES <= BLOCK_BYTES
        assert plan.stage_depth % 32 == 0
        assert 1 <= plan.in_flight <= plan.stages
        assert 4 <= plan.num_warps <= 31
        assert 1 <= rows <= 8
        assert 0 <= plan.spared <= MULTIPROCESSORS // 4


@pytest.mark.parametrize(("sizes", "kv_heads"), [((2560, 10240, 2048), 2), ((1536, 6144, 2048), 1)])
def test_the_attention_of_few_requests_keeps_its_multiprocessors(sizes, kv_heads):
    plans = tuned_plans("NVIDIA H200", *sizes)
    assert plans is not None
    for rows, plan in enumerate(plans):
        if plan is None:
            continue
        parts = cluster_parts(rows, 8, kv_heads, MULTIPROCESSORS)
        # A plan of 4 rows is of 3 as well, whose attention may take more.
        assert parts is not None
        assert plan.spared in (0, SPARED)
        assert plan.spared or rows * kv_heads * parts > SPARED


def test_the_table_has_the_layers_of_the_models_and_no_others():
    plans = tuned_plans("NVIDIA H200", 2560, 10240, 2048)
    assert plans is not None
    assert [plan is not None for plan in plans] == [False, True, True, *[False] * 6]
    assert tuned_plans("NVIDIA H200", 2560, 10240, 2049) is None
    assert tuned_plans("another", 2560, 10240, 2048) is None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_table_is_made_of_the_rows(file, monkeypatch):
    """If this fails, run: python kernels/bench/bench_layer_tail.py --table FILE."""
    monkeypatch.syspath_prepend(str(ROOT / "kernels" / "bench"))
    bench = importlib.import_module("bench_layer_tail")
    document = json.loads(file.read_text())
    assert (FOLDER / bench.table_name(document)).read_text() == bench.table_text(document, file)
    wanted = {(*layer, rows) for layer in bench.layers(bench.MODELS) for rows in bench.AXES["rows"]}
    assert {
        (row["hidden"], row["wide"], row["inner"], row["columns"], row["rows"]) for row in document["rows"]
    } == wanted
