"""What an installation looks like from outside."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gemma4_runtime.releases import BASE, HOW_TO_INSTALL, RUNNABLE, installed_or_base
from gemma4_triage.cli.doctor import LOCKS
from gemma4_triage.samples import SAMPLES

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("triage", "runtime_patches", "kernels", "repro", "dumps")


RELEASE = installed_or_base()
EXTRA, LOCK = {
    BASE: ("sglang-0.5.13", ROOT / "constraints.txt"),
    "0.5.23": ("sglang-0.5.23", ROOT / "constraints-0.5.23.txt"),
}[RELEASE]


def named(group: str) -> list[Requirement]:
    """Return what pyproject.toml asks for: "dependencies", or the name of an extra."""
    lines = PROJECT["dependencies"] if group == "dependencies" else PROJECT["optional-dependencies"][group]
    return [Requirement(line) for line in lines]


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_kernels_from_the_root_is_hugging_faces():
    found = python("import sys; sys.path.insert(0, ''); import kernels; print(kernels.__file__)")
    assert Path(found).is_relative_to(sys.prefix)
    assert not Path(found).is_relative_to(ROOT / "kernels")


@pytest.mark.parametrize("folder", FOLDERS)
def test_top_level_folders_hold_one_package_and_are_none(folder):
    assert not (ROOT / folder / "__init__.py").exists()
    packages = [path.parent.name for path in (ROOT / folder).glob("*/__init__.py")]
    assert len(packages) == 1
    assert packages[0].startswith("gemma4_")


def test_installed_packages_agree():
    done = subprocess.run(
        [Path(sys.executable).with_name("uv"), "pip", "check", "--python", sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_dependency_of_the_runtime_is_pinned():
    pins = {canonicalize_name(line.split("==")[0]) for line in LOCK.read_text().splitlines() if "==" in line}
    unpinned, pending, seen = [], ["sglang"], set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if canonicalize_name(name) not in pins:
            unpinned.append(name)
        for line in requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                pending.append(needed.name)
    assert len(seen) > 100
    assert unpinned == []


def test_every_release_that_a_server_may_run_on_has_an_extra_and_the_first_is_the_usual_one():
    asked = {
        str(requirement.specifier).removeprefix("==")
        for group in PROJECT["optional-dependencies"]
        for requirement in named(group)
        if requirement.name == "sglang"
    }
    assert asked == set(RUNNABLE)
    assert PROJECT["optional-dependencies"]["runtime"] == ["gemma4-triage[sglang-0.5.13]"]


def test_who_lacks_sglang_is_told_the_release_that_each_way_installs():
    default = re.search(r"^DEFAULT := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert default is not None
    assert f"make setup installs SGLang {default[1]}," in HOW_TO_INSTALL
    assert HOW_TO_INSTALL.endswith(f"pip install -c constraints.txt '.[runtime]' ./repro/toys installs {BASE}")
    assert f"\nsglang=={BASE}" in (ROOT / "constraints.txt").read_text()


def test_the_base_install_asks_for_nothing_heavy():
    assert {requirement.name for requirement in named("dependencies")} == {
        *("numpy", "pydantic", "pydantic-core", "rich", "safetensors", "typer"),
    }


def imported_modules() -> dict[str, Path]:
    """Return the top-level name of each module of others that our packages import, with a file that imports it."""
    found: dict[str, Path] = {}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).glob("gemma4_*/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            found |= {name.partition(".")[0]: path for name in names}
    ours = {name for name in found if name.startswith("gemma4_")}
    return {name: path for name, path in found.items() if name not in ours | sys.stdlib_module_names}


def test_what_is_imported_is_named():
    """A package that comes along with SGLang today may be gone, or another version, with its next release."""
    owners = packages_distributions()
    asked = {canonicalize_name(requirement.name) for requirement in (*named("dependencies"), *named(EXTRA))}
    modules = imported_modules()
    assert {"sglang", "torch", "triton", "flashinfer", "typer"} <= modules.keys()
    unnamed = {
        module: path.relative_to(ROOT)
        for module, path in modules.items()
        if asked.isdisjoint(canonicalize_name(owner) for owner in owners.get(module, ()))
    }
    assert unnamed == {}


def test_the_pins_of_the_extra_are_those_of_sglang_and_of_the_lock():
    locked = {
        (requirement.name, str(requirement.specifier))
        for line in LOCK.read_text().splitlines()
        if not line.startswith("#")
        for requirement in [Requirement(line)]
    }
    pinned = [requirement for requirement in named(EXTRA) if str(requirement.specifier)]
    assert {"sglang", "torch", "triton", "flashinfer-python"} <= {requirement.name for requirement in pinned}
    assert [str(found) for found in pinned if (found.name, str(found.specifier)) not in locked] == []
    for owner in ("sglang", "torch"):
        asked = [Requirement(line) for line in requires(owner) or () if "extra ==" not in line]
        asks = {canonicalize_name(found.name): found.specifier for found in asked}
        of_owner = [(found, asks.get(canonicalize_name(found.name))) for found in pinned]
        wrong = [str(found) for found, spec in of_owner if spec and next(iter(found.specifier)).version not in spec]
        assert wrong == []


def test_every_extra_that_brings_sglang_has_its_constraints_and_addresses_are_named():
    extras = {name for name, lines in PROJECT["optional-dependencies"].items() if any("sglang" in one for one in lines)}
    assert set(LOCKS) == extras
    assert all(address.startswith("https://") for address in PROJECT["urls"].values())


@pytest.mark.slow
def test_the_toys_wheel_holds_every_toy(tmp_path):
    toys = tmp_path / "toys"
    shutil.copytree(ROOT / "repro" / "toys", toys)
    build = "from setuptools.build_meta import build_wheel; import sys; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=toys, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]) as wheel:
        held = {Path(name).parts[-2] for name in wheel.namelist() if name.endswith("config.json")}
    assert held == {path.name for path in (ROOT / "repro" / "toys").iterdir() if path.is_dir()}


@pytest.fixture(scope="module")
def tracked_files():
    """Return the names of what git has; of an sdist's, all that it has."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no checkout of git")
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def copied(tracked_files, tmp_path_factory):
    """Return a copy of what git has, to build in."""
    copy = tmp_path_factory.mktemp("copy") / "copy"
    for name in tracked_files:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def built(copy: Path, kind: str) -> Path:
    build = f"from setuptools.build_meta import build_{kind}; import sys; print(build_{kind}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(copy.parent)], cwd=copy, capture_output=True, text=True, check=True
    )
    return copy.parent / done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_an_sdist_holds_all_that_git_has(copied, tracked_files):
    """So the tests run from it, and it installs with its own constraints: CONTRIBUTING.md has the commands."""
    with tarfile.open(built(copied, "sdist")) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert set(tracked_files) - held == set()
    assert {"constraints.txt", "constraints-0.5.23.txt", "CHANGELOG.md", "tests/conftest.py"} <= held
    assert not [name for name in held if "__pycache__" in name]


