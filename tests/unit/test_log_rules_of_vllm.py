"""A log of vLLM is told by vLLM's own arguments, and what its graphs, drafts and pool do has advice of its own."""

import pytest

from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from gemma4_triage.logs.told_for_vllm import in_vllm, of_vllm
from made_logs import death, decode, found_in, only, told

SERVE = "$ vllm serve google/gemma-4-26B-A4B-it --max-model-len 65536 {}\n"
DRAFTS = """--speculative-config '{"method":"dflash","num_speculative_tokens":15}'"""
ENGINE = "(EngineCore pid=214) ERROR 06-21 15:11:47 [core.py:1138] "
FELL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


def fell(last, *frames):
    lines = ["EngineCore encountered a fatal error.", "Traceback (most recent call last):"]
    for file, function in frames:
        lines += [f'  File "/usr/lib/python3/dist-packages/vllm/v1/{file}", line 9, in {function}', "    f(x)"]
    return [f"{ENGINE}{line}\n" for line in (*lines, last)]


def facts_of(*lines):
    return read_log("server.log", ["".join(lines).encode()])


def test_a_kernel_that_left_its_buffer_is_told_without_arguments_of_sglang():
    sizes = "(EngineCore pid=214) INFO [vllm.py:902] Cudagraph mode PIECEWISE, capture sizes [1, 2, 4, 8, 16, 24]\n"
    finding = only([SERVE.format(DRAFTS), sizes, *fell(FELL, ("worker/gpu_model_runner.py", "sample_tokens"))])
    assert finding.advice[0].startswith("once without --speculative-config")
    assert "multiples of 16" in finding.advice[0]
    assert "line 2 has 1, 2, 4, 8" in finding.advice[0]
    assert "--disable-cuda-graph" not in told(finding)
    assert not finding.next_commands


def test_a_kernel_that_fell_in_a_capture_asks_for_another_mode_of_graphs():
    frames = (("worker/gpu_model_runner.py", "_capture_cudagraphs"), ("attention/backends/mla/indexer.py", "build"))
    finding = only([SERVE.format(""), *fell(FELL, *frames)])
    assert "FULL_DECODE_ONLY" in finding.advice[0]
    eager = only([SERVE.format("--enforce-eager"), *fell(FELL, *frames)])
    assert "FULL_DECODE_ONLY" not in eager.advice[0]


def test_a_workspace_of_decode_is_not_one_of_prefills():
    said = (
        "RuntimeError: Error in function 'aligned_alloc' at allocator.h:49: Buffer overflow when allocating memory for "
    )
    said += "batch_prefill_tmp_v with size 536346624 and alignment 16, but only 413138944 bytes available in "
    said += "AlignedAllocator. Increase the workspace buffer size."
    finding = only([SERVE.format(""), *fell(said, ("attention/backends/flashinfer.py", "fast_plan_decode"))])
    assert "536346624 bytes and has 413138944" in finding.cause
    assert "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE" in finding.advice[0]
    assert "SGLANG" not in told(finding)


def test_blocks_that_were_counted_as_free():
    said = "ValueError: Cannot get 3 free blocks from the pool"
    finding = only([SERVE.format(""), *fell(said, ("core/sched/scheduler.py", "schedule"))])
    assert (finding.rule, finding.confidence) == ("told-by-words", "likely")
    assert "a later release of vLLM" in told(finding)


LOAD = "(APIServer pid=1) INFO 04-15 12:{:02}:30 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
LOAD += (
    "generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: {} reqs, GPU KV cache usage: 0.0%, Prefix cache "
)
LOAD += "hit rate: 0.0%\n"


def test_a_request_that_is_never_let_in_is_told_where_clients_give_up():
    pool = "(EngineCore pid=1) INFO 04-15 12:03:22 [kv_cache_utils.py:1319] GPU KV cache size: 48,256 tokens\n"
    stands = [LOAD.format(minute, 2) for minute in (9, 11, 16)]
    lines = [SERVE.format(""), pool, *stands, "client: POST /v1/chat/completions -> timeout after 600 s\n"]
    finding = only(lines)
    assert finding.rule == "queue-stands"
    assert "(48256 tokens, and --max-model-len is 65536)" in finding.advice[0]


