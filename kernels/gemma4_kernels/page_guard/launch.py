"""Guard the page tables and token slots of one metadata build, and read on the host what was found.

guard = PageGuard(max_rows, device)
host = guard.host_buffer()
arrays = [GuardedTable(page_table, pages), GuardedSlots(out_cache_loc.view(rows, -1), slots)]

Now and then: guard.check(...), which validates and returns the result on the device.
Every step:   prepared = guard.prepare(...) once; prepared.launch(host), or graph = prepared.capture(host) and
              graph.replay(), leave the result in `host` without a synchronisation.
After the step's own synchronisation point: decode(host), which reads one word if all is well.
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
    "decode",
]


class PageGuard:
    """Makes checks. Owns the result buffer of `check`, and of nothing else: each prepared check has its own.

    So `check` is for one stream at a time, and checks that are in flight together are prepared ones.

    Args:
        max_rows: the most rows that a check may have, 1..65535.
        device: where the arrays are.
        path: "auto" takes the kernel on CUDA and torch elsewhere; "kernel" off CUDA needs TRITON_INTERPRET=1.

    Raises:
        ValueError: max_rows out of range, an unknown path, or a path that this device cannot run.
    """

    def __init__(
        self, max_rows: int, device: torch.device | str, path: Literal["auto", "kernel", "torch"] = "auto"
    ) -> None:
        if not 1 <= max_rows <= spec.MAX_ROWS:
            raise ValueError(f"max_rows is {max_rows}, expected 1..{spec.MAX_ROWS}")
        if path not in ("auto", "kernel", "torch"):
            raise ValueError(f"path is {path!r}, expected 'auto', 'kernel' or 'torch'")
        self.max_rows = max_rows
        # int64, words as in spec.py, as many as the largest check leaves.
        words = spec.result_words(spec.MAX_ARRAYS, max(max_rows, spec.MIN_LANES))
        self.result = torch.zeros(words, dtype=torch.int64, device=device)
        takes_kernel = path == "kernel" or (path == "auto" and self.result.is_cuda)
        self._kernel = _load_kernel(self.result.is_cuda) if takes_kernel else None

    def host_buffer(self) -> torch.Tensor:
        """A host tensor that takes any result of this guard: pinned where the result is on CUDA."""
        return _host_buffer(self.result)

    def check(
        self,
        arrays: Sequence[Guarded],
        cache_seqlens: torch.Tensor | None,
        page_size: int,
        *,
        contain: bool,
        padding: Padding | None = None,
        rows: int | None = None,
    ) -> torch.Tensor:
        """Check every live entry now; leave counts, first offences and overflows in `result`, which is reset first.

        One memset and one launch on the current stream, no synchronisation.

        Args:
            arrays: 1..4 tables and slots, of the same rows. An array that indexes two buffers takes the smaller bound.
            cache_seqlens: [rows] int32 or int64, any stride: keys per row, below 1 for none. None if there is no table.
            page_size: tokens per page.
            contain: replace offences by 0, in place. Where a corrupt indptr makes rows overlap, an offence that two
                rows share is reported by one of them at least, and another may have read the 0.
            padding: which rows are padded; needed for NullPage.LEGAL_IN_PADDED_ROWS.
            rows: needed if every array is ragged, there is no cache_seqlens, and indptr is longer than rows + 1.

        Returns: the words of this check, a view of `result`, on the device. The next check overwrites it.

        Raises:
            ValueError: a shape, dtype, device, bound or page size that is not as above, or `contain` on arrays that
                share memory, where one program would read what another has already replaced.
        """
        prepared = self._prepare(arrays, cache_seqlens, page_size, contain, padding, rows, self.result)
        prepared.run()
        return prepared.result

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
        """Validate and compile once what `check` would do; for buffers that stay where they are. See `check`."""
        return self._prepare(arrays, cache_seqlens, page_size, contain, padding, rows, None)

    def _prepare(
        self,
        arrays: Sequence[Guarded],
        cache_seqlens: torch.Tensor | None,
        page_size: int,
        contain: bool,
        padding: Padding | None,
        rows: int | None,
        result: torch.Tensor | None,
    ) -> PreparedCheck:
        rows = rows_of(arrays, cache_seqlens) if rows is None else rows
        validate(arrays, cache_seqlens, page_size, padding, rows, self.max_rows, self.result.device)
        if contain:
            refuse_shared_memory(arrays)
        splits = spec.splits_of(rows, max(array[0].shape[-1] for array in arrays))
        words = spec.result_words(len(arrays), rows * splits)
        result = torch.zeros(words, dtype=torch.int64, device=self.result.device) if result is None else result[:words]
        if rows == 0:
            return PreparedCheck(result, _nothing, None)
        if self._kernel is None:
            parts = (tuple(arrays), rows, splits, cache_seqlens, page_size, contain, padding)
            return PreparedCheck(result, functools.partial(reference.guard_arrays, result, *parts), None)
        grid = (rows, splits, len(arrays))
        arguments = _kernel_arguments(result, arrays, cache_seqlens, page_size, padding)
        constants = _kernel_constants(arrays, contain)
        if not result.is_cuda:
            return PreparedCheck(result, functools.partial(self._kernel[grid], *arguments, **constants), None)
        # No columns, so the launch that warms up a capture touches no array.
        touching_nothing = _kernel_arguments(result, arrays, cache_seqlens, page_size, padding, columns=0)
        # Triton compiles for, and launches on, the current device, which need not be the arrays'.
        with torch.cuda.device(result.device):
            runner = self._kernel.warmup(*arguments, grid=grid, **constants)[grid]
        launch, warm_up = (_bind(runner, given, constants, result.device) for given in (arguments, touching_nothing))
        return PreparedCheck(result, launch, warm_up)


class PreparedCheck:
    """A check whose arguments are bound, with a result buffer of its own, so that several may be in flight.

    Made by `PageGuard.prepare`. It keeps the tensors that it was made of alive and goes by their addresses: change
    their contents, never their storage. One stream at a time, and one host read per launch: the next launch overwrites.
    """

    def __init__(self, result: torch.Tensor, launch: Callable[[], Any], warm_up: Callable[[], Any] | None) -> None:
        # int64, words as in spec.py; on the device.
        self.result = result
        self._launch, self._warm_up = launch, warm_up
        self._host: torch.Tensor | None = None
        self._host_words = result

    def host_buffer(self) -> torch.Tensor:
        """A host tensor of the result's size: pinned where the result is on CUDA."""
        return _host_buffer(self.result)

    def run(self) -> None:
        """Reset and check, on the current stream of the arrays' device, no synchronisation and no copy."""
        self.result.zero_()
        self._launch()

    def launch(self, host: torch.Tensor) -> None:
        """Reset, check, and copy the result into `host`; three operations on the current stream, no synchronisation.

        Args:
            host: int64 words on the host, the result's or more, pinned if that is on CUDA: a `host_buffer()`. Read it
                once the stream has got there.

        Raises:
            ValueError: a host that is not as above.
        """
        if host is not self._host:
            self._take_host(host)
        self.result.zero_()
        self._launch()
        self._host_words.copy_(self.result, non_blocking=True)

    def capture(self, host: torch.Tensor) -> torch.cuda.CUDAGraph:
        """The three operations of `launch` as a CUDA graph; `replay()` is then the whole cost of a step.

        Synchronises, and launches the kernel once without touching an array. The graph keeps this check and `host`
        alive.

        Raises:
            ValueError: not the kernel path on CUDA, or no rows; or a host that `launch` would not take.
        """
        if self._warm_up is None:
            raise ValueError(
                f"a check on {self.result.device} without rows or without the kernel cannot be captured: launch it"
            )
        self._take_host(host)
        with torch.cuda.device(self.result.device):
            self._warm_up()
            graph = _CheckGraph()
            graph.keeps = (self, host)
            # Other threads of a server may allocate meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.launch(host)
        return graph

    def _take_host(self, host: torch.Tensor) -> None:
        words = self.result.shape[0]
        right = host.device.type == "cpu" and host.dtype == torch.int64 and host.dim() == 1 and host.is_contiguous()
        if not right or host.shape[0] < words:
            raise ValueError(
                f"the host buffer is {list(host.shape)} {host.dtype} on {host.device}, "
                f"expected [{words} or more] contiguous int64 on the host: take host_buffer()"
            )
        if self.result.is_cuda and not host.is_pinned():
            raise ValueError("the host buffer is not pinned, so the copy would synchronise: take host_buffer()")
        self._host, self._host_words = host, host[:words]


