"""The probes and the lock-step fix on a real GPU: CUDA graphs, XQA decode, the hybrid backend.

The committed toys have head dims that XQA does not take, so a random-weight pair with head dims 64 and 128 is made.
Target verify stays on Triton (speculative_attention_mode's default): XQA refuses it without a mask on Hopper, so the
probe on a trtllm_mha verify under graphs is written for Blackwell and not measured.
"""

import shutil

import pytest

import engine_process
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.toys.locate import toy_path

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]

START_LIMIT_S = 300


def make_checkpoint(folder, kind):
    """Return a random-weight checkpoint of the toys' geometry with head dims 64 (sliding) and 128 (full)."""
    import torch
    import transformers

    from gemma4_repro.toys import geometry
    from gemma4_repro.toys.locate import ASSISTANT_NAME, TARGET_NAME

    torch.manual_seed(0)
    name, config, model_class = {
        "target": (TARGET_NAME, geometry.target_config(), transformers.Gemma4ForConditionalGeneration),
        "assistant": (ASSISTANT_NAME, geometry.assistant_config(), transformers.Gemma4AssistantForCausalLM),
    }[kind]
    config.text_config.head_dim, config.text_config.global_head_dim = 64, 128
    model_class(config).to(torch.bfloat16).save_pretrained(folder)
    for path in toy_path(name).iterdir():
        if path.suffix in (".json", ".jinja") and not (folder / path.name).exists():
            shutil.copy(path, folder)
    return str(folder)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    return {
        "model_path": make_checkpoint(tmp_path_factory.mktemp("target"), "target"),
        "speculative_draft_model_path": make_checkpoint(tmp_path_factory.mktemp("assistant"), "assistant"),
        "dtype": "bfloat16",
        "prefill_attention_backend": "triton",
        "decode_attention_backend": "trtllm_mha",
        "page_size": 64,
        "max_total_tokens": 10240,
        "swa_full_tokens_ratio": 0.4,
        "max_running_requests": 8,
        "cuda_graph_max_bs": 8,
        "mem_fraction_static": 0.5,
        "speculative_algorithm": "NEXTN",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
        "grammar_backend": "none",
    }


@pytest.fixture
def run(tmp_path):
    def run_once(arguments, each_alone=False, **environment):
        prompts = [[2, *range(20 + i, 20 + i + 400)] for i in range(8)]
        prompts = [[token % 490 + 10 for token in prompt] for prompt in prompts]
        settings = {"HF_HUB_OFFLINE": "1"} | environment
        spec = engine_process.prompts_spec([arguments], prompts, new_tokens=200, each_alone=each_alone)
        return engine_process.answers_only(engine_process.run_fresh(tmp_path, settings, START_LIMIT_S, spec))

    return run_once


def dumps(tmp_path):
    return [read_dump(entry.path).manifest for entry in DumpStore(tmp_path / "dumps").list()]


FAULT = {"GEMMA4_TRIAGE_FAULTS": "swa-state-stale"}
NO_SWAP = {"GEMMA4_TRIAGE_PATCHES": "default,-swa-state-swap"}
FIXED = {"GEMMA4_TRIAGE_PATCHES": "default"}
DEBUG = {"SGLANG_TRTLLM_MHA_DEBUG": "1"}
# Without this the draft gets a HybridAttnBackend, whose own defect would hide the seed bug.
PLAIN_DRAFT = {"speculative_draft_attention_backend": "trtllm_mha"}


def test_hybrid_without_the_fix_indexes_the_dummy_pool(run, arguments):
    done = run(arguments, **NO_SWAP)
    assert done.outputs is None
    assert "IndexError: list index out of range" in done.log


def test_hybrid_with_the_fix_serves_and_is_clean(run, arguments, tmp_path):
    done = run(arguments, **FIXED, **DEBUG)
    assert done.returncode == 0, done.log[-4000:]
    assert dumps(tmp_path) == []


