"""What stands near an end and says more of it: a call, a capture, a retraction, an override, a variable, a device."""

import pytest

from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import (
    ILLEGAL,
    TRACEBACK,
    death,
    decode,
    died,
    found_in,
    only,
    prefill,
    retraction,
    stamp,
    started,
    told,
)

QUIT = "Received sigquit from a child process. It usually means the child failed.\n"


def first_of(kind: str, *lines: str) -> str:
    facts = read_log("log", ["".join(lines).encode()])
    return next(one.change for one in suspects(facts) if one.of == kind)


class TestCalls:
    RELEASES = f'{stamp(3)} INFO:     127.0.0.1:5 - "POST /release_memory_occupation HTTP/1.1" 200 OK\n'

    def test_what_was_asked_right_before_an_end_is_named(self):
        finding = only([f"{stamp(1)} The server is fired up and ready to roll!\n", self.RELEASES, f"{stamp(4)} {QUIT}"])
        assert "right after it was asked for /release_memory_occupation (line 2)" in finding.cause
        assert finding.advice[0].startswith("no request may run meanwhile")

    def test_work_between_them_is_in_the_way(self):
        finding = only([self.RELEASES, decode(4), f"{stamp(5)} {QUIT}"])
        assert "right after" not in finding.cause

    def test_a_request_is_no_such_call(self):
        asked = self.RELEASES.replace("release_memory_occupation", "generate")
        assert "right after" not in only([asked, f"{stamp(4)} {QUIT}"]).cause

    def test_a_server_that_goes_on_is_healthy(self):
        facts = read_log("log", ["".join((decode(1), self.RELEASES, decode(9))).encode()])
        assert found_in([decode(1), self.RELEASES, decode(9)]) == ()
        assert facts.understood["decode"] == 2

    def test_answers_of_it_are_counted(self):
        ready = f"{stamp(1)} The server is fired up and ready to roll!\n"
        assert read_log("log", [(ready + self.RELEASES).encode()]).understood["answer"] == 1


class TestRowsThatFillUp:
    LAST = "RuntimeError: The expanded size of the tensor (14) must match the existing size (16) at dimension 0."
    PLACE = ("layers/attention/flashinfer_mla_backend.py", "call_begin_forward", "kv[1 : bs + 1] = f(x)")

    def test_a_multiple_of_the_ranks_is_asked_for(self):
        finding = only([started(tp_size=8), died(self.LAST, self.PLACE)])
        assert "14 against 16" in finding.cause
        assert finding.advice[0].startswith("--max-running-requests (and --cuda-graph-max-bs) 16")

    @pytest.mark.parametrize(("ranks", "file"), [(1, "a_backend.py"), (8, "rope.py"), (7, "a_backend.py")])
    def test_neither_one_rank_nor_another_file_nor_no_multiple(self, ranks, file):
        place = (f"layers/attention/{file}", "forward", "x = f(y)")
        assert "--max-running-requests" not in told(only([started(tp_size=ranks), died(self.LAST, place)]))

    ZERO = "RuntimeError: shape '[64, 4, 0, 128, 8]' is invalid for input of size 131072"

    def test_a_dimension_of_0_is_of_pages_or_heads(self):
        place = ("layers/a.py", "forward", "x = k.view(s)")
        assert "--page-size 16" in only([decode(1), died(self.ZERO, place)]).advice[0]
        assert "--page-size" not in told(only([decode(1), died(self.ZERO.replace(" 0,", " 2,"), place)]))


class TestCompilers:
    def test_an_option_that_the_kernel_names_comes_first(self):
        last = "triton.compiler.errors.CompilationError: at 1:1: inv = 1.0 / k_scale"
        lines = [started(kv_cache_dtype="fp8_e4m3"), died(last, ("layers/a.py", "forward", "k[grid](x)"))]
        assert only(lines).advice[0].startswith("once with --kv-cache-dtype auto")
        other = died(last.replace("k_scale", "rows"), ("layers/a.py", "forward", "k[grid](x)"))
        assert "--kv-cache-dtype" not in told(only([lines[0], other]))

    def test_tiles_of_the_backend_in_use(self):
        last = "OutOfResources: out of resource: shared memory, Required: 65792, Hardware limit: 65536."
        place = ("layers/attention/a.py", "unified_attention", "k[grid](x)")
        finding = only([started(attention_backend="aiter"), died(last, place)])
        assert finding.advice[0].startswith("another --attention-backend than aiter")


