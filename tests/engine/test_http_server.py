"""End to end: sglang.launch_server on loopback with the probes on, asked through the OpenAI client."""

import json
import os
import sys
from urllib.request import urlopen

import pytest
from openai import OpenAI

from engine_process import HOST
from server_process import flags, free_port, running_server

pytestmark = pytest.mark.engine


@pytest.fixture
def server(mtp_arguments, tmp_path):
    """Yields (base URL, folder of dumps)."""
    port = free_port()
    environment = {
        "SGLANG_TRTLLM_MHA_DEBUG": "1",
        "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path / "dumps"),
        "GEMMA4_TRIAGE_PATCHES": "default",
    }
    command = [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
    with running_server(command + flags(mtp_arguments), port, os.environ | HOST | environment, tmp_path / "server.log"):
        yield f"http://127.0.0.1:{port}/v1", tmp_path / "dumps"


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
    # Which path the ops took: counted in /server_info, and named in the scheduler's manifest.
    (state,) = json.loads(urlopen(url.removesuffix("/v1") + "/server_info").read())["internal_states"]
    counted = state["gemma4_triage_paths"]
    # SGLang warms up with a picture, which is long enough; the prompt is not.
    others = {"yoco": ["fused", "fewer than 256 rows to save"], "vision-batching": ["batched"]}
    wanted = {op: others.get(op, ["fused"]) for op in counted}
    assert {op: list(paths) for op, paths in counted.items()} == wanted
    assert others.keys() < counted.keys()
    assert counted["gelu-tanh-mul"]["fused"] > 24
    paths = {row["id"]: row["paths"] for manifest in manifests for row in manifest["patches"] if "paths" in row}
    assert paths == wanted
