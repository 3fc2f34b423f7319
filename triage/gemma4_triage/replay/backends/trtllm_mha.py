"""What SGLang's trtllm_mha backend calls to decode: XQA on Hopper, trtllm-gen on Blackwell."""

from __future__ import annotations

import numpy as np
import torch

from gemma4_triage.replay.backends.contract import Attention, Refused
from gemma4_triage.replay.backends.cuda_call import require_cuda, to_device, to_host
from gemma4_triage.replay.exchange import BackendCall

_WORKSPACE_BYTES = 512 * 1024**2
_XQA_PAGE_SIZES, _XQA_HEAD_DIMS = (16, 32, 64, 128), (64, 128, 256)
_HOPPER, _BLACKWELL = 9, 10


def prepare(call: BackendCall) -> Attention:
    major, minor = require_cuda()
    if not call.paged:
        raise Refused("the dump holds token slots, and its kernels take page tables")
    if major not in (_HOPPER, _BLACKWELL):
        raise Refused(f"sm{major}{minor}: its kernels are for sm90 and sm100", missing=True)
    dim = call.queries.shape[2]
    if major == _HOPPER and (call.page_size not in _XQA_PAGE_SIZES or dim not in _XQA_HEAD_DIMS):
        raise Refused(
            f"page size {call.page_size}, head dim {dim}: XQA takes page sizes {', '.join(map(str, _XQA_PAGE_SIZES))} "
            f"and head dims {', '.join(map(str, _XQA_HEAD_DIMS))}"
        )
    import flashinfer

    here = to_device(call, "cuda")
    # [pages, kv_heads, page_size, head_dim], a view as SGLang passes it.
    caches = (here.keys.permute(0, 2, 1, 3), here.values.permute(0, 2, 1, 3))
    if here.keys.shape[2] == 1:
        try:
            from sglang.srt.layers.attention.utils import canonicalize_stride  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            # Where SGLang 0.5.17 and later have it.
            from sglang.kernels.ops.attention.utils import canonicalize_stride  # pyright: ignore[reportMissingImports]

        caches = (canonicalize_stride(caches[0]), canonicalize_stride(caches[1]))
    workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    lengths = torch.from_numpy(call.lengths).to("cuda", torch.int32)
    limits = np.iinfo(np.int32)

    def run(variant: str) -> np.ndarray:
        table = np.clip(call.tables[variant], limits.min, limits.max).astype(np.int32)
        out = flashinfer.decode.trtllm_batch_decode_with_kv_cache(
            query=here.queries,
            kv_cache=caches,
            workspace_buffer=workspace,
            block_tables=torch.from_numpy(table).to("cuda"),
            seq_lens=lengths,
            max_seq_len=table.shape[1] * call.page_size,
            bmm1_scale=call.scale,
            bmm2_scale=1.0,
            window_left=call.window_left,
            out_dtype=here.queries.dtype,
        )
        assert isinstance(out, torch.Tensor)
        return to_host(out)

    note = "" if major == _HOPPER else "not measured: written for sm100 and never run there"
    return Attention(run, torch.cuda.get_device_name(), here.dtype, note)
