"""Claims that a paste does not bear: of a start that nobody sees, of another machine, of drafts; and notes that do."""

import pytest

from gemma4_triage.logs.likeness import alike, of_drafts_alone
from gemma4_triage.logs.notes_in_prose import difference_in, kinds_noted
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import TRACEBACK, died, found_in, prefill, stamp, started, told

BEFORE = "died before its first batch"
UNKNOWN = "does not show when in its life"
BARE = "RuntimeError: these two are not alike\n"
SERVE = "$ python3 -m sglang.launch_server --model-path m {}\n"
READY = f"{stamp(1)} The server is fired up and ready to roll!\n"
LOADS = f"{stamp(1)} Load weight begin. avail mem=78.4 GB\n"


def facts_of(*lines: str):
    return read_log("made.log", ["".join(lines).encode()])


class TestWhenItDied:
    """A part of a log may begin anywhere: that no batch was served is said only of a start that is seen."""

    def test_of_an_exception_alone_nothing_is_said_of_its_time(self):
        (found,) = found_in([f"# seen last night\n{BARE}"])
        assert UNKNOWN in told(found)
        assert BEFORE not in told(found)
        assert not found.next_commands

    @pytest.mark.parametrize("begun", [started(), LOADS])
    def test_of_a_start_that_is_seen_it_is(self, begun):
        (found,) = found_in([begun, died(BARE, ("x.py", "f", "g(x)"))])
        assert BEFORE in told(found)

    def test_of_code_that_only_starts_run_it_is(self):
        (found,) = found_in([died(BARE, ("managers/scheduler.py", "__init__", "self.f()"), ("x.py", "f", "g(x)"))])
        assert BEFORE in told(found)

    @pytest.mark.parametrize("then", [READY, f"{stamp(1)} Health check failed. No response for 20 seconds\n"])
    def test_of_one_that_was_ready_or_asked_for_its_health_it_is_not(self, then):
        (found, *_) = found_in([started(), then, died(BARE, ("x.py", "f", "g(x)"))])
        assert BEFORE not in told(found)


class TestProbes:
    @pytest.mark.parametrize(
        ("last", "types"),
        [
            ("RuntimeError: repeats can not be negative\n", False),
            ("RuntimeError: The size of tensor a (8013) must match the size of tensor b (8008) at dimension 0\n", True),
        ],
    )
    def test_notes_of_probes_lead_to_their_requests_where_rows_differ(self, last, types):
        frame = ("managers/scheduler.py", "run_batch", "embeddings = self.tp_worker.forward_batch_embedding(x)")
        failed = died(last, frame) if types else last
        first = found_in(["# a probe asks /health all the while\n", failed])[0]
        assert first.advice[0].startswith("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false")
        assert ("token types" in first.advice[0]) == types
        assert "HEALTH_ENDPOINT" not in told(found_in(["# under load\n", failed])[0])


class TestFormOfARequest:
    NOTE = "# POST /generate with input_ids and image_data\n"
    WELL = "# /v1/chat/completions with the same picture works\n"

    def test_ids_that_a_client_s_processor_made_are_expanded_twice(self):
        (found,) = found_in([self.NOTE, self.WELL, "IndexError\n"])
        assert found.cause.startswith("A request failed, by the notes")
        assert "expands it once more" in found.advice[0]
        assert "one to /v1/chat/completions" in found.advice[1]
        assert "look whether the server goes on" in found.advice[-1]

    def test_an_endpoint_that_fails_too_is_no_other_way(self):
        (found,) = found_in([self.NOTE, "# /v1/chat/completions also fails\n", "IndexError\n"])
        assert "all is well by the notes" not in told(found)

    def test_a_process_that_is_seen_to_die_did(self):
        (found, *_) = found_in([self.NOTE, died("IndexError", ("x.py", "f", "g(x)"))])
        assert found.cause.startswith("A process died")


