"""Short commands start quickly because they do not import what they have no use for: these modules by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from gemma4_triage.cli.app import VERBS

ROOT = Path(__file__).parents[2]
DUMP = "dumps/samples/20261121T103430.648335Z_vm_r0_p24275_page-table-bounds_0001"
LOG = "tests/data/logs/illegal-access.log"
RUNTIME = ("torch", "sglang", "triton", "transformers", "scipy", "pandas")
RENDERERS = ("gemma4_triage.report.html.render", "gemma4_triage.report.triage_markdown")
RULES = ("gemma4_triage.diagnose.conclude", "gemma4_triage.logs.catalog")
NEVER = (*RUNTIME, *RENDERERS, "pickletools", "asyncio", "gemma4_repro", "urllib.request", "unittest")
READS = ("gemma4_dumps.writer", "gemma4_dumps.staging")
COMMANDS = {
    "--help": (*NEVER, *RULES, "numpy", "pydantic", "rich", "gemma4_dumps.schema"),
    "dumps --help": (*NEVER, *RULES, "numpy", "rich", "gemma4_dumps.schema"),
    f"diagnose {DUMP}": (*NEVER, *READS, "gemma4_triage.logs.catalog", "gemma4_triage.known_issues.catalog"),
    f"diagnose {LOG}": (*NEVER, *READS),
    f"dumps show {DUMP}": (*NEVER, *READS, "gemma4_triage.logs.catalog", "gemma4_triage.known_issues.catalog"),
    "dumps list --dir dumps/samples": (*NEVER, *RULES, *READS),
    f"dumps verify {DUMP}": (*NEVER, *RULES),
    f"logs {LOG}": (*NEVER, "gemma4_triage.diagnose.conclude"),
    "samples": (*NEVER, *RULES, "numpy"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: line[:30])
def test_what_is_not_imported(line):
    words = line.split()
    code = f"import sys; from gemma4_triage.cli.app import main; main({words}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(done.stderr.splitlines()[-1].split())
    assert sorted(imported & set(COMMANDS[line])) == []
    if words[0] in VERBS:
        assert sorted(imported & {f"gemma4_triage.cli.{verb}" for verb in VERBS if verb != words[0]}) == []


@pytest.mark.slow
@pytest.mark.parametrize("line", [f"diagnose {DUMP}", f"diagnose {LOG}"], ids=["dump", "log"])
def test_no_time_goes_into_looking_for_cycles(line):
    code = (
        "import gc, sys; from gemma4_triage.cli.app import main\n"
        "def looked(phase, _): print(phase, len(gc.get_objects()), file=sys.stderr)\n"
        f"gc.collect(); gc.freeze(); gc.callbacks.append(looked); main({line.split()})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    looked = [int(words[1]) for words in map(str.split, done.stderr.splitlines()) if words[0] == "start"]
    # Python looks once more at the end, through what is not frozen.
    assert len(looked) == 1
    assert looked[0] < 5_000
