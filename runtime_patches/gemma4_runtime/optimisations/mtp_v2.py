"""MTP under spec v2: whether FROZEN_KV_MTP can be overlapped, which worker runs it, and what it holds.

| hook                        | SGLang's answer for FROZEN_KV_MTP       | with this                                  |
|-----------------------------|-----------------------------------------|--------------------------------------------|
| `supports_spec_v2`          | no                                      | yes, for this process and all its batches  |
| `create_worker`             | V1; refused with overlap                | FrozenKVMTPWorkerV2, overlapped or not     |
| `_handle_frozen_kv_mtp`     | overlap off                             | as asked; what is not served is refused    |
| `get_draft_kv_pool`         | the assistant's dummy pool of 64 tokens | none                                       |
| `decide_needs_cpu_seq_lens` | what the attention backends need        | also where a tree is wider than one token; |
|                             |                                         | not for trtllm_mha, see mtp_v2_lengths.py  |
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gemma4_runtime.errors import NotServed
from gemma4_runtime.mtp_v2.gates import refuse_what_is_not_served
from gemma4_runtime.optimisations.mtp_v2_lengths import that_read_lengths
from gemma4_runtime.release import envs
from gemma4_runtime.settings import MTP_V2

logger = logging.getLogger(__name__)

_MAX_RUNNING = 48


def around_supports_spec_v2(original: Callable[[Any], bool], algorithm: Any) -> bool:
    """Run around `SpeculativeAlgorithm.supports_spec_v2`."""
    return algorithm.is_frozen_kv_mtp() or original(algorithm)


def around_create_worker(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    """Run around `SpeculativeAlgorithm.create_worker`."""
    if not algorithm.is_frozen_kv_mtp():
        return original(algorithm, server_args)
    # SGLang's scheduler, which this imports, is complete only when a worker is asked for.
    from gemma4_runtime.mtp_v2.worker import FrozenKVMTPWorkerV2

    return FrozenKVMTPWorkerV2


def handle_frozen_kv_mtp(server_args: Any) -> None:
    """Run in place of `_handle_frozen_kv_mtp`, as SGLang does for EAGLE: SGLANG_ENABLE_SPEC_V2=0 takes overlap away.

    Raises:
        NotServed: an argument that is not served.
    """
    refuse_what_is_not_served(server_args)
    if server_args.speculative_num_steps is None or server_args.speculative_eagle_topk is None:
        raise NotServed("mtp-v2 needs --speculative-num-steps and --speculative-eagle-topk, as MTP does without it")
    if server_args.speculative_num_steps < 1 or server_args.speculative_eagle_topk < 1:
        raise NotServed("mtp-v2 needs --speculative-num-steps and --speculative-eagle-topk of 1 and more")
    if server_args.speculative_eagle_topk > 1 and server_args.speculative_num_draft_tokens is None:
        raise NotServed("mtp-v2 needs --speculative-num-draft-tokens where --speculative-eagle-topk is above 1")
    if server_args.max_running_requests is None:
        server_args.max_running_requests = _MAX_RUNNING
        logger.warning("%s: max running requests is %d unless --max-running-requests says so.", MTP_V2, _MAX_RUNNING)
    if not envs.SGLANG_ENABLE_SPEC_V2.get():
        server_args.disable_overlap_schedule = True
    if server_args.enable_mixed_chunk:
        server_args.enable_mixed_chunk = False
        logger.warning("%s: mixed chunked prefill is off with MTP.", MTP_V2)
    nodes = server_args.speculative_num_steps + 1
    if server_args.speculative_eagle_topk == 1 and server_args.speculative_num_draft_tokens != nodes:
        server_args.speculative_num_draft_tokens = nodes
        logger.warning("%s: %d draft tokens, one more than there are steps, because topk is 1.", MTP_V2, nodes)
    # SGLang's loggers have no level yet, and its own words about overlap are warnings too.
    logger.warning(
        "%s: MTP under spec v2, overlap %s.", MTP_V2, "off" if server_args.disable_overlap_schedule else "on"
    )


def around_get_draft_kv_pool(original: Callable[..., Any], **arguments: Any) -> Any:
    """Run around `get_draft_kv_pool`, which SGLang calls with keywords: (pool, model config), or (None, None)."""
    return (None, None) if arguments["spec_algorithm"].is_frozen_kv_mtp() else original(**arguments)


def around_needs_cpu_seq_lens(original: Callable[..., bool], server_args: Any, attn_backends: Any) -> bool:
    """Run around `decide_needs_cpu_seq_lens`: the expansion to a wider tree sums lengths on the host.

    SGLang's forward-pass metrics list them. trtllm_mha, which is for trees of width one, is given a bound for what it
    would read of them.
    """
    frozen = server_args.speculative_algorithm == "FROZEN_KV_MTP"
    if not frozen:
        # The first that a server without MTP asks of this patch.
        logger.warning("mtp-v2: this server does not draft with a Gemma-4 assistant, so nothing changes.")
        return original(server_args, attn_backends)
    read = (server_args.speculative_eagle_topk or 1) > 1 or server_args.enable_forward_pass_metrics
    if read:
        return True
    # Piecewise graphs are of prefills, whose lengths the scheduler knows. SGLang takes them for a reason all the same,
    # and the host would wait in each step for the end of the verification ahead.
    graphs, server_args.disable_piecewise_cuda_graph = server_args.disable_piecewise_cuda_graph, True
    try:
        return original(server_args, list(that_read_lengths(attn_backends)))
    finally:
        server_args.disable_piecewise_cuda_graph = graphs
