"""Every command's `--json` document and its view, word for word, from evidence in this repository.

`UPDATE_GOLDEN=1 pytest tests/contract/test_golden_documents.py` rewrites the files; read the difference before
committing. A command runs in this process, from the root of the checkout, once with --json and once without.

Commands that need an engine, a GPU or a server get one of these in its place; all else that they do is real:

- `repro SCENARIO`, `repro corpus` and `audit --live`: the engine's process is `recorded_engine`, which plays back a run
  in tests/data/recorded_runs. Arms are collected, judged and written down as ever.
- `repro mutations`: the rows of a run that is resumed when there is nothing left to run.
- `repro crash`: a small server that dies of an illegal address, and a small client (`small_server`).
- `diff backends` and `diff patches`: made-up answers of every side and of transformers (`parity_examples`).
- `bench probes`, `kernels`, `step` and `serving`: made-up measurements (`bench_examples`); of the last three the view
  is of committed rows.
- `quality`: two small servers of the OpenAI API (`quality_endpoint`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bench_examples
import small_server
from gemma4_repro import run_engines
from gemma4_repro.bench.arms import choose
from gemma4_repro.engine import supervisor
from gemma4_repro.engine.outcome import Ending
from gemma4_repro.mutations import runner as mutation_runner
from gemma4_runtime.releases import RUNNABLE
from gemma4_triage.cli import (
    app,
    bench_kernels,
    bench_probes,
    bench_serving,
    bench_step,
    check_start,
    crash_plan,
    diff_live,
)
from gemma4_triage.report.kernel_bench_document import kernel_bench_document
from gemma4_triage.report.serving_bench_document import serving_bench_document
from gemma4_triage.report.step_bench_document import step_bench_document
from golden_files import GOLDEN, ROOT, compare, neutral_json, neutral_text
from parity_examples import WINDOW, arm, changed, live_run, oracle, side, track
from quality_endpoint import endpoint, well_informed

SAMPLES = "dumps/samples"
FIRST = f"{SAMPLES}/20261121T103430.648335Z_vm_r0_p24275_page-table-bounds_0001"
CONTAINED = f"{SAMPLES}/20261121T133817.982072Z_vm_r0_p1291_page-table-bounds_0009"
LEAK = f"{SAMPLES}/20261121T133240.124588Z_vm_r0_p8843_leak-audit_0001"
SHAPES = f"{SAMPLES}/20261122T141637.495736Z_vm_r0_p8751_batch-shapes_0001"
STALE = f"{SAMPLES}/20261123T173723.329001Z_vm_r0_p15923_swa-stale-mapping_0001"
CORPUS, LOGS, RUNS = "tests/data/corpus_dumps", "tests/data/logs", "tests/data/finished_runs"
RECORDED = ROOT / "tests" / "data" / "recorded_runs"


@dataclass(frozen=True)
class Case:
    """One command line over committed evidence.

    Args:
        command: The command as `--help` knows it, such as `dumps list`.
        words: What follows it; FOLDER stands for a new empty folder.
        code: The exit code.
        name: Of the golden files, if the command has several cases.
        stand_in: What is put in the place of an engine, a GPU or a server: a key of STAND_INS.
        of_base: Whether it plays back or asks for what SGLang 0.5.13.post1 alone has.
        by_release: Whether what it says depends on the installed release, and each has golden files of its own.
        timed: Whether it was made just now, and has a date, a commit and seconds.
        view_code: The exit code without --json, where the view is of other evidence.
    """

    command: str
    words: tuple[str, ...] = ()
    code: int = 0
    name: str = ""
    stand_in: str = ""
    of_base: bool = False
    by_release: bool = False
    timed: bool = False
    view_code: int | None = None

    @property
    def slug(self) -> str:
        return (self.name or self.command).replace(" ", "_")

    @property
    def marks(self) -> tuple[pytest.MarkDecorator, ...]:
        if self.of_base:
            # What it plays back or asks for is of that release.
            return (pytest.mark.releases("0.5.13.post1"),)
        return (pytest.mark.releases("0.5.13.post1", "0.5.23"),) if self.by_release else ()


CASES = (
    Case("repro", name="repro list", by_release=True),
    Case("repro", ("e4b-trtllm", "--output", "FOLDER/run"), stand_in="e4b-trtllm", of_base=True, timed=True),
    Case(
        "repro",
        ("e4b-trtllm", "--arm", "fault-silent", "--output", "FOLDER/run"),
        name="repro one arm",
        stand_in="e4b-trtllm",
        of_base=True,
        timed=True,
    ),
    Case("repro", ("corpus", "--list"), name="repro corpus list", by_release=True),
    Case(
        "repro",
        ("corpus", "--only", "full-draft-through-swa-map,double-bookkeeping,clean-retraction", "-o", "FOLDER/run"),
        name="repro corpus",
        stand_in="corpus",
        of_base=True,
        timed=True,
    ),
    Case("repro crash", ("--matrix",), name="repro crash matrix"),
    Case("repro crash", ("e4b_trtllm_v1", "--toy", "--dry-run"), name="repro crash dry run", of_base=True),
    Case(
        "repro crash",
        ("e4b_trtllm_v1", "--toy", "-o", "FOLDER/run"),
        1,
        stand_in="small_crash",
        of_base=True,
        timed=True,
    ),
    Case(
        "repro mutations",
        ("--seed", "2411", "--count", "6", "--resume", "-o", "FOLDER/run"),
        1,
        stand_in="mutation_rows",
    ),
    Case(
        "serve",
        ("--dry-run", "--debug", "trap", "--host-engine", "--dump-dir", "d", "--", "--model-path", "m"),
        stand_in="free-port",
        by_release=True,
    ),
    Case("patches list", ("--kind", "probe")),
    Case("patches list", ("--sglang", "0.5.23", "--kind", "fix"), name="patches list of a release"),
    Case("patches explain", ("swa-state-swap",), by_release=True),
    Case("doctor", by_release=True),
    Case("samples"),
    Case("audit", (LEAK,), 1),
    Case(
        "audit",
        ("--live", "--fault", "double-bookkeeping"),
        1,
        name="audit live",
        stand_in="audit-live",
        of_base=True,
        timed=True,
    ),
    Case("diagnose", (f"{CORPUS}/swa-state-stale", "--log", f"{LOGS}/illegal-access.log"), 1),
    Case("diagnose", (LEAK, SHAPES, STALE), 1, name="diagnose several"),
    Case("report", (FIRST,), 1),
    Case("report", (f"{RUNS}/e4b-trtllm",), name="report repro"),
    Case("report", (f"{RUNS}/corpus",), name="report corpus"),
    Case("report", (f"{RUNS}/diff-backends",), 1, name="report diff backends"),
    Case("report", (f"{RUNS}/diff-patches",), 1, name="report diff patches"),
    Case("logs", (f"{LOGS}/pool-leak.log",), 1),
    Case("known list", ("--topic", "lora")),
    Case("known show", ("eager-draft-write-rows",)),
    Case("known check", (f"{LOGS}/stale-write-rows.log", "--release", "0.5.13.post1"), 1),
    Case("known check", name="known check records"),
    # No such process, and its log: what needs a server is tests/unit/test_cli_collect.py.
    Case("collect", ("2147483646", "--log", f"{LOGS}/pool-leak.log", "-o", "FOLDER/a.zip", "--force"), timed=True),
    Case("profile", (f"{SAMPLES}/e4b-shipped_h200_2026-11-22.trace.json.gz",)),
    Case("pools", ("--config", "tests/data/configs/e4b.json", "--kv-mem", "20GiB", "--workload", "80x8000+1000"), 1),
    Case("replay", (FIRST,), 1),
    Case("replay", (STALE,), 1, name="replay allocator"),
    Case("replay", (LEAK,), 1, name="replay leak"),
    Case("replay", (SHAPES,), 1, name="replay shapes"),
    Case("dumps list", ("--dir", SAMPLES)),
    Case("dumps show", (CONTAINED,)),
    Case("dumps verify", (FIRST,)),
    Case("dumps export", (FIRST, "--out", "FOLDER/dumps.zip")),
    Case("dumps prune", ("--dir", "FOLDER/store", "--keep", "1"), stand_in="store"),
    Case("bench probes", stand_in="probes", timed=True),
    Case("bench kernels", ("--ops", "routing", "--tokens", "1,8"), stand_in="kernels", timed=True, view_code=1),
    Case("bench step", ("--model", "e2b", "--batch", "1"), stand_in="step", timed=True),
    Case("bench serving", ("prefill", "--model", "e2b"), stand_in="serving", timed=True),
    Case("diff dumps", (FIRST, CONTAINED), 1),
    Case("diff backends", ("--backend", "triton,trtllm_mha", "--mtp", "off"), 1, stand_in="backends", by_release=True),
    Case("diff patches", ("--with", "default,+swa-window-width", "--mtp", "off"), 1, stand_in="patches", of_base=True),
    Case("quality", ("--colours", "--output", "FOLDER/run"), 1, stand_in="servers", timed=True),
    Case("dumps show", ("no-such-dump", "--dir", SAMPLES), 2, name="error"),
)


NO_GOLDEN = {
    "bench plot": "prints nothing; what it draws of the committed rows is held by test_committed_bench_rows.py"
}
"""Commands without a document or a view, and why."""


@dataclass(frozen=True)
class Scene:
    """Where a command runs: what a stand-in may change, and whether --json was given."""

    patch: pytest.MonkeyPatch
    folder: Path
    as_json: bool


@dataclass(frozen=True)
class Added:
    """What a stand-in adds to the command line, and texts of this run alone with what stands for each."""

    words: tuple[str, ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()


@contextlib.contextmanager
def nothing(scene: Scene) -> Iterator[Added]:
    yield Added()


@contextlib.contextmanager
def free_port(scene: Scene) -> Iterator[Added]:
    """Let a server without --port take any port that is free, which 0 means: others may run here at SGLang's own."""
    scene.patch.setattr(check_start, "PORT", 0)
    yield Added()


