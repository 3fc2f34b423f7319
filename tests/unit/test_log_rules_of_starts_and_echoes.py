"""Starts that a list, a checkpoint's code or a module refuses, and what only follows from another rank's end."""

import pytest

from gemma4_triage.logs.catalog import findings
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.suspects import suspects
from made_logs import death, decode, only, stamp, told

FRAME = '  File "{}", line 12, in {}\n    call()\n'
HIT = "Scheduler hit an exception: Traceback (most recent call last):\n"
WATCHDOG = f"{stamp(400, 'DP0 TP0')} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
NOT_SUPPORTED = "ValueError: Model architectures ['MiMoV2ForCausalLM'] are not supported for now. Supported: []"
NOT_IMPORTED = f"{stamp(0)} Ignore import error when loading sglang.srt.models.{{}}: {{}}\n"
DRAFTS = "$ sglang serve --model-path m --speculative-algorithm NEXTN --speculative-num-steps 3\n"
BENCH = "Prefill. latency: {} s, throughput:  70692.62 token/s\n"
SAME = "# main of 2025-12-08, same node, same command\n"
ANSWER = '# restarted with --{} x: content "{}"\n'
UP = f"{stamp(9)} The server is fired up and ready to roll!\n"


def read(*lines: str):
    return read_log("server.log", ["".join(lines).encode()])


def shown(*lines: str) -> list[str]:
    return [one.id for one in suspects(read(*lines))]


def raised(second: int, last: str, *frames: str, rank: str = "") -> str:
    calls = "".join(FRAME.format(*frame.split(" ")) for frame in frames)
    return f"{stamp(second, rank)} {HIT}{calls}{last}\n\n"


def test_a_list_that_lacks_the_model_is_told_and_no_batch():
    said = "ValueError: Model type Qwen3_5ForConditionalGeneration is not supported for encoder disaggregation."
    finding = only([death(1, said, frame="srt/server_args.py", function="_handle_encoder_disaggregation")])
    assert finding.advice[0].startswith("a later release or nightly, whose list has it")
    assert "without --encoder-only" in finding.advice[0]
    said = "ValueError: encoder disaggregation must have a port"
    finding = only([death(1, said, frame="srt/server_args.py", function="_handle_encoder_disaggregation")])
    assert "--chunked-prefill-size -1" not in told(finding)
    assert "--disaggregation-mode" not in told(finding)


@pytest.mark.parametrize(
    ("module", "why", "words"),
    [
        ("mimo_v2", "FA3 kernels are not built for sm103", "whatever backend is chosen"),
        ("mimo_v2", "No module named 'x'", "mend what that line says first"),
        ("other", "No module named 'x'", "if an 'Ignore import error' line above"),
    ],
)
def test_a_model_whose_file_was_left_out_is_not_unknown(module, why, words):
    finding = findings(read(NOT_IMPORTED.format(module, why), death(1, NOT_SUPPORTED, frame="srt/models/registry.py")))[
        0
    ]
    assert finding.advice[0].find(words) >= 0
    assert finding.cause.startswith("This release has code") is (module != "other")


@pytest.mark.parametrize(("own", "first"), [(True, "without --trust-remote-code"), (False, "pip show transformers")])
def test_the_code_of_a_checkpoint_is_told_from_the_servers(own, first):
    by = "/lib/transformers/dynamic_module_utils.py" if own else "/srv/sglang/srt/models/m.py"
    last = "ImportError: cannot import name 'LlamaFlashAttention2' from 'transformers.models.llama.modeling_llama'"
    finding = only([raised(1, last, f"{by} get", "/cache/modeling_deepseekv2.py <module>")])
    assert finding.advice[0].startswith(first)


@pytest.mark.parametrize(("function", "built"), [("__init__", True), ("get_dispatch_layout", False)])
def test_a_buffer_that_is_built_within_a_capture_is_told(function, built):
    said = "RuntimeError: Capture cuda graph failed: NCCL exception (nccl.cu:188): 3"
    finding = findings(read(raised(1, said, "/opt/DeepEP/deep_ep.py " + function)))[0]
    assert ("was built within the capture" in finding.cause) is built