class TestDevices:
    CRASH = "Fatal Python error: Segmentation fault\n"

    def test_elsewhere_than_on_cuda_options_come_first(self):
        lines = [started(device="mps", enable_mixed_chunk=True), decode(1), self.CRASH]
        assert only(lines).advice[0].startswith("without --enable-mixed-chunk, one at a time: on mps")

    def test_on_cuda_the_core_does(self):
        lines = [started(device="cuda", enable_mixed_chunk=True), decode(1), self.CRASH]
        assert not only(lines).advice[0].startswith("without")


class TestVariables:
    VLLM = (
        "VLLM_SPEC_DECODE_ATTN=1 vllm serve m\n"
        "(EngineCore pid=2) ERROR [core.py] EngineCore encountered a fatal error.\n"
    )

    def test_one_that_takes_another_path_is_left_out(self):
        finding = only([self.VLLM, f"(EngineCore pid=2) ERROR [core.py] {ILLEGAL}\n"])
        assert "once without VLLM_SPEC_DECODE_ATTN=1 in its environment" in finding.advice

    @pytest.mark.parametrize("name", ["VLLM_LOGGING_LEVEL", "VLLM_CACHE_ROOT", "VLLM_USE_V1"])
    def test_one_that_takes_none_is_not(self, name):
        lines = [self.VLLM.replace("VLLM_SPEC_DECODE_ATTN", name), f"(EngineCore pid=2) ERROR [core.py] {ILLEGAL}\n"]
        assert name not in told(only(lines))


class TestCaptures:
    BATCHES = "Capturing batches (bs=512 avail_mem=37.90 GB):   0%|          | 0/10 [00:00<?, ?it/s]\n"
    FAULT = "Memory access fault by GPU node-4\n"

    def test_a_fault_at_the_largest_graph(self):
        finding = only([started(attention_backend="triton"), self.BATCHES, self.FAULT])
        assert "had just begun to capture" in finding.cause
        assert finding.advice[0].startswith("once with --cuda-graph-max-bs 128, in place of 512")

    def test_a_fault_long_after_it(self):
        finding = only(
            [started(attention_backend="triton"), self.BATCHES, *(decode(at) for at in range(6)), self.FAULT]
        )
        assert "--cuda-graph-max-bs" not in told(finding)


class TestMemoryOfTheDevice:
    SAID = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 38.00 MiB. GPU 0 has a total capacity of 23.65 "
        "GiB of which 39.44 MiB is free. Process 1 has 1.81 GiB memory in use. Process 2 has 1.87 GiB memory in use. "
        "Process 3 has 1.87 GiB memory in use. Process 4 has 16.12 GiB memory in use.\n"
    )

    def test_every_ranks_share_of_the_first_gpu_is_of_pictures(self):
        finding = only([started(model_path="Qwen/Qwen2.5-VL-72B", tp_size=4), decode(1), self.SAID])
        assert finding.advice[0].startswith("--disable-fast-image-processor: 3 processes")

    def test_not_of_a_model_of_text(self):
        finding = only([started(model_path="Qwen/Qwen3-8B", tp_size=4), decode(1), self.SAID])
        assert not finding.advice[0].startswith("--disable-fast-image-processor")

    def test_a_fallback_in_pytorch_takes_shorter_chunks(self):
        out = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        frame = ("layers/attention/indexer.py", "mqa_logits_torch", "torch.bmm(k, q)")
        finding = only([decode(1), died(out, frame)])
        assert finding.advice[0].startswith("a smaller --chunked-prefill-size (2048)")
        kernel = died(out, ("layers/attention/indexer.py", "mqa_logits", "k[grid](x)"))
        assert "fallback" not in told(only([decode(1), kernel]))


