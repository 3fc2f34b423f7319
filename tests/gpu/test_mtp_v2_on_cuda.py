"""MTP under spec v2 in SGLang's engine on a GPU: real streams, real overlap, drafts and verifications in graphs."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise

import pytest

import engine_process
from gemma4_repro.engine.log_exceptions import exceptions_in
from gemma4_repro.toys.language import held_out_prompts
from gemma4_repro.toys.locate import toy_path
from gemma4_triage.logs.source import Source
from gemma4_triage.step_profile.trace_file import TraceFile
from gemma4_triage.step_profile.trace_tables import read_tables
from lifecycle import constrained, load_of, mixed_requests

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]

GRAMMARS = find_spec("xgrammar") is not None
ENGINE = {
    "model_path": str(toy_path("toy-e4b")),
    "attention_backend": "triton",
    "page_size": 16,
    "max_total_tokens": 8192,
    "swa_full_tokens_ratio": 0.5,
    "max_running_requests": 8,
    "mem_fraction_static": 0.3,
    "cuda_graph_bs": [1, 2, 4, 8],
    # Tokens are to be equal, and bf16 decides near-ties otherwise in a verification than in a decode; SGLang's kernels
    # take no float32. fp16 loses an eighth of what bf16 does, too little to decide one of these prompts' tokens.
    "dtype": "float16",
    "sampling_backend": "pytorch",
    "grammar_backend": "xgrammar" if GRAMMARS else "none",
}
MTP = {
    "speculative_algorithm": "NEXTN",
    "speculative_draft_model_path": str(toy_path("toy-e4b-assistant")),
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
V1 = {"HF_HUB_OFFLINE": "1", "GEMMA4_TRIAGE_PATCHES": "default"}
V2 = V1 | {"SGLANG_FROZEN_KV_MTP_V2": "1"}
SYNC = {"disable_overlap_schedule": True}
PROMPTS = [prompt[:n] for prompt, n in zip(held_out_prompts(200, 60, seed=7), [60, 17, 33, 5, 48] * 40, strict=True)]
NEW_TOKENS = 24
ONE_DRAFT = {"speculative_num_steps": 1, "speculative_num_draft_tokens": 2}
# Hopper's: trtllm_mha has no prefill and no verification there, so drafts and decodes alone run on it.
HYBRID = {
    "attention_backend": None,
    "prefill_attention_backend": "triton",
    "decode_attention_backend": "trtllm_mha",
    "speculative_draft_attention_backend": "trtllm_mha",
    "page_size": 64,
}
SIDES = {
    "none": (V1, {}),
    "v1": (V1, MTP),
    "sync": (V2, MTP | SYNC),
    "overlap": (V2, MTP),
    "overlap, eager": (V2, MTP | {"disable_cuda_graph": True}),
    "overlap, pages of 64, one draft": (V2, MTP | ONE_DRAFT | {"page_size": 64}),
    "overlap, pages of 1": (V2, MTP | {"page_size": 1}),
    "overlap, hybrid": (V2, MTP | HYBRID),
}
LIMIT_S = 300


def start(folder, environment, arm):
    folder.mkdir()
    return engine_process.run_fresh(folder, environment, LIMIT_S, {"arms": [arm]})


def succeeded(done):
    assert done.returncode == 0, done.log[-6000:]
    return done


def run(folder, environment, arm):
    """Return what the arm gave and the log."""
    done = succeeded(start(folder, environment, arm))
    return done.outputs[0], done.log


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return a function of a side to [{tokens, meta} per prompt], which starts each engine once."""
    folder, found = tmp_path_factory.mktemp("sides"), {}

    def serve(side):
        if side not in found:
            environment, changes = SIDES[side]
            arm = {"engine": ENGINE | changes, "loads": [{"prompts": PROMPTS, "new_tokens": NEW_TOKENS}]}
            # Kept before it is looked at: an engine that fails is not started once more for the next test.
            found[side] = start(folder / side.replace(", ", "-").replace(" ", "-"), environment, arm)
        return succeeded(found[side]).outputs[0]["loads"][0]

    return serve


@pytest.mark.parametrize("side", [side for side in SIDES if side != "none"])
def test_greedy_tokens_are_those_without_mtp(served, side):
    wanted, found = served("none"), served(side)
    unequal = [i for i, (a, b) in enumerate(zip(wanted, found, strict=True)) if a["tokens"] != b["tokens"]]
    assert unequal == []


