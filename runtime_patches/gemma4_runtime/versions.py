"""Versions and hardware of this process, for dumps and manifests."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

_PACKAGES = (
    "gemma4-triage",
    "sglang",
    "torch",
    "triton",
    "flashinfer-python",
    "sglang-kernel",
    "transformers",
)


def package_versions() -> dict[str, str]:
    """Installed versions by distribution name; a package that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def gpu() -> dict[str, Any] | None:
    """Name, compute capability, memory (bytes) and CUDA version of the current device, or None without CUDA."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
    }
