"""Ends that a note alone tells of, what stands right below an exception, and what few starts have beside most."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects

START = "$ python3 -m sglang.launch_server --model-path m --moe-runner-backend flashinfer_mxfp4\n"
CAPTURE = "[2025-11-05 11:44:09] Capture cuda graph begin. This can take up to several minutes\n"
READY = "[2026-07-01 10:00:35] The server is fired up and ready to roll!\n"


def found(text):
    return findings(read_log("log", [text.encode()]))


def tried(arguments, note="", of="answers"):
    log = read_log("log", [f"server_args=ServerArgs(model_path={arguments})\n{READY}{note}".encode()])
    return [one.id for one in suspects(log) if one.of == of]


@pytest.mark.parametrize(
    ("note", "rule", "step"),
    [
        ("# dies here with a CUDA illegal memory access", "illegal-access", "another --moe-runner-backend than"),
        ("# crashes on the first request", "other-crash", "once without --moe-runner-backend flashinfer_mxfp4"),
    ],
)
def test_a_note_by_which_the_server_dies_is_an_end(note, rule, step):
    first = found(f"{START}{CAPTURE}{note}\n")[0]
    assert first.rule == rule
    assert step in first.advice[0]


@pytest.mark.parametrize(
    "note", ["# it never crashes", "# with triton it dies", "# the client died", "# no crash here"]
)
def test_other_notes_are_no_end(note):
    assert found(f"{START}{CAPTURE}{note}\n") == ()


def test_a_backend_chosen_by_hand_is_the_first_suspect_of_a_traceback_without_frames():
    log = (
        "$ python -m sglang.launch_server --model-path gemma-4 --attention-backend flashinfer\n"
        "Bidirectional attention for image tokens requires TritonAttnBackend.\n"
        "Scheduler hit an exception: Traceback (most recent call last):\n# cut\n"
    )
    assert found(log)[0].advice[0].startswith("with --attention-backend triton")


def test_frames_right_below_an_exception_are_its():
    log = (
        "[TP1] Scheduler hit an exception:\nIndexError: list index out of range\n"
        '  File "/sgl/python/sglang/srt/managers/scheduler.py", line 1761, in move_ready_grammar_requests\n'
        "    self.grammar_queue[i].grammar.result()\n"
    )
    assert found(log)[0].rule == "known-issue"
    assert found(log.replace("move_ready_grammar_requests", "another"))[0].rule != "known-issue"


def test_the_pools_below_a_traceback_without_frames_are_read():
    log = (
        "[TP0] Scheduler hit an exception: Traceback (most recent call last):\npool memory leak detected!\n"
        "[full] total=13510080, available=13509568, evictable=8192, protected=0\n"
    )
    assert found(log)[0].rule == "pool-leak"


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        ("'x-NVFP4', tp_size=8, quantization='modelopt_fp4', moe_runner_backend='cutlass'", "experts-backend"),
        ("'x', quantization='awq', attention_backend='trtllm_mla', page_size=32", "pages-of-trtllm"),
        ("'Qwen/Qwen3-4B', pp_size=2, kv_cache_dtype='fp8_e4m3'", "pipeline"),
        ("'x', enable_lora=True, lora_paths=['a=/l/a'], disable_radix_cache=True", "adapters-merged"),
        ("'x', enable_lora=True, lora_paths=['a=/l/a', 'b=/l/b'], disable_radix_cache=True", "adapters-in-graphs"),
        (
            "'deepseek-ai/DeepSeek-V4', enable_dp_attention=True, kv_cache_dtype='fp8_e4m3'",
            "dp-attention-of-deepseek-v4",
        ),
    ],
)
def test_what_few_starts_have_is_suspected_first(arguments, first):
    assert tried(arguments)[0] == first


def test_notes_of_calls_suspect_their_parser_ahead_of_thoughts():
    start = "'x', tool_call_parser='kimi_k2', reasoning_parser='kimi_k2'"
    assert tried(start, "# tool_calls null, content empty\n", "form")[0] == "calls-as-text"
    assert tried(start, "# reasoning_content has the call, tool_calls null\n", "form")[0] == "thoughts-as-answers"


def test_scores_that_are_worse_alone_are_not_wrong_among_others():
    note = "# GSM8K one request at a time: 0.100; 32 at a time: 0.650\n# with --disable-cuda-graph: 0.575\n"
    assert tried("'x', enable_symm_mem=True", note)[:2] == ["noted-difference", "symmetric-memory"]


@pytest.mark.parametrize(
    ("line", "first", "of"),
    [
        ("E0616 client.cpp:380] Failed to start put operation: NO_AVAILABLE_HANDLE", "store-without-room", "speed"),
        ("Setup Custom allreduce failed with overlapping devices", "sums-through-nccl", "speed"),
        ("Error: Request is disconnected from the client side (type 3)", "clients-go-away", "silence"),
        ("INFO smg::server: Starting router on 0.0.0.0:8080", "parsers-of-a-router", "form"),
    ],
)
def test_lines_lead_to_their_suspect(line, first, of):
    assert tried("'x'", f"{line}\n", of)[0] == first
    assert first not in tried("'x'", "", of)


def test_answers_that_are_lost_on_the_way_back_are_no_standing_queue():
    start = "$ sglang serve --model-path m --max-running-requests 128 --tokenizer-worker-num 2\n"
    batch = "[2026-08-06 04:36:20] Decode batch, #running-req: 128, #queue-req: 96\n"
    later = '[2026-08-06 04:38:55] INFO:     10.2.0.7:53218 - "GET /health HTTP/1.1" 200 OK\n'
    note = "# the benchmark hangs; num_queue_reqs 0, new requests are answered, the old ones stay open for ever\n"
    first = found(start + batch + later + note)[0]
    assert (first.rule, first.advice[0].startswith("with --tokenizer-worker-num 1")) == ("noted-silence", True)
    assert found(start + batch + later)[0].rule == "queue-stands"


def test_a_kernel_of_flashinfer_that_is_called_with_other_arguments_is_of_another_release():
    name = "batch_prefill_with_kv_cache_dtype_q_f16_dtype_kv_f16_dtype_o_f16_dtype_idx_i32_head_dim_qk_64::plan()"
    frames = (
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/dist-packages/sglang/srt/managers/tp_worker.py", line 112, in forward\n'
    )
    first = found(f"{frames}RuntimeError: {name} expects 15 arguments, but got 14\n")[0]
    assert first.rule == "wheels-do-not-fit"
    assert "flashinfer" in first.advice[0]
