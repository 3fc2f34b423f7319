"""The tests that every op over rows of [T, H] has to pass; a test file names the op and what it is held against.

A subclass names the op and its inputs, and gives `run`, `exact` and `eager`. Inputs are a dict: `rows` of shape [T, H],
`weights` of [H], and with `has_scalar` one element of that name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from exact_rows import Exact
from kernel_paths import DEVICE, PATHS, cases_here

from gemma4_kernels.rounding import ROW_CASES, Rounding

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAYOUTS = ("contiguous", "rows-apart", "odd-address", "one-row-for-all")
POISON = 77.0
Inputs = dict[str, Any]


def lay_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the same rows in other places of memory."""
    rows, width = values.shape
    if layout == "rows-apart":
        memory = torch.full((rows, width + 48), POISON, dtype=values.dtype, device=DEVICE)
        return memory[:, :width].copy_(values)
    if layout == "odd-address":
        memory = torch.full((rows * (width + 3) + 1,), POISON, dtype=values.dtype, device=DEVICE)
        return memory[1:].view(rows, width + 3)[:, :width].copy_(values)
    if layout == "one-row-for-all":
        return values[:1].to(DEVICE).expand(rows, width)
    return values.to(DEVICE).contiguous()


def poisoned(rows: int, width: int, dtype: torch.dtype, apart: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(an output of NaN, all of the memory that it is in), with `apart` elements between the rows."""
    memory = torch.full((rows, width + apart), torch.nan, dtype=dtype, device=DEVICE)
    memory[:, width:] = POISON
    return memory[:, :width], memory


def assert_near(found: torch.Tensor, wanted: Exact, relative: float | torch.Tensor) -> None:
    # A unit of fp16's denormals; of the others' all denormals, which may be flushed, on the way too.
    least = 2**-24 if found.dtype == torch.float16 else 2**-118
    error = (found.double() - wanted.value).abs()
    assert (error <= relative * wanted.size + least).all(), (error / wanted.size).max()


def assert_like_eager(found: torch.Tensor, eager: torch.Tensor, wanted: Exact, roundings: int) -> None:
    """Almost all elements have eager's bits; where a sum's order has moved one, see Rounding.EAGER."""
    unit = {torch.bfloat16: 2**-7, torch.float16: 2**-10, torch.float32: 4e-6}[found.dtype]
    off = (found.double() - eager.double()).abs() / (unit * wanted.size + torch.finfo(torch.float64).tiny)
    if found.dtype == torch.float32:
        assert (off <= 2).all(), off.max()
    elif found.numel():
        assert (off <= roundings).all(), off.max()
        # The interpreter adds one element after the other, which moves more of them than a tree does.
        assert (off > 1).sum() <= 2 + 1e-3 * off.numel(), (off > 1).sum()
        share = (found == eager).double().mean()
        assert share >= (0.995 if found.dtype == torch.bfloat16 else 0.98), share


# The interpreter computes with numpy, which remarks on what the tests are about.
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
class RowOpTests:
    op: ClassVar[str]
    rows: ClassVar[tuple[str, ...]]
    weights: ClassVar[tuple[str, ...]]
    has_scalar: ClassVar[bool] = False

    def run(self, inputs: Inputs, rounding: Rounding, path: str, out: Any = None) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError

    def exact(self, inputs: Inputs) -> tuple[Exact, ...]:
        raise NotImplementedError

    def eager(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError

    def tolerance(self, dtype: torch.dtype) -> float:
        spec = importlib.import_module(f"gemma4_kernels.{self.op}.spec")
        return spec.TOLERANCES[str(dtype).removeprefix("torch.")].relative

    def roundings(self) -> tuple[int, ...]:
        return importlib.import_module(f"gemma4_kernels.{self.op}.spec").EAGER_ROUNDINGS

    def make(
        self, rows: int, width: int, dtype: torch.dtype, draw: Callable[..., torch.Tensor] = torch.randn, seed: int = 0
    ) -> Inputs:
        random = torch.Generator().manual_seed(seed)
        made = {name: draw(rows, width, generator=random).to(dtype).to(DEVICE) for name in self.rows}
        # Weights of trained norms are of either sign, and some are large.
        made |= {name: (3 * torch.randn(width, generator=random)).to(dtype).to(DEVICE) for name in self.weights}
        return made | ({"scalar": torch.tensor([0.7]).to(dtype).to(DEVICE)} if self.has_scalar else {})

    def check(self, inputs: Inputs, path: str, both: bool = True) -> None:
        dtype = inputs[self.rows[0]].dtype
        wanted = self.exact(inputs)
        for found, one in zip(self.run(inputs, Rounding.FP32, path), wanted, strict=True):
            assert found.dtype == dtype
            assert_near(found, one, self.tolerance(dtype))
        if both:
            results = self.run(inputs, Rounding.EAGER, path), self.eager(inputs), wanted, self.roundings()
            for found, eager, one, roundings in zip(*results, strict=True):
                assert_like_eager(found, eager, one, roundings)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("case", cases_here(ROW_CASES))
    @pytest.mark.parametrize("path", PATHS)
    def test_against_fp64_and_against_eager(self, path, case, dtype):
        if case.rows == 0:
            empty = self.run(self.make(0, case.width, dtype), Rounding.FP32, path)
            assert {(tuple(tensor.shape), tensor.dtype) for tensor in empty} == {((0, case.width), dtype)}
            return
        self.check(self.make(case.rows, case.width, dtype), path)

    @pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
    @pytest.mark.parametrize("path", PATHS)
    def test_bits_of_eager_where_sums_are_exact(self, path, dtype):
        """Small integers: their squares add up exactly in any order, so that nothing is left but the roundings."""

        def integers(*shape, generator):
            return torch.randint(-15, 16, shape, generator=generator)

        inputs = self.make(5, 1024, dtype, integers)
        found, eager = self.run(inputs, Rounding.EAGER, path), self.eager(inputs)
        assert torch.equal(found[0], eager[0])
        # The two modes differ, or the test would say nothing.
        assert not torch.equal(self.run(inputs, Rounding.FP32, path)[0], eager[0])

    @pytest.mark.parametrize("magnitude", [1e-42, 1e-30, 1e-8, 1e4, 1e17])
    @pytest.mark.parametrize("path", PATHS)
    def test_magnitudes_from_denormals_up(self, path, magnitude):
        for dtype in DTYPES:
            if dtype == torch.float16 and not 1e-8 <= magnitude <= 1e4:
                continue
            inputs = self.make(2, 256, dtype)
            for name in self.rows:
                inputs[name] = (inputs[name].double() * magnitude).to(dtype)
            self.check(inputs, path, both=False)

    @pytest.mark.parametrize("path", PATHS)
    def test_rows_of_one_value_and_of_zeros(self, path):
        for value in (0.0, -0.0, 1.0, -3.5):
            inputs = self.make(2, 300, torch.bfloat16)
            for name in self.rows:
                inputs[name][0] = value
            self.check(inputs, path)

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
    @pytest.mark.parametrize("path", PATHS)
    def test_nan_and_inf_go_where_they_go_in_eager_and_stay_in_their_row(self, path, bad):
        for name in self.rows:
            inputs = self.make(3, 64, torch.bfloat16)
            clean = self.run(inputs, Rounding.EAGER, path)
            inputs[name] = inputs[name].clone()
            inputs[name][1, 7] = bad
            results = self.run(inputs, Rounding.EAGER, path), self.eager(inputs), clean
            for found, eager, before in zip(*results, strict=True):
                assert torch.equal(found[1].isnan(), eager[1].isnan())
                assert torch.equal(found[1].isinf(), eager[1].isinf())
                assert torch.equal(found[::2], before[::2])

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("path", PATHS)
    def test_layouts(self, path, layout):
        inputs = self.make(3, 272, torch.bfloat16)
        laid = inputs | {name: lay_out(inputs[name], layout) for name in self.rows}
        if layout == "one-row-for-all":
            inputs |= {name: inputs[name][:1].expand(3, -1).contiguous() for name in self.rows}
        for found, wanted in zip(
            self.run(laid, Rounding.FP32, path), self.run(inputs, Rounding.FP32, path), strict=True
        ):
            assert torch.equal(found, wanted)
            assert found.is_contiguous()

    @pytest.mark.parametrize("apart", [0, 5, 48])
    @pytest.mark.parametrize("path", PATHS)
    def test_poisoned_outputs_are_filled_and_nothing_else_is_touched(self, path, apart):
        inputs = self.make(3, 272, torch.bfloat16)
        before = {name: tensor.clone() for name, tensor in inputs.items() if isinstance(tensor, torch.Tensor)}
        wanted = self.run(inputs, Rounding.FP32, path)
        outs = [poisoned(3, 272, torch.bfloat16, apart) for _ in wanted]
        found = self.run(inputs, Rounding.FP32, path, out=tuple(view for view, _ in outs))
        for result, expected, (view, memory) in zip(found, wanted, outs, strict=True):
            assert result.data_ptr() == view.data_ptr()
            assert torch.equal(view, expected)
            assert (memory[:, 272:] == POISON).all()
        assert all(torch.equal(inputs[name], tensor) for name, tensor in before.items())

    @pytest.mark.parametrize("first", [0, 1])
    @pytest.mark.parametrize("path", PATHS)
    def test_outputs_may_be_inputs(self, path, first):
        wanted = self.run(self.make(3, 272, torch.bfloat16), Rounding.FP32, path)
        inputs = self.make(3, 272, torch.bfloat16)
        # Each output in the place of an input, as far as there are inputs; the others are new.
        places = [inputs[name] for name in (self.rows[first:] + self.rows[:first])]
        outs = [*places, *(torch.empty_like(wanted[0]) for _ in wanted)][: len(wanted)]
        for found, expected in zip(self.run(inputs, Rounding.FP32, path, out=tuple(outs)), wanted, strict=True):
            assert torch.equal(found, expected)

    @pytest.mark.parametrize("path", PATHS)
    def test_weights_of_another_dtype(self, path):
        inputs = self.make(2, 272, torch.bfloat16)
        self.check(inputs | {name: inputs[name].float() * 1.01 for name in self.weights}, path)

    @pytest.mark.gpu
    def test_rows_more_than_two_gibi_elements_apart(self):
        inputs = self.make(3, 272, torch.bfloat16)
        wanted = self.run(inputs, Rounding.FP32, "kernel")
        apart = 2**30 + 16
        memory = torch.full((len(self.rows), 2 * apart + 272), torch.nan, dtype=torch.bfloat16, device=DEVICE)
        for name, part in zip(self.rows, memory, strict=True):
            inputs[name] = part.as_strided((3, 272), (apart, 1)).copy_(inputs[name])
        # Outputs in the inputs' places, as far as those reach: stores far apart too.
        places = [inputs[name] for name in self.rows] + [torch.empty_like(one) for one in wanted]
        found = self.run(inputs, Rounding.FP32, "kernel", out=tuple(places[: len(wanted)]))
        assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))

    @pytest.mark.gpu
    def test_a_captured_launch_computes_anew_at_each_replay_and_nothing_synchronises(self):
        inputs = self.make(5, 272, torch.bfloat16)
        outs = tuple(torch.empty_like(one) for one in self.run(inputs, Rounding.FP32, "kernel"))
        torch.cuda.set_sync_debug_mode("error")
        try:
            self.run(inputs, Rounding.FP32, "kernel", out=outs)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run(inputs, Rounding.FP32, "kernel", out=outs)
        for seed in (1, 2):
            fresh = self.make(5, 272, torch.bfloat16, seed=seed)
            for name in self.rows:
                inputs[name].copy_(fresh[name])
            graph.replay()
            wanted = self.run(inputs, Rounding.FP32, "kernel")
            assert all(torch.equal(*pair) for pair in zip(outs, wanted, strict=True))

    @pytest.mark.gpu
    def test_new_row_counts_do_not_compile_again(self):
        launcher = importlib.import_module(f"gemma4_kernels.{self.op}.launch")._launcher()
        for rows in (1, 600):
            self.run(self.make(rows, 2816, torch.bfloat16), Rounding.FP32, "kernel")
        before = len(launcher._compiled)
        assert before
        for rows in (2, 15, 16, 17, 64, 527, 4096):
            self.run(self.make(rows, 2816, torch.bfloat16), Rounding.FP32, "kernel")
        assert len(launcher._compiled) == before

    def refusals(self) -> list[tuple[Inputs, str]]:
        first, second = self.rows[:2]
        inputs = self.make(2, 16, torch.bfloat16)
        rows, weight = inputs[first], inputs[self.weights[0]]
        return [
            ({first: rows[0]}, rf"{self.shown(first)} is \[16\]"),
            ({first: torch.zeros(2, 16, dtype=torch.int32, device=DEVICE)}, "int32"),
            ({first: torch.zeros(2, 0, dtype=torch.bfloat16, device=DEVICE)}, r"\[2, 0\]"),
            ({second: rows[:1]}, rf"{self.shown(second)} is \[1, 16\]"),
            ({second: rows.float()}, "float32"),
            ({second: torch.zeros(16, 2, dtype=torch.bfloat16, device=DEVICE).T}, "stride 2 inside a row"),
            ({self.weights[0]: weight[:15]}, r"is \[15\]"),
            ({self.weights[0]: weight.to(torch.int64)}, "int64"),
            ({self.weights[0]: torch.ones(32, device=DEVICE)[::2]}, "stride 2"),
        ]

    def shown(self, name: str) -> str:
        """Say what an input is called in a message."""
        return name

    def test_what_it_refuses(self):
        for change, message in self.refusals():
            with pytest.raises(ValueError, match=message):
                self.run(self.make(2, 16, torch.bfloat16) | change, Rounding.FP32, "auto")
        inputs = self.make(2, 16, torch.bfloat16)
        with pytest.raises(ValueError, match="path is 'cuda'"):
            self.run(inputs, Rounding.FP32, "cuda")
        outs = len(self.run(inputs, Rounding.FP32, "auto"))
        overlapping = torch.zeros(1, 16, dtype=torch.bfloat16, device=DEVICE).expand(2, 16)
        with pytest.raises(ValueError, match="rows overlap"):
            self.run(inputs, Rounding.FP32, "auto", out=(overlapping,) * outs)


class ManyWeightsTests(RowOpTests):
    """And these, for ops with more than one weight."""

    @pytest.mark.parametrize("path", PATHS)
    def test_late_weights_give_the_same(self, path, monkeypatch):
        """Many rows load their weights late; here they do at a size that the interpreter can run."""
        module = importlib.import_module(f"gemma4_kernels.{self.op}.launch")
        inputs = self.make(2, 272, torch.bfloat16)
        for rounding in Rounding:
            wanted = self.run(inputs, rounding, path)
            with monkeypatch.context() as patched:
                patched.setattr(module, "EARLY_BELOW", 0)
                found = self.run(inputs, rounding, path)
            assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