@pytest.mark.parametrize(("rank", "hangs"), [("DP9 TP9", False), ("DP0 TP0", True)])
def test_who_waits_for_a_rank_that_died_is_no_first_finding(rank, hangs):
    last = "TypeError: 'NoneType' object is not iterable"
    log = raised(1, last, "/srv/sglang/srt/managers/mixin.py prepare_mlp_sync_batch_raw", rank=rank)
    found = [one.rule for one in findings(read(decode(0), log, WATCHDOG))]
    assert ("hang" in found) is hangs
    assert "idle-rank" in found


def test_an_argument_that_a_line_lacks_is_named():
    last = "TypeError: unsupported operand type(s) for *: 'NoneType' and 'int'"
    frame = '  File "/srv/sglang/srt/managers/tokenizer_manager.py", line 12, in reserve\n    {}\n'
    log = f"Traceback (most recent call last):\n{frame}{last}\n\n"
    product = "server_args.speculative_eagle_topk * server_args.speculative_num_steps"
    assert "give --speculative-eagle-topk 1," in told(only([DRAFTS, log.format(product)]))
    assert "give --" not in told(only([DRAFTS, log.format("server_args.model_config * 2")]))


@pytest.mark.parametrize("ready", [False, True])
def test_a_warm_up_that_fails_is_told(ready):
    log = [f"{stamp(0)} Start of pd disaggregation warmup ...\n", *([UP] if ready else [])]
    ended = death(9, "torch.AcceleratorError: CUDA error: device-side assert triggered")
    assert ("once with --skip-server-warmup" in told(findings(read(*log, ended))[0])) is not ready


def test_sizes_of_the_servers_own_code_are_named():
    log = [
        "$ sglang serve --model-path m --speculative-algorithm NGRAM --speculative-ngram-capacity 4\n",
        "munmap_chunk(): invalid pointer\n",
        '  File "<unknown>", line 0, in sglang::ngram::Trie::squeeze(unsigned long)\n',
        '  File "<unknown>", line 0, in sglang::ngram::Ngram::insertWorker()\n',
    ]
    finding = only(log)
    assert "in sglang::ngram::Trie::squeeze" in finding.cause
    assert finding.advice[0].startswith("without --speculative-ngram-capacity 4")
    assert "ngram" not in told(only(log[:2]))


@pytest.mark.parametrize(("later", "slower"), [("2.12386", True), ("1.82", False), ("1.2", False)])
def test_a_benchmark_of_two_builds_is_compared(later, slower):
    command = "$ python3 -m sglang.bench_one_batch --model-path m --attention-backend fa3\n"
    assert ("between-builds" in shown(command, BENCH.format("1.81"), SAME, BENCH.format(later))) is slower
    assert "between-builds" not in shown(command, BENCH.format("1.81"), BENCH.format(later))
    assert "between-builds" not in shown(command, BENCH.format("1.81"), "# same command again\n", BENCH.format(later))


@pytest.mark.parametrize(("second", "alike"), [("++++++++++++", True), ("Paris is it.", False)])
def test_backends_that_are_wrong_alike_are_not_at_fault(second, alike):
    start = "$ sglang serve --model-path m --quantization modelopt_fp4 --moe-runner-backend flashinfer_cutlass\n"
    notes = (ANSWER.format("moe-runner-backend", "++++++++++++"), ANSWER.format("moe-runner-backend", second))
    listed = shown(start, UP, decode(10), *notes)
    assert ("kernels-alike" in listed) is alike
    assert ("experts-backend" in listed) is not alike


@pytest.mark.parametrize(("text", "cut", "told"), [("", "", True), ("4", "", False), ("", "...\n...\n", False)])
def test_a_stream_that_ends_behind_thoughts_is_shown(text, cut, told):
    chunk = 'data: {"id":"e1","choices":[{"index":0,"delta":{%s},"finish_reason":%s}]}\n'
    chunks = (
        chunk % ('"role":"assistant","content":""', "null"),
        chunk % ('"content":null,"reasoning_content":" so"', "null"),
        chunk % (f'"content":"{text}"', "null"),
        # Chunks that were cut out may have had the answer.
        cut + chunk % ('"content":null', '"stop"'),
    )
    assert ("only-thoughts" in shown("$ sglang serve --model-path m\n", *chunks)) is told
