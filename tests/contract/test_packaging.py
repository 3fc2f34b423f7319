"""What an installation looks like from outside."""

import subprocess
import sys
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("triage", "runtime_patches", "kernels", "repro", "dumps")


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
    pins = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    unpinned, pending, seen = [], ["sglang"], set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name.lower().replace("_", "-") not in pins:
            unpinned.append(name)
        for line in requires(name) or ():
            from packaging.requirements import Requirement

            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                pending.append(needed.name)
    assert len(seen) > 100
    assert unpinned == []


def test_the_base_install_asks_for_nothing_heavy():
    base = {line.split(">")[0] for line in distribution("gemma4-triage").requires or () if "extra ==" not in line}
    assert base == {"jinja2", "numpy", "platformdirs", "pydantic", "pydantic-settings", "rich", "safetensors", "typer"}
