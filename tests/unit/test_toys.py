"""The committed toy pairs: small, loadable, well trained, hurt by wrong pages. Experts: test_toy_experts.py."""

import json
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from gemma4_repro.toys import card, language, toy_path

TARGET, ASSISTANT = "toy-e4b", "toy-e4b-assistant"
EXPERTS, EXPERTS_ASSISTANT = "toy-26b", "toy-26b-assistant"
PAIRS = {TARGET: ASSISTANT, EXPERTS: EXPERTS_ASSISTANT}
TOYS = [*PAIRS, *PAIRS.values()]
MAX_BYTES = 2 * 1024 * 1024
MAX_BYTES_OF_ALL = 4 * 1024 * 1024
PROMPT_TOKENS, NEW_TOKENS = 101, 64
UNSEEN_SEED = 77  # not the seed that the cards were measured with


@pytest.mark.parametrize("name", TOYS)
def test_folder_is_small_and_holds_no_pickle(name: str) -> None:
    files = [file for file in toy_path(name).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".md", ".jinja"}


def test_all_toys_together_are_small_and_every_one_is_installed(request) -> None:
    folders = [folder for folder in toy_path(TARGET).parent.iterdir() if folder.is_dir()]
    assert sum(file.stat().st_size for folder in folders for file in folder.iterdir()) <= MAX_BYTES_OF_ALL
    project = tomllib.loads((folders[0].parent / "pyproject.toml").read_text(encoding="utf-8"))
    installed = project["tool"]["setuptools"]["data-files"]
    assert installed == {f"share/gemma4-triage/toys/{folder.name}": [f"{folder.name}/*"] for folder in folders}
    base = tomllib.loads((request.config.rootpath / "pyproject.toml").read_text(encoding="utf-8"))
    assert not [name for name in base["tool"]["setuptools"]["data-files"] if "toys" in name]


def test_an_unknown_toy_names_every_folder_that_was_looked_at() -> None:
    with pytest.raises(FileNotFoundError, match="no toy checkpoint named 'toy-e9b'") as caught:
        toy_path("toy-e9b")
    assert str(caught.value).count("toy-e9b\n") == 4
    assert "share/gemma4-triage/toys" in str(caught.value)


def test_prompts_and_paths_need_no_torch() -> None:
    program = (
        "import sys; from gemma4_repro.toys import card, language, toy_path;"
        "language.held_out_prompts(1, 20, 0); toy_path('toy-e4b');"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


class TestLanguage:
    def test_vocabulary_is_complete_and_without_repeats(self) -> None:
        words = language.vocabulary()
        assert len(words) == len(set(words)) == language.VOCAB_SIZE

    def test_prompts_are_a_function_of_the_arguments(self) -> None:
        prompts = language.held_out_prompts(4, PROMPT_TOKENS, 5)
        assert prompts == language.held_out_prompts(4, PROMPT_TOKENS, 5)
        assert prompts != language.held_out_prompts(4, PROMPT_TOKENS, 6)
        assert {len(p) for p in prompts} == {PROMPT_TOKENS}
        assert all(p[0] == language.token_id(language.BOS) and min(p[1:]) >= language.FIRST_WORD for p in prompts)

    @pytest.mark.parametrize("length", [1, 2, 7, 40, 500])
    def test_any_length_can_be_had(self, length: int) -> None:
        assert len(language.held_out_prompts(1, length, 0)[0]) == length

    def test_no_length_below_one(self) -> None:
        with pytest.raises(ValueError, match="at least 1 token"):
            language.held_out_prompts(1, 0, 0)

    def test_known_tokens_follow_from_the_past(self) -> None:
        corpus = language.sample(20, 150, np.random.default_rng(3))
        for row, known in zip(corpus.tokens.tolist(), corpus.known.tolist(), strict=True):
            last_successor: dict[int, int] = {}
            for i in range(1, len(row)):
                if known[i]:
                    assert last_successor[row[i - 1]] == row[i]
                last_successor[row[i - 1]] = row[i]


@pytest.mark.parametrize("name", TOYS)
def test_card_shows_what_was_measured(name: str) -> None:
    folder = toy_path(name)
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    measured = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text == card.render(name, training, measured)
    shown = measured["loss"]["exchanged"] if name == EXPERTS else measured["accept_length"]["sglang_rope"]
    assert f"{shown:.4f}" in text


@pytest.mark.parametrize(("name", "accuracy"), [(ASSISTANT, 0.9), (EXPERTS_ASSISTANT, 0.85)])
def test_measured_numbers_meet_what_the_scenarios_need(name: str, accuracy: float) -> None:
    measured = json.loads((toy_path(name) / "measured.json").read_text(encoding="utf-8"))
    accept = measured["accept_length"]
    assert measured["next_token_accuracy"]["known"] >= accuracy
    assert min(accept["sglang_rope"], accept["hf_rope"], accept["hf_assisted_generation"]) >= 2.0
    assert accept["sglang_rope"] - accept["wrong_sliding_pages"] >= 0.6
    assert measured["top1_gap"]["p01"] > 1e-2
    assert measured["greedy_repeats_exactly"]
    assert measured["cached_equals_uncached"]
    assert measured["hf_assisted_equals_greedy"]


@pytest.fixture(scope="module")
def tools():
    """Yield the modules that need torch: measure_drafts, measure_target, recurrence, wrong_pages."""
    torch = pytest.importorskip("torch", reason="the toys run with torch")
    pytest.importorskip("transformers.models.gemma4_assistant", reason="needs a transformers that has Gemma-4")
    from gemma4_repro.toys import measure_drafts, measure_target, recurrence, wrong_pages

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small only wait for each other on more
    yield measure_drafts, measure_target, recurrence, wrong_pages
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=PAIRS.items(), ids=PAIRS)
def pair(request, tools):
    target, assistant = request.param
    return tools[0].load_pair(toy_path(target), toy_path(assistant))