def test_drafts_and_the_prefix_cache_are_suspected_on_models_with_states():
    states = "(EngineCore pid=190) INFO 09-17 08:20:14 [config.py:412] Mamba cache mode is set to 'align'\n"
    load = LOAD.format(4, 0).replace("Running: 0", "Running: 1")
    found = suspects(facts_of(SERVE.format(DRAFTS), states, load))
    assert {"drafts-and-states-of-vllm", "drafts-and-hits-of-vllm"} <= {one.id for one in found}
    assert found[0].id == "drafts-and-hits-of-vllm"
    hits = load.replace("hit rate: 0.0%", "hit rate: 71.4%")
    assert "drafts-and-hits-of-vllm" not in {one.id for one in suspects(facts_of(SERVE.format(DRAFTS), states, hits))}
    assert "drafts-and-states-of-vllm" not in {one.id for one in suspects(facts_of(SERVE.format(""), states, hits))}


def test_suspects_of_another_engine_are_left_out():
    found = suspects(facts_of("$ vllm serve google/gemma-3-1b-it --max-num-seqs 256\n", LOAD.format(4, 0)))
    assert not any("SGLang" in one.change or "--log-requests-level" in one.change for one in found)


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("lower --mem-fraction-static by 0.05", "lower --gpu-memory-utilization by 0.05"),
        ("a smaller --max-running-requests", "a smaller --max-num-seqs"),
        ("once with --disable-radix-cache", "once with --no-enable-prefix-caching"),
        ("more GPUs (--tp)", "more GPUs (--tensor-parallel-size)"),
        ("vLLM: --enforce-eager; SGLang: --disable-cuda-graph", "vLLM: --enforce-eager; SGLang: --disable-cuda-graph"),
    ],
)
def test_arguments_of_one_engine_in_the_other(said, instead):
    assert in_vllm(said) == instead


def test_a_log_of_sglang_keeps_its_own_arguments():
    lines = [decode(1), death(2, "RuntimeError: CUDA error: an illegal memory access was encountered")]
    assert not of_vllm(facts_of(*lines))
    assert any("--disable-cuda-graph" in one for one in found_in(lines)[0].advice)
    # Somebody who tried both engines has a log of SGLang all the same.
    assert not of_vllm(facts_of("$ vllm serve m\n", *lines))


PRINTED = "INFO 06-14 07:11:02 [utils.py:233] non-default args: {{'model': 'own/model', {}}}\n"
GARBAGE = "# every answer is garbage\n"


def test_arguments_that_vllm_prints_are_read_as_those_of_a_command():
    facts = facts_of(
        PRINTED.format("'tensor_parallel_size': 8, 'enable_expert_parallel': True, 'kv_cache_dtype': 'fp8'")
    )
    assert facts.arguments["tp_size"] == "8"
    assert facts.arguments["kv_cache_dtype"] == "fp8"
    assert of_vllm(facts)
    nested = facts_of(
        PRINTED.format("'attention_config': {'backend': 'ROCM_ATTN', 'flash_attn_version': 2}, 'seed': 1")
    )
    assert nested.arguments["attention_backend"] == "ROCM_ATTN"
    assert nested.arguments["seed"] == "1"


def test_a_kv_cache_that_is_right_by_a_note_comes_first():
    printed = PRINTED.format("'kv_cache_dtype': 'fp8'")
    note = "# GSM8K 0.0099 and heavily corrupted text; with the default KV cache 0.9666\n"
    assert only([note, printed]).advice[0].startswith("with --kv-cache-dtype auto, with which all is well")
    assert any(one.startswith("with --kv-cache-dtype auto") for one in only([GARBAGE, printed]).advice)


def test_a_backend_by_its_words_alone_that_is_right_comes_first():
    note = "# With the Triton attention backend the same model speaks normally.\n"
    found = only([GARBAGE, note, PRINTED.format("'seed': 1")])
    assert found.advice[0].startswith("with --attention-backend TRITON_ATTN, with which all is well")
