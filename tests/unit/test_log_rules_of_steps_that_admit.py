"""Requests that nothing admits though they would fit, steps that never end, and batches wrong by their size."""

import pytest

from made_logs import decode, found_in, only, prefill, stamp, started

READY = f"{stamp(1)} The server is fired up and ready to roll!\n"
POOLS = "{} max_total_num_tokens={}, chunked_prefill_size=8192, max_running_requests={}, context_len={}\n"
HEALTH = f"{stamp(200)} Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.\n"
IDLE_PREFILL = prefill(10, new=4, queued=1, full=0.0, swa=0.0).replace("#running-req: 4", "#running-req: 0")
SCORES = "|gsm8k|      3|flexible-extract|     5|exact_match|↑  |{}|±  |0.0011|\n"
TIMED_OUT = "(EngineCore pid=902) ERROR 08-09 05:25:18 [core.py:1120] TimeoutError: RPC call to {} timed out.\n"
VLLM = "INFO 09-04 10:00:01 [utils.py:233] non-default args: {}\n"
STANDS = "# one of its requests never returns\n"


def _stands(pool: int = 600000, context: int = 32768, **settings: object) -> list[str]:
    pools = POOLS.format(stamp(0), pool, 2, context)
    return [started(model_path="m", max_running_requests=2, **settings), pools, READY, IDLE_PREFILL, HEALTH]


def test_what_would_fit_and_is_not_admitted_is_the_scheduler_s_of_embeddings():
    found = only(_stands(is_embedding=True))
    assert (found.rule, found.confidence.value) == ("never-admitted", "likely")
    assert "has no decode step" in found.cause
    assert found.advice[0].startswith("--disable-overlap-schedule")
    assert "(2 now)" in found.advice[1]
    assert not any("--context-length" in one for one in found.advice)


def test_it_is_only_possible_where_overlap_is_off_or_answers_are_written():
    off = only(_stands(is_embedding=True, disable_overlap_schedule=True))
    assert off.confidence.value == "possible"
    assert not any("--disable-overlap-schedule" in one for one in off.advice)
    writes = only(_stands())
    assert writes.confidence.value == "possible"
    assert "no decode step" not in writes.cause


@pytest.mark.parametrize(
    "lines",
    [
        _stands(pool=20000, is_embedding=True),
        _stands(is_embedding=True, disaggregation_mode="decode"),
        _stands(is_embedding=True, pp_size=2),
    ],
)
def test_a_prompt_that_may_not_fit_and_servers_that_wait_for_others_are_told_as_before(lines):
    assert "may never fit" in only(lines).cause


def test_two_lines_a_minute_apart_show_that_one_waits_where_a_note_says_so():
    start = started(model_path="m", max_running_requests=4)
    note = "# only three run, the fourth waits until one of the three has ended\n"
    waits, soon = (
        [decode(second, running=3, queued=1, full=0.05, swa=0.05) for second in seconds]
        for seconds in ((10, 95), (10, 45))
    )
    assert only([note, start, READY, *waits]).rule == "one-waits"
    assert "one-waits" not in [one.rule for one in found_in([note, start, READY, *soon])]
    assert found_in([start, READY, *waits]) == ()


@pytest.mark.parametrize("step", ["sample_tokens", "execute_model"])
def test_a_step_of_vllm_that_does_not_end_is_no_fault_of_shared_memory(step):
    found = found_in([VLLM.format("{'model': 'm', 'kv_cache_dtype': 'fp8'}"), TIMED_OUT.format(step)])
    assert found[0].rule == "told-by-words"
    assert "neither shared memory nor the timeout is at fault" in found[0].cause
    assert "--enforce-eager" in found[0].advice[0]
    other = found_in([VLLM.format("{'model': 'm'}"), TIMED_OUT.format("collective_rpc")])
    assert "told-by-words" not in [one.rule for one in other]


@pytest.mark.parametrize(
    ("asked", "is_known"),
    [
        ("{'model': 'm', 'runner': 'pooling'}", True),
        ("{'model': 'm', 'task': 'embed'}", True),
        ("{'model': 'BAAI/bge-m3'}", True),
        ("{'model': 'meta-llama/Llama-3.1-8B'}", False),
    ],
)
def test_an_embedding_model_of_vllm_that_stands_may_have_a_prompt_of_full_length(asked, is_known):
    said = "\n".join(
        only([VLLM.format(asked), "(APIServer pid=1) INFO:     Application startup complete.\n", STANDS]).advice
    )
    assert ("one token shorter than --max-model-len" in said) is is_known


@pytest.mark.parametrize(
    ("note", "running", "is_told"),
    [
        ("# 4x B300, almost every answer is wrong\n", 256, True),
        ("# 4x B300, almost every answer is wrong\n", 16, False),
        ("# 4x H100, almost every answer is wrong\n", 256, False),
    ],
)
def test_large_batches_of_a_new_gpu_are_tried_smaller_first(note, running, is_told):
    advice = only([note, started(model_path="m"), READY, decode(3, running=running)]).advice
    assert advice[0].startswith("with --max-running-requests 64 and --cuda-graph-max-bs 64") is is_told


def test_a_table_of_scores_near_nothing_is_a_finding_and_a_good_one_is_none():
    lines = [started(model_path="m"), READY, decode(3)]
    assert only([*lines, SCORES.format("0.0015")]).rule == "noted-trouble"
    assert found_in([*lines, SCORES.format("0.9515")]) == ()