class _CheckGraph(torch.cuda.CUDAGraph):
    # What the graph holds raw addresses of.
    keeps: tuple[PreparedCheck, torch.Tensor]


def _nothing() -> None:
    """The launch of a check without rows."""


def _host_buffer(result: torch.Tensor) -> torch.Tensor:
    return torch.zeros(result.shape, dtype=torch.int64, pin_memory=result.is_cuda)


def _load_kernel(cuda: bool) -> Any:
    # Here, not above: the torch path, which a CPU takes, needs no Triton.
    from triton import knobs

    if not cuda and not knobs.runtime.interpret:
        raise ValueError("the kernel needs CUDA tensors, or TRITON_INTERPRET=1 set before Triton is imported")
    from gemma4_kernels.page_guard.kernel import page_guard_kernel

    return page_guard_kernel


def _bind(runner: Any, arguments: Sequence[Any], constants: dict[str, Any], device: torch.device) -> Callable[[], None]:
    """A call of a compiled kernel's own launcher, past Triton's binder and its look-up of the compiled kernel.

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
    columns: int | None = None,
) -> tuple[Any, ...]:
    """In the order of the kernel's parameters; `result` stands for a tensor that no program reads."""
    lengths = (cache_seqlens, cache_seqlens.stride(0)) if cache_seqlens is not None else (result, 0)
    rows = (padding.seq_lens, padding.seq_lens.stride(0), padding.fill) if padding is not None else (result, 0, 0)
    absent = (result, result, 0, 0, 0, 0, 1, 0, -1) * (spec.MAX_ARRAYS - len(arrays))
    present = (argument for array in arrays for argument in _array_arguments(result, array, columns))
    return (result, *lengths, *rows, page_size, *present, *absent)


def _array_arguments(result: torch.Tensor, array: Guarded, columns: int | None) -> tuple[Any, ...]:
    entries = array[0]
    indptr, window_keys = (None, array.window_keys) if isinstance(array, GuardedTable) else (array.indptr, -1)
    return (
        entries,
        *((indptr, indptr.stride(0)) if indptr is not None else (result, 0)),
        entries.stride(0) if entries.dim() == 2 else 0,
        entries.stride(-1),
        entries.shape[-1] if columns is None else columns,
        array.bound,
        int(array.null_page),
        window_keys,
    )


def _kernel_constants(arrays: Sequence[Guarded], contain: bool) -> dict[str, Any]:
    """In the order of the kernel's parameters, after the arguments."""
    kinds = [kind_of(array) for array in arrays] + [Kind.ABSENT] * (spec.MAX_ARRAYS - len(arrays))
    return {f"KIND_{index}": int(kind) for index, kind in enumerate(kinds)} | {"CONTAIN": contain, "BLOCK": spec.BLOCK}
