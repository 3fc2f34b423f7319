"""SGLang's own Triton and FlashInfer backends on real pools, what each is built from, and batches for them.

A runner has two sliding layers and a full one, and each backend is built by its own constructor. Of FlashInfer only the
wrappers, which need CUDA, are stand-ins.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.layers.attention import flashinfer_backend, triton_backend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch.overrides import TorchFunctionMode

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from published import IN_A_CONTEXT, bind, published, translator_of

if IN_A_CONTEXT:
    pass
else:
    pass

# What a test of the page-table probe on such a backend attaches.
ATTACHED = ("page-table", "host-alloc-kernels")
PAGE = 16
SLIDING, FULL = 0, 2
# As the runner reports it; layers carry one more, see swa-window-width.
WINDOW = 31
FULL_SLOTS, SWA_SLOTS = 161 * PAGE, 65 * PAGE
# Of a decode: array, buffer, bound, whether it is written.
DECODE_USES = {
    ("kv_indices", "full", FULL_SLOTS, False),
    ("window_kv_indices", "swa", SWA_SLOTS, False),
    ("out_cache_loc", "full", FULL_SLOTS, True),
    ("swa_out_cache_loc", "swa", SWA_SLOTS, True),
}


def attention(layer_id, head_dim=8):
    return RadixAttention(2, head_dim, 1.0, 2, layer_id, sliding_window_size=-1 if layer_id == FULL else WINDOW + 1)


class Runner:
    """What the backend's constructor and the probe read of a ModelRunner."""

    def __init__(self, allocator, is_draft_worker=False, topk=1, window=WINDOW, head_dim=8):
        rows = torch.zeros(5, 256, dtype=torch.int32)
        self.req_to_token_pool = SimpleNamespace(size=4, req_to_token=rows)
        self.token_to_kv_pool = allocator.get_kvcache()
        self.token_to_kv_pool_allocator = allocator
        self.sliding_window_size = window
        self.is_draft_worker = is_draft_worker
        self.device, self.gpu_id, self.forward_pass_id = allocator.device, 0, 41
        self.dtype = self.kv_cache_dtype = allocator.dtype
        self.hybrid_gdn_config = self.kimi_linear_config = self.linear_attn_model_spec = None
        self.spec_algorithm = SpeculativeAlgorithm.FROZEN_KV_MTP
        self.model = torch.nn.ModuleList(
            attention(layer_id) for layer_id in ((SLIDING, 1, FULL) if window else (FULL,))
        )
        self.server_args = server_arguments(topk)
        self.model_config = SimpleNamespace(
            attention_arch=AttentionArch.MHA,
            num_attention_heads=2,
            get_num_kv_heads=lambda *_: 2,
            v_head_dim=head_dim,
            swa_v_head_dim=head_dim,
            context_len=256,
            is_encoder_decoder=False,
            is_multimodal=True,
            head_dim=head_dim,
            hf_config=SimpleNamespace(architectures=["Gemma4ForConditionalGeneration"], get_text_config=lambda: None),
            linear_attn_registry_result=None,
            get_max_num_attention_heads=lambda: 2,
        )
        self.page_size = allocator.page_size
        self.prefill_attention_backend_str = self.decode_attention_backend_str = "flashinfer"
        self.decode_num_tokens_per_req = lambda: 4
        if IN_A_CONTEXT:
            self.kv_index_translator = translator_of(self)


def server_arguments(topk=1):
    """Return what backends read of a server's arguments."""
    return SimpleNamespace(
        speculative_num_draft_tokens=4,
        speculative_num_steps=3,
        speculative_eagle_topk=topk,
        disable_overlap_schedule=True,
        triton_attention_num_kv_splits=2,
        triton_attention_split_tile_size=None,
        disable_cuda_graph=False,
        chunked_prefill_size=-1,
        enable_deterministic_inference=False,
        enable_mis=False,
        dllm_algorithm=None,
        disable_piecewise_cuda_graph=True,
    )


def allocate(allocator, tokens):
    """Return slots for a prompt of one request, [tokens]."""
    on_host = (False, True, False, True, False)
    lens = [
        torch.tensor([x], device="cpu" if host else allocator.device)
        for x, host in zip((0, 0, tokens, tokens, -1), on_host, strict=True)
    ]
    return allocator.alloc_extend(*lens, tokens)