@pytest.fixture(scope="module")
def states(tools, pair):
    import torch

    _, measure_target, recurrence, _ = tools
    prompts = torch.tensor(language.held_out_prompts(4, PROMPT_TOKENS, UNSEEN_SEED))
    with torch.no_grad():
        return recurrence.run_target(pair.target, measure_target.greedy(pair.target, prompts, NEW_TOKENS))


class TestCommittedPairs:
    # The transformers of 0.5.23 makes its generator of candidates with other arguments.
    @pytest.mark.releases("0.5.13.post1")
    def test_transformers_accepts_the_drafts(self, tools, pair) -> None:
        import torch

        prompts = torch.tensor(language.held_out_prompts(4, PROMPT_TOKENS, UNSEEN_SEED))
        length, same = tools[0].hf_accept_length(pair, prompts, NEW_TOKENS)
        assert length >= 2.0
        assert same

    @pytest.mark.slow
    def test_wrong_sliding_pages_lower_the_accept_length(self, tools, pair, states) -> None:
        measure, _, recurrence, wrong_pages = tools
        right = measure.mean_accept_length(pair, states, PROMPT_TOKENS, recurrence.SGLANG_ROPE)
        misread = wrong_pages.with_wrong_pages(states, "sliding_attention", 0)
        wrong = measure.mean_accept_length(pair, misread, PROMPT_TOKENS, recurrence.SGLANG_ROPE)
        assert right >= 2.0
        assert right - wrong >= 0.6

    @pytest.mark.slow
    def test_recurrence_equals_the_assistants_own_forward(self, tools, pair, states) -> None:
        import torch

        recurrence = tools[2]
        position = 120
        drafts = recurrence.draft_everywhere(pair.assistant, pair.target, states, recurrence.HF_ROPE, steps=2)
        kv = {kind: (k[:1, :, : position + 1], v[:1, :, : position + 1]) for kind, (k, v) in states.shared_kv.items()}
        token, hidden = states.tokens[:1, position + 1, None], states.hidden[:1, position, None]
        for step in range(2):
            embedded = pair.target.get_input_embeddings()(token)
            with torch.no_grad():
                out = pair.assistant(
                    inputs_embeds=torch.cat([embedded, hidden], dim=-1),
                    position_ids=torch.tensor([[position + recurrence.HF_ROPE]]),
                    shared_kv_states=kv,
                )
            token, hidden = out.logits.argmax(-1), out.last_hidden_state
            assert token.item() == drafts[0, position, step].item()

    def test_processor_knows_the_special_tokens(self) -> None:
        transformers = pytest.importorskip("transformers")
        processor = transformers.AutoProcessor.from_pretrained(toy_path(TARGET))
        config = transformers.AutoConfig.from_pretrained(toy_path(TARGET))
        assert len(processor.tokenizer) == config.text_config.vocab_size == language.VOCAB_SIZE
        assert processor.image_token_id == config.image_token_id == language.token_id(language.IMAGE)
        assert processor.video_token_id == config.video_token_id
        assert processor.audio_token_id == config.audio_token_id
        ids = processor.tokenizer("bal bel bil").input_ids
        assert ids == [language.token_id(language.BOS), *language_ids("bal", "bel", "bil")]


def language_ids(*words: str) -> list[int]:
    table = language.vocabulary()
    return [table.index(word) for word in words]
