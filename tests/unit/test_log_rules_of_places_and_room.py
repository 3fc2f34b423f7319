"""Requests and transfers that keep a place or lack one, memory that grows, and buffers that a start made too small."""

import pytest

from made_logs import (
    BESIDE_ROOM,
    MOVING,
    ROOM,
    TOO_LONG,
    TOP,
    TRACEBACK,
    death,
    decode,
    died,
    ended,
    found_in,
    only,
    prefill,
    stamp,
    started,
    told,
)


def test_prompts_held_against_the_pool_of_the_windows_are_no_healthy_refusal():
    pools = f"{stamp(0)} Use sliding window memory pool. full_layer_tokens=186368, swa_layer_tokens=18432\n"
    finding = only([pools, prefill(1), f"{stamp(2)} {TOO_LONG.format(31244, 18432)}", decode(3)])
    assert finding.rule == "refused-for-room"
    assert "a larger --swa-full-tokens-ratio" in told(finding)
    # A limit of another size is somebody else's.
    assert found_in([pools, prefill(1), f"{stamp(2)} {TOO_LONG.format(31244, 30000)}", decode(3)]) == ()


@pytest.mark.parametrize(
    ("running", "seconds"),
    [(4, (10, 30, 50, 70)), (3, (10, 12, 14)), (3, (10, 70))],
    ids=["all-places-taken", "seconds-only", "two-lines"],
)
def test_a_request_that_only_has_to_wait_is_no_finding(running, seconds):
    lines = [f"{stamp(second)} {BESIDE_ROOM.format(running)}" for second in seconds]
    assert found_in([f"{stamp(0)} {ROOM}", *lines]) == ()


def test_a_prefill_between_ends_the_stretch():
    waits = [f"{stamp(second)} {BESIDE_ROOM.format(3)}" for second in (10, 30, 50, 70)]
    lines = [waits[0], prefill(11, full=0.05, swa=0.0), waits[1], waits[2], prefill(51, full=0.05, swa=0.0), waits[3]]
    assert found_in([f"{stamp(0)} {ROOM}", *lines]) == ()


@pytest.mark.parametrize(
    "lines",
    [
        [MOVING.format(1, moving) for moving in (31, 30, 29)],
        [MOVING.format(40, 31)] * 3,
        [MOVING.format(1, 0)] * 3,
        [MOVING.format(1, 2)] * 3,
    ],
    ids=["falls", "many-run", "none", "few"],
)
def test_transfers_that_come_and_go_do_not_stand(lines):
    assert found_in([f"{stamp(200 * place)} {line}" for place, line in enumerate(lines)]) == ()


def test_memory_that_stays_level_or_is_of_another_process_does_not_grow():
    assert found_in([TOP.format(hour, 6100) for hour in range(4)]) == ()
    other = TOP.format(3, 9000).replace("server ", "sidecar ")
    assert found_in([*(TOP.format(hour, 6100) for hour in range(3)), other]) == ()


def test_a_buffer_of_the_start_is_not_the_drafts_weights():
    finding = only(
        [
            started(speculative_algorithm="EAGLE", speculative_adaptive=True),
            died(
                "AssertionError: shared logits buffer holds 128 rows but caller needs 256",
                ("speculative/eagle_worker_v2.py", "__init__", "self.adaptive_controller.init_states()"),
                ("model_executor/decode_cuda_graph_runner.py", "capture_one_shape", "out = buffer(num_rows)"),
            ),
        ]
    )
    assert finding.rule == "told-by-words"
    assert "once without --speculative-adaptive" in told(finding)
    assert "it is the draft" not in told(finding)


ALIGNED = (
    "RuntimeError: Error in function 'aligned_alloc' at allocator.h:71: Buffer overflow when allocating memory for "
    "batch_prefill_tmp_v with size 2415919104 and alignment 16, but only 2147483648 bytes in AlignedAllocator."
)


def test_a_deterministic_server_sets_the_workspace_itself():
    asked = {"attention_backend": "flashinfer", "enable_deterministic_inference": True, "chunked_prefill_size": 8192}
    finding = only([started(**asked), prefill(1), death(2, ALIGNED, frame="prefill.py")])
    assert finding.advice[0].startswith("--chunked-prefill-size 4096 (8192 now)")
    assert "once without --enable-deterministic-inference" in finding.advice[1]


ILLEGAL = "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"


def test_a_wide_pool_and_a_long_chunk_are_what_triton_counts_past():
    pool = f"{stamp(0)} max_total_num_tokens=4719830, chunked_prefill_size=8192, context_len=131072\n"
    finding = only([started(attention_backend="triton"), pool, prefill(1), death(2, ILLEGAL)])
    assert finding.advice[0].startswith("once with --max-total-tokens 1000000 (4719830 now)")
    launched = '  File "/opt/triton/backends/nvidia/driver.py", line 713, in __call__\n    self.launch(*args)\n'
    convolves = '  File "/opt/sglang/srt/layers/causal_conv1d_triton.py", line 688, in causal_conv1d_fn\n    f()\n'
    fell = f"{stamp(2)} Scheduler hit an exception: {TRACEBACK}{convolves}{launched}{ILLEGAL}\n"
    advice = only([started(chunked_prefill_size=65536), prefill(1), fell]).advice
    assert advice[0].startswith("once with --chunked-prefill-size 8192")
    assert not any("--mamba-backend triton" in one for one in advice)


