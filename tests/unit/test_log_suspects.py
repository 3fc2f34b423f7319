"""What a log names that was switched on and may be at fault where it shows no failure, and when it names nothing."""

import json
import re
from collections import Counter
from string import Formatter

import pytest

from gemma4_triage.known_issues.catalog import quiet_suspects
from gemma4_triage.logs import other_platform, pasted, remarks, said_in_notes, values_asked
from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.notes_in_prose import NOTED
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.rules.refused_by_check import refused
from gemma4_triage.logs.started import _PARSERS
from gemma4_triage.logs.suspects import MOST_SHOWN, PARTS, of_files, suspects
from gemma4_triage.logs.trouble_in_words import KINDS
from made_logs import decode, prefill, started

GEMMA = "model_path='google/gemma-4-E4B-it', tool_call_parser='gemma4', reasoning_parser='gemma4'"


OF_ONE_ARGUMENT = {
    *("dispatch-of-mori", "memory-saver", "ngrams-and-prefixes", "expert-parallelism", "mixed-chunk", "no-graphs"),
    *("adapters-in-graphs", "two-batch-overlap", "torch-compile"),
}
"""Suspects that are data too, and each of a switch."""


def facts_of(arguments: str, *lines: str):
    start = f"[2026-11-24 03:00:00] server_args=ServerArgs({arguments})\n"
    served = "".join(f"{line}\n" for line in (*lines, decode(0), decode(1)))
    return read_log("log", [(start + served).encode()])


def found(arguments: str, *lines: str, of_records: bool = False) -> list[str]:
    """Return the ids of the parts in suspects.py that are on, or of those that are data."""
    facts = facts_of(arguments, *lines)
    assert findings(facts) == ()
    parts = {part.id for part in PARTS} | OF_ONE_ARGUMENT
    return [suspect.id for suspect in suspects(facts) if (suspect.id in parts) is not of_records]


def test_shared_experts_that_are_fused_are_suspected():
    assert "shared-experts-enforced" in found(f"{GEMMA}, enforce_shared_experts_fusion=True", of_records=True)
    assert "shared-experts-enforced" not in found(f"{GEMMA}, enforce_shared_experts_fusion=False", of_records=True)


def test_a_plain_server_of_gemma_4_has_none():
    assert found(GEMMA) == []


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (f"{GEMMA}, kv_cache_dtype='fp8_e4m3'", ["fp8-kv-cache"]),
        (f"{GEMMA}, kv_cache_dtype='auto'", []),
        (f"{GEMMA}, dtype='float16'", ["float16"]),
        (f"{GEMMA}, dtype='bfloat16'", []),
        (f"{GEMMA}, enable_mixed_chunk=True", ["mixed-chunk"]),
        (f"{GEMMA}, enable_hierarchical_cache=True", ["hierarchical-cache"]),
        (f"{GEMMA}, speculative_algorithm='FROZEN_KV_MTP'", ["drafts", "streamed-tool-calls"]),
        ("model_path='Qwen/Qwen3.5-35B', enable_mixed_chunk=True", ["mixed-chunk-of-states"]),
        ("model_path='Qwen/Qwen3.5-35B', enable_mixed_chunk=True, disable_radix_cache=True", ["mixed-chunk"]),
        ("model_path='google/gemma-3n-E4B-it'", ["gemma3n-shared-layers"]),
        ("model_path='openai/gpt-oss-120b', enable_dp_attention=True", ["dp-attention-of-gpt-oss"]),
        ("model_path='deepseek-ai/DeepSeek-V4-Flash', enable_dp_attention=True", ["dp-attention-of-deepseek-v4"]),
        ("model_path='x/Gemma-4-26B-A4B-it-NVFP4', attention_backend='trtllm_mha'", ["trtllm-attention-of-gemma-4"]),
        ("model_path='x/Gemma-4-26B-A4B-it-NVFP4', attention_backend='triton'", []),
        ("model_path='/models/own', attention_backend='flashinfer'", ["attention-backend"]),
        (f"{GEMMA}, disable_radix_cache=True", ["windows-without-prefix-cache"]),
        (f"{GEMMA}, enable_memory_saver=True", ["memory-saver"]),
        (f"{GEMMA}, enable_lora=True", ["adapters-in-graphs"]),
        (f"{GEMMA}, enable_two_batch_overlap=True", ["two-batch-overlap"]),
        (f"{GEMMA}, quantization='awq_marlin'", ["quantisation"]),
        ("model_path='/models/own', moe_a2a_backend='mori'", ["dispatch-of-mori"]),
        ("model_path='google/gemma-4-E4B-it', tool_call_parser=None", ["no-tool-call-parser"]),
        ("model_path='google/gemma-4-E4B-it', tool_call_parser='qwen25'", ["other-tool-call-parser"]),
        ("model_path='google/gemma-4-E4B-it', reasoning_parser='qwen3'", ["other-reasoning-parser"]),
        ("model_path='google/gemma-4-E4B-it', tool_call_parser='auto'", []),
        # The log has an older form of the start line, without the argument: nothing is known.
        ("model_path='google/gemma-4-E4B-it'", []),
        ("model_path='Qwen/Qwen2.5-7B-Instruct', tool_call_parser='qwen'", []),
        ("model_path='/models/own', tool_call_parser=None, reasoning_parser=None", []),
    ],
)  # fmt: skip
def test_what_the_start_line_has_switched_on(arguments, ids):
    assert found(arguments) == ids


