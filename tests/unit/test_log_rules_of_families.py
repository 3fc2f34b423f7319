"""Families of failures that no rule knows by their words: where they stand, of what kind they are, what was on."""

import pytest

from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.switched_on import features
from made_logs import ILLEGAL, death, decode, found_in, only, stamp, started

FORWARD = '  File "/srv/sglang/srt/model_executor/model_runner.py", line 9, in forward_extend\n    call()\n'
SITE = '  File "/opt/lib/python3.12/site-packages/{}", line 7, in {}\n    call()\n'
ROWS = "tvm.error.InternalError: Tensor match failed for Tensor<3>[strides=<1>] at rope.cuh:8\n"
ROWS += "- Root cause: Size mismatch for shape#0('batch_size'): expected 128 but got 126"
MIXED = "triton.compiler.errors.CompilationError: at 1:4:\n    x = load(y)\n"
MIXED += "AssertionError(\"Mismatched type for x between then block (<['8'], bf16>) and else block (<['8'], fp16>)\")"
CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\n"
GRAMMAR = f"{stamp(2, 'DP1 TP1')} Grammar accept_token failed for req 3c with token [7]: Tokens not accepted: 7\n"
GONE = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.4]:2"


def died(last: str, *frames: str, second: int = 3, rank: str = "TP0") -> str:
    """Return a scheduler's traceback through some frames."""
    said = f"{stamp(second, rank)} Scheduler hit an exception: Traceback (most recent call last):\n"
    return f"{said}{''.join(frames)}{last}\n\n"


def told(finding) -> str:
    return " ".join((finding.cause, *finding.advice))


class TestSizes:
    def test_the_second_line_of_a_kernel_says_the_numbers_and_the_start_line_the_suspect(self):
        finding = only([started(speculative_algorithm="EAGLE"), decode(1), died(ROWS, FORWARD)])
        assert finding.rule == "sizes-differ"
        assert "128 against 126" in finding.cause
        assert "once without --speculative-algorithm" in finding.advice

    def test_stages_and_parts_of_a_context_are_suspects_too(self):
        misfit = (
            "RuntimeError: The size of tensor a (4) must match the size of tensor b (8) at non-singleton dimension 0"
        )
        finding = only([started(pp_size=2, attn_cp_size=2), died(misfit, FORWARD)])
        assert finding.advice[:2] == ("once with --attn-cp-size 1", "once with --pp-size 1 (--tp for the other GPUs)")

    def test_weights_that_do_not_fit_are_no_step(self):
        misfit = (
            "RuntimeError: The size of tensor a (4) must match the size of tensor b (8) at non-singleton dimension 0"
        )
        loads = FORWARD.replace("forward_extend", "load_weights")
        assert only([died(misfit, loads)]).rule == "weight-names"


class TestPrefillGraphs:
    LINE = f"{stamp(2)} Piecewise CUDA Graph failed with error: 'Context' object has no attribute 'num_tokens'\n"
    RUNNER = '  File "/srv/sglang/srt/model_executor/piecewise_cuda_graph_runner.py", line 7, in replay\n    call()\n'
    LACKS = "AttributeError: 'Context' object has no attribute 'num_tokens'"

    def test_the_servers_own_words_name_the_argument_of_its_release(self):
        assert only([self.LINE, died(self.LACKS, self.RUNNER, FORWARD)]).advice[0].startswith("--disable-piecewise")

    def test_a_later_release_has_another(self):
        hint = "2. disable the prefill CUDA graph by --cuda-graph-backend-prefill=disabled\n"
        finding = only([hint, died(self.LACKS, self.RUNNER, FORWARD)])
        assert finding.advice[0].startswith("--cuda-graph-backend-prefill disabled: ")

    def test_an_illegal_access_in_a_graph_stays_one(self):
        assert "illegal-access" in {finding.rule for finding in found_in([died(ILLEGAL, self.RUNNER, FORWARD)])}


class TestTriton:
    def test_two_types_at_once(self):
        finding = only([died(MIXED, FORWARD, SITE.format("triton/compiler/compiler.py", "compile"))])
        assert finding.rule == "triton-compile"
        assert "bf16 and fp16" in finding.cause
        assert "--dtype bfloat16" in told(finding)