def use_up_full_pages(allocator):
    """Use up 70 full-pool pages whose SWA pages are free again, as eviction leaves them: ids now differ by pool."""
    for _ in range(7):
        allocator.free_swa(allocate(allocator, 160))


def uses_of(build):
    return {(use.array, use.buffer_space, use.bound, use.writes) for use in build.uses}


def rows_of(backend):
    return backend.req_to_token_pool.req_to_token


def fill(backend, lengths):
    """Give request i+1 `lengths[i]` tokens. Request 0 is SGLang's padding row."""
    for row, length in enumerate(lengths, start=1):
        slots = allocate(backend.kept_runner.token_to_kv_pool_allocator, length)
        rows_of(backend)[row, :length] = slots.to(torch.int32)


def slots_of(backend, row, *positions):
    return rows_of(backend)[row, list(positions)].to(torch.int64)


def batch(lengths, mode=ForwardMode.DECODE, rows=None, locations=None):
    lens = torch.tensor(lengths)
    verify = SimpleNamespace(custom_mask=None, kv_indptr=None, draft_token_num=4, num_tokens_per_req=4)
    return SimpleNamespace(
        seq_lens=lens,
        seq_lens_cpu=lens,
        seq_lens_sum=int(lens.sum()),
        batch_size=len(lengths),
        forward_mode=mode,
        spec_info=verify if mode.is_target_verify() else None,
        encoder_lens=None,
        out_cache_loc=locations,
        req_pool_indices=torch.tensor(rows or list(range(1, len(lengths) + 1))),
        extend_prefix_lens_cpu=None,
        cross_attention_custom_mask=None,
        mha_one_shot=False,
    )


def extend(backend, prefix, new):
    """Return a batch in which request 1 has `prefix` tokens and gets `new` more."""
    forward_batch = batch([prefix + new], ForwardMode.EXTEND)
    forward_batch.out_cache_loc = rows_of(backend)[1, prefix : prefix + new].to(torch.int64)
    forward_batch.extend_prefix_lens = torch.tensor([prefix])
    forward_batch.extend_prefix_lens_cpu = [prefix]
    forward_batch.extend_seq_lens = torch.tensor([new])
    forward_batch.extend_seq_lens_cpu = [new]
    return forward_batch


def found_in(dumps):
    return [read_dump(entry.path).manifest for entry in DumpStore(dumps).list()]


def capture_batch(backend, captured):
    """Build for a capture; the batch's list of new slots is the static one from then on."""
    vars(backend).setdefault("kept_static", {})[captured.batch_size] = captured.out_cache_loc
    backend.init_forward_metadata_out_graph(captured, in_capture=True)


def replay_batch(backend, live):
    """Build for a replay, after the static list is filled from the batch's, as SGLang's graph runner does."""
    static = backend.kept_static[live.batch_size]
    static.zero_()
    if live.out_cache_loc is not None:
        static[: live.out_cache_loc.shape[0]].copy_(live.out_cache_loc)
    backend.init_forward_metadata_out_graph(live)


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
    """Yield what makes a Triton backend for a `Runner` of these options. Enter it after `attach`: hooks see it then."""
    use_up_full_pages(allocator)
    monkeypatch.setattr(triton_backend, "get_attention_tp_size", lambda: 1, raising=False)
    monkeypatch.setattr(triton_backend, "get_device_core_count", lambda _: 0)
    with published(server_arguments()):
        yield _maker(triton_backend.TritonAttnBackend, allocator)


@contextmanager
def flashinfer_backends(allocator, monkeypatch):
    """Yield what makes a FlashInfer backend, which can be made and used inside the context alone."""
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
    """An attention backend that reads lists of slots, whose sliding layers list `window_keys` of a row."""

    name: str
    backends: Callable[..., AbstractContextManager[Callable[..., Any]]]
    window_keys: int


KINDS = (SlotLists("triton", triton_backends, WINDOW), SlotLists("flashinfer", flashinfer_backends, WINDOW + 1))
