"""Classes that the 39th and 40th sets of public incidents asked for: each once, and beside what it must leave alone."""

import pytest

from made_logs import SITE, SRT, TRACEBACK, death, decode, died, found_in, only, stamp, started, told

IPC = "expandable_segments"
FIRST_PREFILL = f"{stamp(1)} Prefill batch, #new-seq: 1, #new-token: {{}}, #cached-token: 0, full token usage: 0.10, "
FIRST_PREFILL += "swa token usage: 0.10, #running-req: {}, #queue-req: 0, \n"
NO_ROOM = "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 512 tokens.\n"
NO_ROOM += "Available tokens: 90 (available_size=90 + evictable_size=0)"
UNSET = "UnboundLocalError: local variable 'ret' referenced before assignment"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 5 has a total capacity of 95.08 GiB"
NESTED = "KeyError: 'language_model.language_model.layers.0.mlp.up_proj.weight_packed'"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
ASSERTED = "torch.AcceleratorError: CUDA error: device-side assert triggered"
KILLED = "./serve.sh: line 12: 21877 Killed                  python3 -m sglang.launch_server --model-path m\n"


def prefill(new, running=0):
    return FIRST_PREFILL.format(new, running)


def of_trtllm(*frames, last):
    rows = "".join(SITE.format(f"tensorrt_llm/{file}", function) for file, function in frames)
    return f"[07/30/2026-09:01:10] [TRT-LLM] [RANK 1] [E] Failed to initialize executor: x\n{TRACEBACK}{rows}{last}\n"