class TestLibraries:
    @pytest.mark.parametrize(
        ("file", "function", "word"),
        [
            ("flashinfer/fused_moe/core.py", "trtllm_bf16_moe", "--moe-runner-backend"),
            ("flashinfer/comm/trtllm_ar.py", "allreduce_fusion", "--disable-custom-all-reduce"),
            ("flashinfer/sampling.py", "top_k_top_p_sampling", "--sampling-backend pytorch"),
            ("fla/ops/chunk.py", "chunk_gated_delta_rule", "--mamba-backend"),
        ],
    )
    def test_the_part_that_was_computed_names_the_choice(self, file, function, word):
        finding = only([decode(1), died("RuntimeError: it failed", FORWARD, SITE.format(file, function))])
        assert finding.rule == "library-kernel"
        assert word in told(finding)

    def test_attention_without_code_for_this_gpu(self):
        refused = "RuntimeError: Error in function 'TllmGenFmhaRunner' at fmhaRunner.cuh:30: Unsupported architecture"
        finding = only([died(refused, FORWARD, SITE.format("flashinfer/prefill.py", "trtllm_ragged_attention"))])
        assert finding.rule == "attention-kernel"

    def test_another_package_is_named_where_its_code_lacks_something(self):
        lacks = "AttributeError: 'Process' object has no attribute '_cache'"
        finding = only([died(lacks, SITE.format("psutil/__init__.py", "children"))])
        assert "pip show psutil" in told(finding)


class TestChains:
    WRAPPED = "Traceback (most recent call last):\n" + FORWARD + "Exception: Capture cuda graph failed: it is gone\n\n"

    def test_a_failure_whose_second_exception_is_known_is_told_once(self):
        first = died("ZeroDivisionError: it is gone", FORWARD)
        assert only([first, CHAINED, self.WRAPPED]).rule == "graph-capture"

    def test_what_a_capture_failed_of_leads(self):
        first = died("torch._inductor.exc.InductorError: CompilationError", FORWARD)
        assert found_in([first, CHAINED, self.WRAPPED])[0].rule == "torch-compile"

    def test_two_failures_are_two(self):
        lines = [died("ZeroDivisionError: it is gone", FORWARD), died(ILLEGAL, FORWARD, second=9)]
        assert {finding.rule for finding in found_in(lines)} == {"illegal-access", "other-crash"}

    def test_a_rank_that_is_gone_does_not_lead_where_its_end_is_told(self):
        lines = [died(ILLEGAL, FORWARD), died(GONE, FORWARD, second=5, rank="TP1")]
        assert [finding.rule for finding in found_in(lines)] == ["illegal-access", "collective-timeout"]


def test_a_transformers_that_keeps_sizes_per_layer():
    name = "transformers.integrations.heterogeneity.configuration_utils.AmbiguousGlobalPerLayerAttributeError"
    finding = only([died(f"{name}: 'head_dim' is a per-layer attribute and may vary across layers.", FORWARD)])
    assert finding.rule == "wheels-do-not-fit"
    assert "5.15" in finding.cause


class TestRequests:
    ANSWER = f'{stamp(4)} INFO:     10.0.0.7:1 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'

    def failed(self, last: str, frame: str) -> list[str]:
        """Return what a server writes of a request that failed in a frame."""
        return [
            decode(1),
            f"{stamp(3)} Error in request: \nTraceback (most recent call last):\n",
            f'  File "/srv/sglang/srt/{frame}\n    call()\n{last}\n',
            self.ANSWER,
        ]

    def test_an_exception_that_a_client_was_told_of_ends_no_process(self):
        finding = only(self.failed("ValueError: this one cannot be served", 'entrypoints/a.py", line 5, in handle'))
        assert "and the server went on" in finding.cause

    def test_a_mark_of_an_image_in_the_text(self):
        last = "RuntimeError: Mismatch: More '<|image_pad|>' tokens found than corresponding data items provided."
        finding = only(self.failed(last, 'multimodal/base_processor.py", line 5, in load'))
        assert finding.rule == "image-tokens"
        assert "literal image token" in told(finding)

    def test_tools_of_a_fixed_form(self):
        last = "NotImplementedError: structure_info not used with HarmonyParser"
        finding = only(self.failed(last, 'function_call/gpt_oss_detector.py", line 5, in structure_info'))
        assert finding.rule == "answer-parser"
        assert "before anything was generated" in finding.cause

    def test_what_stands_below_an_answer(self):
        lines = self.failed("ValueError: this one cannot be served", 'entrypoints/a.py", line 5, in handle')
        lines = [lines[0], self.ANSWER, "ERROR:    Exception in ASGI application\n", *lines[1:3]]
        assert "and the server went on" in only(lines).cause

    def test_a_scheduler_that_dies_after_it_is_dead(self):
        lines = self.failed("ValueError: this one cannot be served", 'entrypoints/a.py", line 5, in handle')
        assert "other-crash" in {finding.rule for finding in found_in([*lines, death(9, "KeyError: 'layer_9'")])}


