"""The control scenario: the same load and fault switch on Triton attention, which never had the bug."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

TIME_LIMIT_S = 400


def test_triton_is_not_touched_by_the_fault(tmp_path):
    command = [Path(sys.executable).with_name("gemma4-triage"), "repro", "e4b-triton", "--json"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "run")], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["schema_version"]
