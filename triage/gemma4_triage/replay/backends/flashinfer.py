"""FlashInfer's decode wrapper with pages of one token, which is how SGLang plans it."""

from __future__ import annotations

import numpy as np
import torch

from gemma4_triage.replay.backends.contract import Attention, Refused
from gemma4_triage.replay.backends.cuda_call import require_cuda, to_device, to_host
from gemma4_triage.replay.exchange import BackendCall

_HEAD_DIMS = (64, 128, 256, 512)
_WORKSPACE_BYTES = 128 * 1024**2
# SGLang's rule: with this many query heads to a KV head, tensor cores pay.
_TENSOR_CORE_GROUP = 4


def prepare(call: BackendCall) -> Attention:
    require_cuda()
    rows, heads, dim = call.queries.shape
    if dim not in _HEAD_DIMS:
        raise Refused(f"head dim {dim}: its decode takes {', '.join(map(str, _HEAD_DIMS))}")
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    here = to_device(call, "cuda")
    kv_heads = here.keys.shape[2]
    workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=heads // kv_heads >= _TENSOR_CORE_GROUP
    )
    caches = (here.keys.flatten(0, 1).unsqueeze(1), here.values.flatten(0, 1).unsqueeze(1))

    def run(variant: str) -> np.ndarray:
        indptr, indices = here.lists(call.slots(variant))
        last = torch.ones(rows, dtype=torch.int32, device="cuda")
        wrapper.plan(
            indptr,
            indices,
            last,
            heads,
            kv_heads,
            dim,
            1,
            q_data_type=here.queries.dtype,
            kv_data_type=here.keys.dtype,
            sm_scale=call.scale,
        )
        return to_host(wrapper.run(here.queries, caches))

    return Attention(run, torch.cuda.get_device_name(), here.dtype)
