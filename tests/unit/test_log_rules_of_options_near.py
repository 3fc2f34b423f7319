"""What an exception and its frames are about says which option comes first; and claims that evidence narrows."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import decode, stamp

FRAME = '  File "{}", line 12, in {}\n    {}\n'
HIT = "Scheduler hit an exception: Traceback (most recent call last):\n"
SRT = "/s/python/sglang/srt/"
START = "$ python -m sglang.launch_server --model-path m {}\n"
PREFILL = (
    "Prefill batch, #new-seq: 1, #new-token: 38, #cached-token: {}, token usage: 0.01, #running-req: 0, #queue-req: 0"
)
HEALTH = "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. "
HEALTH += "tic start time: 03:16:11. last_heartbeat time: 03:15:03\n"
CONTROLLER = "DataParallelController watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
SCORE = "mamba-scheduler-strategy={}  linear-attn-decode-backend={}   Score: {}\n"


def read(*lines: str):
    return read_log("server.log", ["".join(lines).encode()])


def first(*lines: str):
    return findings(read(*lines))[0]


def raised(second: int, last: str, *frames: str, rank: str = "", call: str = "call()") -> str:
    calls = "".join(FRAME.format(SRT + frame.split(" ")[0], frame.split(" ")[1], call) for frame in frames)
    return f"{stamp(second, rank)} {HIT}{calls}{last}\n\n"


SPARSE = "--nsa-prefill-backend trtllm --nsa-decode-backend trtllm"


def test_the_backend_of_the_part_that_failed_comes_first():
    died = raised(1, "AssertionError: dim_quant: 576 != 656", "models/forward_mha.py prepare")
    assert first(START.format(SPARSE), died).advice[0].startswith(f"once without {SPARSE.replace('llm --', 'llm, --')}")
    assert "nsa" not in " ".join(first(START.format("--tp 4"), died).advice)
    of_pools = raised(1, "RuntimeError: a table is odd", "managers/scheduler.py get_next_batch_to_run")
    assert "nsa" not in " ".join(first(START.format(SPARSE), of_pools).advice)


def test_a_value_that_is_quoted_comes_before_what_is_only_near():
    given = "--moe-runner-backend flashinfer_cutlass --enable-lora --lora-backend csgmv"
    said = "NotImplementedError: no adapters of experts with flashinfer_cutlass here"
    advice = first(START.format(given), raised(1, said, "lora/layers.py __init__")).advice
    assert "--moe-runner-backend flashinfer_cutlass" in advice[0]
    # What is advised already is not advised against.
    advice = first(START.format("--moe-runner-backend triton"), raised(1, said, "layers/moe/x.py run")).advice
    assert "once without --moe-runner-backend triton" not in " ".join(advice)


def test_a_stage_behind_the_first_lacks_what_another_has():
    died = "AttributeError: 'NoneType' object has no attribute 'unsqueeze'"
    frame = "layers/attention/x_backend.py forward"
    start = START.format("--pp-size 2")
    assert first(start, raised(1, died, frame, rank="PP1 TP0")).advice[0].startswith("once with --pp-size 1")
    assert not first(start, raised(1, died, frame, rank="PP0 TP0")).advice[0].startswith("once with --pp-size 1")


def test_adapters_beside_expert_parallelism_are_told_together():
    died = raised(
        1, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "lora/layers.py run"
    )
    assert first(START.format("--enable-lora --ep-size 4"), died).advice[0].startswith("once with --ep-size 1")
    assert "once with --ep-size 1" not in " ".join(first(START.format("--enable-lora"), died).advice)


@pytest.mark.parametrize(
    ("frame", "call", "of_the_draft"),
    [
        ("speculative/eagle_worker_v2.py forward", "self._draft_extend()", True),
        ("speculative/frozen_kv_mtp_worker.py forward", "self._draft_extend()", True),
        ("speculative/eagle_worker_v2.py verify", "self.check()", False),
        ("layers/sampler.py forward", "check()", False),
    ],
)
def test_nan_that_a_worker_of_drafts_sees_leads_to_the_prefix_cache(frame, call, of_the_draft):
    start = START.format("--speculative-algorithm NEXTN --quantization fp8")
    nan = raised(3, "ValueError: Detected errors during sampling! NaN in the logits.", frame, rank="TP0", call=call)
    finding = first(start, f"{stamp(2, 'TP0')} {PREFILL.format(704)}\n", nan)
    assert finding.advice[0].startswith("once with --disable-radix-cache: the last prefill") is of_the_draft
    assert ("704 tokens" in finding.advice[0]) is of_the_draft


def test_lengths_of_drafts_that_differ_are_a_finding_though_the_server_goes_on():
    said = f"{stamp(1, 'TP0')} length of {{}}: 5 != length of {{}}: 7, this should not happen\n"
    (finding,) = findings(read(said.format("new_indices", "topk_p"), decode(2, running=5)))
    assert (finding.rule, finding.confidence.name) == ("draft-bookkeeping", "POSSIBLE")
    assert not findings(read(said.format("columns", "rows"), decode(2, running=5)))


def test_the_watchdog_of_a_controller_is_no_hang_while_schedulers_go_on():
    finding = first(decode(100, running=5), f"{stamp(104)} {CONTROLLER}")
    assert "nothing hung" in finding.cause
    stood = first(decode(1, running=5), f"{stamp(400)} {CONTROLLER}")
    assert "nothing hung" not in stood.cause
    assert stood.confidence.name == "POSSIBLE"
    scheduler = first(
        decode(100, running=5), f"{stamp(104)} {CONTROLLER.replace('DataParallelController', 'Scheduler')}"
    )
    assert "controller" not in scheduler.cause


@pytest.mark.parametrize(("chunk", "told"), [(32768, True), (8192, False)])
def test_a_chunk_beyond_the_pool_of_the_window_is_told_with_what_fits(chunk, told):
    start = START.format(f"--chunked-prefill-size {chunk} --swa-full-tokens-ratio 0.1")
    pools = f"{stamp(0, 'TP0')} DSV4 pool sizes: full=212224, swa=20992\n"
    prefill = f"{stamp(1, 'TP0')} {PREFILL.format(0).replace('#new-token: 38', '#new-token: 16333')}\n"
    finding = first(start, pools, prefill, f"{stamp(80)} {HEALTH}")
    assert finding.rule == "never-admitted"
    assert finding.advice[0].startswith("--chunked-prefill-size 16384") is told
    assert ("from 0.16 on" in " ".join(finding.advice)) is told


@pytest.mark.parametrize("on", [True, False])
def test_features_over_cuda_ipc_are_told_where_they_are_switched_on(on):
    start = "$ SGLANG_USE_CUDA_IPC_TRANSPORT=1 " * on + START.format("").removeprefix("$ " * on)
    said = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total capacity of 79.11 "
    )
    died = raised(1, f"{said}GiB of which 86.56 MiB is free.", "models/qwen3_vl.py get_image_feature")
    advice = first(start, died).advice
    assert advice[0].startswith("unset SGLANG_USE_CUDA_IPC_TRANSPORT") is on


IMPORTS = 'Traceback (most recent call last):\n  File "/v/site-packages/{}/a.py", line 6, in <module>\n    {}\n{}\n'


def test_both_packages_are_named_where_one_asks_what_another_lacks():
    lacks = "ModuleNotFoundError: No module named 'triton{}'"
    asks = ("triton_kernels", "from triton.tools.x import y", lacks.format(".tools.x"))
    finding = first(IMPORTS.format(*asks))
    assert finding.cause.startswith("triton_kernels imports triton.tools.x, which the installed triton has not")
    # What is not there at all, or is of the server's own, is another matter.
    for package, lacking in (("triton_kernels", ""), ("sglang", ".tools.x")):
        assert "the installed triton" not in first(IMPORTS.format(package, "import", lacks.format(lacking))).cause


@pytest.mark.parametrize(("asks", "told"), [("/w/trainer/rollout.py", True), (f"{SRT}entrypoints/engine.py", False)])
def test_a_package_that_was_renamed_is_told_of_who_asks(asks, told):
    frames = f'  File "{asks}", line 1, in _set_envs\n  File "{SRT}utils/common.py", line 2, in assert_pkg_version\n'
    said = "Exception: sglang_kernel with minimum required version 0.1.1 is not installed. Please reinstall it.\n"
    finding = first("Traceback (most recent call last):\n", frames, said)
    assert ("rollout.py, which is none of SGLang's own files" in finding.cause) is told


def test_an_exception_of_another_program_asks_for_another_release_of_that():
    died = (
        'Traceback (most recent call last):\n  File "/v/site-packages/transformers/cli/u.py", line 5, in run\n    x.y\n'
    )
    advice = " ".join(first(died, "AttributeError: 'Gemma4Processor' object has no attribute '_tokenizer'\n").advice)
    assert "another release of transformers" in advice
    assert "SGLang" not in advice


def test_scores_of_several_starts_lead_to_the_option_in_which_they_differ():
    start = START.format("--mamba-scheduler-strategy no_buffer --linear-attn-decode-backend flashinfer")
    up = f"{stamp(1)} The server is fired up and ready to roll!\nScore: {{}}\n"
    rows = SCORE.format("extra_buffer", "flashinfer", 0.99) + SCORE.format("no_buffer", "triton", 0.99)
    found = suspects(read(start, up.format(0.94), rows))
    assert found[0].id == "between-scores"
    assert "--mamba-scheduler-strategy extra_buffer or --linear-attn-decode-backend triton" in found[0].change
    for own in (0.98, ""):
        assert "between-scores" not in [one.id for one in suspects(read(start, up.format(own), rows))]
    both = SCORE.format("extra_buffer", "triton", 0.99)
    assert "between-scores" not in [one.id for one in suspects(read(start, up.format(0.94), both))]
