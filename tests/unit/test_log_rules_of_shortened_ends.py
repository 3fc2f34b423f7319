"""Ends of which somebody kept little: frames told in words, notes that name a part, and numbers that say the cause."""

import pytest

from gemma4_triage.logs.catalog import findings, with_those_alike
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects

HIT = "[2026-08-14 02:20:33 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
REFUSED = "Input length (160062 tokens) exceeds the maximum allowed length ({} tokens). Use a shorter input.\n"


def found(text):
    return findings(read_log("log", [text.encode()]))


def first(text):
    return with_those_alike(read_log("log", [text.encode()]))[0]


def test_a_length_below_the_context_that_was_given_is_the_pools():
    start = "$ python -m sglang.launch_server --model-path m --context-length 163840\n"
    by_python = "TypeError: '>' not supported between instances of 'NoneType' and 'int'\n"
    end = '[2025-03-03 06:49:28 TP5] Scheduler hit an exception: Traceback (most recent call last):\n  File "/s/sglang/'
    end += 'srt/managers/scheduler.py", line 1796, in run_scheduler_process\n'
    said = first(start + by_python + REFUSED.format(59862) + end)
    assert (said.rule, said.advice[0].startswith("a larger pool")) == ("refused-for-room", True)
    assert "refused-for-room" not in [one.rule for one in found(start + REFUSED.format(163834))]


def test_a_note_that_transfers_fail_leads_to_the_other_transport():
    start = "$ python -m sglang.launch_server --model-path m --disaggregation-mode decode "
    start += "--disaggregation-transfer-backend mooncake\n"
    note = "# fine for some time, then KV transfer between prefill and decode begins to fail\n"
    told = found(start + note)[0]
    assert (told.rule, "--disaggregation-transfer-backend nixl" in told.advice[0]) == ("kv-transfer", True)
    assert found(f"{start}# no transfer fails\n") == ()
    assert found("$ python -m sglang.launch_server --model-path m\n" + note) == ()


@pytest.mark.parametrize("told", ["# ... down to deep_gemm/__init__.py", "  in deep_gemm/__init__.py"])
def test_a_frame_that_is_told_in_words_is_one(told):
    log = '$ sglang serve --model-path m\nTraceback (most recent call last):\n  File "/v/bin/sglang", line 10, in '
    log += f"<module>\n    sys.exit(main())\n{told}\nAssertionError\n"
    said = found(log)[0]
    assert (said.rule, "CUDA_HOME" in said.advice[0]) == ("wheels-do-not-fit", True)
    assert found(log.replace("deep_gemm", "another"))[0].rule == "other-crash"


def test_a_method_of_a_class_names_its_file():
    log = f"{HIT}  in LoRAManager.fetch_new_loras\nAssertionError\n"
    assert found(log)[0].rule == "known-issue"
    assert found(log.replace("LoRAManager", "Another"))[0].rule != "known-issue"


def test_a_leak_without_frames_is_held_against_known_issues():
    start = "$ sglang serve --model-path m --speculative-algorithm EAGLE3\n"
    pools = "[full] total=13510080, available=13509568, evictable=8192, protected=0\n"
    rules = [one.rule for one in found(f"{start}{HIT}pool memory leak detected!\n{pools}")]
    assert rules == ["pool-leak", "known-issue"]
    assert [one.rule for one in found(f"{HIT}pool memory leak detected!\n{pools}")] == ["pool-leak"]


def test_a_capture_that_was_refused_right_before_is_no_fault_of_a_kernel():
    refused, fault = "hipErrorStreamCaptureInvalidated\n", "HSA_STATUS_ERROR_EXCEPTION: a hardware exception\n"
    told = found(f"{refused}{fault}# SIGABRT; with --disable-cuda-graph the model runs\n")[0]
    assert "captured" in told.cause
    assert told.advice[0].startswith("with --disable-cuda-graph")
    assert "captured" not in found(fault)[0].cause


def test_a_window_pool_that_is_smaller_than_a_chunk_explains_who_waits():
    log = "# prefill server, --tp 4 --chunked-prefill-size {}\n[2026-07-14 01:05:12 TP0] DSV4 pool sizes: "
    log += "full=212224, swa=20992\n# no error; a long prompt waits for ever and all others behind it\n"
    told = found(log.format(32768))[0]
    assert "sliding window" in told.cause
    assert told.advice[0].startswith("--chunked-prefill-size 16384")
    assert "sliding window" not in found(log.format(8192))[0].cause


