"""A healthy server as a user runs it, patches at their defaults and guarded: `diagnose` says that nothing is wrong."""

import json

import pytest

from gemma4_repro.toys.language import held_out_prompts
from gemma4_runtime.releases import BASE, installed_or_base

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

TOYS = {"e4b": "mtp_arguments", "26b": "experts_mtp_arguments"}
SMALL = {"max_total_tokens": 1024, "max_running_requests": 4}
BACKENDS = {
    "trtllm_mha": {"attention_backend": "trtllm_mha"},
    "triton": {"attention_backend": "triton"},
    "hybrid": {"prefill_attention_backend": "triton", "decode_attention_backend": "trtllm_mha"},
}


@pytest.mark.parametrize(
    ("toy", "backend", "mode", "dumps"),
    # `log` writes a dump of what the release is known for, too; the others write a line of the guard manifest.
    [
        ("e4b", "trtllm_mha", "1", 0),
        ("e4b", "trtllm_mha", "trap", 0),
        ("e4b", "trtllm_mha", "log", 2),
        ("e4b", "triton", "1", 0),
        ("e4b", "hybrid", "1", 0),
        ("26b", "trtllm_mha", "1", 0),
        ("26b", "triton", "1", 0),
        ("26b", "hybrid", "1", 0),
    ],
)
def test_a_clean_load_ends_in_a_note_and_exit_0(run_engine, request, tmp_path, cli, toy, backend, mode, dumps):
    environment = {
        "GEMMA4_TRIAGE_PATCHES": "default",
        "SGLANG_TRTLLM_MHA_DEBUG": mode,
        "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(tmp_path),
    }
    engine = request.getfixturevalue(TOYS[toy]) | SMALL | BACKENDS[backend]
    # The window of both toys is 32.
    run = run_engine(environment, engines=[engine], prompts=held_out_prompts(2, 40, seed=3), new_tokens=6)
    assert run.returncode == 0, run.log[-4000:]
    code, out, _ = cli("diagnose", "--dir", tmp_path, "--json")
    document = json.loads(out)
    assert (code, document["clean"]) == (0, True), out
    findings = [finding for incident in document["incidents"] for finding in incident["findings"]]
    # Later releases have the right window.
    known = [("note", "window-one-too-wide", "swa-window-width")] if installed_or_base() == BASE else []
    assert [(finding["kind"], finding["rule"], finding["fix"]) for finding in findings] == known
    assert sum(len(incident["dumps"]) for incident in document["incidents"]) == (dumps if known else 0)
    code, out, _ = cli("diagnose", "--dir", tmp_path)
    assert code == 0
    assert "nothing wrong here" in out
    assert "CERTAIN" not in out
