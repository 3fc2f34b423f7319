"""What runs here, and whether probes off is SGLang as shipped: `python -m gemma4_repro.bench.installation`.

Prints one JSON object: versions, gpu (None without CUDA) and identity. Imports torch and SGLang, so it has a process of
its own, in the environment of the arm `off`. identity: every function that a patch can attach to is compared before
and after SGLang has loaded its plugins; it has to be the same object with the same code.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from importlib.metadata import version
from typing import Any

import torch

from gemma4_repro.bench.ask_installation import MARK
from gemma4_runtime.targets import TARGETS
from gemma4_runtime.versions import gpu, package_versions

_MISSING = object()


def main() -> None:
    print(MARK + json.dumps({"versions": package_versions(), "gpu": _gpu(), "identity": _identity()}), flush=True)


def _gpu() -> dict[str, Any] | None:
    found = gpu()
    if found is None:
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return found | {"multiprocessors": properties.multi_processor_count}


def _identity() -> dict[str, Any]:
    from sglang.srt.plugins import load_plugins

    before = _snapshot()
    load_plugins()
    after = _snapshot()
    changed = [path for path in before if any(a is not b for a, b in zip(before[path], after[path], strict=True))]
    loaded = "gemma4_runtime.plugin" in sys.modules
    return {"compared": len(before), "changed": changed, "plugin_loaded": loaded}


def _snapshot() -> dict[str, tuple[Any, Any]]:
    """Return per dotted path the raw object and its code. A name that this installation lacks stays missing.

    Left out is what needs a package that is not installed, such as xgrammar: nothing can be attached to it.
    """
    found = {}
    for path in TARGETS[version("sglang")].values():
        owner, _, name = path.rpartition(".")
        try:
            raw = vars(pkgutil.resolve_name(owner)).get(name, _MISSING)
        except AttributeError:
            # What resolve_name says of a module that exists and cannot be imported.
            if not _lacks_a_package(owner):
                raise
            continue
        found[path] = (raw, getattr(getattr(raw, "__func__", raw), "__code__", None))
    return found


def _lacks_a_package(path: str) -> bool:
    try:
        importlib.import_module(path)
    except ModuleNotFoundError as error:
        return not (error.name or "").startswith("sglang")
    return False


if __name__ == "__main__":
    main()
