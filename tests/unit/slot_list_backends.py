"""SGLang's own Triton and FlashInfer backends on real pools on the CPU, each built by its own constructor.

Of FlashInfer only the wrappers, which need CUDA, are stand-ins.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.layers.attention import flashinfer_backend, triton_backend
from torch.overrides import TorchFunctionMode

from published import IN_A_CONTEXT, bind, published
from slot_list_runner import WINDOW, Runner, server_arguments, use_up_full_pages

KEPT = ("_paged_kv_indices_buf", "_paged_kv_indptr_buf", "_qo_indptr_buf")


class Wrapper:
    """Keeps of a plan what FlashInfer's wrappers keep, where they keep it. Runs no kernel."""

    def __init__(self, *args, use_cuda_graph=False, **buffers):
        self.is_cuda_graph_enabled = use_cuda_graph
        for kept in KEPT:
            name = kept.removeprefix("_")
            setattr(self, kept, buffers.get(name, buffers.get(f"{name}fer")))

    def keep(self, **plan):
        for kept, tensor in plan.items():
            if self.is_cuda_graph_enabled:
                buffer = getattr(self, kept)
                buffer[: len(tensor)].copy_(tensor)
            else:
                setattr(self, kept, tensor)


class DecodeWrapper(Wrapper):
    def begin_forward(self, indptr, indices, *args, **kwargs):
        self.keep(_paged_kv_indptr_buf=indptr, _paged_kv_indices_buf=indices)


class PrefillWrapper(Wrapper):
    def begin_forward(self, qo_indptr, indptr, indices, *args, **kwargs):
        self.keep(_qo_indptr_buf=qo_indptr, _paged_kv_indptr_buf=indptr, _paged_kv_indices_buf=indices)

    def forward(self, query, *args, **kwargs):
        return torch.zeros_like(query)


class OnThisCpu(TorchFunctionMode):
    """SGLang names the device of some of the backend's buffers itself."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        return function(*args, **(kwargs | {"device": "cpu"} if kwargs.get("device") == "cuda" else kwargs))


@contextmanager
def triton_backends(allocator, monkeypatch):
    """A function that makes a backend for a `Runner` of these options. Call it after `attach`, so that hooks see it."""
    use_up_full_pages(allocator)
    monkeypatch.setattr(triton_backend, "get_attention_tp_size", lambda: 1, raising=False)
    monkeypatch.setattr(triton_backend, "get_device_core_count", lambda _: 0)
    with published(server_arguments()):
        yield _maker(triton_backend.TritonAttnBackend, allocator)


@contextmanager
def flashinfer_backends(allocator, monkeypatch):
    """As `triton_backends`. What a backend is made of, and used for, has to stay inside the context."""
    use_up_full_pages(allocator)
    leaves = {
        "BatchDecodeWithPagedKVCacheWrapper": DecodeWrapper,
        "BatchPrefillWithPagedKVCacheWrapper": PrefillWrapper,
        "BatchPrefillWithRaggedKVCacheWrapper": Wrapper,
        "fast_decode_plan": lambda wrapper, *args, **kwargs: None,
        "global_workspace_buffer": torch.empty(0),
        "get_attention_tp_size": lambda: 1,
    }
    for name, leaf in leaves.items():
        monkeypatch.setattr(flashinfer_backend, name, leaf, raising=False)
    with published(server_arguments()), OnThisCpu():
        yield _maker(flashinfer_backend.FlashInferAttnBackend, allocator)


def _maker(backend, allocator):
    def make(**options):
        runner = Runner(allocator, **options)
        made = backend(runner)
        made.kept_runner = runner
        if IN_A_CONTEXT:
            # A batch comes with its plan there, which ForwardBatch.init_new makes.
            for name in ("init_forward_metadata", "init_forward_metadata_out_graph"):
                build = getattr(made, name)
                setattr(made, name, lambda fb, *a, _build=build, **k: _build(bind(made, fb), *a, **k))
        return made

    return make


@dataclass(frozen=True)
class SlotLists:
    """An attention backend that reads lists of slots. window_keys: of a row, in the list of its sliding layers."""

    name: str
    backends: Callable[..., AbstractContextManager[Callable[..., Any]]]
    window_keys: int


KINDS = (SlotLists("triton", triton_backends, WINDOW), SlotLists("flashinfer", flashinfer_backends, WINDOW + 1))
