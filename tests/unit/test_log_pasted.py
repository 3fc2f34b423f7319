"""Answers and notes that people paste beside a log: what each shows, and what it leaves to suspect."""

import json
import re

import pytest

from gemma4_triage.known_issues.catalog import quiet_suspects
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import decode, prefill

SGLANG = "$ python3 -m sglang.launch_server --model-path m{}\n"
VLLM = "$ {}vllm serve Qwen/Qwen3-8B{}\n(APIServer pid=1) INFO:     Application startup complete.\n"
CHUNK = 'data: {{"id":"{}","object":"chat.completion.chunk","choices":[{{"index":0,"delta":{},"finish_reason":{}}}]}}\n'
ASKED = '$ curl -d \'{"response_format":{"type":"json_schema"}%s}\' localhost/v1/chat/completions\n'


def read(*lines):
    return read_log("log", ["".join(lines).encode()])


def first(*lines):
    """Return the id of the suspect that leads, of a log of which nothing else is known, and what it says."""
    facts = read(*lines)
    assert {finding.rule for finding in findings(facts)} <= {"noted-trouble"}
    lead = suspects(facts)[0]
    return lead.id, lead.text


def call(stream, index, name, call_id):
    function = {"name": name, "arguments": ""}
    called = {"tool_calls": [{"id": call_id, "index": index, "type": "function", "function": function}]}
    return CHUNK.format(stream, json.dumps(called, separators=(",", ":")), "null")


def end(stream, why):
    return CHUNK.format(stream, "{}", f'"{why}"')


def answered(text=None, **more):
    message = {} if text is None else {"text": text}
    return json.dumps({"id": "1", "choices": [{"index": 0, **message, **more, "finish_reason": "stop"}]}) + "\n"


def scored(*scores):
    return json.dumps({"id": "1", "results": [{"index": 0, "relevance_score": score} for score in scores]}) + "\n"


class TestStreams:
    def test_two_calls_of_one_index(self):
        calls = [call("a", 1, "get", "call_1"), call("a", 1, "get", "call_2"), end("a", "tool_calls")]
        assert first(SGLANG.format(""), *calls)[0] == "calls-of-one-index"

    @pytest.mark.parametrize(
        "calls",
        [
            [call("a", 0, "get", "call_1"), call("a", 1, "get", "call_2")],
            [call("a", 0, "get", "call_1"), call("b", 0, "get", "call_2")],
            [call("a", 0, "get", "call_1"), call("a", 0, "get", "call_1")],
        ],
    )
    def test_calls_that_are_counted(self, calls):
        assert first(SGLANG.format(""), *calls)[0] != "calls-of-one-index"

    def test_a_stop_behind_a_call(self):
        assert first(SGLANG.format(""), call("a", 0, "get", "call_1"), end("a", "stop"))[0] == "stop-behind-calls"
        for calls in ([call("a", 0, "get", "c"), end("a", "tool_calls")], [call("a", 0, "get", "c"), end("b", "stop")]):
            assert first(SGLANG.format(""), *calls)[0] != "stop-behind-calls"


class TestAnswers:
    def test_token_id_0_again_and_again(self):
        rocm = first(VLLM.format("VLLM_ROCM_USE_AITER=1 ", ""), answered(" Paris!!!!!!!"))
        assert rocm[0] == "zeros-on-rocm"
        assert rocm[1].startswith("with VLLM_ROCM_USE_AITER_MOE=0")
        assert first(VLLM.format("", ""), answered("x", token_ids=[5, 0, 0, 0, 0, 0]))[0] == "zeros"
        assert first(SGLANG.format(""), answered("!!!!!!!!!!"))[0] == "zeros"

    @pytest.mark.parametrize("said", [answered("Wow!!! Great."), answered("x", token_ids=[5, 0, 7, 0, 0])])
    def test_an_answer_of_words(self, said):
        assert first(VLLM.format("", ""), said)[0] != "zeros"

    def test_scores_that_are_all_alike(self):
        assert first(VLLM.format("", " --runner pooling"), scored(0.5, 0.5, 0.5))[0] == "scores-all-alike"
        assert first(VLLM.format("", ""), scored(0.5, 0.4))[0] != "scores-all-alike"
        assert first(VLLM.format("", ""), scored(0.5))[0] != "scores-all-alike"

    def test_text_in_place_of_json(self):
        asked, parser = ASKED % "", " --reasoning-parser qwen3"
        assert first(VLLM.format("", parser), asked, answered("\n\n```json{}"))[0] == "schema-and-thoughts"
        assert first(SGLANG.format(""), asked, answered("**Name:** Ann"))[0] == "answer-without-grammar"
        assert first(SGLANG.format(""), asked, answered('\n{"name": 1}'))[0] != "answer-without-grammar"
        assert first(SGLANG.format(""), answered("**Name:** Ann"))[0] != "answer-without-grammar"

    def test_a_schema_without_thoughts(self):
        asked = ASKED % ',"chat_template_kwargs":{"enable_thinking":false}'
        parser = " --reasoning-parser glm45"
        assert first(SGLANG.format(parser), asked, answered("**Name:**"))[0] == "schema-without-thoughts"
        assert first(SGLANG.format(""), asked, answered("{}"))[0] != "schema-without-thoughts"
        assert first(SGLANG.format(parser), ASKED % "", answered("{}"))[0] != "schema-without-thoughts"

    def test_no_word_of_an_answer_is_kept(self):
        facts = read(SGLANG.format(""), answered("a secret!!!!!!!"), answered("CUDA error: out of memory"))
        assert findings(facts) == ()
        assert "secret" not in str(facts.remarks)

    def test_a_command_with_an_answer_alone_is_understood(self):
        assert read(SGLANG.format(""), answered("Paris")).understood == {"answer": 1}


