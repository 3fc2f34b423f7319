"""What SGLang's own checks refuse is told by their words and by the part that they concern."""

import importlib.util
from pathlib import Path

import pytest

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.parts_of_sglang import part_of_file
from made_logs import SITE, TRACEBACK, death, died, found_in, only, stamp, started, steady, told
from score_checks import judged, reports

RULE = "refused-by-check"
MIXED = "ValueError: --enable-mixed-chunk is not compatible with --speculative-algorithm. Please set page_size to 64."


def test_words_arguments_and_requests_of_the_check_are_repeated():
    finding = only([started(page_size=1), death(1, MIXED, frame="srt/arg_groups/speculative_hook.py")])
    assert (finding.rule, finding.confidence) == (RULE, Confidence.LIKELY)
    assert "the arguments of the start" in finding.cause
    assert finding.advice[0] == "what it asks for: Please set page_size to 64"
    assert finding.advice[1] == "change or leave out --enable-mixed-chunk, --speculative-algorithm, --page-size"
    assert ("page_size", "1") in {(evidence.meaning, evidence.value) for evidence in finding.evidence}


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ("srt/disaggregation/common/conn.py", "prefill and decode"),
        ("srt/mem_cache/storage/nixl/hicache_nixl.py", "storage"),
        ("srt/mem_cache/hiradix_cache.py", "hierarchical cache"),
        ("srt/lora/lora_manager.py", "LoRA"),
        ("srt/models/gemma4_mm.py", "code of the model"),
        ("srt/layers/moe/topk.py", "experts"),
        ("srt/observability/metrics_collector.py", "metrics"),
        ("srt/compilation/backend.py", "compiled graphs"),
        ("srt/weight_sync/tensor_bucket.py", "a trainer"),
        ("srt/multiplex/pdmux_context.py", "shares of one GPU"),
        ("multimodal_gen/runtime/loader/x.py", "parts of a diffusion pipeline"),
        ("multimodal_gen/runtime/pipelines/x.py", "a diffusion pipeline"),
        ("bench_serving.py", "a client and not the server"),
    ],
)
def test_the_file_names_the_part(frame, words):
    assert words in only([*steady(3), death(4, "RuntimeError: this case is not supported here", frame=frame)]).cause


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang's source is read")
def test_every_folder_of_sglang_is_of_a_part():
    found = importlib.util.find_spec("sglang")
    (root,) = found.submodule_search_locations
    files = [path.relative_to(root).as_posix() for path in Path(root).rglob("*.py") if path.name != "__init__.py"]
    below = [path.removeprefix("srt/") for path in files if path.startswith("srt/") and path.count("/") > 1]
    below += [path for path in files if path.startswith(("multimodal_gen/", "bench_", "lang/", "test/"))]
    assert [path for path in below if part_of_file(path) is None] == []


def test_what_is_asked_for_keeps_its_number():
    said = "ValueError: the pool is too small here. Raise --page-size above 0.712 (minimum = 0.7113). Then start again."
    assert "what it asks for: Raise --page-size above 0.712 (minimum = 0.7113)" in told(
        only([death(1, said, frame="srt/server_args.py")])
    )


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"tp_size": 8}, "give --disable-chunked-prefix-cache from the start"),
        ({"tp_size": 8, "speculative_algorithm": "EAGLE3"}, "may change them for both"),
        ({"disable_chunked_prefix_cache": True}, "change or leave out --disable-chunked-prefix-cache"),
    ],
)
def test_a_switch_that_nobody_asked_for_was_set_since(settings, step):
    line = "assert not get_schedule().disable_chunked_prefix_cache"
    last = died("AssertionError", ("layers/attention/flashattention_backend.py", "forward_extend", line))
    assert step in told(only([started(**settings), last]))


def test_what_images_need_is_of_no_request_as_a_server_starts():
    at_start = died("ValueError: this processor is not known here", ("managers/mm_utils.py", "init", "raise x"))
    assert "it is of no request" in told(only([at_start]))
    assert "send that request alone" in told(only([*steady(3), at_start]))


def test_arguments_are_named_by_the_function_that_looks_at_them():
    frame = ("server_args.py", "_handle_hicache_compatibility", "if self.a > self.b:")
    finding = only([died("TypeError: '>' not supported between instances of 'NoneType' and 'int'", frame)])
    assert "the arguments of hicache" in told(finding)


def test_a_library_of_kernels_of_another_release():
    frame = SITE.format("aiter/rotary_embedding.py", "get_rope")
    finding = only([f"{stamp(1)} Scheduler hit an exception: {TRACEBACK}{frame}KeyError: 'rope'\n"])
    assert "SGLANG_USE_AITER=0" in told(finding)
    assert "is of another release" in told(finding)


@pytest.mark.parametrize(
    ("last_line", "frame"),
    [
        pytest.param("RuntimeError: this case is not supported here", "torch/nn/module.py", id="another's file"),
        pytest.param(
            "RuntimeError: The size of tensor a (4) must match the size of tensor b", "srt/layers/x.py", id="torch"
        ),
        pytest.param("KeyError: 'layer_9'", "srt/models/gemma4_mm.py", id="no words"),
        pytest.param("AssertionError", "srt/models/gemma4_mm.py", id="no message"),
    ],
)
def test_what_is_no_check_of_its_own(last_line, frame):
    end = death(4, last_line, frame=frame).replace("/srv/sglang/torch", "/opt/torch")
    assert {finding.rule for finding in found_in([*steady(3), end])} == {"other-crash"}


def test_an_assertion_without_words_names_its_part():
    end = death(4, "AssertionError", frame="srt/mem_cache/unified_cache_components/swa_component.py")
    finding = only([*steady(3), end.replace("in step", "in build_hicache_transfers")])
    assert finding.rule == "other-crash"
    assert "SGLang's own, of the hierarchical cache. A state that its code does not expect" in finding.cause
    assert any("--enable-hierarchical-cache" in step for step in finding.advice)


def test_a_request_that_failed_of_one_is_told_though_the_server_went_on():
    frame = '  File "/srv/sglang/srt/entrypoints/openai/serving_chat.py", line 12, in convert\n    call()\n'
    lines = [
        f"{stamp(4)} Exception in ASGI application\nTraceback (most recent call last):\n{frame}",
        "ValueError: this template does not support tools\n",
        f'{stamp(4)} INFO:     10.0.0.7:41000 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n',
    ]
    finding = only([*steady(3), *lines, *steady(3, 5)])
    assert finding.rule == RULE
    assert "and the server went on" in finding.cause


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang's source is read")
def test_nothing_that_a_check_can_raise_is_healthy_and_most_of_it_is_told():
    found = importlib.util.find_spec("sglang")
    assert found is not None
    root = Path(found.submodule_search_locations[0]) / "srt"  # type: ignore[index]
    raised = [report for report in reports(root, every=8) if report.type_name][::3]
    verdicts = [judged(report) for report in raised]
    assert "silent" not in verdicts
    assert verdicts.count("told") >= 0.85 * len(verdicts)
