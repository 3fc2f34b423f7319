"""MTP under spec v2: what SGLang's own arguments, algorithm and pools say of it, and what is refused at start."""

from types import SimpleNamespace

import pytest
from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
from sglang.srt.managers import scheduler
from sglang.srt.mem_cache import kv_cache_builder
from sglang.srt.model_executor import model_runner_kv_cache_mixin
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from gemma4_runtime.errors import SettingsError
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings
from toy_arguments import ENGINE, MTP

# 0.5.14 and later have spec v2 themselves: mtp-v2 and what it brings are for 0.5.13.post1.
pytestmark = pytest.mark.releases("0.5.13.post1")

FROZEN = SpeculativeAlgorithm.FROZEN_KV_MTP
HOST = ("host-sm100-check", "host-cpu-config")
FIXES = {"spec-v2-row-width", "spec-v2-stop-window", "spec-v2-grammar-end", "spec-v2-hidden-rows", "free-swa-pages"}
NEEDED = {"mtp-v2", "draft-policy", "spec-v2-whole-pages", "swa-window-lists", "swa-state-swap"} | FIXES
SGLANGS = SimpleNamespace(disable_overlap_schedule=False, enable_multi_layer_eagle=False)
OVERLAP = {"disable_overlap_schedule": False}


@pytest.fixture
def arguments(attach):
    """Returns a function of changes that makes SGLang's ServerArgs with mtp-v2 attached."""

    def make(**changes):
        attach("off", "mtp-v2", *HOST)
        return ServerArgs(**(ENGINE | MTP | OVERLAP | changes))

    return make


def test_without_the_patch_overlap_is_taken_away_and_v1_serves(attach):
    attach("off", *HOST)
    made = ServerArgs(**(ENGINE | MTP | OVERLAP))
    assert made.disable_overlap_schedule
    assert not FROZEN.supports_spec_v2()
    assert FROZEN.create_worker(made) is FrozenKVMTPWorker


@pytest.mark.parametrize("overlap", [True, False])
def test_overlap_is_what_was_asked_for(arguments, overlap):
    from gemma4_runtime.mtp_v2.worker import FrozenKVMTPWorkerV2

    made = arguments(disable_overlap_schedule=not overlap)
    assert made.disable_overlap_schedule is not overlap
    assert FROZEN.supports_spec_v2()
    assert FROZEN.create_worker(made) is FrozenKVMTPWorkerV2


def test_sglangs_own_switch_takes_the_overlap_away(arguments, monkeypatch):
    monkeypatch.setenv("SGLANG_ENABLE_SPEC_V2", "0")
    assert arguments().disable_overlap_schedule


def test_other_arguments_are_made_to_fit(arguments):
    made = arguments(max_running_requests=None, enable_mixed_chunk=True, speculative_num_draft_tokens=7)
    assert (made.max_running_requests, made.enable_mixed_chunk, made.speculative_num_draft_tokens) == (48, False, 4)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"enable_dp_attention": True, "dp_size": 2, "tp_size": 2}, "--enable-dp-attention: ranks without requests"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache: it would copy the assistant's KV pool"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode: a prefill server would send"),
        ({"speculative_adaptive": True}, "--speculative-adaptive: the assistant's attention"),
        ({"enable_custom_logit_processor": True}, "--enable-custom-logit-processor: verification under spec v2"),
        ({"speculative_eagle_topk": 2}, "--speculative-eagle-topk above 1: only the triton attention backend"),
        ({"speculative_num_steps": None}, "needs --speculative-num-steps"),
        ({"speculative_num_steps": 0}, "of 1 and more"),
        ({"speculative_eagle_topk": 0}, "of 1 and more"),
        (
            {"attention_backend": "triton", "speculative_eagle_topk": 2, "speculative_num_draft_tokens": None},
            "needs --speculative-num-draft-tokens where",
        ),
    ],
)
def test_what_is_not_served_is_refused_at_start(arguments, changes, named):
    with pytest.raises(ValueError, match=named) as caught:
        arguments(**changes)
    assert str(caught.value).startswith("mtp-v2 ")