class TestChecks:
    PLACE = ("configs/model_config.py", "get_topk", "assert is_sparse(config)")

    def test_what_overrides_the_configuration_comes_first(self):
        lines = [started(json_model_override_args='{"a": true}'), died("AssertionError", self.PLACE)]
        assert only(lines).advice[0].startswith('once without --json-model-override-args {"a": true}')
        assert not only([started(json_model_override_args="{}"), lines[1]]).advice[0].startswith("once without --json")

    def test_a_retraction_right_above_a_case_without_code(self):
        bare = f"{stamp(5)} Scheduler hit an exception: {TRACEBACK}  ...\nNotImplementedError\n"
        finding = found_in([decode(3, full=0.3, swa=0.99), retraction(4), bare])[0]
        assert "It retracted a request" in finding.cause
        assert finding.advice[0].startswith("a larger --swa-full-tokens-ratio")
        assert "retracted" not in told(only([decode(3, full=0.3, swa=0.5), bare]))

    def test_blocks_of_a_diffusing_model_are_left_out_of_the_tree(self):
        leak = died("ValueError: pool memory leak detected! [full]")
        assert "blocks that are still written" in told(only([started(dllm_algorithm="LowConfidence"), leak]))
        assert "blocks" not in told(only([started(dllm_algorithm=None), leak]))

    def test_a_shared_expert_of_the_block_of_drafts(self):
        last = "KeyError: 'model.layers.61.mtp_block.mlp.shared_experts.down_proj.weight_scale_inv'"
        place = ("models/deepseek_v2.py", "load_weights", "param = params[name]")
        finding = only([started(model_path="m"), died(last, place)])
        assert "block of drafts (MTP)" in finding.cause
        assert "config.json" not in finding.cause
        assert "--disable-shared-experts-fusion" in told(finding)


class TestLines:
    def test_vllms_lines_without_a_time_are_read(self):
        lines = [
            "(EngineCore pid=301) ERROR [core.py] EngineCore failed to start.\n",
            "(EngineCore pid=301) ERROR [core.py] Traceback (most recent call last):\n",
            '(EngineCore pid=301) ERROR [core.py]   File "/opt/vllm/x.py", line 7, in load\n',
            "(EngineCore pid=301) ERROR [core.py] ValueError: the third wheel came off\n",
        ]
        assert "the third wheel came off" in only(lines).cause

    def test_arguments_behind_a_stamp_are_read(self):
        noted = f"{stamp(1, 'TP0')} server_args: disaggregation_mode='decode', page_size=64, --tp 8\n"
        facts = read_log("log", [(noted + decode(2)).encode()])
        assert facts.settings["disaggregation_mode"] == "decode"
        assert facts.arguments["page_size"] == "64"

    def test_what_follows_another_word_is_none(self):
        other = f"{stamp(1, 'TP0')} Loaded with page_size=64\n"
        assert "page_size" not in read_log("log", [(other + decode(2)).encode()]).arguments


class TestSuspects:
    def test_graphs_of_prefills_of_a_model_with_states(self):
        captured = f"{stamp(1)} Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4, 8]\n"
        lines = (prefill(2, new=100, cached=900), decode(3))
        start = started(model_path="nvidia/Nemotron-3-Ultra")
        assert first_of("answers", start, captured, *lines).startswith("with --cuda-graph-backend-prefill disabled")
        plain = started(model_path="Qwen/Qwen3-8B")
        assert not first_of("answers", plain, captured, *lines).startswith("with --cuda-graph-backend-prefill")

    @pytest.mark.parametrize("name", ["enable_dsa_prefill_context_parallel", "enable_nsa_prefill_context_parallel"])
    def test_prompts_over_several_gpus(self, name):
        start = started(model_path="m", **{name: True})
        assert first_of("answers", start, prefill(1), decode(2)) == f"without --{name.replace('_', '-')}"

    def test_a_template_of_ones_own_beside_a_parser(self):
        start = started(model_path="m", chat_template="a.jinja", tool_call_parser="qwen25")
        assert first_of("form", start, prefill(1), decode(2)).startswith("without --chat-template (a.jinja now)")

    def test_keys_that_lmcache_keeps(self):
        freed = "AssertionError: Committed KV cache already freed (self.kv_committed_len=14)"
        finding = found_in([started(enable_lmcache=True), decode(1), death(2, freed)])[0]
        assert "once without --enable-lmcache: the exception names what it is about" in finding.advice
        assert "lmcache" not in told(found_in([started(model_path="m"), decode(1), death(2, freed)])[0])
