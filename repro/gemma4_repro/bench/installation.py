"""What runs here, and whether probes off is SGLang as shipped: `python -m gemma4_repro.bench.installation`.

Prints one JSON object: versions, gpu (None without CUDA) and identity. Imports torch and SGLang, so it has a process of
its own, in the environment of the arm `off`. identity: every function that a patch can attach to is compared before
and after SGLang has loaded its plugins; it has to be the same object with the same code.
"""

from __future__ import annotations

import json
import pkgutil
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gemma4_runtime.targets import TARGETS

MARK = "gemma4-bench-installation: "
_PACKAGES = ("gemma4-triage", "sglang", "torch", "triton", "flashinfer-python", "sglang-kernel", "transformers")
_MISSING = object()


def main() -> None:
    """Libraries print on stdout too, hence the mark."""
    print(MARK + json.dumps({"versions": _versions(), "gpu": _gpu(), "identity": _identity()}), flush=True)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _gpu() -> dict[str, Any] | None:
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }


def _identity() -> dict[str, Any]:
    from sglang.srt.plugins import load_plugins

    before = _snapshot()
    load_plugins()
    after = _snapshot()
    changed = [path for path in before if any(a is not b for a, b in zip(before[path], after[path], strict=True))]
    loaded = "gemma4_runtime.plugin" in sys.modules
    return {"compared": len(before), "changed": changed, "plugin_loaded": loaded}


def _snapshot() -> dict[str, tuple[Any, Any]]:
    """Per dotted path the raw object and its code. A name that this installation does not have yet stays missing."""
    found = {}
    for path in TARGETS[version("sglang")].values():
        owner, _, name = path.rpartition(".")
        raw = vars(pkgutil.resolve_name(owner)).get(name, _MISSING)
        found[path] = (raw, getattr(getattr(raw, "__func__", raw), "__code__", None))
    return found


if __name__ == "__main__":
    main()
