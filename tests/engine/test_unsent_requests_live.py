"""SIGTERM ends a server that has answered a chat with n=2 and refused a prompt, with the fix and not without."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from openai import BadRequestError, OpenAI

from gemma4_repro.engine.host_environment import REQUIRED
from gemma4_triage.cli.server_arguments import CPU_ARGUMENTS
from server_process import flags, free_port, running_server

# 0.5.23 has what the fix does: its server ends with 0, with and without.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

COMMAND = Path(sys.executable).with_name("gemma4-triage")
WAITS_S = 20
"""SGLang looks every 5 s whether it may end, and once more after that."""


@pytest.mark.parametrize(("patches", "ends"), [("default", True), ("default,-unsent-requests", False)])
def test_a_used_server_ends_on_sigterm(mtp_arguments, tmp_path, patches, ends):
    given = {name: value for name, value in mtp_arguments.items() if f"--{name.replace('_', '-')}" not in CPU_ARGUMENTS}
    environment = {name: value for name, value in os.environ.items() if name not in REQUIRED}
    port = free_port()
    command = [COMMAND, "serve", "--host-engine", "--patches", patches, "--", "--port", str(port), *flags(given)]
    log = tmp_path / "server.log"
    with running_server(command, port, environment | {"CUDA_VISIBLE_DEVICES": ""}, log) as process:
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120)
        two = client.completions.create(model="default", prompt=[5, 6, 7, 8], max_tokens=4, n=2)
        assert len(two.choices) == 2
        with pytest.raises(BadRequestError):
            client.completions.create(model="default", prompt=[5] * 5000, max_tokens=4)
        process.send_signal(signal.SIGTERM)
        if ends:
            assert process.wait(WAITS_S) == -signal.SIGKILL
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(WAITS_S)
            assert "Remaining number of requests 2" in log.read_text(errors="replace")