@pytest.mark.parametrize("changes", [{}, HYBRID], ids=["triton", "hybrid"])
def test_requests_that_begin_alike_in_one_prefill_keep_their_keys(tmp_path, changes):
    """What all but the first have of the prefix is freed while the next step reads; see schedule_stream.py."""
    alike = [prompt for prompt in held_out_prompts(8, 90, seed=8) for _ in range(8)]
    load = {"prompts": alike, "new_tokens": NEW_TOKENS}
    found = []
    for name, environment, more in (("none", V1, {}), ("overlap", V2, MTP | changes)):
        served, _ = run(tmp_path / name, environment, {"engine": ENGINE | more, "loads": [load]})
        found.append([one["tokens"] for one in served["loads"][0]])
    wanted, answers = found
    assert all(tokens == wanted[8 * (number // 8)] for number, tokens in enumerate(wanted))
    assert answers == wanted


@pytest.mark.parametrize("side", ["sync", "overlap"])
def test_as_many_drafts_are_accepted_as_without_spec_v2(served, side):
    rounds = {name: sum(one["meta"]["spec_verify_ct"] for one in served(name)) for name in ("v1", side)}
    print(f"verifications: {rounds}")
    assert abs(rounds[side] / rounds["v1"] - 1) < 0.02


@pytest.mark.parametrize("changes", [{}, {"disable_cuda_graph": True}, HYBRID], ids=["graphs", "eager", "hybrid"])
def test_a_mixed_load_leaves_nothing_behind(tmp_path, changes):
    """500 requests that end in every way, one retracted every seven steps, under the audit and the strict check."""
    load = mixed_requests(500, seed=6)
    if GRAMMARS:
        load = constrained(load, seed=6)
    environment = V2 | {
        "GEMMA4_TRIAGE_LEAK": "raise",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        "SGLANG_TEST_RETRACT": "1",
        "SGLANG_TEST_RETRACT_INTERVAL": "7",
    }
    engine = ENGINE | MTP | changes | {"max_running_requests": 6, "chunked_prefill_size": 64, "log_level": "info"}
    arm = {"engine": engine, "loads": [load_of(load, concurrency=8, flush_every=10)], "idle": True}
    served, log = run(tmp_path / "life", environment, arm)
    assert exceptions_in(log.splitlines()) == ()
    assert log.count("Testing retraction") > 5
    assert served["idle"]["leak_checker_ran"]
    assert served["idle"]["used_tokens_after_flush"] == 0
    folders = [path.name for path in (tmp_path / "life" / "dumps").iterdir()]
    assert sorted(folders) == ["audits", "guards"], "and no dump"
    tallies = [json.loads(path.read_text()) for path in (tmp_path / "life" / "dumps" / "audits").iterdir()]
    assert max(tallies, key=lambda one: one["events"])["balanced"] is True


def traced(folder, environment, changes):
    """Return (verifications, trace) of one request."""
    traces = folder / "traces"
    load = {"prompts": PROMPTS[:1], "new_tokens": 200}
    profiled = load | {"serve": "engine_child:serve_profiled", "traces": str(traces)}
    found, _ = run(folder, environment, {"engine": ENGINE | changes, "loads": [load, profiled]})
    (path,) = traces.rglob("*.trace.json.gz")
    return found["loads"][1][0]["meta"]["spec_verify_ct"], TraceFile(Source(str(path)))


def waits_by_round(trace):
    """Return how often the scheduler's host waits for the device, by call, in each round but the first."""
    tables = read_tables(trace.events())
    begins = [span.start_us for span in tables.spans if span.name.startswith("step[DRAFT_LOOP") and span.device is None]
    return [
        Counter(wait.name for wait in tables.waits if begin <= wait.start_us < end)
        for begin, end in pairwise(begins[1:])
    ]


@pytest.mark.parametrize("changes", [{}, ONE_DRAFT], ids=["three drafts", "one draft"])
def test_the_seed_step_is_in_the_drafts_graph(tmp_path, changes):
    """A draft forward that is not in a graph has SGLang's span of a decode; the graph's replay has its own."""
    rounds, trace = traced(tmp_path / "run", V2, MTP | changes)
    names = Counter(str(event.get("name")) for event in trace.events())
    loops = sum(count for name, count in names.items() if name.startswith("step[DRAFT_LOOP"))
    assert loops >= rounds
    assert not any(name.startswith("step[DECODE") for name in names)


WAITING = {
    "v1": (V1, MTP),
    "sync": (V2, MTP | SYNC),
    "overlap": (V2, MTP),
    "overlap, hybrid": (V2, MTP | HYBRID),
}


@pytest.fixture(scope="module")
def waits(tmp_path_factory):
    """Return a function of a side to [{call: how often} per verification]; all engines are started at once."""
    folder = tmp_path_factory.mktemp("waits")

    def watch(side):
        environment, changes = WAITING[side]
        return waits_by_round(traced(folder / side.replace(", ", "-"), environment, changes)[1])

    with ThreadPoolExecutor(len(WAITING)) as pool:
        watched = {side: pool.submit(watch, side) for side in WAITING}
        yield lambda side: watched[side].result()


@pytest.mark.parametrize("side", [side for side in WAITING if side != "v1"])
def test_the_host_waits_no_more_often_than_without_spec_v2(waits, side):
    """Overlapped a round waits for the copy of its own result alone, which an event says, and reads no value.

    Where pages leave the window SGLang's `free_swa` waits too, whatever drafts: it picks out what is mapped, counts
    its pages, and assigns a value. What `free-swa-pages` does around it would make that more.
    """
    v1, found = waits("v1"), waits(side)
    total = {name: sum(map(Counter.total, rounds)) / len(rounds) for name, rounds in (("v1", v1), (side, found))}
    print(f"waits per verification: {total}; of {side} {sum(found, Counter())} in {len(found)}")
    assert total[side] <= total["v1"]
    if side != "sync":
        assert all(round["cudaEventSynchronize"] <= 2 for round in found)
        assert sum(round["cudaEventSynchronize"] for round in found) <= len(found) + 1
        others = [round.total() - round["cudaEventSynchronize"] for round in found]
        assert len([count for count in others if count]) <= len(found) / ENGINE["page_size"] + 1
        assert max(others) <= 3