@pytest.mark.parametrize(
    "backends", [{}, {"prefill_attention_backend": "triton", "decode_attention_backend": "trtllm_mha"}]
)
def test_a_plan_stream_is_refused(arguments, monkeypatch, backends):
    assert arguments(**backends)
    monkeypatch.setenv("SGLANG_ENABLE_OVERLAP_PLAN_STREAM", "1")
    with pytest.raises(ValueError, match="SGLANG_ENABLE_OVERLAP_PLAN_STREAM: a verification would be planned"):
        arguments(**backends)


@pytest.mark.parametrize(
    "backends",
    [
        {"attention_backend": "trtllm_mha", "speculative_draft_attention_backend": "triton"},
        {"attention_backend": "triton", "speculative_draft_attention_backend": "trtllm_mha"},
        {"prefill_attention_backend": "trtllm_mha", "decode_attention_backend": "triton"},
        {"prefill_attention_backend": "triton", "decode_attention_backend": "trtllm_mha"},
    ],
    ids=lambda backends: "-".join(backends.values()),
)
def test_a_wide_tree_needs_triton_everywhere(arguments, backends):
    with pytest.raises(ValueError, match="--speculative-eagle-topk above 1"):
        arguments(speculative_eagle_topk=2, **backends)


@pytest.mark.parametrize(("steps", "extra"), [(3, 4 + 2 * 4), (15, 4 + 2 * 16)])
def test_a_row_holds_what_is_allocated_ahead(arguments, attach, steps, extra):
    made = arguments(speculative_num_steps=steps, speculative_num_draft_tokens=steps + 1)
    headroom = model_runner_kv_cache_mixin.get_req_to_token_extra_context_len
    assert headroom(made) == 4 + steps + 1
    attach("off", "spec-v2-row-width")
    headroom = model_runner_kv_cache_mixin.get_req_to_token_extra_context_len
    assert headroom(made) == 4 + steps + 1, "V1 does not allocate ahead"
    attach("off", "mtp-v2", "spec-v2-row-width", *HOST)
    headroom = model_runner_kv_cache_mixin.get_req_to_token_extra_context_len
    assert headroom(made) == extra
    made.speculative_algorithm = "EAGLE"
    assert headroom(made) == extra
    made.speculative_algorithm = None
    assert headroom(made) == 4 + steps + 1


def test_everything_that_is_not_served_is_named_at_once(arguments):
    with pytest.raises(ValueError, match=r"--speculative-adaptive: .*; nor --enable-custom-logit-processor: "):
        arguments(speculative_adaptive=True, enable_custom_logit_processor=True)


def test_a_wide_tree_on_triton_starts_and_keeps_lengths_on_the_host(arguments):
    made = arguments(attention_backend="triton", speculative_eagle_topk=2, speculative_num_draft_tokens=6)
    assert made.speculative_num_draft_tokens == 6
    backends = [SimpleNamespace(needs_cpu_seq_lens=False)]
    assert scheduler.decide_needs_cpu_seq_lens(made, backends)
    made.speculative_algorithm = "EAGLE"
    assert not scheduler.decide_needs_cpu_seq_lens(made, backends)
    made.speculative_algorithm, made.speculative_eagle_topk = "FROZEN_KV_MTP", 1
    assert not scheduler.decide_needs_cpu_seq_lens(made, backends)


def test_piecewise_graphs_of_prefills_ask_for_no_lengths(arguments):
    made = arguments()
    made.disable_piecewise_cuda_graph = False
    backends = [SimpleNamespace(needs_cpu_seq_lens=False)]
    assert not scheduler.decide_needs_cpu_seq_lens(made, backends)
    assert made.disable_piecewise_cuda_graph is False
    assert scheduler.decide_needs_cpu_seq_lens(made, [SimpleNamespace(needs_cpu_seq_lens=True)])
    made.speculative_algorithm = "EAGLE"
    assert scheduler.decide_needs_cpu_seq_lens(made, backends), "that is SGLang's to say"