@contextlib.contextmanager
def playback(scene: Scene, run: str, arm: str = "") -> Iterator[Added]:
    """Yield a recorded run. arm: the one that is played, whatever arm is asked for."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "recorded_engine.py"), str(os.getpid())]
    # Side by side, which of two engines ends first is a matter of chance.
    scene.patch.setattr(run_engines, "MOST_SIDE_BY_SIDE", 1)
    scene.patch.setattr(supervisor, "prefork_command", lambda: [*command, str(RECORDED / run), *filter(None, [arm])])
    yield Added()


@contextlib.contextmanager
def small_crash(scene: Scene) -> Iterator[Added]:
    """Yield a server that dies of the first request of its load, and a dump that it had left."""
    # The client lives on, so that it is always the server that ends first.
    client = (
        "import sys, time, urllib.request as u\ntry: u.urlopen(sys.argv[2] + '/die', b'x')\n"
        "except OSError: time.sleep(60)"
    )
    folder = scene.folder / "run" / "e4b_trtllm_v1"
    folder.mkdir(parents=True)
    plan = small_server.small_plan(folder, client)

    def make_plan(*arguments):
        shutil.copytree(FIRST, folder / "dumps" / Path(FIRST).name, dirs_exist_ok=True)
        return plan

    scene.patch.setattr(crash_plan, "make_plan", make_plan)
    yield Added(("--force",), ((plan.url, "URL"), (plan.url.rpartition(":")[2], "PORT")))


@contextlib.contextmanager
def store(scene: Scene) -> Iterator[Added]:
    shutil.copytree(f"{CORPUS}/swa-state-stale", scene.folder / "store")
    yield Added()


@contextlib.contextmanager
def mutation_rows(scene: Scene) -> Iterator[Added]:
    """Yield a run of mutations that was interrupted once all of them had a row."""
    shutil.copytree("docs/mutations/2411", scene.folder / "run", dirs_exist_ok=True)
    scene.patch.setattr(mutation_runner, "installed_or_base", lambda: "0.5.13.post1")
    yield Added()


@contextlib.contextmanager
def rows(scene: Scene, verb: ModuleType, made_up: Callable[..., dict], committed: str = "") -> Iterator[Added]:
    """Made-up measurements with --json; without it committed rows, if there are any in today's form."""
    for name in ("_need_cuda", "need_cuda"):
        scene.patch.setattr(verb, name, lambda *words: None, raising=False)
    document = (
        made_up if scene.as_json or not committed else lambda *arguments: json.loads((ROOT / committed).read_text())
    )
    scene.patch.setattr(verb, "_measure", lambda *arguments: (document(*arguments), False))
    yield Added()


