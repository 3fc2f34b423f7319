"""SGLang's own batches, requests and speculative states of an MTP server, without a model or a pool behind them."""

from array import array
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput, FrozenKVMTPVerifyInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

VOCABULARY, HIDDEN = 32, 8
# What SamplingBatchInfo reads of the server's arguments; for monkeypatch of server_args._global_server_args.
ARGUMENTS = SimpleNamespace(enable_deterministic_inference=False, enable_custom_logit_processor=False)


def request(rid: str, finished: bool = False, **sampling: Any) -> Req:
    params = SamplingParams(**({"temperature": 0, "max_new_tokens": 16} | sampling))
    params.normalize(None)
    made = Req(
        rid=rid, origin_input_text="", origin_input_ids=array("q", [2, 3]), sampling_params=params, eos_token_ids={1}
    )
    made.tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=1)
    made.output_ids.append(5)
    if finished:
        made.finished_reason = FINISH_LENGTH(1)
    return made


def batch(requests: list[Req], state: Any) -> ScheduleBatch:
    """Return a batch of requests with 3 tokens each, as a decode leaves it. Needs ARGUMENTS in force."""
    count = len(requests)
    made = ScheduleBatch(
        reqs=list(requests),
        req_pool_indices=torch.arange(count),
        req_pool_indices_cpu=torch.arange(count),
        seq_lens=torch.full((count,), 3),
        seq_lens_cpu=torch.full((count,), 3),
        orig_seq_lens=torch.full((count,), 3, dtype=torch.int32),
        input_ids=torch.full((count,), 5),
        model_config=SimpleNamespace(is_encoder_decoder=False, vocab_size=VOCABULARY),
        forward_mode=ForwardMode.DECODE,
        spec_algorithm=SpeculativeAlgorithm.FROZEN_KV_MTP,
        spec_info=state,
        device="cpu",
    )
    made.sampling_info = SamplingBatchInfo.from_schedule_batch(made, VOCABULARY)
    return made


def draft_input(*bonus: int) -> FrozenKVMTPDraftInput:
    """Return the draft's input as a seed step leaves it for as many requests; the empty one for none."""
    state = FrozenKVMTPDraftInput.create_idle_input(
        device="cpu", hidden_size=HIDDEN, dtype=torch.float32, topk=1, capture_hidden_mode=CaptureHiddenMode.LAST
    )
    if bonus:
        state.bonus_tokens = torch.tensor(bonus)
        state.hidden_states = torch.arange(len(bonus) * HIDDEN, dtype=torch.float32).view(-1, HIDDEN)
        state.topk_p, state.topk_index = torch.zeros(len(bonus), 1), torch.zeros(len(bonus), 1, dtype=torch.int64)
    return state


def verify_input() -> FrozenKVMTPVerifyInput:
    return FrozenKVMTPVerifyInput.__new__(FrozenKVMTPVerifyInput)