class TestSecondTries:
    @pytest.mark.parametrize(
        ("note", "words"),
        [
            ("# same command with --attention-backend triton", "with --attention-backend triton, as line 3"),
            ("# same request without --speculative-config", "without --speculative-config, as line 3"),
            ("# the same body without chat_template_kwargs", "without chat_template_kwargs, as line 3"),
            ("# the same folder under vllm 0.18 answers normally", "with a later release, whose class of this model"),
            ("# same image with org/Model-4B: text normal", "or the last one in which it was right"),
        ],
    )
    def test_what_differs_leads(self, note, words):
        told = first(SGLANG.format(""), prefill(1), f"{note}\n", decode(2))
        assert told[0] == "second-try"
        assert words in told[1]

    @pytest.mark.parametrize(
        "note",
        [
            "# same command with --attention-backend triton: still garbage",
            "# the same prompt to pod A, then pod B",
            "# with --attention-backend triton",
            "# the same folder under sglang 0.5 answers normally",
        ],
    )
    def test_what_tells_nothing_new(self, note):
        assert first(SGLANG.format(""), prefill(1), f"{note}\n", decode(2))[0] != "second-try"

    def test_another_checkpoint_of_a_model_on_several_ranks(self):
        told = first(SGLANG.format(" --tp 8"), prefill(1), "# run-35B-A3B.sh with the same image: text normal\n")
        assert "--tp 1" in told[1]

    def test_its_arguments_are_not_those_of_the_start(self):
        facts = read(VLLM.format("", ""), "# same request without --speculative-config\n")
        assert "speculative_config" not in facts.arguments

    def test_two_builds_of_which_one_is_slower(self):
        fast, slow = ([decode(at, rate=rate) for at in hours] for rate, hours in ((30, (1, 2)), (10, (3, 4))))
        lines = [SGLANG.format(""), "# build of 07-15\n", *fast, "# build of 07-26\n", *slow]
        lead = suspects(read(*lines))[0]
        assert (lead.id, lead.of) == ("between-builds", "speed")
        assert "30.0 tokens a second before and 10.0 after" in lead.why

    def test_one_build_that_is_named_twice(self):
        lines = [SGLANG.format(""), "# image lmsysorg/sglang:v0.5.8\n", decode(1), "# release 0.5.8\n", decode(2)]
        assert "between-builds" not in {one.id for one in suspects(read(*lines))}


class TestClients:
    @pytest.mark.parametrize(
        "said",
        [
            "# client (openai-python accumulator):\njson.decoder.JSONDecodeError: Extra data: line 1 column 18\n",
            "openai.APITimeoutError: Request timed out. (600 s)\n",
        ],
    )
    def test_an_exception_of_a_client_ends_no_process(self, said):
        assert findings(read(prefill(1), decode(2), said)) == ()

    def test_that_it_waited_leads(self):
        assert first(prefill(1), decode(2), "openai.APITimeoutError: Request timed out.\n")[0] == "client-gave-up"

    def test_the_same_exception_without_a_note(self):
        assert [one.rule for one in findings(read(prefill(1), "json.decoder.JSONDecodeError: Extra data: line 1\n"))]


class TestVllm:
    def test_has_suspects_of_its_own(self):
        ids = [one.id for one in suspects(read(VLLM.format("VLLM_ROCM_USE_AITER=1 ", " --kv-cache-dtype fp8")))]
        assert ids[:3] == ["vllm-kv-cache", "vllm-aiter", "vllm-reference"]

    def test_which_name_none_of_sglang_s_arguments(self):
        other = re.compile(r"--(?:disable-cuda-graph|disable-radix-cache|tp\b|speculative-algorithm|log-requests)")
        assert [
            said["id"] for said in quiet_suspects("vllm.toml") if other.search(f"{said['change']} {said['why']}")
        ] == []

    def test_an_image_of_vllm_is_a_command(self):
        line = (
            "docker run -e VLLM_ROCM_USE_AITER=1 vllm/vllm-openai-rocm:latest --model Qwen/Q --tensor-parallel-size 8\n"
        )
        facts = read(line)
        assert facts.settings["tp_size"] == "8"
        assert facts.arguments["VLLM_ROCM_USE_AITER"] == "1"
