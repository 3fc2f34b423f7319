"""The base install reads dumps on a laptop: no torch, no sglang."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.schema import Offence
from gemma4_dumps.writer import write_dump
from gemma4_triage.cli.doctor import LOCKS
from gemma4_triage.samples import SAMPLES
from processor_time import holds
from trace_examples import decode, e4b, write

REPOSITORY = Path(__file__).resolve().parents[2]
UV = Path(sys.prefix) / "bin" / "uv"
SOURCES = ("triage", "runtime_patches", "kernels", "repro", "dumps")


@pytest.fixture(scope="session")
def base_install(tmp_path_factory) -> Path:
    """Return the bin directory of an environment with the base install only."""
    if not UV.exists():
        pytest.skip(f"{UV} is not there")
    checkout = tmp_path_factory.mktemp("checkout")
    # A copy: a build leaves an egg-info in the checkout.
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "constraints.txt", "constraints-0.5.23.txt"):
        shutil.copy(REPOSITORY / name, checkout)
    for name in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.trace.json.gz")
        shutil.copytree(REPOSITORY / name, checkout / name, ignore=ignored)
    shutil.copytree(REPOSITORY / "tests" / "data" / "logs", checkout / "tests" / "data" / "logs")
    environment = tmp_path_factory.mktemp("base") / "venv"
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    install = [UV, "pip", "install", "--quiet", "--compile-bytecode", "--python", environment / "bin" / "python"]
    for command in (
        [UV, "venv", "--quiet", "--python", sys.executable, environment],
        [*install, "--constraint", checkout / "constraints.txt", checkout],
    ):
        done = subprocess.run(command, cwd=checkout, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return environment / "bin"


MOST_KIB = 150 * 1024
"""What an environment of `python3 -m venv` and `pip install .` may take, in the sense of `du -sk`: about 145 MB, as
README says."""
OTHERS_KIB = 127_400
"""What of it pip and the dependencies take on Python 3.11, rounded up; docs/first_hour.md has the sum of a walk."""
HEADROOM_KIB = 60
"""For dependencies that grow, and for paths of the environment, whose length is in what is compiled."""


@pytest.fixture
def dump_path(tmp_path) -> Path:
    table = np.arange(20, dtype=np.int32).reshape(2, 10)
    table[1, 3] = 70
    draft = DumpDraft(
        rule="page-table-bounds",
        verdict="out_of_range",
        summary="1 page id is at or above 65.",
        mode="trap",
        action="trapped",
        site="TRTLLMHAAttnBackend.init_forward_metadata",
        page_size=16,
        offences=[Offence(table="page_table", row=1, column=3, value=70, lower=0, upper=65)],
        tensors={
            "page_table": TensorPayload.from_array(table),
            "cache_seqlens": TensorPayload.from_array(np.array([160, 150], np.int32)),
        },
    )
    path = write_dump(tmp_path / "root", draft).path
    assert path is not None
    return path


def run(*command, cwd: Path | None = None) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(list(map(str, command)), env=clean, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_it_takes_no_more_room_than_readme_says(base_install):
    (packages,) = base_install.parent.glob("lib/python3*/site-packages")
    places = [*packages.glob("gemma4_*"), base_install.parent / "share" / "gemma4-triage"]
    listed = subprocess.run(["du", "-skc", *places], capture_output=True, text=True, check=True).stdout.splitlines()
    ours_kib = int(listed[-1].split()[0])
    assert 10_000 < ours_kib < MOST_KIB - OTHERS_KIB - HEADROOM_KIB


def test_it_has_every_known_issue(base_install):
    done = run(base_install / "gemma4-triage", "known", "list", "--json")
    records = REPOSITORY / "triage" / "gemma4_triage" / "known_issues" / "records"
    assert [one["id"] for one in json.loads(done.stdout)["issues"]] == sorted(
        file.stem for file in records.glob("*.toml")
    )


def test_it_has_the_arguments_of_every_release(base_install):
    table = REPOSITORY / "triage" / "gemma4_triage" / "diagnose" / "sglang_arguments.json"
    asked = "import json; from gemma4_triage.logs.known_arguments import known_arguments as k; print(json.dumps(k()))"
    assert json.loads(run(base_install / "python", "-c", asked).stdout) == json.loads(table.read_text())


@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("--help", 1.1),
        *((f"diagnose tests/data/logs/{log}.log", 3.2) for log in ("probe-logged", "prefix-loss", "illegal-access")),
        ("dumps show 20261121T103430 --dir dumps/samples", 2.7),
    ],
)
def test_it_answers_at_once(base_install, line, most):
    def runs(*command):
        return lambda: run(*command, cwd=REPOSITORY)

    libraries = runs(base_install / "python", "-c", "import numpy, rich.console, rich.table, typer.main")
    ours = runs(base_install / "gemma4-triage", *line.split())
    assert holds(lambda ours_s, libraries_s: ours_s < most * libraries_s, ours, libraries)


@pytest.mark.parametrize("package", ["torch", "sglang", "triton", "transformers"])
def test_nothing_heavy_is_installed(base_install, package):
    done = run(base_install / "python", "-c", f"import {package}")
    assert "ModuleNotFoundError" in done.stderr


def test_dumps_are_read_there(base_install, dump_path):
    program = base_install / "gemma4-triage"
    shown = run(program, "dumps", "show", dump_path)
    assert shown.returncode == 0, shown.stderr
    assert ">70<" in shown.stdout
    listed = run(program, "dumps", "list", "--dir", dump_path.parent, "--json")
    assert [entry["dump_id"] for entry in json.loads(listed.stdout)["dumps"]] == [dump_path.name]
    assert run(program, "dumps", "verify", dump_path).returncode == 0
    assert run(program, "diff", dump_path, dump_path).returncode == 0
    assert run(program, "--help").returncode == 0


def test_dumps_are_diagnosed_there(base_install):
    folder = REPOSITORY / "tests" / "data" / "corpus_dumps"
    for case, code, said in (
        ("swa-state-stale", 1, "draft-swa-state-stale"),
        ("clean-aborts", 0, "nothing wrong here"),
    ):
        done = run(base_install / "gemma4-triage", "diagnose", "--dir", folder / case)
        assert done.returncode == code, done.stderr
        assert said in done.stdout


def test_logs_are_read_there(base_install):
    done = run(base_install / "gemma4-triage", "logs", REPOSITORY / "tests" / "data" / "logs" / "swa-starved.log")
    assert (done.returncode, done.stderr) == (1, "")
    assert "binding-pool" in done.stdout


def test_traces_are_profiled_there(base_install, tmp_path):
    document = decode(e4b(6)).document()
    done = run(base_install / "gemma4-triage", "profile", write(tmp_path / "trace.json.gz", document), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["devices"][0]["layers"]["count"] == 6


def test_reports_are_written_there(base_install, tmp_path):
    names = {"--out": "r.html", "--markdown": "r.md", "--junit": "r.xml", "--sarif": "r.sarif"}
    words = [word for option, name in names.items() for word in (option, tmp_path / name)]
    run_folder = REPOSITORY / "tests" / "data" / "finished_runs" / "e4b-trtllm"
    done = run(base_install / "gemma4-triage", "report", run_folder, *words)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / name).stat().st_size for name in names.values())
    assert "draft-swa-state-stale" in (tmp_path / "r.html").read_text()


def test_patches_are_explained_there(base_install):
    done = run(base_install / "gemma4-triage", "patches", "explain", "yoco", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["patch"]["installed_sglang"] is None
    assert run(base_install / "gemma4-triage", "patches").returncode == 0


def test_pools_are_planned_there(base_install):
    config = REPOSITORY / "tests" / "data" / "configs" / "26b-a4b.json"
    words = ("--kv-mem", "109.47806GB", "--workload", "80x8000+1000", "--split-leaf", "--apply")
    done = run(base_install / "gemma4-triage", "pools", "--config", config, *words)
    assert (done.returncode, done.stdout) == (0, "--swa-full-tokens-ratio 0.349\n")


def test_dumps_are_replayed_and_shrunk_there(base_install, dump_path, tmp_path):
    program = base_install / "gemma4-triage"
    shown = run(program, "replay", dump_path, "--shrink", "--output", tmp_path / "small")
    assert shown.returncode == 1, shown.stderr
    assert shown.stdout.startswith("READS BEYOND THE BUFFER")
    assert "shrunk: 2 rows x 10 columns -> 1 x 1" in shown.stderr
    real = run(program, "replay", dump_path, "--backend", "torch")
    assert real.returncode == 3, real.stderr
    assert "cannot run here: not installed: No module named 'torch'" in real.stdout


def test_dumps_can_be_written_there(base_install, tmp_path):
    code = (
        "import sys, numpy; from gemma4_dumps.draft import *; from gemma4_dumps.writer import write_dump;"
        "draft = DumpDraft(rule='r', verdict='negative', summary='s', mode='log', action='logged', site='a',"
        "tensors={'x': TensorPayload.from_array(numpy.zeros(3))});"
        "outcome = write_dump(sys.argv[1], draft); print(outcome); sys.exit(outcome.path is None)"
    )
    done = run(base_install / "python", "-c", code, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_published_schema_is_installed(base_install):
    code = (
        "import importlib.resources as r; print(r.files('gemma4_dumps').joinpath('manifest.schema.json').read_text())"
    )
    done = run(base_install / "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["title"] == "Manifest"


@pytest.mark.slow
def test_samples_come_with_it_and_their_commands_run(base_install, tmp_path):
    clean = {"PATH": f"{base_install}:/usr/bin:/bin", "HOME": str(tmp_path)}

    def run(*words):
        return subprocess.run(words, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)

    listed = json.loads(run("gemma4-triage", "samples", "--json").stdout)["samples"]
    assert len(listed) == len(SAMPLES)
    for sample in listed:
        assert sample["path"].startswith(str(base_install.parent))
        done = run(*shlex.split(sample["command"]))
        # A sample of a defect is exit code 1.
        assert done.returncode in (0, 1), done.stderr
        assert done.stdout
    assert run("gemma4-triage", "samples", "leak", "-o", "try").returncode == 0
    assert run("gemma4-triage", "audit", "try/" + Path(listed[2]["path"]).name).returncode == 1


def test_the_toys_are_a_package_of_their_own(base_install):
    assert not list(base_install.parent.rglob("toy-*"))
    assert not list(base_install.parent.rglob("*toys*.dist-info"))


@pytest.mark.parametrize("extra", LOCKS)
def test_constraints_come_with_it_by_the_extra(base_install, extra):
    done = run(base_install / "gemma4-triage", "doctor", "--constraints", extra)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (REPOSITORY / LOCKS[extra]).read_text()
    assert run(base_install / "gemma4-triage", "doctor", "--constraints", "none").returncode == 2