def test_what_is_known_of_a_model_stands_for_the_same_switch_of_all_models():
    facts = facts_of("model_path='openai/gpt-oss-120b', enable_dp_attention=True")
    assert suspects(facts)[0].change == "without --enable-dp-attention"
    assert [suspect.change for suspect in suspects(facts)].count("without --enable-dp-attention") == 1


def test_keys_and_values_without_scales_are_said_so():
    line = "[2026-11-24 03:00:00] Using FP8 KV cache but no scaling factors provided."
    suspect = suspects(facts_of(f"{GEMMA}, kv_cache_dtype='fp8_e4m3'", line))[0]
    assert suspect.why.startswith("fp8_e4m3 keys and values without scales lose range")


def test_only_the_first_few_are_shown():
    switches = "enable_mixed_chunk=True, enable_hierarchical_cache=True, enable_torch_compile=True, dtype='float16'"
    more = "speculative_algorithm='EAGLE', enable_dp_attention=True, kv_cache_dtype='fp8_e5m2'"
    kinds = Counter(suspect.of for suspect in suspects(facts_of(f"{GEMMA}, {switches}, {more}")))
    assert kinds == MOST_SHOWN


def test_of_a_start_that_never_came_to_its_end_nobody_has_seen_answers():
    facts = read_log("log", [f"[2026-11-24 03:00:00] server_args=ServerArgs({GEMMA}, dtype='float16')\n".encode()])
    assert [suspect.id for suspect in suspects(facts)] == ["float16"]


def test_no_other_backend_is_advised_where_the_platform_has_but_one():
    assert found("model_path='/models/own', device='npu', attention_backend='ascend'") == []


def prompts(count: int, cached: int) -> list[str]:
    return [prefill(second, new=100, cached=cached) for second in range(count)]


@pytest.mark.parametrize(
    ("arguments", "lines", "first"),
    [
        ("model_path='meta-llama/Llama-4-Scout', page_size=4", [], "pages-of-local-attention"),
        ("model_path='meta-llama/Llama-4-Scout', page_size=1", [], "reference"),
        ("model_path='/models/own', enable_deterministic_inference=True", [], "never-the-same"),
        ("model_path='/models/own', load_format='dummy'", [], "random-weights"),
        ("model_path='/models/own', disaggregation_mode='decode'", [], "kv-of-another-server"),
        ("model_path='/models/own', disaggregation_mode='null'", [], "reference"),
        ("model_path='/models/own', lora_paths='[]', enable_lora=False", [], "adapters-merged"),
        ("model_path='/models/own', json_model_override_args='{}'", [], "reference"),
        ("model_path='/models/own', json_model_override_args='{x}'", [], "longer-positions"),
        ("model_path='/models/own', attention_backend='fa3', tp_size=2, disable_custom_all_reduce=True", [],
         "usual-attention-backend"),
        ("model_path='/models/own', tp_size=2, disable_custom_all_reduce=False", [], "own-sums"),
        ("model_path='/models/own'", [decode(2, running=600)], "detokenizer"),
        ("model_path='/models/own', hicache_storage_backend='file'", prompts(5, 0), "storage-never-read"),
        (
            "model_path='/models/own', hicache_storage_backend='file', hicache_write_policy='write_back'",
            prompts(5, 0),
            "storage-without-heads",
        ),
        ("model_path='/models/own', hicache_storage_backend='file'", prompts(5, 90), "pages-of-other-weights"),
        (
            "model_path='/models/own', kv_cache_dtype='fp8_e5m2', attention_backend='fa3'",
            ["FlashAttention3 only supports fp8_e4m3 if using FP8; Setting attention backend to triton."],
            "attention-backend-replaced",
        ),
        ("model_path='/models/own'", [prefill(second, new=8192, queued=40) for second in range(9)],
         "prompts-wait-for-prefill"),
        ("model_path='/models/own'", ["UserWarning: Using a slow tokenizer. This might cause"], "slow-tokenizer"),
        ("model_path='/models/own'", ["[2026-11-24 03:00:00] Cache flushed successfully!"], "weights-updated"),
    ],
)  # fmt: skip
def test_what_is_data_is_shown_where_all_of_it_holds_and_signs_of_the_log_come_first(arguments, lines, first):
    assert found(arguments, *lines, of_records=True)[0] == first


