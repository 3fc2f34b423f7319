"""`gemma4-triage serve` on loopback: it becomes the server, answers an OpenAI client, and goes away on SIGTERM."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from openai import OpenAI

from gemma4_dumps.errors import ExitCode
from gemma4_repro.engine.host_environment import REQUIRED
from gemma4_repro.toys.language import held_out_prompts
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind
from gemma4_runtime.releases import BASE, installed_or_base
from gemma4_triage.cli.server_arguments import CPU_ARGUMENTS
from server_process import flags, free_port, running_server, session_members

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

COMMAND = Path(sys.executable).with_name("gemma4-triage")
STOP_LIMIT_S = 60
PROBES = [patch.id for patch in CATALOG if patch.kind is Kind.PROBE and patch.asked_by == "mode"]


@pytest.fixture
def given(mtp_arguments):
    """Return the arguments; nothing of the host engine's environment or CPU arguments is given by hand."""
    words = {name: value for name, value in mtp_arguments.items() if f"--{name.replace('_', '-')}" not in CPU_ARGUMENTS}
    return flags(words)


@pytest.fixture
def environment():
    return {name: value for name, value in os.environ.items() if name not in REQUIRED} | {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def serving(given, environment, tmp_path):
    """Yields (process, base URL)."""
    port = free_port()
    options = ["--host-engine", "--debug", "1", "--dump-dir", str(tmp_path / "dumps")]
    command = [COMMAND, "serve", *options, "--", "--host", "127.0.0.1", "--port", str(port), *given]
    with running_server(command, port, environment, tmp_path / "server.log") as process:
        yield process, f"http://127.0.0.1:{port}/v1"


@pytest.mark.smoke
def test_it_serves_guarded_and_stops_on_sigterm(serving, tmp_path):
    process, url = serving
    command = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
    assert Path(command[1]).name == "sglang", "it should have become the server"
    assert command[2] == "serve"
    (prompt,) = held_out_prompts(1, 60, seed=11)
    answer = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120).completions.create(
        model="default", prompt=prompt, max_tokens=24, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.choices[0].text
    # Which path the ops took: counted in /server_info, and below in the scheduler's manifest.
    (state,) = json.loads(urlopen(url.removesuffix("/v1") + "/server_info").read())["internal_states"]
    counted = state.get("gemma4_triage_paths", {})
    # SGLang warms up with a picture, which is long enough; the prompt is not.
    others = {"yoco": ["fused", "fewer than 256 rows to save"], "vision-batching": ["batched"]}
    # On this CPU a kernel's torch reference runs. A product of fewer rows has no kernel of ours.
    others |= {"q-only-projection": ["fused"], "small-m-linear": ["no plan was measured on cpu with float32"]}
    others |= {"attention-front": ["attention by TRTLLMHAAttnBackend"]}
    others |= {"capped-logits": ["logits that are fp32 already"]}
    wanted = {op: others.get(op, ["reference"]) for op in counted}
    assert {op: list(paths) for op, paths in counted.items()} == wanted
    # No optimisation attaches to 0.5.23 yet.
    assert others.keys() < counted.keys() if installed_or_base() == BASE else not counted
    # A decode step has its gelu-tanh-mul in its layers' tails.
    assert not counted or counted["layer-tail"]["reference"] > 24

    said = (tmp_path / "server.log").read_text(errors="replace")
    assert f"gemma4-triage: probes: {', '.join(PROBES)} (mode 1: trap, and contain in CUDA graphs)" in said
    assert "gemma4-triage: fixes: swa-state-swap" in said
    assert "arguments added for the CPU: --device cpu --dtype float32" in said

    process.send_signal(signal.SIGTERM)
    code = process.wait(STOP_LIMIT_S)
    # SGLang's own end: it drains; then 0.5.13.post1 kills its whole tree, itself included (kill_process_tree,
    # include_parent), and 0.5.23 ends its processes and exits with 0.
    assert code == (-signal.SIGKILL if installed_or_base() == BASE else 0)
    # Not of a process that verified them before SGLang had set up its log, and once of any other.
    assert 1 <= said.count("patches verified") <= len(list((tmp_path / "dumps" / "guards").glob("*.json")))
    assert "Gracefully exiting" in (tmp_path / "server.log").read_text(errors="replace")
    deadline = time.monotonic() + STOP_LIMIT_S
    while (left := session_members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []

    manifests = [json.loads(path.read_text()) for path in (tmp_path / "dumps" / "guards").glob("*.json")]
    assert len({manifest["pid"] for manifest in manifests}) >= 2, "the server and its scheduler"
    assert all(manifest["verified"] for manifest in manifests)
    assert all(row["attached"] for manifest in manifests for row in manifest["patches"])
    attached = {row["id"] for manifest in manifests for row in manifest["patches"]}
    assert {"page-table", "swa-allocator", "swa-state-swap"} <= attached
    paths = {row["id"]: row["paths"] for manifest in manifests for row in manifest["patches"] if "paths" in row}
    assert paths == wanted
    fired = {row["id"]: row["self_test"] for manifest in manifests for row in manifest["patches"] if "self_test" in row}
    assert fired == dict.fromkeys(PROBES, "fired")
    assert [path.name for path in (tmp_path / "dumps").iterdir() if path.name != "guards"] == []


# The patches that refuse an argument here are not ported.
@pytest.mark.releases("0.5.13.post1")
def test_an_argument_that_a_patch_does_not_serve_is_a_usage_error(given, environment):
    """Found by SGLang's own check of its arguments, in the server's process, where nothing catches it."""
    command = [COMMAND, "serve", "--host-engine", "--", *given, "--enable-custom-logit-processor"]
    environment["SGLANG_FROZEN_KV_MTP_V2"] = "1"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)
    assert done.returncode == ExitCode.USAGE, done.stderr[-3000:]
    reason, hint = done.stderr.strip().splitlines()[-2:]
    assert reason.startswith("gemma4-triage: mtp-v2 does not serve --enable-custom-logit-processor: ")
    assert hint.startswith("gemma4-triage: hint: ")
    assert "Traceback" not in done.stderr