def probes(plan, folder):
    return bench_examples.probes_document(Path("run"), arms=choose(("contain", "ledger"), smoke=False))


def kernels(plan, compile_cache):
    return kernel_bench_document(plan, bench_examples.kernels_measured(plan), bench_examples.PROJECT, None)


def step(plan):
    return step_bench_document(plan, bench_examples.step_measured(plan, 80.0), bench_examples.PROJECT)


def serving(plan, folder):
    measured = bench_examples.serving_measured(plan, {"yoco": 0.5})
    about = (bench_examples.INSTALLATION, bench_examples.PROJECT)
    return serving_bench_document(plan, measured, *about, Path("run"))


@contextlib.contextmanager
def sides(scene: Scene, *names: tuple[str, str]) -> Iterator[Added]:
    """Sides of a comparison by id and backend: the last one sees a key more than the window holds.

    One of the id "dies" has crashed.
    """
    said = oracle()
    wide = changed(said.tracks[0], 5, logprob=0.25, states=said.varied[0][WINDOW + 1][5])
    folder = scene.folder / "run"
    folder.mkdir()
    arms = []
    for name, backend in names:
        column = side(name, backend=backend)
        if name == "dies":
            raised = (("IllegalAddress", "page 65 of 65"),)
            arms.append(arm(folder, column=column, ending=Ending.CRASHED, raised=raised))
        else:
            arms.append(arm(folder, wide if (name, backend) == names[-1] else track(), column=column))

    def run(kind, sides, options):
        asking = {"compared": options.compared, "prompt_logprobs": options.prompt_logprobs}
        return live_run(folder, *arms, said=said, **asking)

    scene.patch.setattr(diff_live, "_run", run)
    yield Added()


