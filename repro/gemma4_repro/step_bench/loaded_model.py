"""SGLang's own model runner without a scheduler, as sglang.bench_one_batch uses it: requests, and one step of them."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.bench_one_batch import load_model
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import PortArgs, ServerArgs, set_global_server_args_for_scheduler

from gemma4_repro.step_bench.in_force import fused_calls, only

# Past the toy tokenizer's special tokens, and within its vocabulary.
_TOKENS = range(64, 512)


class NotAsCaptured(RuntimeError):
    """A step did not replay the arm's graph."""


@dataclass
class Arm:
    """A set of ops as it is run.

    Attributes:
        ops: in force in it.
        graphs: SGLang's graph runner, whose graphs and buffers live as long as this does; None without CUDA, where a
            step runs eagerly.
        fused: how often each op ran as our kernel while graphs were captured.
    """

    name: str
    ops: tuple[str, ...]
    graphs: Any = None
    fused: dict[str, int] = field(default_factory=dict)

    def graph(self, batch: int) -> torch.cuda.CUDAGraph:
        return self.graphs.graphs[batch]


class LoadedModel:
    """One model in this process. SGLang captures its graphs while it is made, and `shipped` is the arm of those."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        server_args = ServerArgs(**arguments)
        set_global_server_args_for_scheduler(server_args)
        self._bench: Any = load_model(server_args, PortArgs.init_new(server_args), 0, 0)[0]
        self.runner: Any = self._bench.torch_runner
        self.shipped = Arm("shipped", (), self.runner.graph_runner)
        if self.runner.graph_runner is not None:
            # All arms' graphs read the same plan of the attention. A new runner would have new buffers made for it.
            self.runner.attn_backend.init_cuda_graph_state = lambda *sizes: None

    @property
    def model(self) -> torch.nn.Module:
        return self.runner.model

    def capture(self, name: str, ops: tuple[str, ...]) -> Arm:
        """Return an arm with these in force, of the ops that are attached; its graphs captured as a server does."""
        only(ops, self.model)
        before, graphs = fused_calls(), None
        if self.shipped.graphs is not None:
            self.runner.init_device_graphs()
            graphs = self.runner.graph_runner
        return Arm(name, ops, graphs, {op: calls - before.get(op, 0) for op, calls in fused_calls().items()})

    @torch.no_grad()
    def begin(self, requests: int, context: int) -> ScheduleBatch:
        """Requests that have read `context` tokens each, and are about to decode one."""
        self._bench.clear()
        draw = random.Random(0)
        prompts = [array("q", draw.choices(_TOKENS, k=context)) for _ in range(requests)]
        tokens, _, batch = self._bench.extend([_request(number, prompt) for number, prompt in enumerate(prompts)])
        batch.input_ids = tokens.to(torch.int64)
        batch.prepare_for_decode()
        return batch

    @torch.no_grad()
    def step(self, batch: ScheduleBatch, arm: Arm, attached: bool = True) -> torch.Tensor:
        """Return the logits of this arm's step, [requests, vocabulary] fp32.

        It writes the same KV at the same place each time, so it may be repeated. Before the plugin is attached,
        `attached` is False.

        Raises:
            NotAsCaptured: SGLang took another way than the arm's graph.
        """
        if attached and arm.graphs is None:
            only(arm.ops, self.model)
        self.runner.graph_runner = arm.graphs
        output = self.runner.forward(ForwardBatch.init_new(batch, self.runner))
        if arm.graphs is not None and not output.can_run_graph:
            raise NotAsCaptured(f"{arm.name}: SGLang did not replay the graph of this batch")
        # The graphs of all arms write into one buffer.
        return output.logits_output.next_token_logits.float().clone()


def _request(number: int, prompt: array[int]) -> Req:
    request = Req(
        rid=str(number),
        origin_input_text="",
        origin_input_ids=prompt,
        sampling_params=SamplingParams(temperature=0, max_new_tokens=2),
    )
    request.full_untruncated_fill_ids = request.origin_input_ids
    request.fill_len = len(prompt)
    request.logprob_start_len = -1
    request.set_extend_input_len(request.fill_len - len(request.prefix_indices))
    return request
