"""Every algorithm that cuBLASLt's heuristic has for a product, through the library's C interface.

torch takes the first one that the heuristic names. Which of them is fastest is found by timing them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_COMPUTE_32F, _CUDA_32F, _CUDA_16BF, _TRANSPOSED = 68, 0, 14, 1
_DESC_TRANSA, _PREFERENCE_WORKSPACE = 3, 1
WORKSPACE_BYTES = 64 << 20


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLtError(RuntimeError):
    """A call of cuBLASLt did not succeed."""


class CublasLt:
    """The library that torch has loaded, with a workspace of its own."""

    def __init__(self) -> None:
        torch.cuda.current_blas_handle()
        self._library = ctypes.CDLL(f"libcublasLt.so.{(torch.version.cuda or '13').split('.')[0]}")
        self._handle = self._made("cublasLtCreate")
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    def product(self, rows: int, columns: int, depth: int) -> LtProduct:
        """Return the product x [rows, depth] @ weight [columns, depth].T of bf16, with its algorithms."""
        # Column-major, a row-major weight is [depth, columns], to be transposed; x and the result are as they should.
        description = self._made("cublasLtMatmulDescCreate", _COMPUTE_32F, _CUDA_32F)
        self._set("cublasLtMatmulDescSetAttribute", description, _DESC_TRANSA, ctypes.c_int32(_TRANSPOSED))
        shapes = ((depth, columns), (depth, rows), (columns, rows))
        layouts = [
            self._made("cublasLtMatrixLayoutCreate", _CUDA_16BF, *map(ctypes.c_uint64, shape), ctypes.c_int64(shape[0]))
            for shape in shapes
        ]
        preference = self._made("cublasLtMatmulPreferenceCreate")
        attribute = ctypes.c_size_t(WORKSPACE_BYTES)
        self._set("cublasLtMatmulPreferenceSetAttribute", preference, _PREFERENCE_WORKSPACE, attribute)
        return LtProduct(self, description, layouts, preference)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library.

        Raises:
            CublasLtError: It answered anything but success.
        """
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CublasLtError(f"{name} answered {status}")

    def multiply(self, product: LtProduct, algorithm: Any, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor):
        """Launch the product with this algorithm on torch's stream."""
        a, b, c = product.layouts
        at = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (weight, x, out)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        space = ctypes.c_void_p(self._workspace.data_ptr())
        self.call(
            "cublasLtMatmul", self._handle, product.description, ctypes.byref(self._one), at[0], a, at[1], b,
            ctypes.byref(self._zero), at[2], c, at[2], c, ctypes.byref(algorithm), space,
            ctypes.c_size_t(WORKSPACE_BYTES), stream,
        )  # fmt: skip

    def found(self, product: LtProduct, most: int) -> list[Any]:
        """Return at most so many algorithms, what the heuristic takes for the fastest first."""
        results, count = (_Heuristic * most)(), ctypes.c_int(0)
        a, b, c = product.layouts
        self.call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, product.description, a, b, c, c, product.preference, most,
            results, ctypes.byref(count),
        )  # fmt: skip
        return [result.algorithm for result in results[: count.value] if not result.state]

    def _made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def _set(self, name: str, what: ctypes.c_void_p, attribute: int, value: Any) -> None:
        self.call(name, what, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


class LtProduct:
    """A product of one size as cuBLASLt describes it."""

    def __init__(self, lt: CublasLt, description: Any, layouts: list[Any], preference: Any) -> None:
        self.lt, self.description, self.layouts, self.preference = lt, description, layouts, preference

    def algorithms(self, most: int) -> list[Any]:
        """Return at most so many algorithms, what the heuristic takes for the fastest first."""
        return self.lt.found(self, most)

    def multiply(self, algorithm: Any, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Launch x @ weight.T into out with this algorithm."""
        self.lt.multiply(self, algorithm, x, weight, out)