class TestOtherMachines:
    DRIVER = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n"

    def test_the_driver_s_library_is_of_no_wheel(self):
        first = found_in(
            [TRACEBACK + '  File "/v/site-packages/sgl_kernel/__init__.py", line 12, in <module>\n', self.DRIVER]
        )[0]
        assert "the driver's own library" in first.cause
        assert "LD_LIBRARY_PATH" in told(first)
        assert "another CUDA" not in told(first)

    IMPORT = (
        f"{TRACEBACK}"
        '  File "/lustre/.venv/lib/python3.10/site-packages/sglang/cli/main.py", line 26, in main\n'
        '  File "/lustre/.venv/lib/python3.10/site-packages/sglang/cli/generate.py", line 21, in generate\n'
        "    from sglang.multimodal_gen.runtime.entrypoints.cli.generate import (\n"
        '  File "/lustre/.venv/lib/python3.10/site-packages/sglang/multimodal_gen/__init__.py", line 5, in <module>\n'
        "    from sglang.multimodal_gen.runtime.entrypoints.diffusion_generator import DiffGenerator\n"
        "{}AssertionError\n"
    )

    @pytest.mark.parametrize(("noted", "named"), [("", False), ("# under xpu, torch 2.9.0+xpu\n", True)])
    def test_an_incident_of_a_platform_is_like_a_log_of_that_platform_alone(self, noted, named):
        threads = [one.incident.thread for one in alike(facts_of(noted, self.IMPORT.format("")))]
        assert ("sgl-project/sglang 28443" in threads) == named

    def test_a_package_that_failed_at_import_had_no_offload_at_work(self):
        first = found_in([self.IMPORT.format("")])[0]
        assert "hold pip list" in told(first)
        assert "offload" not in told(first)
        assert "does not expect" not in first.cause

    def test_a_note_of_the_last_frame_s_package_is_a_frame(self):
        first = found_in([self.IMPORT.format("  ...\n  # last frame is in deep_gemm\n")])[0]
        assert "CUDA_HOME" in first.advice[0]


class TestAssertions:
    BARE = "torch.AcceleratorError: CUDA error: device-side assert triggered\n"
    CACHE = "# DeepSeek-V4 FP8, --enable-hierarchical-cache, --chunked-prefill-size 16384\n"

    def test_torch_s_own_words_are_like_no_incident(self):
        assert alike(facts_of(self.CACHE, self.BARE)) == []

    @pytest.mark.parametrize(
        ("asked", "sign", "apart"),
        [
            ("--enable-hierarchical-cache", "!AcceleratorError", True),
            ("--speculative-algorithm EAGLE", "!AcceleratorError", False),
            ("--enable-hierarchical-cache", "eagle_worker.py:draft", False),
        ],
    )
    def test_a_start_without_drafts_is_like_none_of_drafts(self, asked, sign, apart):
        cause = "The draft is built with fewer positions than its target"
        assert of_drafts_alone(facts_of(SERVE.format(asked)), frozenset({sign}), cause) == apart

    def test_without_a_frame_the_host_s_cache_is_left_out_first(self):
        first = found_in([self.CACHE, self.BARE])[0]
        assert first.advice[0].startswith("once without --enable-hierarchical-cache")
        assert "0.5.15.post1" in first.advice[0]
        other = found_in([SERVE.format("--enable-hierarchical-cache"), self.BARE])[0]
        assert "0.5.15.post1" not in other.advice[0]


class TestNotedEnds:
    OPTIONS = "--model-path m --speculative-algorithm EAGLE3 --speculative-eagle-topk 8 --attention-backend fa3\n"

    def test_a_note_of_cuda_s_error_alone_is_an_end(self):
        found = found_in([self.OPTIONS, "# CUDA illegal memory access\n"])
        assert [one.rule for one in found] == ["illegal-access", "known-issue"]
        assert "--speculative-eagle-topk 1" in found[0].advice[0]

    def test_a_note_that_it_is_gone_is_none(self):
        assert found_in([self.OPTIONS, prefill(1), "# illegal memory access is gone since\n"]) == ()

    def test_a_note_of_a_function_of_the_store_s_leads_to_the_store(self):
        start = SERVE.format("--enable-hierarchical-cache --hicache-storage-backend mooncake")
        first = found_in([start, "# segfault in mooncake::MemcpyWorkerPool::workerThread()\n"])[0]
        assert first.advice[0].startswith("MC_STORE_MEMCPY=0")
        assert "0.3.11.post1" in first.advice[0]