@pytest.mark.slow
def test_a_wheel_says_where_sglang_is_and_carries_types_samples_and_constraints(copied):
    with zipfile.ZipFile(built(copied, "wheel")) as wheel:
        held = wheel.namelist()
        metadata = next(name for name in held if name.endswith(".dist-info/METADATA"))
        lines = wheel.read(metadata).decode().splitlines()
    assert [line for line in lines if line.startswith("Project-URL: ")] == [
        f"Project-URL: {name}, {address}" for name, address in PROJECT["urls"].items()
    ]
    packages = [path.parent for folder in FOLDERS for path in (ROOT / folder).glob("gemma4_*/__init__.py")]
    assert {f"{package.name}/py.typed" for package in packages} <= set(held)
    shared = {name.partition("/share/gemma4-triage/")[2] for name in held}
    assert {f"gemma4_triage/cli/{lock}.gz" for lock in LOCKS.values()} <= set(held)
    assert {f"samples/{sample.file}" for sample in SAMPLES if sample.is_log} <= shared
    assert {f"samples/{sample.file}/manifest.json" for sample in SAMPLES if not sample.is_log} <= shared
    assert not [name for name in held if "toys" in name and name.endswith(".safetensors")]
    # Links to files in the README, which the metadata repeats, lead nowhere without a clone: limits say so.
    assert not [name for name in held if "docs/" in name or name.endswith("README.md")]
    assert any("](docs/" in line for line in lines)
    assert "**An installation carries no docs.**" in (ROOT / "docs" / "limits.md").read_text()


@pytest.mark.slow
def test_what_an_earlier_build_left_is_in_no_wheel(copied):
    """What setuptools finds in build/ it packs, modules that were deleted since too."""
    for left in ("lib/gemma4_triage/deleted.py", "bdist.linux-x86_64/wheel/gemma4_dumps/interrupted.py"):
        stale = copied / "build" / left
        stale.parent.mkdir(parents=True, exist_ok=True)
        stale.write_text("")
    with zipfile.ZipFile(built(copied, "wheel")) as wheel:
        held = set(wheel.namelist())
    assert {"gemma4_triage/__init__.py", "gemma4_dumps/__init__.py"} <= held
    assert not {"gemma4_triage/deleted.py", "gemma4_dumps/interrupted.py"} & held
    assert len([path for path in (copied / "build").rglob("*") if path.is_file()]) == 2