def test_adapters_of_experts_meet_attention_data_parallelism():
    asked = {"enable_lora": True, "tp_size": 8, "dp_size": 8}
    frames = (
        ("models/qwen3_moe.py", "forward_normal", "self.experts(hidden_states)"),
        ("lora/triton_ops/chunked_sgmv_shrink.py", "chunked_sgmv_lora_shrink_forward", "assert x.shape[-1] == K"),
    )
    both = found_in([started(**asked, enable_dp_attention=True), died("AssertionError", *frames)])[0]
    assert any(one.startswith("once without --enable-dp-attention (plain --tp)") for one in both.advice)
    plain = found_in([started(**asked), died("AssertionError", *frames)])[0]
    assert not any("(plain --tp)" in one for one in plain.advice)


def test_scores_of_a_chunk_ask_for_a_smaller_chunk_first():
    said = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.45 GiB. GPU 2 has a total capacity of 277.53 "
        "GiB of which 5.91 GiB is free."
    )
    frame = ("layers/attention/dsv4/low_ratio_backend.py", "_low_ratio_index_topk_dense", "mask = torch.cat(pieces)")
    asked = {"chunked_prefill_size": 16384, "mem_fraction_static": 0.8}
    finding = only([started(**asked), prefill(1), died(said, frame)])
    assert finding.advice[0].startswith("--chunked-prefill-size 4096 (16384 now)")


@pytest.mark.parametrize(
    ("last", "frame", "word"),
    [
        (
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            ("managers/scheduler.py", "flush_cache", "self.req_to_token_pool.clear()"),
            "resume_memory_occupation with the tag kv_cache",
        ),
        (
            "AssertionError: Cache flush failed after updating weights",
            ("managers/scheduler_update_weights_mixin.py", "update_weights_from_disk", "assert flush_cache_success"),
            "try /flush_cache again",
        ),
        (
            "RuntimeError: PP-heterogeneous transfer requires layer ids on both peers; got src=20 dst=78 entries",
            ("disaggregation/utils.py", "build_transfer_entry_pairs", "raise RuntimeError("),
            "the same --pp-size on both sides",
        ),
    ],
)
def test_words_and_places_of_trainers_and_stages(last, frame, word):
    finding = only([decode(1), died(last, frame)])
    assert finding.rule == "told-by-words"
    assert word in told(finding)


FREE_OF_TWO = (
    "Available full tokens: 91000 (full_available_size=91000 + full_evictable_size=0)\n"
    "Available swa tokens: {swa} (swa_available_size={swa} + swa_evictable_size=0)\n"
)
NO_SLOT = "RuntimeError: Decode out of memory. Try to lower your batch size.\nTry to allocate 61 tokens.\n"


def no_slot(swa: int, **settings: object) -> str:
    lines = [started(page_size=1, **settings), FREE_OF_TWO.format(swa=swa), ended(NO_SLOT)]
    (finding,) = (one for one in found_in(lines) if one.rule == "no-slot")
    return told(finding)


def test_a_pool_of_windows_that_alone_is_empty_is_made_larger_by_its_ratio():
    assert "--swa-full-tokens-ratio (now 0.2)" in no_slot(0, swa_full_tokens_ratio=0.2)
    assert "--swa-full-tokens-ratio" not in no_slot(40, swa_full_tokens_ratio=0.2)


def test_batches_that_prefill_and_decode_are_left_out_first_where_a_decode_had_no_slot():
    assert "without --enable-mixed-chunk" in no_slot(0, enable_mixed_chunk=True)
    assert "mixed" not in no_slot(0, enable_mixed_chunk=False)


RAN_OUT = (
    f"{stamp(5)} Error in handling request: CUDA out of memory. Tried to allocate 194.00 MiB. GPU 0 has a total "
    "capacity of 79.11 GiB of which 71.25 MiB is free.\n"
)
LIST = "# nvidia-smi now:\n# 0  N/A  181022  C  {}  {}MiB\n# 0  N/A  181250  C  sglang::scheduler  61310MiB\n"
SIGHTED = started(model_path="Qwen/Qwen2.5-VL-7B-Instruct", mem_fraction_static=0.7)
BLIND = started(model_path="Qwen/Qwen3-8B", mem_fraction_static=0.7)


def ran_out(start: str, *notes: str):
    return found_in([start, prefill(1), decode(2), RAN_OUT, *notes])[0]


def test_a_process_that_prepares_pictures_and_holds_much_leads_where_memory_ran_out():
    found = ran_out(SIGHTED, LIST.format("python3", 18754))
    assert (
        "process 181022 (python3), mostly the one of this server that prepares pictures, holds 18.3 GiB" in found.cause
    )
    assert found.advice[0].startswith("--disable-fast-image-processor")
    assert "0.69 would have left" not in told(found)


def test_of_text_alone_nobody_knows_whose_process_it_is():
    found = ran_out(BLIND, LIST.format("python3", 18754))
    assert "pictures" not in found.cause
    assert found.advice[0].startswith("ps -o pid,ppid,args -p 181022")


@pytest.mark.parametrize("row", [("python3", 900), ("sglang::scheduler", 18754)])
def test_a_context_alone_or_a_rank_is_no_other_process(row):
    assert "0.69 would have left" in told(ran_out(SIGHTED, LIST.format(*row)))


def test_what_grows_by_a_note_is_met_by_no_smaller_share():
    found = ran_out(SIGHTED, "# GPU memory grows with every request until it is full\n")
    assert "by a note it grew while the server served" in found.cause
    assert found.advice[0].startswith("once with --disable-fast-image-processor")
    assert "0.69 would have left" not in told(found)
    of_text = ran_out(BLIND, "# GPU memory grows with every request until it is full\n")
    assert of_text.advice[0].startswith("gemma4-triage collect URL")