@pytest.mark.parametrize(
    ("note", "step"),
    [
        ("# the rest is in the grammar code", "that response_format alone"),
        ("# param shape and loaded weight shape differ", "a later release, whose class of this model has the sizes"),
        (
            "# happens whenever a client asks for logprobs of the prompt",
            "once without what the note says that it happens by",
        ),
    ],
)
def test_a_note_beside_a_traceback_without_words_leads(note, step):
    assert found(f"{HIT}AssertionError\n{note}\n")[0].advice[0].startswith(step)
    assert not found(f"{HIT}AssertionError: a word of its own\n{note}\n")[0].advice[0].startswith(step)


def test_a_backend_chosen_by_hand_is_suspected_of_an_exception_that_any_code_raises():
    start = "$ sglang serve --model-path m --attention-backend triton\n"
    steps = found(f"{start}{HIT}IndexError: list index out of range\n")[0].advice
    assert steps[0].startswith("once without --attention-backend triton")
    assert "(flashinfer, fa3)" in steps[0]
    assert not any(
        "the start names it" in step for step in found(f"{start}{HIT}IndexError: no adapter of that name\n")[0].advice
    )


def test_a_library_of_the_toolkit_is_on_no_path_where_notes_have_no_toolkit():
    line = "ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory\n"
    assert found(f"{line}# runtime container without nvcc\n")[0].advice[0].startswith("export LD_LIBRARY_PATH")
    assert found(line)[0].advice[0].startswith("hold the library's number")


@pytest.mark.parametrize(
    ("note", "change"),
    [
        ("# only with MTP on; dies when the pool gets full", "without --speculative-algorithm"),
        ("# happens only with --enable-mixed-chunk", "without --enable-mixed-chunk"),
        ("# as soon as hicache is on", "without --enable-hierarchical-cache"),
        ("# only at high concurrency", ""),
        ("# only with MTP on it works", ""),
        ("# started with --disable-radix-cache", ""),
    ],
)
def test_what_a_note_needs_for_it_to_happen_is_left_out_first(note, change):
    steps = found(f"{HIT}KeyError: 'odd'\n{note}\n")[0].advice
    well = [step for step in steps if "with which all is well by the note" in step]
    assert well == ([steps[0]] if change else [])
    assert steps[0].startswith(change)


@pytest.mark.parametrize(
    "note", ["# server gone", "# takes it down", "# the decode server exits", "# the pod restarts"]
)
def test_other_words_for_an_end_are_one(note):
    start = "$ sglang serve --model-path m --moe-runner-backend flashinfer_mxfp4\n"
    assert found(f"{start}{note}\n")[0].rule == "other-crash"
    pools = "pool memory leak detected!\n[full] total=1024, available=512, evictable=96, protected=0\n"
    assert "other-crash" not in [one.rule for one in found(f"{start}{HIT}{pools}{note}\n")]


@pytest.mark.parametrize(
    ("note", "ended"),
    [
        ("# runs fine at first, dies once the cache is full", True),
        ("# one request is fine, a second one ends the server", True),
        ("# works with the radix cache, no crash", False),
        ("# with triton it dies, and without it is fine", False),
    ],
)
def test_what_was_well_before_an_end_denies_it_not(note, ended):
    rules = [one.rule for one in found(f"$ sglang serve --model-path m\n{note}\n")]
    assert ("other-crash" in rules) == ended


def test_streamed_calls_of_gemma4_are_suspected_ahead_of_thoughts():
    start = "server_args=ServerArgs(model_path='m', tool_call_parser='{}', reasoning_parser='{}')\n"
    start += "[2026-07-01 10:00:35] The server is fired up and ready to roll!\n"
    shown = [suspects(read_log("log", [start.format(name, name).encode()])) for name in ("gemma4", "kimi_k2")]
    first_of_form = [next(one.id for one in each if one.of == "form") for each in shown]
    assert first_of_form == ["streamed-calls-of-gemma4", "thoughts-as-answers"]
