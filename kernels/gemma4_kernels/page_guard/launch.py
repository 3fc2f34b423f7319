"""Guard the page tables and token slots of one metadata build, and read on the host what was found.

guard = PageGuard(device)
arrays = [GuardedTable(page_table, pages), GuardedSlots(out_cache_loc.view(rows, -1), slots)]

Now and then: guard.check(...), which waits and returns what was found.
Every step:   prepared = guard.prepare(...) once; prepared.launch() leaves the result in pinned host memory, without a
              synchronisation and without a copy. After the step's own synchronisation point: prepared.read(), which
              reads one word if all is well.

The kernel stores into host memory, over the bus, and only where it found something. It is given the host address: under
unified addressing that is the device's too, on every device, for all that cudaHostAlloc returns; of cudaHostRegister,
which torch's pinned allocator can be set to, torch itself verifies it.
https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__UNIFIED.html
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from gemma4_kernels.page_guard import reference, spec
from gemma4_kernels.page_guard.arguments import kind_of, refuse_shared_memory, rows_of, validate
from gemma4_kernels.page_guard.findings import Findings, Offence, Overflow, decode
from gemma4_kernels.page_guard.spec import Guarded, GuardedSlots, GuardedTable, Kind, NullPage, Padding

__all__ = [
    "Findings",
    "GuardedSlots",
    "GuardedTable",
    "NullPage",
    "Offence",
    "Overflow",
    "Padding",
    "PageGuard",
    "PreparedCheck",
]


class PageGuard:
    """Makes checks of arrays on one device.

    Args:
        device: where the arrays are.
        path: "auto" takes the kernel on CUDA and torch elsewhere; "kernel" off CUDA needs TRITON_INTERPRET=1.

    Raises:
        ValueError: an unknown path, or one that this device cannot run.
    """

    def __init__(self, device: torch.device | str, path: Literal["auto", "kernel", "torch"] = "auto") -> None:
        if path not in ("auto", "kernel", "torch"):
            raise ValueError(f"path is {path!r}, expected 'auto', 'kernel' or 'torch'")
        # Of a tensor, because "cuda" has no index and the arrays' device has one.
        self.device = torch.empty(0, device=device).device
        self._cuda = self.device.type == "cuda"
        takes_kernel = path == "kernel" or (path == "auto" and self._cuda)
        self._kernel = _load_kernel(self._cuda) if takes_kernel else None

    def check(
        self,
        arrays: Sequence[Guarded],
        cache_seqlens: torch.Tensor | None,
        page_size: int,
        *,
        contain: bool,
        padding: Padding | None = None,
        rows: int | None = None,
    ) -> Findings | None:
        """Prepare, launch on the current stream, wait for that, and read. Arguments and Raises: see `prepare`."""
        prepared = self.prepare(arrays, cache_seqlens, page_size, contain=contain, padding=padding, rows=rows)
        prepared.launch()
        if self._cuda:
            torch.cuda.current_stream(self.device).synchronize()
        return prepared.read()

    def prepare(
        self,
        arrays: Sequence[Guarded],
        cache_seqlens: torch.Tensor | None,
        page_size: int,
        *,
        contain: bool,
        padding: Padding | None = None,
        rows: int | None = None,
    ) -> PreparedCheck:
        """Validate, compile and bind a check of every live entry, for buffers that stay where they are.

        No synchronisation, but a compilation the first time, and an allocation of pinned memory.

        Args:
            arrays: 1..4 tables and slots, of the same rows. An array that indexes two buffers takes the smaller bound.
            cache_seqlens: [rows] int32 or int64, any stride: keys per row, below 1 for none. None if there is no table.
            page_size: tokens per page.
            contain: replace offences by 0, in place. Where a corrupt indptr makes rows overlap, an offence that two
                rows share is reported by one of them at least, and another may have read the 0.
            padding: which rows are padded; needed for NullPage.LEGAL_IN_PADDED_ROWS.
            rows: needed if every array is ragged, there is no cache_seqlens, and indptr is longer than rows + 1.

        Raises:
            ValueError: a shape, dtype, device, bound or page size that is not as above, or `contain` on arrays that
                share memory, where one program would read what another has already replaced.
        """
        rows = rows_of(arrays, cache_seqlens) if rows is None else rows
        validate(arrays, cache_seqlens, page_size, padding, rows, self.device)
        if contain:
            refuse_shared_memory(arrays)
        splits = spec.splits_of(rows, max(array[0].shape[-1] for array in arrays))
        words = spec.result_words(len(arrays), rows * splits)
        result = torch.zeros(words, dtype=torch.int64, pin_memory=self._cuda)
        if rows == 0:
            return PreparedCheck(result, _nothing)
        if self._kernel is None:
            parts = (tuple(arrays), rows, splits, cache_seqlens, page_size, contain, padding)
            return PreparedCheck(result, functools.partial(reference.guard_arrays, result, *parts))
        grid = (rows, splits, len(arrays))
        arguments = _kernel_arguments(result, arrays, cache_seqlens, page_size, padding)
        constants = _kernel_constants(arrays, contain)
        if not self._cuda:
            return PreparedCheck(result, functools.partial(self._kernel[grid], *arguments, **constants))
        # Triton compiles for, and launches on, the current device, which need not be the arrays'.
        with torch.cuda.device(self.device):
            runner = self._kernel.warmup(*arguments, grid=grid, **constants)[grid]
        return PreparedCheck(result, _bind(runner, arguments, constants, self.device))


class PreparedCheck:
    """A check whose arguments are bound, and the host memory that its result arrives in.

    Made by `PageGuard.prepare`. It keeps the tensors that it was made of alive and goes by their addresses: change
    their contents, never their storage. Keep it until the stream has got past its last launch, and as long as a CUDA
    graph that holds one: its pinned memory goes back to torch with it. One launch in flight at a time; who launches
    again before the last one is read takes another prepared check.
    """

    def __init__(self, result: torch.Tensor, launch: Callable[[], Any]) -> None:
        # int64, words as in spec.py, on the host; pinned if the arrays are on CUDA. All 0 before every launch.
        self.result = result
        self._launch = launch

    def launch(self) -> None:
        """Check, on the current stream of the arrays' device: one kernel, no copy, no synchronisation (kernel path).

        After one launch, which loads the kernel, it can be captured into a CUDA graph: each replay is a launch.
        """
        self._launch()

    def read(self) -> Findings | None:
        """Say what the last launch found, or None; the next launch starts clean. A clean result costs one word.

        Read once the stream has got past the launch: until then a finding may be missing or in parts. What had arrived
        when a CUDA context died can still be read.

        Raises:
            ValueError: the words are no result: only a part arrived, or something else wrote there.
        """
        if self.result[spec.FOUND].item() == 0:
            return None
        try:
            return decode(self.result)
        finally:
            self.result.zero_()


def _nothing() -> None:
    """Launch nothing: the check has no rows."""


def _load_kernel(cuda: bool) -> Any:
    # Here, not above: the torch path, which a CPU takes, needs no Triton.
    from triton import knobs

    if not cuda and not knobs.runtime.interpret:
        raise ValueError("the kernel needs CUDA tensors, or TRITON_INTERPRET=1 set before Triton is imported")
    from gemma4_kernels.page_guard.kernel import page_guard_kernel

    return page_guard_kernel


def _bind(runner: Any, arguments: Sequence[Any], constants: dict[str, Any], device: torch.device) -> Callable[[], None]:
    """Return a call of a compiled kernel's own launcher, past Triton's binder and its look-up of the compiled kernel.

    Addresses are taken now: for an integer the launcher asks neither the tensor nor the driver. They stay right because
    the arguments, and so their storages, live as long as the function that is returned.
    """
    bound = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments] + list(constants.values())
    index, current_device = device.index, torch.cuda.current_device

    def launch(keeps: Sequence[Any] = arguments) -> None:
        if current_device() == index:
            runner(*bound)
        else:
            with torch.cuda.device(index):
                runner(*bound)

    return launch


def _kernel_arguments(
    result: torch.Tensor,
    arrays: Sequence[Guarded],
    cache_seqlens: torch.Tensor | None,
    page_size: int,
    padding: Padding | None,
) -> tuple[Any, ...]:
    """Return them in the order of the kernel's parameters; `result` stands for a tensor that no program reads."""
    lengths = (cache_seqlens, cache_seqlens.stride(0)) if cache_seqlens is not None else (result, 0)
    rows = (padding.seq_lens, padding.seq_lens.stride(0), padding.fill) if padding is not None else (result, 0, 0)
    absent = (result, result, 0, 0, 0, 0, 1, 0, -1) * (spec.MAX_ARRAYS - len(arrays))
    present = (argument for array in arrays for argument in _array_arguments(result, array))
    return (result, *lengths, *rows, page_size, *present, *absent)


def _array_arguments(result: torch.Tensor, array: Guarded) -> tuple[Any, ...]:
    entries = array[0]
    indptr, window_keys = (None, array.window_keys) if isinstance(array, GuardedTable) else (array.indptr, -1)
    return (
        entries,
        *((indptr, indptr.stride(0)) if indptr is not None else (result, 0)),
        entries.stride(0) if entries.dim() == 2 else 0,
        entries.stride(-1),
        entries.shape[-1],
        array.bound,
        int(array.null_page),
        window_keys,
    )


def _kernel_constants(arrays: Sequence[Guarded], contain: bool) -> dict[str, Any]:
    """Return them in the order of the kernel's parameters, after the arguments."""
    kinds = [kind_of(array) for array in arrays] + [Kind.ABSENT] * (spec.MAX_ARRAYS - len(arrays))
    return {f"KIND_{index}": int(kind) for index, kind in enumerate(kinds)} | {"CONTAIN": contain, "BLOCK": spec.BLOCK}