def test_trtllm_alone_or_in_a_hybrid_needs_no_lengths_on_the_host(arguments):
    made = arguments()
    made.disable_piecewise_cuda_graph = True
    trtllm = object.__new__(TRTLLMHAAttnBackend)
    hybrid = object.__new__(HybridAttnBackend)
    hybrid.prefill_backend, hybrid.decode_backend = SimpleNamespace(needs_cpu_seq_lens=False), trtllm
    assert not scheduler.decide_needs_cpu_seq_lens(made, [trtllm, trtllm])
    assert not scheduler.decide_needs_cpu_seq_lens(made, [hybrid, trtllm, None])
    hybrid.prefill_backend = SimpleNamespace()
    assert scheduler.decide_needs_cpu_seq_lens(made, [hybrid, trtllm]), "one that does not say that it can go without"
    assert scheduler.decide_needs_cpu_seq_lens(made, [object.__new__(type("Other", (TRTLLMHAAttnBackend,), {}))])
    made.enable_forward_pass_metrics = True
    assert scheduler.decide_needs_cpu_seq_lens(made, [trtllm]), "SGLang lists each request's length there"
    made.enable_forward_pass_metrics = False
    made.speculative_algorithm = "EAGLE"
    assert scheduler.decide_needs_cpu_seq_lens(made, [trtllm])


def test_nobody_is_handed_the_assistants_dummy_pool(attach):
    worker = SimpleNamespace(
        model_runner=SimpleNamespace(token_to_kv_pool="dummy"),
        model_config="config",
        draft_worker=SimpleNamespace(draft_runner=SimpleNamespace(token_to_kv_pool="own", model_config="config")),
    )

    def pool(algorithm):
        return kv_cache_builder.get_draft_kv_pool(
            draft_worker=worker,
            spec_algorithm=algorithm,
            server_args=SimpleNamespace(enable_multi_layer_eagle=False),
        )

    assert pool(FROZEN) == ("dummy", "config")
    attach("off", "mtp-v2")
    assert pool(FROZEN) == (None, None)
    assert pool(SpeculativeAlgorithm.EAGLE) == ("own", "config")


def test_other_algorithms_are_sglangs(attach):
    answers = {one: one.supports_spec_v2() for one in SpeculativeAlgorithm if one is not FROZEN}
    own = SpeculativeAlgorithm.EAGLE.create_worker(SGLANGS)
    attach("off", "mtp-v2")
    assert {one: one.supports_spec_v2() for one in answers} == answers
    assert SpeculativeAlgorithm.EAGLE.create_worker(SGLANGS) is own


@pytest.mark.parametrize("name", ["SGLANG_FROZEN_KV_MTP_V2", "SGLANG_FROZEN_KV_MTP_EXPERIMENTAL_V2"])
def test_either_name_of_the_knob_has_the_last_word(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    assert {patch.id for patch in select(read_settings())} == NEEDED
    assert not read_settings().wants_nothing
    monkeypatch.setenv(name, "0")
    assert read_settings().wants_nothing
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", "mtp-v2")
    assert select(read_settings()) == ()
    monkeypatch.setenv(name, "")
    assert {patch.id for patch in select(read_settings())} == NEEDED


def test_two_names_that_differ_are_refused(monkeypatch):
    monkeypatch.setenv("SGLANG_FROZEN_KV_MTP_V2", "0")
    monkeypatch.setenv("SGLANG_FROZEN_KV_MTP_EXPERIMENTAL_V2", "1")
    with pytest.raises(SettingsError, match=r"V2='0' and SGLANG_FROZEN_KV_MTP_EXPERIMENTAL_V2='1' are two names"):
        read_settings()


def test_it_is_no_default(monkeypatch):
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", "default")
    assert not ({"mtp-v2"} | FIXES) & {patch.id for patch in select(read_settings())}


def test_a_server_without_mtp_is_told_that_nothing_changes(arguments, caplog):
    made = arguments()
    scheduler.decide_needs_cpu_seq_lens(made, [SimpleNamespace(needs_cpu_seq_lens=False)])
    assert "does not draft" not in caplog.text
    made.speculative_algorithm = None
    scheduler.decide_needs_cpu_seq_lens(made, [SimpleNamespace(needs_cpu_seq_lens=False)])
    assert "mtp-v2: this server does not draft with a Gemma-4 assistant" in caplog.text
