"""What a start chose by hand, a number of rows, a stack alone or a comment behind a command makes the first step."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.rules.start_stopped import unfinished

HIT = "[2026-08-14 02:20:33 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
START = "[2026-08-14 02:20:00] server_args=ServerArgs(model_path='m'{})\n"
PREFILL = "[2026-08-14 02:20:30 TP0] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.01, "
PREFILL += "#running-req: 0, #queue-req: 0, \n"


def frame(path, function, line="x = call(y)"):
    return f'  File "/sgl/python/sglang/srt/{path}", line 10, in {function}\n    {line}\n'


def found(text):
    return findings(read_log("log", [text.encode()]))


def steps(text):
    return found(text)[0].advice


def test_a_draft_that_looks_up_a_row_too_many_is_held_against_its_target():
    asserted = (
        "Indexing.cu:1500: indexSelectSmallIndex: block: [32,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
    )
    end = "RuntimeError: CUDA error: device-side assert triggered\n"
    log = asserted + HIT + frame("speculative/eagle_worker.py", "{}") + end
    assert steps(log.format("draft_forward"))[0].startswith("a draft that was made for this very target")
    assert not steps(log.format("verify"))[0].startswith("a draft that was made for this very target")


def test_what_keeps_ranks_from_one_queue_is_left_out_first():
    log = "[2026-08-14 02:25:39 TP3] Watchdog timeout (self.watchdog_timeout=300)\n"
    assert steps(START.format(", disable_attn_tp_gather=True") + log)[0].startswith("once without --disable-attn-tp")
    assert not any("--disable-attn-tp" in step for step in steps(START.format("") + log))


def test_a_processor_that_passes_an_argument_over_is_of_another_release():
    marks = "Warning: More image data items provided than corresponding tokens found in the prompt.\n"
    over = "Keyword argument `audios` is not a valid argument for this processor and will be ignored.\n"
    assert "takes no `audios`" in steps(START.format("") + marks + over)[0]
    assert "processor" not in steps(START.format("") + marks)[0]


def test_the_way_to_experts_that_an_exception_names_is_changed_first():
    log = START.format(", device='npu', moe_a2a_backend='{}'") + HIT + frame("layers/moe/ep_moe/layer.py", "forward")
    log += "RuntimeError: call aclnnFusedDeepMoe failed, detail:EZ9999: Inner Error!\n"
    assert steps(log.format("ascend_fuseep"))[0].startswith("with --moe-a2a-backend deepep or none in place of")
    assert not steps(log.format("none"))[0].startswith("with --moe-a2a-backend")


def test_a_kernel_in_triton_that_was_launched_is_a_part_to_change():
    launch = '  File "/usr/lib/python3/dist-packages/triton/backends/nvidia/driver.py", line 713, in __call__\n'
    end = "torch.AcceleratorError: CUDA error: unspecified launch failure\n"
    log = HIT + frame("layers/attention/fla/chunk.py", "chunk_gated_delta_rule_fwd") + "{}" + end
    assert any("--linear-attn-backend than triton" in step for step in steps(log.format(launch)))
    assert not any("--linear-attn-backend" in step for step in steps(log.format("")))


@pytest.mark.parametrize(("rows", "word"), [(2048, "drafts of EAGLE3"), (40960, "of the draft too")])
def test_a_bound_that_an_assertion_names_says_whose_table_it_was(rows, word):
    bound = f"triton_poi_fused.py: device_assert: Assertion `index out of bounds: 0 <= tmp < {rows}` failed.\n"
    end = "(EngineCore pid=2) ERROR [core.py] EngineCore encountered a fatal error.\n"
    end += "(EngineCore pid=2) ERROR [core.py] torch.AcceleratorError: CUDA error: device-side assert triggered\n"
    assert f"config.json is {rows}" in steps(bound + end)[0]
    assert word in steps(bound + end)[0]
    assert "config.json is" not in steps(end)[0]


def test_nixl_that_fails_as_the_server_starts_has_moved_nothing():
    log = START.format(", disaggregation_mode='prefill', disaggregation_transfer_backend='nixl'") + "{}" + HIT
    log += "nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND\n"
    assert steps(log.format(""))[0].startswith("one UCX alone")
    assert not steps(log.format("The server is fired up and ready to roll!\n"))[0].startswith("one UCX alone")


def test_what_the_transport_alone_says_is_told():
    line = (
        "E0619 02:47:42.441629 1555 tcp_transport.cpp:136] Session::writeBody failed. Error: Bad address (value: 14)\n"
    )
    assert found(line)[0].rule == "kv-transfer"
    assert found(line.replace("Bad address", "Broken pipe"))[0].rule != "kv-transfer"


def test_a_stack_that_stands_alone_is_of_what_stands():
    stack = '$ py-spy dump --pid 1874\nThread (active+gil): "MainThread"\n    {} (torch/distributed/x.py:1991)\n'
    assert found(stack.format("rendezvous"))[0].rule == "hang"
    assert found(stack.format("recv_requests")) == ()
    assert found(stack.format("rendezvous") + PREFILL) == ()


def test_a_debuggers_stack_in_a_store_names_it():
    stack = "#0  __memcpy_avx512 ()\n#1  {}::MemcpyWorkerPool::workerThread ()\n    from .../store.so\n"
    assert steps(stack.format("mooncake"))[0].startswith("MC_STORE_MEMCPY=0")
    assert found(stack.format("another")) == ()


def test_memory_of_the_gpu_on_its_way_over_tcp_is_of_a_ucx_without_cuda():
    log = "[host:1:1] Caught signal 11 (Segmentation fault: {} at address 0x7fbd60001400)\n==== backtrace ====\n"
    log += " 0  /usr/lib/nixl.libs/libucs.so.0(ucs_handle_error+0x294) [0x7fbec008fba4]\n"
    assert "UCX_TLS with cuda_copy" in steps(log.format("invalid permissions for mapped object"))[0]
    assert "UCX_TLS with cuda_copy" not in steps(log.format("address not mapped to object"))[0]


def test_a_crash_beside_a_storage_without_a_stack_suspects_its_threads():
    log = "Fatal Python error: Segmentation fault\n\n" + HIT
    log += "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.3.7]:28811\n"
    start = START.format(", enable_hierarchical_cache=True, hicache_storage_backend='mooncake'")
    assert any("wait_complete" in step for step in steps(start + log))
    assert not any("wait_complete" in step for step in steps(START.format("") + log))


def test_retractions_of_a_decode_server_take_memory_of_the_host():
    log = "[2026-08-14 02:20:31 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 12, "
    log = PREFILL + log + "#new_token_gained: 90112, new_token_ratio: 0.4182 -> 0.6033\n      Reason:       OOMKilled\n"
    assert steps(START.format(", disaggregation_mode='decode'") + log)[0].startswith("fewer retractions")
    assert not steps(START.format("") + log)[0].startswith("fewer retractions")


def test_a_draft_of_the_models_own_checkpoint_may_never_have_been_read():
    line = (
        "[2026-01-14 18:24:0{} TP0] Decode batch, #running-req: 1, #token: 1211, token usage: 0.00, accept len: 1.00, "
    )
    line += "accept rate: 0.25, cuda graph: True, gen throughput (token/s): 61.20, #queue-req: 0, \n"
    lines = "".join(line.format(second) for second in range(6))
    start = START.format(", speculative_algorithm='EAGLE', speculative_draft_model_path='{}'") + lines
    assert "model.safetensors.index.json" in steps(start.format("m"))[0]
    assert not any("model.safetensors.index.json" in step for step in steps(start.format("other")))


def test_stacks_of_workers_that_stand_name_what_to_leave_out():
    wait = "(EngineCore_DP0 pid=311) INFO 06-15 09:1{}:31 [shm_broadcast.py:542] No available shared memory broadcast "
    wait = "".join((wait + "block found in 60 seconds.\n").format(minute) for minute in (4, 5))
    stack = '$ py-spy dump --pid 402\nThread 402 (active): "MainThread"\n    {} (flashinfer/comm/x.py:442)\n'
    assert "fuse_allreduce_rms false" in steps(wait + stack.format("create_allreduce_fusion_workspace"))[0]
    assert "fuse_allreduce_rms false" not in steps(wait + stack.format("another"))[0]


def test_sizes_of_a_kernel_are_those_of_the_backend_that_the_start_names():
    log = '$ python3 -m sglang.launch_server --model-path m --attention-backend {}\n  File "/t/triton/compiler.py", '
    log += "line 307, in compile\nValueError: arange's range must be a power of 2\n"
    assert steps(log.format("aiter"))[0].startswith("without --attention-backend aiter")
    assert steps(log.format("triton"))[0].startswith("where drafts are on")


def test_a_check_in_a_step_of_drafts_with_overlap_is_tried_without():
    start = START.format(", speculative_algorithm='EAGLE'{}") + PREFILL + HIT
    log = start + frame("speculative/eagle_worker_v2.py", "_draft_extend_for_decode")
    log += "AssertionError: All of them must not be None\n"
    assert steps(log.format(""))[0].startswith("once with --disable-overlap-schedule")
    assert not steps(log.format(", disable_overlap_schedule=True"))[0].startswith("once with --disable-overlap")


def test_kernels_that_are_compiled_for_minutes_are_no_standing_start():
    log = (
        "Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=4096, K=4096\nDeepGEMM warmup:  12%|        | 1902/16384\n"
    )
    stands = unfinished(read_log("log", [log.encode()]))
    assert stands is not None
    assert stands[2].startswith("DeepGEMM compiles thousands of shapes")


def test_a_comment_behind_a_command_is_a_note_and_no_argument():
    log = "$ vllm serve m --tensor-parallel-size 2      # group 128; the same with --tensor-parallel-size 1 starts\n"
    log += '  File "/x/vllm/layer.py"\nAssertionError\n'
    read = read_log("log", [log.encode()])
    assert read.arguments["tp_size"] == "2"
    assert findings(read)[0].advice[0].startswith("with --tensor-parallel-size 1")


@pytest.mark.parametrize(
    ("given", "path", "function", "step"),
    [
        ("--page-size 64", "mem_cache/allocator.py", "alloc_extend", "once without --page-size 64"),
        ("--schedule-policy lof", "managers/schedule_policy.py", "calc_priority", "once without --schedule-policy lof"),
        (
            "--hicache-write-policy write_back",
            "mem_cache/hiradix_cache.py",
            "write_back_check",
            "once without --hicache-write-policy write_back",
        ),
        (
            "--attention-backend torch_native",
            "layers/attention/torch_native_backend.py",
            "forward",
            "once without --attention-backend torch_native, in whose own file it was raised",
        ),
    ],
)
def test_what_the_start_chose_for_the_part_that_failed_is_left_out(given, path, function, step):
    log = f"$ python3 -m sglang.launch_server --model-path m {{}}\n{HIT}{frame(path, function)}KeyError: 'odd'\n"
    assert any(one.startswith(step) for one in steps(log.format(given)))
    assert not any(one.startswith(step) for one in steps(log.format("")))
    elsewhere = log.format(given).replace(path, "managers/io_struct.py").replace(function, "__post_init__")
    assert not any(one.startswith(step) for one in steps(elsewhere))


def test_a_choice_that_a_release_makes_by_itself_is_none():
    log = "$ python3 -m sglang.launch_server --model-path m --hicache-write-policy write_through\n"
    log += HIT + frame("mem_cache/hiradix_cache.py", "write_back_check") + "KeyError: 'odd'\n"
    assert not any("--hicache-write-policy" in step for step in steps(log))


def test_a_backend_whose_code_stands_in_a_stack_is_named():
    start = START.format(", dsa_prefill_backend='tilelang'")
    log = "[2026-08-14 02:25:39 TP3] Watchdog timeout (self.watchdog_timeout=300)\n"
    log += "[2026-08-14 02:25:39 TP3] Pyspy dump for PID 812:\nProcess 812: sglang::scheduler_TP3\n"
    log += 'Thread 812 (idle): "MainThread"\n    run ({}/kernel.py:200)\n'
    assert any("--dsa-prefill-backend than tilelang" in step for step in steps(start + log.format("tilelang/jit")))
    assert not any("--dsa-prefill-backend" in step for step in steps(start + log.format("other/jit")))


def test_tiles_of_the_tower_of_images_are_of_its_own_backend():
    start = START.format(", attention_backend='triton', mm_attention_backend='triton_attn'")
    log = (
        HIT
        + frame("layers/attention/{}.py", "forward_attn")
        + "triton.runtime.errors.OutOfResources: out of resource: "
    )
    log += "shared memory, Required: 147456, Hardware limit: 101376\n"
    assert steps(start + log.format("vision"))[0].startswith("another --mm-attention-backend than triton_attn")
    assert steps(start + log.format("other"))[0].startswith("another --attention-backend than triton")


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("KeyError: 'MOONCAKE_MASTER'", "set MOONCAKE_MASTER in the environment"),
        ("RuntimeError: NVSHMEM_IB_ENABLE_IBGDA must be set for that mode", "set NVSHMEM_IB_ENABLE_IBGDA in"),
        ("RuntimeError: environment variable HF_TOKEN is not set", "set HF_TOKEN in the environment"),
        ("AssertionError: SGLANG_MOE_CONFIG_DIR does not exist", "unset SGLANG_MOE_CONFIG_DIR"),
    ],
)
def test_a_variable_that_an_exception_names_is_set_or_unset_first(said, step):
    assert steps(f"{HIT}{said}\n")[0].startswith(step)
    assert not any("environment" in one for one in steps(f"{HIT}{said.lower().replace('error', 'Error', 1)}\n"))


def test_a_library_that_is_not_found_at_run_time_is_named():
    line = "RuntimeError: cannot load libnvshmem_host.so.3\n"
    assert "libnvshmem_host.so.3" in found(HIT + line)[0].cause
    assert found(HIT + line.replace("cannot load libnvshmem_host.so.3", "cannot load it"))[0].rule == "other-crash"


def test_a_request_that_may_ask_for_the_whole_pool_explains_who_stands():
    pools = "[2026-07-01 10:00:00 TP0] max_total_num_tokens={}, chunked_prefill_size=512, context_len=8192\n"
    note = "# the first request hangs\n"
    assert steps(pools.format(3000) + note)[0].startswith("the pool holds 3000 tokens")
    assert not any("the pool holds" in step for step in steps(pools.format(90000) + note))


@pytest.mark.parametrize(
    ("note", "rule"),
    [
        ("# outputs only <pad>", "noted-trouble"),
        ("# RAM goes up by 2 GB per hour", "noted-trouble"),
        ("# /model_info never becomes ready", "noted-silence"),
        ("# outputs only what was asked", None),
        ("# RAM is the same all day", None),
    ],
)
def test_more_words_of_what_is_seen_are_notes(note, rule):
    log = f"$ sglang serve --model-path m\n[2026-07-01 10:00:00] The server is fired up and ready to roll!\n{note}\n"
    assert [one.rule for one in found(log)] == ([rule] if rule else [])


def test_families_of_failures_name_what_the_start_chose_for_their_part():
    start = "$ python3 -m sglang.launch_server --model-path m {}\n"
    log = start + HIT + frame("layers/moe/fused_moe_triton/layer.py", "forward")
    log += (
        "RuntimeError: The size of tensor a (704) must match the size of tensor b (352) at non-singleton dimension 1\n"
    )
    told = found(log.format("--moe-runner-backend flashinfer_trtllm"))[0]
    assert told.rule == "sizes-differ"
    assert told.advice[1].startswith("once without --moe-runner-backend flashinfer_trtllm")
    assert "--moe-runner-backend" not in " ".join(steps(log.format("")))


def test_a_code_of_cuda_is_no_size():
    log = HIT + frame("layers/sampler.py", "forward") + "RuntimeError: Check failed: {} (700 vs. 0)\n"
    assert found(log.format("status == cudaSuccess"))[0].rule == "illegal-access"
    assert found(log.format("rows.size(0) == batch_size"))[0].rule == "sizes-differ"


@pytest.mark.parametrize(
    ("note", "step"),
    [
        ("# no traceback, exit code 139", "start it with PYTHONFAULTHANDLER=1"),
        ("# the server exits with code 137", "dmesg -T | grep -i oom"),
        ("# SIGABRT, nothing else", "the lines of native code above its end"),
    ],
)
def test_a_code_that_a_note_names_says_where_to_look(note, step):
    assert steps(f"$ sglang serve --model-path m\n{note}\n")[0].startswith(step)
    assert found("$ sglang serve --model-path m\n# exit code 0\n") == ()


def test_a_core_that_is_busy_is_no_reason_for_slow_answers():
    log = "$ sglang serve --model-path m\n[2026-07-01 10:00:00] The server is fired up and ready to roll!\n{}\n"
    assert not any("--sleep-on-idle" in step for step in steps(log.format("# only 3 tokens/s")))
    assert "--sleep-on-idle" in steps(log.format("# slow, one core at 100% while idle"))[0]


@pytest.mark.parametrize(
    ("note", "step"),
    [
        ("# one request with 20 images takes the server down", "such a request alone, then as text alone"),
        ("# a long prompt kills the server", "such a prompt alone"),
        ("# dies when clients go away", "clients and routers that wait longer"),
        ("# crashes as soon as the second adapter is used", "the same request without its adapter"),
    ],
)
def test_requests_that_a_note_has_the_server_die_of_are_tried_alone(note, step):
    assert steps(f"$ sglang serve --model-path m\n{note}\n")[0].startswith(step)
    assert steps("$ sglang serve --model-path m\n# takes the server down\n")[0].startswith("start it again")


def test_a_type_of_kv_that_its_backend_refuses_is_left_out():
    log = "$ sglang serve --model-path m --kv-cache-dtype {}\n" + HIT
    log += frame("layers/attention/triton_backend.py", "forward_decode") + "AssertionError: fp8 not supported here\n"
    assert steps(log.format("fp8_e4m3"))[0].startswith("--kv-cache-dtype auto in place of fp8_e4m3")
    assert not steps(log.format("auto"))[0].startswith("--kv-cache-dtype auto")


ASSERTED = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernelUtils.cu:16: vectorized_gather_kernel: block: [214,0,0] Assertion "
    '`ind >=0 && ind < ind_dim_size && "vectorized gather kernel index out of bounds"` failed.\n'
)
FELL = f"{HIT}torch.AcceleratorError: CUDA error: device-side assert triggered\n"
TREE = ", speculative_algorithm='EAGLE3', speculative_eagle_topk={}, speculative_num_steps=5"


def test_drafts_that_are_a_tree_are_made_a_chain_where_an_index_fell_outside():
    told = "\n".join(steps(START.format(TREE.format(8)) + PREFILL + ASSERTED + FELL))
    assert "once with --speculative-eagle-topk 1 and --speculative-num-draft-tokens 6" in told
    for other in (TREE.format(1), f"{TREE.format(8)}, disable_cuda_graph=True"):
        assert "SGLang 27338" not in "\n".join(steps(START.format(other) + PREFILL + ASSERTED + FELL))


@pytest.mark.parametrize("words", ["we never saw it", "it is gone", "it never happens"])
def test_an_option_that_a_note_names_without_its_dashes_comes_first(words):
    note = f"# now and then. With speculative-eagle-topk 1 {words}.\n"
    told = steps(START.format(TREE.format(8)) + PREFILL + ASSERTED + FELL + note)
    assert told[0].startswith("with --speculative-eagle-topk 1, with which all is well")


@pytest.mark.parametrize("words", ["With top-of-the-line 1", "With speculative-eagle-topk 1 still"])
def test_what_is_no_option_or_changes_nothing_does_not(words):
    note = f"# now and then. {words} we never saw it.\n"
    told = steps(START.format(TREE.format(8)) + PREFILL + ASSERTED + FELL + note)
    assert "with which all is well" not in told[0]
