"""Requests that are refused, and by whose fault: too long, a benchmark's client, a defect behind status 400."""

from gemma4_triage.finding import Confidence
from made_logs import decode, died, found_in, only, prefill, stamp, told

LONG = "The input (85050 tokens) is longer than the model's context length (32768 tokens)."
OF_A_SCRIPT = 'Traceback (most recent call last):\n  File "eval_long.py", line 88, in <module>\n    llm.generate(p)\n'
ANSWER = f'{stamp(4)} INFO:     127.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request\n'
ROPE = """'{"rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}}'"""
BENCH = "python3 -m sglang.bench_serving --backend sglang-oai --num-prompts 200 --port 30000\n"
NO_USAGE = (
    'Traceback (most recent call last):\n    output_len = data.get("usage", {}).get(\n'
    "AttributeError: 'NoneType' object has no attribute 'get'\n"
)


def test_a_prompt_that_is_too_long_is_no_process_that_died():
    for log in ([OF_A_SCRIPT, f"ValueError: {LONG}\n"], [f"Error: {LONG}\n"] * 2, [ANSWER, f"{LONG}\n"]):
        found = only(log)
        assert (found.rule, found.confidence) == ("refused-by-check", Confidence.LIKELY)
        assert "85050 tokens against 32768" in found.cause
        assert found.advice[0].startswith("shorter prompts")
        assert "died" not in told(found)


def test_a_scheduler_that_raises_it_has_died():
    dead = died(f"ValueError: {LONG}", ("managers/scheduler.py", "event_loop_normal", "step()"))
    assert any("ended a process" in one.cause or "died" in one.cause for one in found_in([prefill(1), dead]))


def test_a_prompt_that_is_too_long_for_vllm_is_told_with_its_arguments():
    words = "The decoder prompt (length 5000) is longer than the maximum model length of 4096."
    found = only(["vllm serve m\n", OF_A_SCRIPT, f"ValueError: {words}\n"])
    assert "--max-model-len" in found.advice[0]
    assert "truncate_prompt_tokens" in found.advice[0]
    assert "SGLANG" not in found.advice[0]


def test_a_server_that_serves_and_refuses_what_is_too_long_is_well():
    assert found_in([prefill(1), ANSWER, f"{LONG}\n", prefill(5), decode(6)]) == ()


def test_a_context_that_an_override_does_not_lengthen_is_named():
    start = f"python -m sglang.launch_server --model-path m --json-model-override-args {ROPE}\n"
    found = only([start, ANSWER, f"{LONG}\n"])
    assert found.advice[0].startswith("--context-length 131072 beside")
    told_so = start.replace("--model-path m", "--model-path m --context-length 32768")
    assert only([told_so, ANSWER, f"{LONG}\n"]).advice[0].startswith("shorter prompts")


def test_a_cut_that_was_asked_for_is_not_advised_again():
    engine = "# llm = sgl.Engine(model_path='m', allow_auto_truncate=True)\n"
    assert "cuts them instead" in told(only([OF_A_SCRIPT, f"ValueError: {LONG}\n"]))
    asked = told(only([engine, OF_A_SCRIPT, f"ValueError: {LONG}\n"]))
    assert "cuts them instead" not in asked
    assert "does not heed" in asked


def test_a_benchmarks_client_is_no_server():
    found = only([BENCH, NO_USAGE])
    assert found.cause.startswith("The client of the benchmark, and no server")
    assert "later release of the benchmark's client" in found.advice[0]
    assert "client of the benchmark" not in only([NO_USAGE]).cause
    ready = f"{stamp(1)} The server is fired up and ready to roll!\n"
    assert not any("client of the benchmark" in one.cause for one in found_in([ready, BENCH, prefill(2), NO_USAGE]))


def test_a_defect_behind_a_refusal_is_told_and_not_the_request():
    said = f"{stamp(4)} Exception: name 'normal_text' is not defined\n"
    start = "python -m sglang.launch_server --model-path m --tool-call-parser llama3\n"
    found = only([start, prefill(1), said, ANSWER])
    assert "the fault is not the request's" in found.cause
    assert "normal_text" in found.cause
    assert "llama3" in found.advice[0]
    assert "tool-call-parser" not in told(only([prefill(1), said, ANSWER]))
    other = said.replace("name 'normal_text' is not defined", "the schema is not one")
    assert not any("the fault is not" in one.cause for one in found_in([prefill(1), other, ANSWER]))


def test_scores_of_one_label_lead_to_the_endpoint_of_rerankers():
    log = [ANSWER.replace("/v1/chat/completions", "/v1/score"), "2 validation errors for ScoringResponse\n"]
    assert only(log).advice[0].startswith("/v1/rerank")
    other = only([log[0], "2 validation errors for EmbeddingResponse\n"])
    assert "/v1/embeddings" in other.advice[0]


POOL = f"{stamp(0)} max_total_num_tokens=59868, chunked_prefill_size=4096, context_len=163840\n"
NO_ROOM = f"{stamp(5, 'TP5')} Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).\n"
UNSET = died(
    "TypeError: '>' not supported between instances of 'NoneType' and 'int'",
    ("managers/scheduler.py", "run_scheduler_process", "if self.sampling_params.max_new_tokens > 0:"),
)


def test_a_refusal_for_want_of_room_leads_over_what_the_release_died_of_it():
    first, second = found_in([POOL, NO_ROOM, UNSET])[:2]
    assert first.rule == "refused-for-room"
    assert second.rule == "request-values"
    assert "lacks (max_new_tokens)" in second.cause
    assert "another entry than the HTTP server" not in told(second)


def test_without_a_refusal_the_way_in_is_still_suspected():
    assert "another entry than the HTTP server" in found_in([POOL, UNSET])[0].cause
