"""The crash matrix as records: its cells, loads, what a machine can run, and what is expected where."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_repro.crash.cells import BACKENDS, CELLS, MODELS, MTPS, SHORT_IDS, find_cell
from gemma4_repro.crash.expected import SEED_FAULT, Situation, expected, with_own_patches
from gemma4_repro.crash.loads import ALL, LOADS, SUMMARISATION, choose_loads
from gemma4_repro.crash.machine import BLACKWELL, HOPPER, Gpu, Needs, needs_of_model, obstacle
from gemma4_repro.crash.outcome import Dies, LeavesDump, LeavesNoDump
from gemma4_repro.errors import UnknownName
from gemma4_repro.step_bench.model_sizes import SIZES

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

SMALL = Gpu("a small one", 9, 0, 16 * 10**9)
AMPERE = Gpu("an A100", 8, 0, 80 << 30)
TURING = Gpu("a T4", 7, 5, 16 * 10**9)
CONSUMER = Gpu("an RTX 5090", 12, 0, 32 * 10**9)
SWAP = frozenset({"swa-state-swap"})
NONE: frozenset[str] = frozenset()


def why(cell_id, gpu, needs=None):
    cell = find_cell(cell_id)
    return obstacle(cell, gpu, needs or needs_of_model(cell.model))


def what(cell_id, device="sm100", patches=NONE, **more):
    return expected(find_cell(cell_id), Situation(device, patches, **more))


def test_the_cells_are_the_whole_product():
    assert len({cell.id for cell in CELLS}) == len(CELLS) == len(MODELS) * len(BACKENDS) * len(MTPS) * 2 == 72


def test_a_cell_is_found_by_its_id_and_by_its_short_one():
    assert [find_cell(cell.id) for cell in CELLS] == list(CELLS)
    assert find_cell("e4b_bounds") is find_cell("e4b_trtllm_v1_bounds")
    assert not SHORT_IDS.keys() & {cell.id for cell in CELLS}


def test_an_unknown_cell_names_the_nearest():
    with pytest.raises(UnknownName, match="no cell 'e4b_trtlm_v1'") as caught:
        find_cell("e4b_trtlm_v1")
    assert "e4b_trtllm_v1" in caught.value.hint


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_sglang_parses_the_servers_arguments(cell):
    """SGLang's own parser: a flag that it renames or drops is seen here, and no abbreviation hides it."""
    from gemma4_repro.bench.server_arguments import command_words

    given = cell.server_arguments("MODEL", "DRAFT", 30000)
    parsed = vars(sglang_parser().parse_args(command_words(given)))
    assert {name: parsed[name] for name in given} == given
    assert ("speculative_algorithm" in given) == cell.mtp.drafts


@cache
def sglang_parser():
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    return parser


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.id)
def test_the_parameters_are_those_of_the_models_shape(model):
    import torch
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    size = SIZES[model.id]
    with torch.device("meta"):
        made = Gemma4ForCausalLM(Gemma4TextConfig(**size.text_config(size.layers)))
    assert sum(one.numel() for one in made.parameters()) == model.text_parameters


def test_kv_bytes_are_those_of_the_planner():
    """26B's published pools take 20,480 bytes per token in full layers and 204,800 in sliding ones."""
    assert needs_of_model(find_cell("26b").model).token_bytes == 20_480 + 204_800


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_without_a_gpu_no_cell_runs(cell):
    assert "no CUDA device" in str(obstacle(cell, None, needs_of_model(cell.model)))


def test_a_hopper_runs_the_triton_cells_alone():
    runs = {cell.backend.id for cell in CELLS if why(cell.id, HOPPER) is None}
    assert runs == {"triton"}
    assert all(why(cell.id, HOPPER) is None for cell in CELLS if cell.backend.id == "triton")
    assert "prefills on sm100" in str(why("e4b_trtllm_v1", HOPPER))
    assert "this model has 256 and 512" in str(why("e4b_hybrid_v1", HOPPER))


def test_a_hopper_runs_a_hybrid_whose_head_dims_xqa_takes():
    assert why("e4b_hybrid_v1", HOPPER, Needs(1 << 30, 1024, 256, 128)) is None


def test_a_blackwell_runs_every_cell():
    assert [cell.id for cell in CELLS if why(cell.id, BLACKWELL)] == []
    assert BLACKWELL.device == Gpu("a B300", 10, 3, 1).device == "sm100"


@pytest.mark.parametrize(
    ("cell_id", "gpu", "said"),
    [
        ("e4b_triton_off", TURING, "bfloat16 kernels need sm80"),
        ("e4b_triton_off", AMPERE, None),
        ("e4b_trtllm_off", AMPERE, "prefills on sm100"),
        ("e4b_hybrid_off", AMPERE, "decodes on sm90, sm100 and sm120 only"),
        ("e4b_hybrid_off", CONSUMER, "XQA on sm120"),
        ("e4b_trtllm_off", CONSUMER, "prefills on sm100"),
        ("31b_triton_off", AMPERE, None),
        ("31b_triton_off", CONSUMER, "58.6 GiB of weights"),
        ("26b_triton_off", SMALL, "47.2 GiB of weights"),
    ],
)
def test_what_is_in_the_way(cell_id, gpu, said):
    found = why(cell_id, gpu)
    assert found is None if said is None else said in str(found)