LEADS = {
    "memory of another process's GPU, as vLLM says it": (
        ["Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:455 'invalid argument'\n"],
        ("told-by-words", IPC),
    ),
    "the same, by the frame that asks for it": (
        [
            of_trtllm(
                ("_ipc_utils.py", "open_ipc_memory"),
                last="RuntimeError: CUDA Runtime API error: <cudaError_t.cudaErrorInvalidDevice: 101>",
            )
        ],
        ("told-by-words", IPC),
    ),
    "an error of CUDA without that frame": (
        [
            of_trtllm(
                ("engine.py", "forward"), last="RuntimeError: CUDA error: <cudaError_t.cudaErrorInvalidDevice: 101>"
            )
        ],
        ("other-crash", "CUDA_LAUNCH_BLOCKING=1"),
    ),
    "a check while memory is given up": (
        [
            started(enable_memory_saver=True),
            decode(1),
            died(
                "AssertionError: release_memory_occupation should be called only when server is idle.",
                ("managers/scheduler_update_weights_mixin.py", "release_memory_occupation", "assert ("),
            ),
        ],
        ("refused-by-check", "no request may run meanwhile"),
    ),
    "more is free than there is": (
        [
            decode(1),
            died(
                "AssertionError",
                (
                    "mem_cache/swa_memory_pool.py",
                    "free_swa",
                    "assert self.swa_attn_allocator.available_size() <= self.swa_attn_allocator.size",
                ),
            ),
        ],
        ("refused-by-check", "something was given back twice"),
    ),
    "requests that a rank hands on": (
        [
            died(
                "TypeError: object of type 'NoneType' has no len()",
                ("managers/scheduler.py", "event_loop_overlap", "recv()"),
                ("utils/common.py", "broadcast_pyobj", "if len(data) == 0:"),
            )
        ],
        ("other-crash", "--attn-cp-size 1"),
    ),
    "a batch without a token": ([prefill(0), death(2, UNSET)], ("other-crash", "empty prompt")),
    "a batch of cached ones alone": (
        [prefill(0).replace("#cached-token: 0", "#cached-token: 8192"), death(2, UNSET)],
        ("other-crash", "a chunk was put off for want of room"),
    ),
    "a batch with one": ([prefill(5), death(2, UNSET)], ("other-crash", "one at a time, until one of them")),
    "one prompt that fills the pool": ([prefill(512)] * 3 + [death(2, NO_ROOM)], ("no-slot", "bootstrap_host")),
    "several prompts that do": ([prefill(512, 4)] * 3 + [death(2, NO_ROOM)], ("no-slot", "--max-running-requests")),
    "killed by a shell's word as weights load": (
        [started(), f"{stamp(1)} Load weight begin. avail mem=112.40 GB\n", KILLED],
        ("killed-from-outside", "some loaders hold all of them"),
    ),
    "killed by it while serving": ([decode(1), KILLED], ("killed-from-outside", "dmesg -T")),
    "a name that was nested": (
        [died(NESTED, ("models/a.py", "load_weights", "p[n]"))],
        ("weight-names", "save it anew"),
    ),
    "experts in another form": (
        [died("KeyError: 'layers.0.mlp.experts.w2_weight'", ("models/gpt_oss.py", "load_weights", "p[n]"))],
        ("weight-names", "of gpt-oss MXFP4"),
    ),
    "sizes as many times apart as there are ranks": (
        [
            started(tp_size=4),
            died("AssertionError: shape (1152, 8) (expected 288)", ("models/a.py", "load_weights", "assert a == b, s")),
        ],
        ("weight-names", "once with --tp 1"),
    ),
    "a form that a grammar's backend has not": (
        [
            died(
                "ValueError: Invalid key_type: structural_tag",
                ("constrained/outlines_backend.py", "init_value_impl", "raise"),
            )
        ],
        ("grammar-request", "--grammar-backend xgrammar"),
    ),
    "weights that are held twice": (
        [died(OOM, ("models/a.py", "load_weights", "weights = dict(weights)"))],
        ("out-of-memory", "converts a layer at a time"),
    ),
    "weights that do not fit": (
        [died(OOM, ("models/a.py", "load_weights", "param.copy_(w)"))],
        ("out-of-memory", "a quantised checkpoint"),
    ),
    "a graph of prefills and the sums": (
        [
            started(tp_size=4),
            died(ILLEGAL, ("model_executor/piecewise_cuda_graph_runner.py", "replay", "run()")),
        ],
        ("illegal-access", "once with --disable-custom-all-reduce"),
    ),
    "adapters among the frames of an index": (
        [decode(1), died(ASSERTED, ("lora/triton_ops/fused_moe_lora_kernel.py", "add", "x.item()"))],
        ("index-outside-tensor", "another --lora-backend (triton)"),
    ),
    "vLLM itself, at an adapter": (
        [
            "(EngineCore_DP0 pid=60) ERROR 02-26 09:00:40 [core.py:946] EngineCore failed to start.\n"
            + "".join(
                f"(EngineCore_DP0 pid=60) ERROR 02-26 09:00:40 [core.py:946] {row}\n"
                for row in (
                    TRACEBACK.strip(),
                    '  File "/usr/lib/dist-packages/vllm/lora/fused_moe.py", line 1, in _inject_lora_into_fused_moe',
                    '  File "/usr/lib/dist-packages/vllm/layers/modular.py", line 40, in __init__',
                    "    assert not self.is_monolithic",
                    "AssertionError",
                )
            )
        ],
        ("other-crash", "once without adapters"),
    ),
    "a chat with a server of embeddings": (
        [
            started(is_embedding=True),
            f'{stamp(1)} INFO:     10.0.0.7:4 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'
            f"ERROR:    Exception in ASGI application\n{TRACEBACK}"
            + SRT.format("openai_api/adapter.py", "v1_chat_generate_request", "x = ret")
            + f"{UNSET}\n",
            f'{stamp(9)} INFO:     10.0.0.7:4 - "GET /health HTTP/1.1" 200 OK\n',
        ],
        ("refused-by-check", "start it without --is-embedding"),
    ),
}


@pytest.mark.parametrize("name", LEADS)
def test_what_leads(name):
    lines, (rule, words) = LEADS[name]
    first = found_in(lines)[0]
    assert first.rule == rule
    assert words in told(first)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("several prompts that do", "bootstrap_host"),
        ("killed by it while serving", "some loaders"),
        ("weights that do not fit", "a layer at a time"),
        ("an error of CUDA without that frame", IPC),
        ("a batch with one", "empty prompt"),
    ],
)
def test_what_is_left_alone(name, words):
    lines, _ = LEADS[name]
    assert words not in told(found_in(lines)[0])