def test_a_router_without_workers_is_a_suspect():
    line = "INFO sglang_router_rs::server: Starting router on 0.0.0.0:30000 | mode: Regular { worker_urls: [] }\n"
    assert suspects(read_log("log", [line.encode()]))[0].id == "router-without-workers"


def test_a_log_of_no_server_has_none():
    assert suspects(read_log("log", [b"hello\n"])) == ()


def test_records_of_suspects_have_their_form():
    """Every name that a text stands for is one that its own conditions ask for, so that it is known."""
    seen = {name for _, name in remarks.MARKS}.union(pasted.SHOWN, values_asked.SHOWN, said_in_notes.SHOWN)
    seen |= other_platform.SHOWN | {NOTED.format(kind).replace(" ", "_") for kind in KINDS}
    known = {"id", "of", "on", "model", "seen", "unless", "sign", "ahead", "both", "broad", "engine", "change", "why"}
    known |= {"threads"}
    for said in (*quiet_suspects(), *quiet_suspects("vllm.toml"), *quiet_suspects("shown.toml")):
        assert said.keys() <= known, said["id"]
        assert said.get("engine", "vllm") in ("sglang", "vllm")
        assert said["of"] in MOST_SHOWN
        assert set(said.get("seen", "").split()) <= seen
        re.compile(said.get("model", ""))
        asked = set(said.get("on", {})) | {"log_running", "log_end_running"}
        for text in (said["change"], said["why"]):
            assert {name for _, name, _, _ in Formatter().parse(text) if name} <= asked, said["id"]
        assert all(re.fullmatch(r"(?:SGLang|vLLM) \d+", thread) for thread in said.get("threads", ()))


def test_each_part_has_one_name_and_every_one_of_a_start_line_says_why():
    assert len({part.id for part in PARTS}) == len(PARTS)
    assert [part.id for part in PARTS if not part.why and not part.files] == []


@pytest.mark.parametrize(("frame", "part"), [("dp_attention.py:120 gather", "data-parallel-attention"),
                                             ("hiradix_cache.py:80 load_back", "hierarchical-cache"),
                                             ("triton_backend.py:9 forward", "attention-backend")])  # fmt: skip
def test_a_frame_names_its_part(frame, part):
    named = of_files(["scheduler.py:2 run_batch", frame])
    assert named is not None
    assert named.id == part


def test_frames_of_no_part():
    assert of_files(["scheduler.py:2 run_batch"]) is None


def test_suspects_stand_in_documents_and_end_with_the_verdict_of_a_healthy_log(cli, tmp_path):
    path = tmp_path / "server.log"
    path.write_text(
        f"[2026-11-24 03:00:00] server_args=ServerArgs({GEMMA}, dtype='float16')\n{decode(0)}\n{decode(1)}\n"
    )
    code, out, _ = cli("logs", path)
    assert (code, out.splitlines()[-1]) == (0, "no findings")
    assert any(line.startswith("    with --dtype bfloat16: ") for line in out.splitlines())
    code, out, _ = cli("logs", path, "--json")
    document = json.loads(out)
    assert (code, document["clean"], document["findings"]) == (0, True, [])
    assert document["logs"][0]["suspects"][0]["id"] == "float16"
    code, out, _ = cli("diagnose", "--log", path, "--json")
    assert code == 0
    assert json.loads(out)["incidents"][0]["suspects"][0]["id"] == "float16"