@contextlib.contextmanager
def servers(scene: Scene) -> Iterator[Added]:
    """Yield two servers, of which the second takes everything for grey."""

    def colour_blind(prompt):
        return "grey" if prompt.startswith("image:") else well_informed(prompt)

    with endpoint(well_informed) as base, endpoint(colour_blind) as other:
        yield Added(("--base-url", base, "--with-url", other), ((base, "BASE"), (other, "WITH")))


STAND_INS: dict[str, Callable[[Scene], contextlib.AbstractContextManager[Added]]] = {
    "": nothing,
    "free-port": free_port,
    "e4b-trtllm": partial(playback, run="e4b-trtllm"),
    "corpus": partial(playback, run="corpus"),
    "audit-live": partial(playback, run="corpus", arm="double-bookkeeping"),
    "small_crash": small_crash,
    "store": store,
    "mutation_rows": mutation_rows,
    "probes": partial(rows, verb=bench_probes, made_up=probes),
    "kernels": partial(
        rows, verb=bench_kernels, made_up=kernels, committed="kernels/bench/rows/kernels_h200_2026-11-22_rotation.json"
    ),
    "step": partial(rows, verb=bench_step, made_up=step, committed="docs/bench/step_products_h200_2026-11-23_26b.json"),
    "serving": partial(
        rows,
        verb=bench_serving,
        made_up=serving,
        committed="docs/bench/serving_long_context_e4b_h200_2026-11-22.json",
    ),
    "backends": lambda scene: sides(scene, ("triton-mtp-off", "triton"), ("dies", "triton"), ("wide", "trtllm_mha")),
    "patches": lambda scene: sides(
        scene,
        *(
            (f"{which}-{backend}-mtp-off", backend)
            for backend in ("triton", "trtllm_mha")
            for which in ("base", "with")
        ),
    ),
    "servers": servers,
}