def test_a_helper_is_of_the_part_that_asked_for_it():
    lines, _ = LEADS["requests that a rank hands on"]
    assert "the scheduler's own bookkeeping" in only(lines).cause


def test_a_helper_before_anything_runs_is_of_its_own():
    lines = [died("ValueError: this port is taken already", ("utils/common.py", "bind_port", "raise ValueError(x)"))]
    assert "what the server found around it" in only(lines).cause


def of_vllm(*frames, last):
    rows = "".join(SITE.format(f"vllm/{file}", function) for file, function in frames)
    head = "(EngineCore pid=6) ERROR 07-30 09:01:10 [core.py:9] EngineCore encountered an error.\n"
    return f"{head}{TRACEBACK}{rows}{last}\n"


BEFORE = "died before its first batch"
VLLM = {
    "drafts": ([("v1/engine/core.py", "step"), ("v1/sample/rejection_sampler.py", "forward")], "once without drafts"),
    "a draft of MTP": ([("model_executor/models/gemma4_mtp.py", "forward")], "once without drafts"),
    "cascade": ([("v1/attention/backends/flash_attn.py", "cascade_attention")], "--disable-cascade-attn"),
    "offloading": ([("v1/kv_connector/scheduler.py", "update_state_after_alloc")], "--kv-offloading-size"),
    "capture": ([("v1/worker/gpu_model_runner.py", "capture_model"), ("model.py", "forward")], "--max-num-seqs"),
}


@pytest.mark.parametrize("name", VLLM)
def test_the_part_of_vllm_is_told_by_its_frames(name):
    frames, words = VLLM[name]
    first = found_in([of_vllm(*frames, last="RuntimeError: these two are not alike")])[0]
    assert first.rule == "other-crash"
    assert words in told(first)
    assert BEFORE not in told(first)


def test_a_vllm_that_served_is_not_told_to_look_at_its_start():
    served = of_vllm(
        ("v1/engine/core.py", "run_busy_loop"), ("x.py", "f"), last="RuntimeError: these two are not alike"
    )
    started_up = of_vllm(("v1/engine/core.py", "__init__"), ("x.py", "f"), last="RuntimeError: these two are not alike")
    assert BEFORE not in told(found_in([served])[0])
    assert BEFORE in told(found_in([started_up])[0])


LAUNCH = "RuntimeError: Triton Error [HIP]:  Code: 9, Messsage: invalid configuration argument"


@pytest.mark.parametrize(
    ("rank", "rule", "words"),
    [("DP3 TP3", "idle-rank", "--enable-dp-attention"), ("TP3", "other-crash", "over no rows")],
)
def test_a_kernel_over_no_rows_did_compile(rank, rule, words):
    launch = SITE.format("triton/backends/amd/driver.py", "__call__") + LAUNCH
    first = found_in([started(), died(launch, ("models/utils.py", "fused_norm", "_kernel[grid](x)"), rank=rank)])[0]
    assert first.rule == rule
    assert words in told(first)


def test_a_mask_of_fewer_rows_is_no_refused_token():
    frame = ("sampling/sampling_batch_info.py", "update_regex_vocab_mask", "self.vocab_mask[i].fill_(1)")
    few = died("IndexError: index 2 is out of bounds for dimension 0 with size 2", frame)
    first = found_in([decode(1), few])[0]
    assert first.rule == "grammar-request"
    assert "differ in their number of rows" in first.cause


@pytest.mark.parametrize(("stages", "leads"), [(2, "known-issue"), (1, "refused-by-check")])
def test_stages_that_poll_early_need_stages(stages, leads):
    polls = ("disaggregation/prefill.py", "process_disagg_prefill_inflight_queue", "assert False, f'{poll=}'")
    first = found_in([started(pp_size=stages), died("AssertionError", polls)])[0]
    assert first.rule == leads
