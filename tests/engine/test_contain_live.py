"""Contain mode in the live server: bad entries are neutralised before the kernel, and only their requests end.

The device model is sm100, so one page that is followed out of range would end the server.
"""

import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine_process import HOST
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.workloads import SWA_PRESSURE
from lifecycle import load_of
from server_process import flags, free_port, running_server

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]


@pytest.fixture
def serve(mtp_arguments, tmp_path):
    """Return a context that takes {variable: value} and yields ask(prompt, new_tokens) -> (HTTP status, answer)."""
    port = free_port()

    def ask(prompt, new_tokens):
        body = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    @contextlib.contextmanager
    def running(variables):
        environment = os.environ | HOST | variables | {"SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path / "dumps")}
        command = [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
        with running_server(command + flags(mtp_arguments), port, environment, tmp_path / "server.log") as process:
            yield ask
            assert process.poll() is None, (tmp_path / "server.log").read_text()[-4000:]

    return running


def ask_all(ask):
    """Ask for everything at once, of one request no more than the token that its prefill gives: it drafts nothing."""
    sizes = [1, *SWA_PRESSURE.new_tokens()[1:]]
    with ThreadPoolExecutor(SWA_PRESSURE.prompt_count) as pool:
        return list(pool.map(ask, SWA_PRESSURE.prompts(), sizes))


def test_only_the_affected_requests_end_and_the_server_serves_on(serve, tmp_path):
    """The seed bug: all of it would be an illegal access in the draft."""
    fault = {
        "GEMMA4_TRIAGE_FAULTS": "swa-state-stale",
        "GEMMA4_TRIAGE_PATCHES": "default,-swa-state-swap",
        "SGLANG_TRTLLM_MHA_DEBUG": "contain",
    }
    with serve(fault) as ask:
        answers = ask_all(ask)
        failed = [answer for status, answer in answers if status != 200]
        assert 0 < len(failed) < len(answers)
        assert all("the step of this request was contained" in json.dumps(answer) for answer in failed)
        assert ask(SWA_PRESSURE.prompts()[0][:40], 1)[0] == 200
    assert "IllegalAddress" not in (tmp_path / "server.log").read_text()
    dumps = [read_dump(entry.path).manifest for entry in DumpStore(tmp_path / "dumps").list()]
    # A stale table also makes the draft guess worse, which its own probe may report beside the table's.
    assert {one.rule for one in dumps} <= {"page-table-bounds", "accept-length"}
    found = [one for one in dumps if one.rule == "page-table-bounds"]
    assert {(one.role, one.mode) for one in found} == {("draft", "contain")}
    assert {(one.verdict, one.action) for one in found} == {("wrong_space", "logged"), ("out_of_range", "contained")}
    contained = next(one for one in found if one.action == "contained")
    assert all(bad.value >= bad.upper == 65 for bad in contained.offences)
    assert "translation missing" in contained.provenance.explanation


def test_a_clean_load_is_left_alone(engine_forks, mtp_arguments, tmp_path):
    """The engine has no HTTP server: what would be contained is stopped below both."""
    sizes = SWA_PRESSURE.new_tokens()
    requests = [
        {"prompt": prompt, "sampling": {"temperature": 0, "max_new_tokens": size, "ignore_eos": True}}
        for prompt, size in zip(SWA_PRESSURE.prompts(), sizes, strict=True)
    ]
    spec = {"arms": [{"engine": mtp_arguments, "loads": [load_of(requests)]}]}
    environment = {"GEMMA4_TRIAGE_PATCHES": "default", "SGLANG_TRTLLM_MHA_DEBUG": "contain"}
    run = engine_forks.run(tmp_path, environment, 180, spec)
    assert run.returncode == 0, run.log[-4000:]
    assert [len(one["tokens"]) for one in run.outputs[0]["loads"][0]] == sizes
    assert DumpStore(tmp_path / "dumps").list() == []