def test_a_log_with_a_finding_has_none(cli, tmp_path):
    path = tmp_path / "server.log"
    start = f"[2026-11-24 03:00:00] server_args=ServerArgs({GEMMA}, dtype='float16')\n"
    path.write_text(f"{start}{decode(0)}\nKilled\n")
    _, out, _ = cli("logs", path, "--json")
    assert json.loads(out)["logs"][0]["suspects"] == []


STAMP = "[2026-11-24 03:00:00]"
TOO_LONG = (
    f"{STAMP} Error in request: The input (61709 tokens) is longer than the model's context length (40960 tokens)."
)
NO_EMBEDDINGS = (
    f"{STAMP} Error in request: Not an embedding model. Please add `--is-embedding` when launching the server."
)
ANSWER = f'{STAMP} INFO:     10.0.0.3:51122 - "POST {{}} HTTP/1.1" 400 Bad Request'


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ((TOO_LONG,), "--context-length"),
        ((f"{STAMP} Input length (9000 tokens) exceeds the maximum allowed length (8000 tokens).",), "the pool is the"),
        ((f"{STAMP} Error in request: The model 'gpt-4o' does not exist",), "--served-model-name"),
        ((f"{STAMP} Error in request: Failed to load image: 404 Client Error",), "base64"),
        ((f"{STAMP} Error in request: 1 validation error for ChatCompletionRequest",), "another API"),
        ((f"{STAMP} Error in request: temperature must be non-negative, got -1.0.",), "mend what those words name"),
        ((NO_EMBEDDINGS,), "start it with --is-embedding"),
        ((ANSWER.format("/v1/chat/completions"),), "--log-requests"),
    ],
)  # fmt: skip
def test_what_a_working_server_refused_is_told_and_is_no_finding(lines, word, cli, tmp_path):
    facts = facts_of(GEMMA, *lines)
    assert findings(facts) == ()
    (one,) = refused(facts)
    assert word in one.look
    path = tmp_path / "server.log"
    path.write_text("\n".join((*lines, decode(0), "")))
    code, out, _ = cli("logs", path)
    assert (code, "Requests that it refused" in out) == (0, True)
    _, out, _ = cli("logs", path, "--json")
    assert json.loads(out)["logs"][0]["suspects"][0]["id"] == "refused-requests"


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ((decode(0), NO_EMBEDDINGS), "--is-embedding"),
        ((TOO_LONG,), "--context-length"),
        ((f"{STAMP} server_args=ServerArgs(is_embedding=False)", ANSWER.format("/v1/embeddings")), "--is-embedding"),
        ((decode(0), "openai.BadRequestError: Error code: 400 - {'message': 'model x does not exist'}"), "/v1/models"),
    ],
)  # fmt: skip
def test_what_was_refused_is_a_finding_where_the_start_or_nothing_else_shows(lines, word):
    (finding,) = findings(read_log("log", ["".join(f"{line}\n" for line in lines).encode()]))
    assert finding.rule == "refused-by-check"
    assert word in " ".join(finding.advice)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("AttributeError: 'GenerateReqInput' object has no attribute 'is_single'", "has no is_single in this build"),
        ("AttributeError: 'str' object has no attribute 'get'", "a plain value where it takes another"),
        ("ValidationError: 1 validation error for RerankResponse", "not the fields that this endpoint promises"),
        ("ValidationError: 1 validation error for RerankRequest", "not those that this endpoint takes"),
    ],
)
def test_a_request_that_fails_inside_says_whose_doing_it_is(said, words):
    failed = f"{STAMP} Error in request: no\nTraceback (most recent call last):\n"
    failed += '  File "/srv/sglang/srt/entrypoints/openai/serving_base.py", line 1, in handle_request\n'
    failed += '  File "/usr/lib/python3/dist-packages/pydantic/main.py", line 1, in __init__\n'
    failed += f'{said}\n{STAMP} INFO:     10.0.0.3:51122 - "POST /v1/rerank HTTP/1.1" 500 Internal Server Error\n'
    (finding,) = findings(read_log("log", [failed.encode()]))
    assert words in finding.cause


def test_a_request_that_fails_inside_is_none_that_was_refused():
    failed = f"{STAMP} Error in request: list index out of range\nTraceback (most recent call last):\n"
    assert not list(refused(facts_of(GEMMA, failed + '  File "/srv/sglang/srt/a.py", line 1, in f\nIndexError: no')))


