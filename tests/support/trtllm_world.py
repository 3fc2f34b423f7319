"""SGLang's own trtllm_mha backend on real pools: a model of two sliding layers and a full one, batches."""

import gc
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace

import torch
from sglang.srt.layers import radix_attention
from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from gemma4_runtime.indices import owner
from published import IN_A_CONTEXT, bind, published, translator_of
from slot_list_backends import FULL, PAGE, SLIDING, allocate, server_arguments, use_up_full_pages

STAND_INS = ("host-paged-attention", "host-alloc-kernels")


class Runner:
    """What the probe reads of a ModelRunner: its model has two sliding layers and a full one."""

    def __init__(self):
        self.is_draft_worker = False
        self.forward_pass_id = 41
        self.server_args = SimpleNamespace(disable_overlap_schedule=True)
        self.spec_algorithm = SpeculativeAlgorithm.FROZEN_KV_MTP
        self.model = torch.nn.ModuleList(attention(layer_id) for layer_id in (SLIDING, 1, FULL))


def attention(layer_id):
    window = -1 if layer_id == FULL else 31
    return RadixAttention(2, 8, 1.0, 2, layer_id, sliding_window_size=window)


@contextmanager
def graph_attention_on_cpu():
    """Let the op that SGLang's piecewise graphs are cut at run here: SGLang registers its lines for CUDA alone.

    It keeps no name for the function behind the op.
    """
    # What another test has frozen is not among the objects.
    gc.unfreeze()
    name = "unified_attention_with_output"
    function = next(
        found
        for found in gc.get_objects()
        if isinstance(found, FunctionType) and (found.__module__, found.__name__) == (radix_attention.__name__, name)
    )
    library = torch.library.Library("sglang", "IMPL", "CPU")
    library.impl(name, function)
    yield
    library._destroy()


def trtllm_backend(swa_allocator):
    """Return a TRTLLMHAAttnBackend with real pools whose page ids differ by pool.

    Its constructor wants a whole engine, so its fields are set here.
    """
    use_up_full_pages(swa_allocator)
    made = object.__new__(TRTLLMHAAttnBackend)
    rows = torch.zeros(5, 256, dtype=torch.int32, device=swa_allocator.device)
    fields = {
        "token_to_kv_pool": swa_allocator.get_kvcache(),
        "_swa_kv_pool": swa_allocator.get_kvcache(),
        "use_sliding_window_kv_pool": True,
        "req_to_token": rows,
        "req_to_token_pool": SimpleNamespace(req_to_token=rows),
        "page_size": PAGE,
        "device": swa_allocator.device,
        "max_context_len": 256,
        "speculative_num_draft_tokens": 4,
        "speculative_step_id": 0,
        "workspace_buffer": None,
        "q_data_type": torch.float32,
        "data_type": torch.float32,
        "is_xqa_impl": False,
        "target_verify_metadata": {},
    }
    if IN_A_CONTEXT:
        fields |= _of_later_releases(swa_allocator, rows)
    # What the probe keeps from the constructor's model runner.
    runner = Runner()
    owner.remember_owner(made, runner)
    made.kept_runner = runner
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _of_later_releases(allocator, rows):
    pools = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=rows),
        token_to_kv_pool_allocator=allocator,
        token_to_kv_pool=allocator.get_kvcache(),
        page_size=PAGE,
        device=allocator.device,
    )
    return {
        "kv_index_translator": translator_of(pools),
        "_swa_full_to_swa_mapping": allocator.full_to_swa_index_mapping,
        "draft_extend_metadata": {},
        "decode_seq_len_splits": 1,
        "max_num_pages": rows.shape[1] // PAGE,
        "use_fmha_v2": False,
        "is_nvfp4_kvcache": False,
        "decode_uses_native_fp4": False,
        "prefill_uses_native_fp4": False,
        "uses_trtllm_gen_native_fp4": False,
        "expand_encoder_only_verify": False,
        "_multi_ctas_kv_counter_buffer": None,
        "_xqa_spec_dec_mask": None,
    }


@contextmanager
def hybrid_of(pool, prefill, decode):
    """Yield a backend that prefills with one child and decodes with another, on a draft's own pool."""
    runner = SimpleNamespace(kv_cache_dtype=torch.float32, token_to_kv_pool=pool, req_to_token_pool=None)
    runner.kv_index_translator, runner.model_config = None, SimpleNamespace(context_len=256)
    with published(server_arguments()):
        yield HybridAttnBackend(runner, prefill, decode)


def fill(backend, allocator, lengths):
    """Give request i+1 `lengths[i]` tokens. Request 0 is SGLang's padding row."""
    for row, length in enumerate(lengths, start=1):
        slots = allocate(allocator, length)
        backend.req_to_token[row, :length] = slots.to(torch.int32)


def batch(lengths, mode=ForwardMode.DECODE, rows=None, tokens=1):
    lens = torch.tensor(lengths)
    return SimpleNamespace(
        seq_lens=lens,
        seq_lens_cpu=lens,
        batch_size=len(lengths),
        forward_mode=mode,
        spec_info=None,
        encoder_lens=None,
        out_cache_loc=None,
        input_ids=torch.zeros(len(lengths) * tokens, dtype=torch.int64),
        positions=torch.zeros(len(lengths) * tokens, dtype=torch.int64),
        req_pool_indices=torch.tensor(rows or list(range(1, len(lengths) + 1))),
    )


def dispatch(backend, layer_id, forward_batch):
    query = torch.zeros(forward_batch.input_ids.shape[0], 2, 8)
    method = backend.forward_decode if forward_batch.forward_mode.is_decode() else backend.forward_extend
    return method(query, None, None, attention(layer_id), forward_batch, save_kv_cache=False)


def build(backend, forward_batch):
    backend.init_forward_metadata(bind(backend, forward_batch))


def replay(backend, forward_batch):
    """Fill a graph's tables as its replay does: what SGLang does ahead of it, and what it has put into the graph."""
    backend.init_forward_metadata_out_graph(forward_batch)
    backend.init_forward_metadata_in_graph(forward_batch)
