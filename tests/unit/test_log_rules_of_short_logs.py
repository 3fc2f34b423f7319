"""What two or three lines of a log show, and which words of a failure lead to the option at fault."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import decode, prefill, stamp

HIT = "Scheduler hit an exception: Traceback (most recent call last):\n"
COMMAND = "$ python3 -m sglang.launch_server --model-path {} {}\n"
VLLM = "$ vllm serve m {}\n"


def facts_of(*lines: str):
    return read_log("server.log", ["".join(lines).encode()])


def first(*lines: str):
    return findings(facts_of(*lines))[0]


def started(given: str = "", model: str = "m") -> str:
    return COMMAND.format(model, given)


def shown(*lines: str):
    return {one.id for one in suspects(facts_of(*lines))}


def raised(last: str, frame: str, statement: str = "call()") -> str:
    path, name = frame.split()
    return f'{stamp(9)} {HIT}  File "/s/python/sglang/srt/{path}", line 12, in {name}\n    {statement}\n{last}\n\n'


def answered(status: int, path: str) -> str:
    return f'{stamp(3)} INFO:     127.0.0.1:5 - "POST {path} HTTP/1.1" {status} Error\n'


class TestLinesOfBatches:
    def test_two_lines_of_drafts_that_are_never_accepted_are_enough(self):
        finding = first(started("--speculative-algorithm EAGLE3"), *(decode(at, accept=1.0) for at in (1, 2)))
        assert (finding.rule, finding.confidence.value) == ("drafts-never-accepted", "possible")
        assert finding.advice[0].startswith("the draft's config.json")
        assert any(one.startswith("answers are wrong too") for one in finding.ruled_out_if)

    @pytest.mark.parametrize("lengths", [(1.0,), (1.09, 1.08), (1.0, 2.4)], ids=["one-line", "some", "later"])
    def test_fewer_or_other_ones_are_not(self, lengths):
        lines = (decode(at, accept=length) for at, length in enumerate(lengths))
        assert findings(facts_of(started("--speculative-algorithm EAGLE3"), *lines)) == ()

    def test_a_draft_of_a_quantised_target_may_be_read_as_it(self):
        given = "--quantization modelslim --speculative-algorithm NEXTN"
        finding = first(started(given), *(decode(at, accept=1.02) for at in (1, 2)))
        assert finding.advice[0].startswith("--speculative-draft-model-quantization")

    CAPTURED = f"{stamp(0)} Capture cuda graph bs [1, 2, 4, 8]\n"
    EAGER = tuple(decode(at, running=20, rate=2000, graph=False) for at in (3, 4))

    def test_batches_above_the_sizes_that_were_captured_need_two_lines(self):
        within = decode(1, running=8, rate=4000)
        assert first(self.CAPTURED, within, *self.EAGER).rule == "eager-decode"
        assert findings(facts_of(within, *self.EAGER)) == ()

    def test_a_full_pool_beside_a_queue_is_what_is_waited_for(self):
        full = decode(1, full=0.99, queued=9)
        assert "full-pool-and-queue" in shown(started(), full)
        assert "preemption-without-room" in shown(started("--enable-priority-scheduling"), full)
        assert not {"full-pool-and-queue", "preemption-without-room"} & shown(started(), decode(1, full=0.5, queued=9))


@pytest.mark.parametrize(
    ("given", "model", "line", "suspect"),
    [
        ("--is-embedding", "m", prefill(1, queued=3), "embeddings-admitted-once"),
        ("--tokenizer-worker-num 8", "m", "tokenizer_worker_num is set to 1 because x\n", "one-tokenizer-process"),
        ("--speculative-algorithm EAGLE --enable-custom-logit-processor", "m", "", "drafts-and-own-logit-processors"),
        ("--lora-paths a b --max-lora-rank 64", "Qwen3-30B-A3B", "", "adapters-of-several-ranks"),
    ],
)  # fmt: skip
def test_what_a_start_is_known_for(given, model, line, suspect):
    assert suspect in shown(started(given, model), line, decode(2))
    assert suspect not in shown(started("", model), line, decode(2))


def test_a_variable_of_a_start_is_known_for_short_drafts():
    variable = "export SGLANG_ENABLE_OVERLAP_PLAN_STREAM={}\n"
    given = started("--speculative-algorithm NEXTN")
    assert "plan-stream" in shown(variable.format(1), given, decode(1))
    assert "plan-stream" not in shown(variable.format(0), given, decode(1))


class TestRequestsThatFail:
    FORM = "pydantic_core._pydantic_core.ValidationError: 1 validation error for RerankResponse\n"

    def test_a_body_of_another_form_is_refused(self):
        finding = first(started(), answered(422, "/v1/messages"))
        assert (finding.rule, "detail names the field" in finding.advice[0]) == ("refused-by-check", True)
        # Beside work it is a client's own.
        assert findings(facts_of(started(), answered(422, "/v1/messages"), decode(9))) == ()

    def test_a_probe_of_a_path_that_is_none_is_named(self):
        lost = answered(404, "/health_generate").replace("POST", "GET")
        finding = first(started(), lost)
        assert finding.rule == "refused-by-check"
        assert "set the path of readiness" in finding.advice[0]
        # Who asks so while others are served is a stranger, such as a proxy with paths of its own.
        assert findings(facts_of(started(), lost, decode(9))) == ()

    def test_an_answer_of_another_form_is_why_it_was_500(self):
        assert "the answer that the server built" in first(prefill(1), answered(500, "/v1/rerank"), self.FORM).cause

    def test_an_answer_500_without_an_exception_may_hide_a_refusal(self):
        assert "may hide a refusal" in first(started(), answered(500, "/v1/messages")).advice[0]
        assert "may hide a refusal" not in first(started(), answered(500, "/v1/chat/completions")).advice[0]

    STREAM = (
        "(APIServer pid=1) ERROR 03-23 22:54:20 [serving.py] Error in chat completion stream generator.\n"
        "(APIServer pid=1) Traceback (most recent call last):\n"
        '(APIServer pid=1)   File "vllm/entrypoints/openai/serving.py", in chat_completion_stream_generator\n'
        "(APIServer pid=1)     {}\n"
        "(APIServer pid=1) IndexError: list index out of range\n"
    )

    def test_a_stream_that_fails_ends_no_process(self):
        finding = first(
            VLLM.format("--enable-auto-tool-choice"), self.STREAM.format("parser.prev_tool_call_arr[index]")
        )
        assert (finding.cause.startswith("A request failed"), "max_tokens" in finding.advice[0]) == (True, True)
        assert "max_tokens" not in first(VLLM.format(""), self.STREAM.format("choices[index]")).advice[0]

    def test_the_backend_of_structured_output_is_at_fault_where_it_raises(self):
        lines = (
            "(APIServer pid=1) Traceback (most recent call last):\n",
            '(APIServer pid=1)   File "vllm/v1/structured_output/backend_guidance.py", in serialize\n',
            "(APIServer pid=1) KeyError: 'triggers'\n",
            '(APIServer pid=1) INFO:     10.1.0.2:4 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n',
        )
        (finding,) = findings(facts_of(VLLM.format(""), *lines))
        assert finding.cause.startswith("Unknown cause: requests failed")
        assert "structured-outputs-config.backend" in finding.advice[0]
        # Where nothing follows, the exception is told by itself.
        begin = "(APIServer pid=1) ERROR 09-03 12:31:07 [serving.py] Error in preprocessing prompt inputs\n"
        (finding,) = findings(facts_of(VLLM.format(""), begin, *lines))
        assert finding.cause.startswith("A request failed")
        assert "structured-outputs-config.backend" in finding.advice[0]


class TestWordsAndFrames:
    COUNTED = (
        "(EngineCore_0 pid=2) ERROR 08-21 10:12:30 [core.py:634] Traceback (most recent call last):\n"
        '(EngineCore_0 pid=2) ERROR 08-21 10:12:30 [core.py:634]   File "vllm/v1/core/sched/a.py", line 5, in go\n'
        "(EngineCore_0 pid=2) ERROR 08-21 10:12:30 [core.py:634] AssertionError: scheduled_new_reqs: 0 + "
        "scheduled_resumed_reqs: 0 + scheduled_running_reqs: 2 > running: 1\n"
    )

    def test_a_request_that_is_planned_and_preempted_is_counted_twice(self):
        assert first(VLLM.format("--scheduling-policy priority"), self.COUNTED).advice[0].startswith("without --sched")

    OF_A_HOST = (
        'Traceback (most recent call last):\n  File "/work/trainer/{}", line 4, in extend\n    x = f(y)\n'
        '  File "/v/lib/python3.12/site-packages/sglang/srt/{}", line 9, in init_new\n    device=pool.device,\n'
        "AttributeError: 'NoneType' object has no attribute 'device'\n"
    )

    def test_a_program_that_calls_inner_parts_has_to_fit_the_release(self):
        finding = first(self.OF_A_HOST.format("dflash_target_model.py", "managers/schedule_batch.py"))
        assert finding.advice[0].startswith("dflash_target_model.py is another program's")
        assert "the target was loaded" not in " ".join(finding.advice)
        offered = first(self.OF_A_HOST.format("serve.py", "entrypoints/engine.py"))
        assert "another program's" not in " ".join(offered.advice)

    def test_letters_in_place_of_names_are_a_string_where_a_list_is_meant(self):
        start = f"{stamp(1)} server_args=ServerArgs(model_path='m', enable_lora=True, lora_target_modules={{}})\n"
        died = raised("AssertionError", "server_args.py check_lora_server_args", "assert x")
        assert "letters of all" in first(start.format("['a', 'l', 'l']"), died).advice[0]
        assert "letters of" not in " ".join(first(start.format("['q_proj', 'k_proj']"), died).advice)

    @pytest.mark.parametrize(
        ("given", "model", "lines", "look"),
        [
            (
                "--enable-lora --speculative-algorithm EAGLE3",
                "m",
                raised("Exception: Capture cuda graph failed", "lora/lora_manager.py prepare_lora_batch"),
                "without --speculative-algorithm, or without adapters",
            ),
            (
                "--grammar-backend llguidance",
                "m",
                raised(
                    'ValueError: LLMatcher error: token "<think>" doesn\'t satisfy the grammar',
                    "managers/scheduler.py process_batch_result_decode",
                ),
                "thinking off for requests",
            ),
            (
                "--speculative-algorithm EAGLE",
                "m",
                f"{stamp(1)} Capture prefill cuda graph end. Time elapsed: 4.2 s.\n"
                + raised(
                    "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling x\n"
                    "Exception: Capture cuda graph failed",
                    "model_executor/model_runner.py forward",
                ),
                "once without the graph of prefills",
            ),
            (
                "--speculative-algorithm EAGLE3",
                "Qwen3-VL-30B",
                "/a/IndexKernelUtils.cu:19: vectorized_gather_kernel: block: [1,0,0] Assertion `ind >=0 && ind < "
                'ind_dim_size && "vectorized gather kernel index out of bounds"` failed.\n'
                + raised("RuntimeError: CUDA error: device-side assert triggered", "models/m.py forward"),
                "once with --disable-prefill-cuda-graph",
            ),
        ],
        ids=["adapters-and-drafts", "thoughts-and-grammar", "behind-a-graph", "ids-of-images"],
    )
    def test_what_is_on_and_what_is_said_lead_to_the_step(self, given, model, lines, look):
        assert any(one.startswith(look) for one in first(started(given, model), lines).advice[:2])
        plain = lines.replace("<think>", "no").replace("Capture prefill cuda graph end", "ended")
        assert not any(one.startswith(look) for one in first(started("", "m"), plain).advice)
