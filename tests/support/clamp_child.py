"""What a server with `clamp` is made to go through before it starts: see lifecycle_child.py's `before`."""

from typing import Any

from lifecycle_child import retract_often


def retract_while_decodes_are_clamped() -> None:
    """Retract a request every few steps, and let all decodes of all requests read a page that is not there."""
    retract_often()
    from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend

    original = TRTLLMHAAttnBackend.init_forward_metadata

    def point_past_the_end(backend: Any, forward_batch: Any) -> None:
        original(backend, forward_batch)
        if not forward_batch.forward_mode.is_decode():
            return
        metadata, page_size = backend.forward_metadata, backend.page_size
        pages_in_buffer = backend.token_to_kv_pool.swa_kv_pool.k_buffer[0].shape[0] // page_size
        last = (metadata.cache_seqlens_int32.long() - 1) // page_size
        metadata.swa_page_table.scatter_(1, last[:, None], pages_in_buffer)

    TRTLLMHAAttnBackend.init_forward_metadata = point_past_the_end  # pyright: ignore[reportAttributeAccessIssue]
