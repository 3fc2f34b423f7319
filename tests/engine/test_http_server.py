"""End to end: sglang.launch_server on loopback with the probes on, asked through the OpenAI client."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from openai import OpenAI

from engine_process import HOST

pytestmark = pytest.mark.engine

START_LIMIT_S = 150


def free_port() -> int:
    """A free port below 55536: SGLang takes the port 10000 above it for gRPC."""
    for port in range(21000, 21200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port from 21000 to 21199")


def flags(arguments) -> list[str]:
    words = []
    for name, value in arguments.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words


@pytest.fixture
def server(mtp_arguments, tmp_path):
    """Yields (base URL, folder of dumps). The whole process group is ended afterwards."""
    port = free_port()
    environment = HOST | {
        "SGLANG_TRTLLM_MHA_DEBUG": "1",
        "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path / "dumps"),
        "GEMMA4_TRIAGE_PATCHES": "default",
    }
    command = [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
    log = (tmp_path / "server.log").open("w")
    process = subprocess.Popen(
        command + flags(mtp_arguments),
        stdout=log,
        stderr=subprocess.STDOUT,
        env=os.environ | environment,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                text = (tmp_path / "server.log").read_text(errors="replace")
                assert process.poll() is None, text[-4000:]
                assert time.monotonic() < deadline, text[-4000:]
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1", tmp_path / "dumps"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


def test_a_completion_through_the_openai_client(server):
    url, dumps = server
    client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    from gemma4_repro.toys.language import held_out_prompts

    (prompt,) = held_out_prompts(1, 60, seed=11)
    answer = client.completions.create(
        model="default", prompt=prompt, max_tokens=24, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 24
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.choices[0].text
    manifests = [json.loads(path.read_text()) for path in (dumps / "guards").glob("*.json")]
    attached = {row["id"] for manifest in manifests for row in manifest["patches"] if row["attached"]}
    assert {"page-table", "swa-allocator", "swa-state-swap"} <= attached
    assert [path for path in dumps.iterdir() if path.name != "guards"] == []
