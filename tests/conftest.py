"""Environment of the in-process tests: SGLang's modules must import on a machine without a GPU."""

import importlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import settings

from gemma4_runtime.host_environment import STAND_INS, with_stand_ins
from gemma4_runtime.releases import RUNNABLE, installed_or_base
from gemma4_runtime.settings import VARIABLES
from release_marks import releases_of

# A deadline per example fails where the machine is busy, and tells nothing of the code.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

# Modules of set-up whose assertions should show values when they fail, as a test's own do.
pytest.register_assert_rewrite("page_guard_runs", "row_op_tests", "routing_by_hand", "swa_pools")

# On a GPU host nothing is interpreted, and the kernels' own tests need it so.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # Where there is one, SGLang's piecewise graphs trace the model: without dynamo they would capture it untraced.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    if path := with_stand_ins():
        os.environ |= path
        sys.path.insert(0, str(STAND_INS))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A setting in the caller's shell must not reach a test that does not set it.
for _name in [name for name in os.environ if name.startswith("GEMMA4_TRIAGE_") or name in VARIABLES]:
    del os.environ[_name]

# Started in the background of a script this process ignores Ctrl-C, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = installed_or_base()


@pytest.fixture(scope="session")
def repository() -> Path:
    return ROOT


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files that are not for the installed release: they import what it does not have."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return None if INSTALLED in releases_of(collection_path) else True


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skip a file whose imports a base install does not have: its tests are of the runtime."""
    report = yield
    if report.failed and (missing := _missing(str(report.longrepr))):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {missing} is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Skip a test that imports, in its own body or in a fixture, what a base install does not have."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, ModuleNotFoundError) and (missing := _missing(str(error))):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {missing} is not installed")
    return report


# Of what SGLang brings, what this environment is without; an empty list where SGLang is installed.
_NOT_HERE = [
    name
    for name in ("torch", "sglang", "triton", "transformers", "tokenizers", "scipy", "PIL", "pyarrow", "psutil")
    if find_spec("sglang") is None and find_spec(name) is None
]


def _missing(text: str) -> str | None:
    """Return the module that an error says is missing, if this environment is known to be without it."""
    return next((name for name in _NOT_HERE if f"No module named {name!r}" in text), None)


# Ahead of what -m chooses.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _mark_what_is_not_sampled(items)
    _mark_what_runs_twice(items)
    for item in items:
        marker = item.get_closest_marker("releases")
        if marker and INSTALLED not in marker.args:
            item.add_marker(pytest.mark.skip(reason=f"for SGLang {', '.join(marker.args)}; {INSTALLED} is installed"))
        elif marker and "sglang" in _NOT_HERE:
            item.add_marker(pytest.mark.skip(reason="SGLang is not installed, and this is of its releases"))
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    if "torch" not in _NOT_HERE and importlib.import_module("torch").cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and this machine has none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def _mark_what_is_not_sampled(items: list[pytest.Item]) -> None:
    """Mark as slow all but one in so many of a `sampled` test's parameters, the same ones each time."""
    sampled: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        if marker := item.get_closest_marker("sampled"):
            sampled.setdefault((item.nodeid.partition("[")[0], marker.args[0]), []).append(item)
    for (_, one_in), of_a_test in sampled.items():
        mixed = sorted(of_a_test, key=lambda item: crc32(item.nodeid.encode()))
        for item in mixed[-(-len(mixed) // one_in) :]:
            item.add_marker(pytest.mark.slow)


ASKED_OF_EACH = ("test_repro_e4b_trtllm", "test_probes_live", "test_leak_audit_live")
"""Files of the live engine that each release is asked for: what users do first, and by what they see it go wrong."""


def _mark_what_runs_twice(items: list[pytest.Item]) -> None:
    """Mark what the newest release runs on its live engine too, where another is installed."""
    newest = RUNNABLE[-1]
    for item in items if newest != INSTALLED else ():
        marker = item.get_closest_marker("releases")
        engine = item.get_closest_marker("engine") and not item.get_closest_marker("smoke")
        if marker and engine and newest in marker.args and item.path.stem not in ASKED_OF_EACH:
            item.add_marker(pytest.mark.twice)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many minutes the tests of each folder took, with what they set up, summed over the processes."""
    spent: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                folder = Path(report.location[0]).parent.name
                spent[folder] += report.duration
    if spent:
        terminalreporter.section("minutes of each folder's tests")
        for folder, seconds in sorted(spent.items()):
            terminalreporter.line(f"{folder:<10} {seconds / 60:5.1f}")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]):
    """Return what runs words of the command line in this process: its exit code, stdout and stderr."""
    from gemma4_triage.cli import app

    def run(*words: object) -> tuple[int, str, str]:
        code = app.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(code), out, err

    return run


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return what attaches catalog entries to this process's SGLang: a mode first, then their ids.

    It returns the folder where dumps go. A second call replaces the first; everything is taken off after the test.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    from gemma4_runtime.catalog import CATALOG
    from gemma4_runtime.patch import ATTACH_ORDER
    from gemma4_runtime.session import Session
    from gemma4_runtime.settings import read_settings

    sessions = []

    def attach_patches(mode: str, *ids: str) -> Path:
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", mode)
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path / "dumps"))
        while sessions:
            sessions.pop().stop()
        chosen = [patch for patch in CATALOG if patch.id in ids]
        assert len(chosen) == len(ids), ids
        session = Session(read_settings(), tuple(sorted(chosen, key=lambda patch: ATTACH_ORDER.index(patch.kind))))
        session.start()
        sessions.append(session)
        HookRegistry.apply_hooks()
        return tmp_path / "dumps"

    yield attach_patches
    for session in reversed(sessions):
        session.stop()


@pytest.fixture
def swa_allocator():
    """Return SGLang's own SWA pool pair and allocator: 160 full and 64 SWA pages of 16 tokens, 2 + 1 layers."""
    from swa_pools import make_swa_allocator

    return make_swa_allocator(160 * 16, 64 * 16, 16, heads=2, swa_layers=(0, 1), full_layers=(2,))


@pytest.fixture
def mapping(swa_allocator):
    """Return the allocator's own map of full slots to SWA slots, to be spoilt in place."""
    return swa_allocator.full_to_swa_index_mapping


@pytest.fixture(scope="session")
def vision_toy(tmp_path_factory) -> Path:
    """Return the folder of a toy with a vision tower, see gemma4_repro.toys.vision."""
    from gemma4_repro.toys.vision import make_toy

    return make_toy(tmp_path_factory.mktemp("vision-toy"))


@pytest.fixture(scope="module")
def vision_model(vision_toy):
    """Yield SGLang's own model of it in this process, see vision_world.py."""
    import torch

    from vision_world import load_model, one_rank

    with one_rank(vision_toy) as config, torch.no_grad():
        yield load_model(config)


@pytest.fixture
def vision_calls(vision_model):
    """Count how often the tower and the embedder run."""
    from vision_world import count_calls

    with count_calls(vision_model) as counted:
        yield counted
