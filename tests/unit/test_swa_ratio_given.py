"""swa-ratio-policy: whether a user gave the ratio, by every way in which SGLang's arguments arrive."""

import copy
import dataclasses
import logging
import pickle

import pytest

from gemma4_repro.toys.locate import toy_path
from gemma4_runtime.optimisations.swa_ratio_policy import GIVEN

# swa-ratio-policy is not ported: 0.5.23 profiles memory in mem_cache/kv_cache_configurator.py.
pytestmark = pytest.mark.releases("0.5.13.post1")

KEYWORDS = {"model_path": str(toy_path("toy-e4b")), "device": "cpu", "attention_backend": "triton"}
WORDS = [word for name, value in KEYWORDS.items() for word in (f"--{name.replace('_', '-')}", value)]
RATIO = ["--swa-full-tokens-ratio", "0.8"]


@pytest.fixture(autouse=True)
def attached(attach):
    attach("off", "swa-ratio-policy")
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    # SGLang's command line sets logging up anew, on this test's stderr.
    root.handlers[:] = handlers
    root.setLevel(level)


def from_command_line(*words):
    from sglang.srt.server_args import prepare_server_args

    return prepare_server_args([*WORDS, *words])


def from_keywords(**more):
    from sglang.srt.server_args import ServerArgs

    return ServerArgs(**KEYWORDS, **more)


@pytest.mark.parametrize(("words", "given"), [((), False), (RATIO, True), (["--swa-full-tokens-ratio=0.5"], True)])
def test_on_the_command_line(words, given):
    assert getattr(from_command_line(*words), GIVEN) is given


@pytest.mark.parametrize(("more", "given"), [({}, False), ({"swa_full_tokens_ratio": 0.8}, True)])
def test_as_a_keyword_of_engine(more, given):
    assert getattr(from_keywords(**more), GIVEN) is given


@pytest.mark.parametrize(("line", "given"), [("", False), ("swa-full-tokens-ratio: 0.8\n", True)])
def test_in_a_config_file(tmp_path, line, given):
    file = tmp_path / "server.yaml"
    file.write_text(f"model-path: {KEYWORDS['model_path']}\n{line}")
    assert getattr(from_command_line("--config", str(file)), GIVEN) is given


@pytest.mark.parametrize("given", [False, True])
def test_it_reaches_a_spawned_scheduler(given):
    """A pickled float is another object, so the answer has to travel."""
    arguments = from_keywords(**({"swa_full_tokens_ratio": 0.8} if given else {}))
    for there in (pickle.loads(pickle.dumps(arguments)), copy.deepcopy(arguments)):
        assert getattr(there, GIVEN) is given
    assert getattr(dataclasses.replace(arguments), GIVEN) is given
    assert GIVEN not in dataclasses.asdict(arguments)