class TestGrammars:
    def test_drafts_that_a_grammar_refused(self):
        finding = only([started(speculative_algorithm="EAGLE"), decode(1), GRAMMAR, decode(3)])
        assert finding.rule == "grammar-request"
        assert "without --speculative-algorithm" in told(finding)

    def test_a_hang_after_one_names_it(self):
        watchdog = f"{stamp(400, 'DP0 TP0')} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
        found = found_in([started(speculative_algorithm="EAGLE"), decode(1), GRAMMAR, watchdog])
        assert {finding.rule for finding in found} == {"hang", "grammar-request"}
        (hang,) = [finding for finding in found if finding.rule == "hang"]
        assert "line 3 a grammar refused drafts" in told(hang)


@pytest.mark.parametrize(("size", "long"), [(65536, True), (-1, True), (8192, False)])
def test_a_prefill_longer_than_kernels_count(size, long):
    kernel = '  File "/srv/sglang/srt/layers/moe/fused_moe_triton/fused_moe.py", line 7, in fused_experts\n    call()\n'
    finding = only([started(chunked_prefill_size=size), decode(1), died(ILLEGAL, FORWARD, kernel)])
    assert ("--chunked-prefill-size 8192" in told(finding)) is long


class TestOverlap:
    @pytest.mark.parametrize(("start", "known"), [({}, False), ({"disable_overlap_schedule": True}, True)])
    def test_it_is_a_suspect_unless_it_is_off(self, start, known):
        lines = [started(tp_size=1, **start), decode(1), died(ILLEGAL, FORWARD)]
        assert ("--disable-overlap-schedule" not in told(only(lines))) is known

    def test_what_died_before_a_batch_did_not_overlap(self):
        assert "overlap" not in told(only([started(tp_size=1), died(ILLEGAL, FORWARD)]))


class TestFeatures:
    def test_what_an_exception_names_comes_first(self):
        lacks = "AttributeError: 'WaitingRequest' object has no attribute 'priority'"
        finding = only([started(enable_priority_scheduling=True, enable_eplb=True), decode(1), died(lacks, FORWARD)])
        assert "once without --enable-priority-scheduling: the exception names what it is about" in finding.advice
        assert any(line.startswith("this server has --enable-eplb:") for line in finding.advice)

    def test_the_start_line_of_either_form(self):
        said = "{'enable_lora': True, 'pp_size': 1, 'enable_metrics': True, 'cpu_offload_gb': 0}"
        line = f"{stamp(0)} server_args={said}\n"
        assert [one.flag for one in features(read_log("a.log", [line.encode()]))] == ["--enable-lora"]

    def test_a_release_without_any(self):
        assert features(read_log("a.log", [started(disaggregation_mode="null", attn_cp_size=1).encode()])) == ()


def test_room_that_only_evictions_would_have_given():
    asked = "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.\n"
    asked += "Available full tokens: 8070656 (full_available_size=7936 + full_evictable_size_=8062720)"
    finding = only([decode(1), died(asked, FORWARD)])
    assert finding.rule == "no-slot"
    assert "7936 were free" in finding.cause
    assert "--max-running-requests" in told(finding)


def test_a_layer_that_has_only_packed_parameters():
    lacks = "AttributeError: 'MergedColumnParallelLinear' object has no attribute 'weight'"
    model = '  File "/srv/sglang/srt/models/gemma4.py", line 5, in __init__\n    call()\n'
    finding = only([died(lacks, model, SITE.format("torch/nn/modules/module.py", "__getattr__"))])
    assert finding.rule == "quantised-kernel"
    assert "gemma4 asks a layer" in finding.cause


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("model.layers.1.mlp.down_proj.weight_scale", "quantised copy"),
        ("model.layers.1.mlp.gate_gate_up_proj.weight", "renamed it twice"),
    ],
)
def test_what_a_weights_name_tells(name, word):
    loads = '  File "/srv/sglang/srt/models/gemma4.py", line 5, in load_weights\n    call()\n'
    finding = only([died(f"KeyError: '{name}'", loads)])
    assert finding.rule == "weight-names"
    assert word in finding.cause
    assert "a later release" in finding.advice[0]


FRAME = '  File "/srv/sglang/srt/{}", line 9, in {}\n    call()\n'