@pytest.fixture
def said(monkeypatch, tmp_path, capsys):
    """Return a function of a case that runs its command as on a machine without settings, GPU or dumps.

    It returns the exit code, stdout, stderr and what was replaced.
    """
    for name in [name for name in os.environ if name.startswith(("GEMMA4_", "SGLANG_", "TRITON_", "TORCHDYNAMO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", "no-dumps")
    monkeypatch.setattr(crash_plan, "cuda_devices", lambda: ())
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.chdir(ROOT)

    def run(case: Case, as_json: bool) -> tuple[int, str, str, dict[str, str]]:
        with STAND_INS[case.stand_in](Scene(monkeypatch, tmp_path, as_json)) as added:
            words = [*case.command.split(), *added.words, *(["--json"] if as_json else []), *case.words]
            words = [word.replace("FOLDER", str(tmp_path)) for word in words]
            monkeypatch.setattr(sys, "argv", ["gemma4-triage", *words])
            code = app.main(words)
        out, err = capsys.readouterr()
        return int(code), out, err, dict(added.replaced) | {str(tmp_path): "FOLDER"}

    return run


@pytest.mark.parametrize("case", [pytest.param(case, marks=case.marks, id=case.slug) for case in CASES])
class TestEveryCommand:
    @pytest.mark.sampled(5)
    def test_json(self, case, said):
        code, out, err, replaced = said(case, True)
        assert code == case.code, err
        compare(f"json_{case.slug}.json", neutral_json(out, replaced, case.timed), case.by_release)

    @pytest.mark.sampled(4)
    def test_view(self, case, said):
        code, out, err, replaced = said(case, False)
        assert code == (case.code if case.view_code is None else case.view_code), err
        text = f"{out}[stderr]\n{err}" if err else out
        compare(f"view_{case.slug}.txt", neutral_text(text, replaced, case.timed), case.by_release)


def test_a_server_at_sglangs_port_changes_no_answer(said, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(check_start, "PORT", other.getsockname()[1])
        _, out, err, _ = said(next(case for case in CASES if case.command == "serve"), True)
    assert (json.loads(out)["refused_here"], "in use" in err) == ([], False)


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every command that `--help` names, down to the last word."""
    group = group or app.command_tree()
    for name, command in group.commands.items():
        # `repro` is a group of one command and of scenarios, which are no commands.
        if name == "scenario":
            yield " ".join(path)
        elif command.hidden:
            continue
        elif hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


def test_every_command_has_a_document_and_a_view():
    assert set(commands()) == {case.command for case in CASES} | set(NO_GOLDEN)


def test_every_golden_file_belongs_to_a_case():
    named = {f"json_{case.slug}.json" for case in CASES} | {f"view_{case.slug}.txt" for case in CASES}
    assert {path.name for path in [*GOLDEN.rglob("json_*"), *GOLDEN.rglob("view_*")]} == named
    assert len(named) == 2 * len(CASES)
    for case in CASES:
        folders = [GOLDEN / release for release in RUNNABLE] if case.by_release else [GOLDEN]
        found = {
            path.parent for form in (f"json_{case.slug}.json", f"view_{case.slug}.txt") for path in GOLDEN.rglob(form)
        }
        assert found == set(folders), case.slug


@pytest.mark.parametrize("form", ["junit", "sarif", "html"])
def test_files_of_a_report(form, said, tmp_path):
    """Markdown is held by test_golden_output.py."""
    option = {"html": "--out"}.get(form, f"--{form}")
    path = tmp_path / f"report.{form}"
    code, _, err, replaced = said(Case("report", (FIRST, option, str(path))), False)
    assert code == 1, err
    compare(f"report_file.{form}", neutral_text(path.read_text(), replaced))