class TestGPUs:
    IMAGE = "RuntimeError: GemmaRMSNorm failed with error code no kernel image is available for execution\n"

    @pytest.mark.parametrize(
        ("note", "words"),
        [
            ("# RTX 2080 (sm75)\n", "The GPU is older"),
            ("# Tesla T4\n", "The GPU is older"),
            ("# RTX 5090\n", "The GPU is newer"),
            ("# a T4 fails, an A100 serves\n", "other architectures"),
            ("# under load\n", "other architectures"),
        ],
    )
    def test_a_note_says_whether_it_is_older_or_newer(self, note, words):
        assert words in found_in([note, self.IMAGE])[0].cause

    def test_a_start_whose_first_request_raises_the_same_is_not_well(self):
        assert difference_in("with --disable-cuda-graph it starts and the first request raises the same") == ""
        assert difference_in("with --disable-cuda-graph it starts") == "with --disable-cuda-graph"


class TestHostPools:
    START = SERVE.format("--enable-hierarchical-cache --tp 8 --hicache-size 15")
    STANDS = "# the launch hangs while ranks pin their host memory{}\n"

    @pytest.mark.parametrize(
        ("run", "then", "leads"),
        [
            ("$ docker run --gpus all --memory=100g img\n", "", True),
            ("$ docker run --gpus all --memory=400g img\n", "", False),
            ("", "; some of the later ranks are gone", True),
            ("", "", False),
        ],
    )
    def test_a_container_of_less_than_all_ranks_pin_is_told_first(self, run, then, leads):
        first = found_in([run, self.START, self.STANDS.format(then)])[0]
        assert first.rule == "noted-silence"
        assert ("8 ranks take 120 GB" in first.advice[0] and "oom" in first.advice[0]) == leads


class TestNotesOfServers:
    SIMULATES = "SGLANG_SIMULATE_ACC_LEN=3.76 SGLANG_SIMULATE_ACC_METHOD=match-expected\n"
    EMPTY = "# the text of every answer is empty\n"

    def test_variables_alone_in_a_line_are_the_start_s(self):
        assert facts_of(self.SIMULATES, self.EMPTY).arguments["SGLANG_SIMULATE_ACC_LEN"] == "3.76"

    def test_answers_that_are_made_up_on_purpose_are_no_model_s(self):
        (found,) = found_in([self.SIMULATES, self.EMPTY])
        assert found.advice[0].startswith("without SGLANG_SIMULATE_ACC_LEN")
        assert "--detokenizer-worker-num" in found.advice[0]

    def test_resident_memory_that_grows_is_noted_memory(self):
        note = "# RES of the scheduler process is 77g before the benchmark (128 clients), grows with every round\n"
        facts = facts_of(SERVE.format("--enable-hierarchical-cache"), note)
        assert kinds_noted(facts) == ("memory",)
        assert next(one for one in suspects(facts) if one.of == "memory").id == "host-pool"

    def test_a_vector_as_a_score_names_the_release_that_scores(self):
        body = "1 validation error for RerankResponse\nscore\n  Input should be a valid number [input_type=list]\n"
        (found,) = found_in([SERVE.format("--is-embedding"), body])
        assert found.advice[0].startswith("SGLang 0.5.8 or later")


class TestWhatIsNoError:
    """Lines and notes of trouble that goes on: no exception, and no batch line that lacks."""

    def test_connections_that_are_not_let_in(self):
        (found,) = found_in([started(), prefill(2), "OSError: [Errno 24] Too many open files\n", prefill(3)])
        assert "ulimit -n" in told(found)

    def test_a_first_request_that_kills_it(self):
        (found,) = found_in([started(), READY, "# the first POST of a chat kills it in the paged prefill\n"])
        assert found.rule == "other-crash"
        assert "a note beside the log says that the server died" in told(found)

    def test_requests_that_wait_behind_one(self):
        (found,) = found_in([started(), READY, "# later requests wait behind it\n"])
        assert found.rule == "noted-silence"