class TestHandled:
    @pytest.mark.parametrize(
        ("function", "word"),
        [
            ("handle_abort_req", "an abort"),
            ("_normalize_decode_outputs", "log probabilities"),
            ("add_logprob_return_values", "log probabilities"),
            ("update_weights_from_tensor", "new weights"),
            ("resume_memory_occupation", "took it back"),
            ("open_session", "a session"),
            ("pause_generation", "pause_generation"),
            ("pop_preallocated", "split server"),
            ("start_profile", "profiled"),
        ],
    )
    def test_what_a_functions_name_says(self, function, word):
        finding = only([decode(1), died("KeyError: '5f0c'", FRAME.format("managers/scheduler.py", function))])
        assert finding.rule == "other-crash"
        assert word in finding.cause

    def test_any_other_says_nothing(self):
        finding = only([decode(1), died("KeyError: '5f0c'", FRAME.format("managers/scheduler.py", "about"))])
        assert " It " not in finding.cause

    def test_what_a_process_died_of_leads_transfers_that_failed(self):
        failed = f"{stamp(2)} Decode transfer failed for request rank=1 with exception KVTransferError: "
        failed += "Request 88 timed out after 300.0s in KVPoll.Bootstrapping\n"
        gone = died("AttributeError: 'NoneType' object has no attribute 'stop'", FRAME.format("a.py", "abort_request"))
        found = found_in([decode(1), failed, gone])
        assert [(finding.rule, finding.confidence.value) for finding in found] == [
            ("other-crash", "possible"),
            ("kv-transfer", "possible"),
        ]
        assert found_in([decode(1), failed])[0].confidence.value == "likely"


class TestWhatIsSetUp:
    def test_no_grammars(self):
        there = FRAME.format("managers/scheduler.py", "handle_generate_request")
        finding = only([started(grammar_backend="none"), decode(1), died("AssertionError", there)])
        assert "has no --grammar-backend" in told(finding)

    def test_a_device_of_its_own(self):
        there = FRAME.format("managers/scheduler.py", "process_batch_result")
        lacks = "AttributeError: 'NoneType' object has no attribute 'tolist'"
        assert "runs on mps" in told(only([started(device="mps"), decode(1), died(lacks, there)]))
        assert "runs on" not in told(only([started(device="cuda"), decode(1), died(lacks, there)]))

    def test_triton_without_a_gpu(self):
        none = died("RuntimeError: 0 active drivers ([]). There should only be one.", SITE.format("triton/a.py", "go"))
        finding = only([started(device="cpu"), decode(1), none])
        assert (finding.rule, finding.confidence.value) == ("no-gpu", "likely")
        assert "for cpu" in finding.cause
        assert only([started(device="cuda"), none]).rule == "no-gpu"

    def test_a_check_in_the_code_of_what_is_on(self):
        there = FRAME.format("mem_cache/radix_cache.py", "match_prefix_lmcache")
        refused = died("ValueError: Failed to allocate token prealloc indices", there)
        finding = only([started(enable_lmcache=True), decode(1), refused])
        assert "once without --enable-lmcache: its code raised it" in finding.advice

    def test_a_storage_that_does_not_answer_is_no_split_of_servers(self):
        there = FRAME.format("mem_cache/storage/mooncake_store/mooncake_store.py", "warmup")
        finding = only([died("AssertionError", FRAME.format("managers/scheduler.py", "__init__"), there)])
        assert "see that its service runs" in told(finding)
        assert "the split of prefill and decode" not in told(finding)


def test_answers_that_lost_their_way_between_tokenizers():
    lost = (
        f"{stamp(3)} IPC name is None, output type=<class 'sglang.srt.managers.io_struct.BatchStrOutput'>, skipping.\n"
    )
    assert "--tokenizer-worker-num 1" in told(only([started(tokenizer_worker_num=4), decode(1), lost]))


def test_a_transfer_that_is_too_large():
    failed = (
        f"{stamp(2)} Prefill transfer failed for request rank=0 with exception KVTransferError: Failed to send kv\n"
    )
    finding = only([decode(1), "Sync batch data transfer timeout after 30000000000ns\n", failed])
    assert "MC_TRANSFER_TIMEOUT" in told(finding)


def test_a_library_that_launches_kernels_says_where_it_was_noticed():
    last = "RuntimeError: CUDA driver error: 700 (CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access was encountered)"
    there = SITE.format("deep_gemm/__init__.py", "fp8_paged_mqa_logits")
    finding = only([decode(1), *(died(last, FORWARD, there, rank=f"TP{rank}") for rank in range(2))])
    assert finding.rule == "illegal-access"
    assert "deep_gemm launched fp8_paged_mqa_logits, on 2 ranks alike" in finding.cause
    assert any(line.startswith("all ranks fell at one call") for line in finding.advice)
