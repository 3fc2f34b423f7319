"""What one option, one model or a note is known for is suspected ahead of what is said of all starts."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import Suspect, suspects
from made_logs import decode, prefill, stamp, started

SERVED = [prefill(1), decode(2), decode(3)]
LONE = [prefill(1), *(decode(second, running=1) for second in range(2, 30))]
FULL = [prefill(second, new=8192, queued=12) for second in range(12)]
TURNS = [line for turn in range(9) for line in (prefill(3 * turn, cached=500 * turn), decode(3 * turn + 1, running=1))]
GROWING = [
    line for turn in range(9) for line in (prefill(3 * turn, cached=1000 * turn), decode(3 * turn + 1, running=1))
]
SLOWED = [decode(second, running=1, rate=rate) for second, rate in enumerate((110.0, 75.0, 14.0, 14.0))]
STEADY = [decode(second, running=1, rate=rate) for second, rate in enumerate((110.0, 75.0, 104.0, 98.0))]
LATER = [decode(second, rank="DP2 TP2", running=3) for second in range(6)]
FIRST = [decode(second, rank="DP0 TP0", running=3) for second in range(6)]
SPARSE = "deepseek-ai/DeepSeek-V3.2"
WRONG = "# long prompts give garbage\n"
ABORTED = f"{stamp(4, 'TP0')} Abort transfer queue request. req.rid='8a1f0f6e6c0e4a5f'\n"
LEFT_OUT = f"{stamp(0)} model.layers.0.self_attn.wq_a.qweight not found in params_dict.\n"
LEFT_OUT += f"{stamp(0)} model.layers.0.self_attn.wkv.qweight not found in params_dict.\n"
SAME_ID = "# output_ids [248319, 248319, 248319, ...]\n"
CACHED = [prefill(1, new=400, cached=30000), decode(2), decode(3)]
WORKSPACE = (
    f"{stamp(1)} FlashInfer workspace size check failed: is_buffer_size_sufficient() got an unexpected argument\n"
)
BUILDS = "# image A: sglang 0.5.1, flashinfer 0.6.12 / image B: sglang 0.5.2, flashinfer 0.6.12\n"
QUEUED = [decode(second, running=1, queued=9) for second in range(3)]


def of_start(lines, **settings) -> list[Suspect]:
    """Return the suspects of a log without a failure, of its notes alone if it has a finding."""
    facts = read_log(
        "log", ["".join((started(model_path="own/model") if not settings else started(**settings), *lines)).encode()]
    )
    assert {one.rule for one in findings(facts)} <= {"noted-trouble"}
    return list(suspects(facts))


def leads(name: str, lines, **settings) -> bool:
    """Return whether a suspect is the first of its kind."""
    shown = of_start(lines, **settings)
    right = next((one for one in shown if one.id == name), None)
    return right is not None and right is next(one for one in shown if one.of == right.of)


HOST = {"enable_hierarchical_cache": True, "speculative_algorithm": "EAGLE"}
FALLEN = [decode(second, accept=length) for second, length in enumerate((3.1, 3.0, 1.2, 1.2))]
WINDOWED = {"model_path": "google/gemma-4-31B-it", "speculative_algorithm": "DFLASH"}
IDLE = "# nobody sends requests, yet top shows both processes at full load\n"
HELD = {"reasoning_parser": "deepseek-v4", "tool_call_parser": "deepseekv4", "enable_strict_thinking": True}
CASES = [
    ("drafts-without-their-own-prefix", FALLEN, HOST, SERVED, HOST),
    ("drafts-of-untranslated-windows", FALLEN, {**WINDOWED, "attention_backend": "flashinfer"},
     FALLEN, {**WINDOWED, "attention_backend": "triton"}),
    ("cores-while-nobody-asks", [IDLE, *SERVED], {"sleep_on_idle": False},
     ["# the GPU idles and one process takes a whole core, clients get no answer\n", *SERVED],
     {"sleep_on_idle": False}),
    ("thoughts-held-by-other-marks", SERVED, HELD, SERVED, {**HELD, "enable_strict_thinking": False}),
    ("template-of-an-earlier-model", SERVED, {"model_path": "Qwen/Qwen2.5-VL-7B", "chat_template": "qwen2-vl"},
     SERVED, {"model_path": "Qwen/Qwen2-VL-7B", "chat_template": "qwen2-vl"}),
    ("sampled-by-default", SERVED,
     {"enable_deterministic_inference": True, "preferred_sampling_params": "{}", "attention_backend": "fa3"},
     SERVED, {"enable_deterministic_inference": True, "attention_backend": "fa3"}),
    ("all-else-is-off", SERVED,
     {"disable_cuda_graph": True, "disable_radix_cache": True, "disable_overlap_schedule": True,
      "attention_backend": "fa3"},
     SERVED, {"disable_cuda_graph": True, "attention_backend": "fa3"}),
    ("calls-within-thoughts", SERVED,
     {"model_path": "moonshotai/Kimi-K2-Thinking", "tool_call_parser": "kimi_k2", "reasoning_parser": "kimi_k2"},
     SERVED,
     {"model_path": "moonshotai/Kimi-K2-Instruct", "tool_call_parser": "kimi_k2", "reasoning_parser": "kimi_k2"}),
    ("marks-dropped-among-others", SERVED, {"model_path": SPARSE, "tool_call_parser": "deepseekv32"},
     SERVED, {"model_path": SPARSE, "tool_call_parser": "deepseekv32", "chat_template": "own.jinja"}),
    ("json-from-a-model-of-xml", LONE[1:], {"model_path": "zai-org/GLM-4.6", "tool_call_parser": "glm45"},
     SERVED, {"model_path": "zai-org/GLM-4.6", "tool_call_parser": "glm45"}),
    ("prefill-of-sparse-attention", FULL, {"model_path": SPARSE, "nsa_prefill_backend": "tilelang"},
     FULL, {"model_path": SPARSE}),
    ("backend-chosen-for-drafts", LONE,
     {"model_path": "Qwen/Qwen3.5-122B", "speculative_algorithm": "NEXTN", "attention_backend": "triton"},
     LONE, {"model_path": "Qwen/Qwen3.5-122B", "speculative_algorithm": "NEXTN", "attention_backend": "trtllm_mha"}),
    ("one-rank-works", LATER, {"dp_size": 4, "enable_dp_attention": True},
     FIRST, {"dp_size": 4, "enable_dp_attention": True}),
    ("slower-at-the-same-load", SLOWED, {}, STEADY, {}),
    ("answers-not-reused", TURNS, {}, GROWING, {}),
    ("length-and-patience", LONE, {"context_length": 16384}, LONE, {"context_length": 262144}),
    ("sessions-keep-places", QUEUED, {"enable_streaming_session": True}, QUEUED, {}),
    ("ngrams-and-prefixes", SERVED, {"speculative_algorithm": "NGRAM"},
     SERVED, {"speculative_algorithm": "NGRAM", "disable_radix_cache": True}),
    ("prefix-of-another-request", [*CACHED, SAME_ID], {}, [*SERVED, SAME_ID], {}),
    ("storage-files-without-rank", [*SERVED, WRONG], {"hicache_storage_backend": "nixl", "tp_size": 4},
     SERVED, {"hicache_storage_backend": "nixl", "tp_size": 4}),
    ("drafts-on-aiter", [*SERVED, WRONG], {"attention_backend": "aiter", "speculative_algorithm": "EAGLE"},
     [*SERVED, WRONG], {"attention_backend": "triton", "speculative_algorithm": "EAGLE"}),
    ("written-behind-an-abort", [*SERVED, ABORTED, decode(5)], {"disaggregation_mode": "decode"},
     SERVED, {"disaggregation_mode": "decode"}),
    ("fused-low-rank-weights", [LEFT_OUT, *SERVED], {}, [LEFT_OUT.replace("wq_a", "own"), *SERVED], {}),
    ("two-builds", [BUILDS, *SERVED], {}, [BUILDS.replace("image B", "and"), *SERVED], {}),
    ("workspace-is-checked-wrongly", [WORKSPACE, *SERVED], {}, SERVED, {}),
    ("thoughts-taken-for-open", ["$ transformers serve\n", *SERVED], {}, ["$ sglang serve\n", *SERVED], {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "lines", "settings", "others", "apart"), CASES, ids=[case[0] for case in CASES])
def test_a_suspect_leads_where_all_of_it_holds(name, lines, settings, others, apart):
    assert leads(name, lines, **settings)
    assert name not in [one.id for one in of_start(others, **apart)]


def test_what_a_start_names_by_hand_stands_behind_what_the_log_shows():
    shown = of_start([*CACHED, SAME_ID], chat_template="qwen2-vl", model_path="Qwen/Qwen2.5-VL-7B")
    assert [one.id for one in shown if one.of == "answers"][:2] == [
        "prefix-of-another-request",
        "template-of-an-earlier-model",
    ]