BEGUN = f"{STAMP} Init torch distributed begin."
LOADS = f"{STAMP} Load weight begin. avail mem=77.97 GB"
LOADED = f"{STAMP} Load weight end. type=Gemma4ForConditionalGeneration, avail mem=62.20 GB"


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ((BEGUN,), "NCCL_SOCKET_IFNAME"),
        ((BEGUN, f"{STAMP} Init torch distributed ends. mem usage=0.67 GB", LOADS), "weights are read"),
        ((LOADS, LOADED, f"{STAMP} Capture cuda graph begin. avail mem=1 GB"), "graphs are captured"),
        ((LOADS, LOADED), ""),
        ((LOADS, LOADED, f"{STAMP} INFO flashinfer.jit: Loading JIT ops: norm"), "rm -r ~/.cache/flashinfer"),
        ((LOADS, "flashinfer.jit: Loading JIT ops: x", "flashinfer.jit: Finished loading JIT ops: x"), "weights are"),
        ((LOADS, LOADED, f"{STAMP} The server is fired up and ready to roll!"), ""),
    ],
)  # fmt: skip
def test_a_log_that_ends_in_a_start_says_where(lines, word, cli, tmp_path):
    path = tmp_path / "server.log"
    path.write_text(f"{STAMP} server_args=ServerArgs({GEMMA})\n" + "".join(f"{line}\n" for line in lines))
    code, out, _ = cli("logs", path)
    assert (code, "The log ends before the server was ready" in out) == (0, bool(word))
    assert word in out
    _, out, _ = cli("logs", path, "--json")
    named = [suspect["id"] for suspect in json.loads(out)["logs"][0]["suspects"]]
    assert ("unfinished-start" in named) == bool(word)


def test_parsers_are_those_of_sglang():
    calls = pytest.importorskip("sglang.srt.function_call.function_call_parser")
    thoughts = pytest.importorskip("sglang.srt.parser.reasoning_parser")
    for family in _PARSERS:
        assert set(family.tools) <= set(calls.FunctionCallParser.ToolCallParserEnum), family.names
        assert set(family.thoughts) <= set(thoughts.ReasoningParser.DetectorMap), family.names


MOVES = "[2026-11-24 03:00:01] [EPLBManager] rebalance end time=4.812s"


def test_experts_that_were_moved_come_first_where_they_were():
    balanced = f"{GEMMA}, enable_eplb=True"
    assert "experts-moved" in found(balanced, MOVES, of_records=True)
    assert "experts-moved" not in found(balanced, of_records=True)


def test_an_idle_core_is_not_shown_where_the_log_decodes():
    assert "core-of-an-idle-server" not in found(GEMMA, of_records=True)


ANSWERED = 'INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'


@pytest.mark.parametrize(
    ("text", "suspect"),
    [
        ("$ vllm serve org/m --enable-lora --lora-target-modules qkv_proj\n" + ANSWERED, "adapter-modules"),
        ("vllm serve org/m-AWQ \\\n  --tensor-parallel-size 8\n" + ANSWERED, "shares-below-a-block"),
        ("env: SGLANG_SANITIZE_NAN_LOGITS=1 model: m\n" + ANSWERED, "nan-hidden"),
        ("a prompt twice. HiCache + mooncake store, EAGLE on. #cached-token: 0 every time.\n", "keys-of-drafts"),
        ("# google/gemma-4-31B, tp 4, --kv-cache-dtype fp8_e5m2\n" + ANSWERED, "fp8-kv-cache"),
    ],
)
def test_a_command_or_a_note_beside_answers_says_what_to_suspect(text, suspect):
    facts = read_log("x", [text.encode()])
    assert facts.understood_lines
    assert findings(facts) == ()
    assert suspect in [one.id for one in suspects(facts)]


@pytest.mark.parametrize(
    "text",
    [
        ANSWERED * 3,
        "[2026-01-01 00:00:00] Please launch with --enable-lora --tp-size 8\n" + ANSWERED,
        "ERROR: use `--kv-cache-dtype fp8` # or leave it out\n",
    ],
)
def test_advice_of_a_program_is_no_argument_of_it(text):
    assert read_log("x", [text.encode()]).settings == {}


def test_pages_that_other_weights_stored_and_stages_are_suspected():
    facts = read_log("x", [(started(hicache_storage_backend="file", pp_size=2) + decode(1)).encode()])
    assert findings(facts) == ()
    said = " ".join(one.text for one in suspects(facts))
    assert "without --hicache-storage-backend" in said
    assert "--pp-size 1" in said