@given(memory=st.integers(1, 200 * 10**9), weights=st.integers(1, 100 * 10**9), token=st.integers(1, 10**6))
def test_more_memory_never_takes_a_cell_away(memory, weights, token):
    needs = Needs(weights, token, 512, 256)
    less, more = Gpu("less", 10, 0, memory), Gpu("more", 10, 0, 2 * memory)
    cell = find_cell("e4b")
    assert obstacle(cell, less, needs) is not None or obstacle(cell, more, needs) is None


@pytest.mark.parametrize(
    ("cell_id", "more", "brief"),
    [
        ("e4b_trtllm_v1", {}, "serves"),
        ("e4b_hybrid_v1", {}, "IndexError"),
        ("e4b_hybrid_v1_bounds", {}, "trapped at start"),
        ("e4b_hybrid_v1", {"patches": SWAP}, "serves"),
        # --patches none takes the V2 worker from a V2 cell.
        ("e4b_hybrid_v2", {}, "IndexError"),
        ("e4b_hybrid_v2", {"patches": SWAP | {"mtp-v2"}}, "serves"),
        ("e4b_trtllm_v2", {"patches": SWAP | {"mtp-v2"}, "eager": True}, "serves"),
        ("e4b_hybrid_off", {}, "serves"),
        ("e4b_trtllm_v1", {"fault": SEED_FAULT}, "illegal address"),
        ("e4b_trtllm_v1", {"fault": SEED_FAULT, "device": "sm90"}, "serves, drafts wrong"),
        ("e4b_trtllm_v1_bounds", {"fault": SEED_FAULT}, "trapped"),
        ("e4b_trtllm_v1", {"fault": SEED_FAULT, "patches": SWAP}, "serves"),
        ("e4b_trtllm_off", {"fault": SEED_FAULT}, "serves"),
        ("e4b_triton_v1", {"fault": SEED_FAULT}, "serves"),
        # The hybrid's own defect comes first.
        ("e4b_hybrid_v1", {"fault": SEED_FAULT}, "IndexError"),
        # 0.5.15 and later have what the eager draft died without.
        pytest.param("e4b_trtllm_v1", {"eager": True}, "dies", marks=pytest.mark.releases("0.5.13.post1")),
        pytest.param("e4b_trtllm_v1", {"eager": True}, "serves", marks=pytest.mark.releases("0.5.23")),  # see above
        ("e4b_trtllm_v1", {"eager": True, "patches": frozenset({"eager-out-cache-loc"})}, "serves"),
    ],
)
def test_what_is_expected(cell_id, more, brief):
    assert what(cell_id, **more).brief == brief


def test_why_a_fault_does_no_harm():
    held = what("e4b_trtllm_v1", fault=SEED_FAULT, patches=SWAP)
    assert held.why == "swa-state-swap holds against the injected fault"
    assert "does not reach" in what("e4b_triton_v1", fault=SEED_FAULT).why


def test_a_cell_with_probes_that_serves_leaves_no_dump_and_one_without_says_nothing_of_dumps():
    assert any(isinstance(one, LeavesNoDump) for one in what("e4b_bounds").expectations)
    assert not any(isinstance(one, LeavesNoDump | LeavesDump) for one in what("e4b").expectations)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
def test_every_expectation_says_that_real_weights_were_not_measured(cell):
    for device in ("sm90", "sm100"):
        found = with_own_patches(cell, device)
        assert found.measured.endswith("not measured with real weights")
        assert found.text
        assert any(isinstance(one, Dies) for one in found.expectations) == (
            (cell.backend.id, cell.mtp.id) == ("hybrid", "v1")
        )


def test_loads_are_chosen_by_name_in_the_catalogs_order():
    assert [load.id for load in choose_loads(())] == [SUMMARISATION]
    assert choose_loads((ALL,)) == LOADS
    assert [load.id for load in choose_loads(("chats", "chat-1k"))] == ["chat-1k", "chats"]
    with pytest.raises(UnknownName, match="no load 'sharegpt'"):
        choose_loads(("sharegpt",))


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.id)
def test_a_clients_words_say_what_the_record_says(load):
    words = load.client_words("MODEL", 30000, load.size, "out.jsonl")
    options = dict(pairwise(words))
    assert options["--random-input-len"] == str(load.size.prompt_tokens)
    assert options["--random-output-len"] == str(load.size.answer_tokens)
    assert options["--num-prompts"] == str(load.size.requests)
    assert ("--image-count" in words) == bool(load.images)
    # Prompts of the chat endpoint are text.
    assert ("--tokenize-prompt" in words) != load.chat


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.id)
def test_a_toy_load_fits_its_pools(load):
    size = load.size_for(toy=True, brief=False)
    assert size.at_a_time * (size.prompt_tokens + size.answer_tokens + 16) <= 2560
    brief = load.size_for(toy=True, brief=True)
    assert 2 <= brief.answer_tokens <= size.answer_tokens
    assert brief.requests <= 4
