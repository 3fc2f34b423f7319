"""Holds the fused kernels that releases of SGLang and vLLM ship for Gemma-4 against each other, by their source.

.venv/bin/python docs/compare_kernel_sources.py WHEEL...

Writes docs/kernel_sources.json: for the installed SGLang and each wheel, in which file each function is, and the
SHA-256 of its source lines, decorators included. Nothing is imported from them. `python -m pip download --no-deps
sglang==VERSION` fetches a wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gemma4_repro.kernel_bench.function_sources import function_sources

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "kernel_sources.json"
COMMAND = "python docs/compare_kernel_sources.py"
# The arms `sglang` and `vllm` of bench kernels run these; the kernel is named as vLLM's.
FUNCTIONS = (
    "_gemma4_routing_kernel",
    "gemma4_fused_routing",
    "gemma4_fused_routing_kernel_triton",
    "_gemma_rmsnorm_residual_kernel",
    "gemma_rmsnorm_residual_scalar",
    "_gemma_dual_rmsnorm_residual_kernel",
    "gemma_dual_rmsnorm_residual_scalar",
)


def installed_sglang() -> dict[str, Any]:
    """Return the release that is pinned, which the arm `sglang` measures. Its folder is found without importing it."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0])
    texts = ((path.relative_to(folder.parent).as_posix(), path) for path in sorted(folder.rglob("*gemma4*.py")))
    return _release("sglang", version("sglang"), ((name, path.read_text(encoding="utf-8")) for name, path in texts))


def in_wheel(path: Path) -> dict[str, Any]:
    """Raises OSError or zipfile.BadZipFile if it is no wheel."""
    package, number = path.name.split("-")[:2]
    with zipfile.ZipFile(path) as wheel:
        names = sorted(name for name in wheel.namelist() if "gemma4" in Path(name).name and name.endswith(".py"))
        return _release(package, number, ((name, wheel.read(name).decode()) for name in names))


def _release(package: str, number: str, texts: Iterator[tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, dict[str, str]] = {}
    for name, text in texts:
        for function, source in function_sources(text, FUNCTIONS).items():
            found[function] = {"file": name, "file_sha256": _digest(text), "sha256": _digest(source)}
    return {"package": package, "version": number, "functions": {name: found[name] for name in sorted(found)}}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares Gemma-4 kernels of releases by their source.")
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    wheels = parser.parse_args().wheels
    document = {
        "schema_version": "1.0",
        "command": " ".join([COMMAND, *(wheel.name for wheel in wheels)]),
        "releases": [installed_sglang(), *map(in_wheel, wheels)],
    }
    RECORD.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"Wrote {RECORD.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
