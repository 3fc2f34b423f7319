"""`quality` end to end on the CPU server: servers of its own, and two that run already, one of them worse."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from gemma4_repro.engine.host_environment import REQUIRED
from quality_toy import damage, make_answering_toy, write_questions
from server_process import flags, free_port, running_server, session_members

# No optimisation is ported to the later release, so there is nothing there that could cost quality.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

COMMAND = Path(sys.executable).with_name("gemma4-triage")
ARGUMENTS = {
    "attention_backend": "trtllm_mha",
    "page_size": 16,
    "swa_full_tokens_ratio": 0.4,
    "max_total_tokens": 2560,
    "max_running_requests": 8,
}
LIMIT_S = 400


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_answering_toy(tmp_path_factory.mktemp("quality") / "toy")


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    return write_questions(tmp_path_factory.mktemp("questions") / "order_test.csv", 24)


@pytest.fixture(scope="module")
def environment():
    """Return variables without the host engine's settings: `serve` and `quality` bring them."""
    kept = {name: value for name, value in os.environ.items() if name not in REQUIRED}
    return kept | {"CUDA_VISIBLE_DEVICES": ""}


def quality(environment, *words, timeout_s=LIMIT_S):
    command = [COMMAND, "quality", "--json", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout_s, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def test_it_starts_its_own_servers_and_the_patched_runtime_costs_nothing(toy, questions, environment, tmp_path):
    run = tmp_path / "run"
    words = ("--questions", questions, "--base", "none", "--with", "default", "--host-engine", "--output", run)
    code, document, said = quality(environment, *words, "--", *flags({"model_path": toy} | ARGUMENTS))
    (part,) = document["parts"]
    assert (code, part["verdict"], part["compared"], part["both_right"]) == (0, "no worse", 24, 24), said
    assert document["reasons"] == []
    assert (document["sides"]["base"]["attached"], document["sides"]["base"]["paths"]) == ([], None)
    patches = {patch["patch"]: patch for patch in document["patches"]}
    assert all(patches[name]["times"] for name in ("rmsnorm-add", "qk-norm-rope"))
    # Its pictures are SGLang's warm-up's, which is none of what was asked.
    vision = patches["vision-batching"]
    assert (vision["times"], vision["times_at_start"] > 0) == (0, True)
    guards = [json.loads(path.read_text()) for path in (run / "with" / "dumps" / "guards").glob("*.json")]
    assert guards
    assert all(guard["verified"] for guard in guards)
    commands = [path.read_text(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [words for words in commands if str(toy) in words], "both servers have ended"


@pytest.fixture
def servers(toy, environment, tmp_path):
    """Start a good server and a damaged one; yields (address, process) of each."""
    bad = damage(shutil.copytree(toy, tmp_path / "bad"))
    with ExitStack() as stack:
        started = []
        for name, model in (("good", toy), ("bad", bad)):
            port = free_port() + 100 * len(started)
            words = flags({"model_path": model, "served_model_name": "toy"} | ARGUMENTS)
            command = [COMMAND, "serve", "--host-engine", "--", "--host", "127.0.0.1", "--port", str(port), *words]
            log = tmp_path / f"{name}.log"
            started.append(
                (f"http://127.0.0.1:{port}", stack.enter_context(running_server(command, port, environment, log)))
            )
        yield started


def test_two_servers_of_which_one_is_worse_and_one_dies(servers, questions, environment, tmp_path):
    (good, good_process), (bad, _) = servers
    asked = ("--questions", questions, "--output", tmp_path / "run", "--force")

    code, document, said = quality(environment, *asked, "--colours", "--base-url", good, "--with-url", bad)
    mmlu, colours = document["parts"]
    assert (code, mmlu["verdict"], mmlu["compared"]) == (1, "worse", 24), said
    assert mmlu["interval_high"] < 0 < mmlu["only_base_right"]
    # Images go all the way; a random vision tower cannot name what it sees, and that is said.
    assert (colours["compared"], colours["verdict"]) == (30, "not judged")
    # Once per batch, and of the images that were asked about: SGLang's own warm-up is counted apart.
    assert 1 < document["sides"]["base"]["paths"]["vision-batching"]["batched"] <= 30
    replies = [json.loads(line) for line in (tmp_path / "run" / "base" / "answers.jsonl").read_text().splitlines()]
    assert [reply["error"] for reply in replies] == [""] * 54

    code, document, said = quality(environment, *asked, "--base-url", bad, "--with-url", good, "--api", "chat")
    assert (code, document["parts"][0]["verdict"]) == (0, "better"), said

    for member in session_members(good_process.pid):
        os.kill(member, 9)
    code, document, said = quality(environment, *asked, "--base-url", bad, "--with-url", good)
    assert (code, document["kind"]) == (3, "error"), said