def test_the_seed_bug_is_silent_on_hopper(run, arguments, tmp_path):
    """All requests end as if nothing was wrong; the test below shows what the same load reads."""
    done = run(arguments | PLAIN_DRAFT, **FAULT, **NO_SWAP)
    assert done.returncode == 0, done.log[-4000:]
    (answers,) = done.outputs
    assert [len(answer["tokens"]) for answer in answers] == [200] * 8


def test_what_the_silent_run_reads(run, arguments, tmp_path):
    done = run(arguments | PLAIN_DRAFT, **FAULT, **NO_SWAP, SGLANG_TRTLLM_MHA_DEBUG="log")
    assert done.returncode == 0, done.log[-4000:]
    past_the_end = [one for one in dumps(tmp_path) if one.verdict == "out_of_range"]
    assert past_the_end
    for one in past_the_end:
        assert (one.action, one.role, one.layer.type, one.graph.captured) == ("logged", "draft", "sliding", True)
        assert all(bad.value >= bad.upper == 65 for bad in one.offences)


def test_the_seed_bug_is_trapped_before_a_graph_replays(run, arguments, tmp_path):
    done = run(arguments | PLAIN_DRAFT, **FAULT, **NO_SWAP, SGLANG_TRTLLM_MHA_DEBUG="trap")
    assert done.outputs is None
    assert "TrappedViolation: page-table-bounds" in done.log
    trapped, *at_capture = sorted(dumps(tmp_path), key=lambda found: found.action, reverse=True)
    assert at_capture
    assert {(found.action, found.offences) for found in at_capture} == {("logged", ())}
    assert trapped.action == "trapped"
    for found in (trapped, *at_capture):
        assert found.verdict == "wrong_space"
        assert found.graph.captured
        assert (found.provenance.table_space, found.provenance.buffer_space) == ("full", "swa")
        assert (found.role, found.layer.type) == ("draft", "sliding")
        assert found.gpu["name"]
    (offence,) = trapped.offences
    assert offence.request_slot
    assert "translation missing" in trapped.provenance.explanation


def test_the_seed_bug_is_contained_in_graphs_and_only_some_requests_end(run, arguments, tmp_path):
    done = run(arguments | PLAIN_DRAFT, each_alone=True, **FAULT, **NO_SWAP, SGLANG_TRTLLM_MHA_DEBUG="1")
    assert done.returncode == 0, done.log[-4000:]
    (answers,) = done.outputs
    ended = [answer["meta"]["error"] for answer in answers if "error" in answer["meta"]]
    assert 0 < len(ended) < len(answers)
    assert all("the step of this request was contained" in text for text in ended)
    found = dumps(tmp_path)
    assert {(one.verdict, one.action) for one in found} == {("wrong_space", "logged"), ("out_of_range", "contained")}
    contained = next(one for one in found if one.action == "contained")
    assert (contained.mode, contained.role, contained.graph.captured) == ("contain", "draft", True)
    assert contained.layer.type == "sliding"
    assert all(bad.value >= bad.upper == 65 and bad.request_slot for bad in contained.offences)
    assert "translation missing" in contained.provenance.explanation


def test_the_fix_holds_under_graphs_with_the_fault_injected(run, arguments, tmp_path):
    done = run(arguments | PLAIN_DRAFT, **FAULT, **FIXED, **DEBUG)
    assert done.returncode == 0, done.log[-4000:]
    assert dumps(tmp_path) == []


def test_eager_drafts_need_the_out_cache_loc_fix(run, arguments):
    eager = arguments | PLAIN_DRAFT | {"disable_cuda_graph": True}
    done = run(eager, GEMMA4_TRIAGE_PATCHES="default,-eager-out-cache-loc")
    assert done.outputs is None
    assert "must match the size of tensor" in done.log


def test_eager_with_both_fixes(run, arguments, tmp_path):
    done = run(arguments | PLAIN_DRAFT | {"disable_cuda_graph": True}, **FAULT, **FIXED, **DEBUG)
    assert done.returncode == 0, done.log[-4000:]
    assert dumps(tmp_path) == []
