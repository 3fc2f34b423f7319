"""What a process has run before it is killed counts for `make coverage`, and it ends as it does without."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

coverage = pytest.importorskip("coverage")
TOOLS = Path(__file__).resolve().parents[1] / "tools"

WORK = "def work():\n    return 7\n"
# A process that has worked and is killed while it waits for `wait`; the other kills it by `kill`.
KILLER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-c", "import time, worked; worked.work(); print('up', flush=True); {wait}"],
    stdout=subprocess.PIPE, start_new_session=True,
)
child.stdout.readline()
began = time.monotonic()
{kill}
print(child.wait(), time.monotonic() - began < 2)
"""
SETTINGS = """
[run]
parallel = true
plugins = coverage_kills
patch = subprocess
source = .
"""


@pytest.mark.parametrize(
    ("kill", "wait", "kept"),
    [
        ("os.kill(child.pid, signal.SIGKILL)", "time.sleep(60)", True),
        ("child.kill()", "time.sleep(60)", True),
        ("os.killpg(child.pid, signal.SIGKILL)", "[len('x') for _ in iter(int, 1)]", True),
        ("import psutil; psutil.Process(child.pid).kill()", "time.sleep(60)", True),
        # Nobody can ask one that is stopped, and nobody waits for it.
        ("os.kill(child.pid, signal.SIGSTOP); time.sleep(0.2); child.kill()", "time.sleep(60)", False),
    ],
)
def test_data_of_a_killed_process_is_kept(tmp_path, kill, wait, kept):
    (tmp_path / "worked.py").write_text(WORK)
    (tmp_path / "settings").write_text(SETTINGS)
    (tmp_path / "killer.py").write_text(textwrap.dedent(KILLER.format(kill=kill, wait=wait)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-m", "coverage", "run", "--rcfile=settings", "killer.py"],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": f"{TOOLS}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"{-signal.SIGKILL} True\n", done.stderr
    reached = set()
    for file in tmp_path.glob(".coverage.*"):
        data = coverage.CoverageData(str(file))
        data.read()
        reached |= set(data.lines(str(tmp_path / "worked.py")) or ())
    assert (2 in reached) == kept
