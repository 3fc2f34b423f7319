"""Issues and pull requests on GitHub, as rules and patches name them: "SGLang 26957"."""

from __future__ import annotations

import re

HUB = "https://github.com"
PROJECTS = {"SGLang": "sgl-project/sglang", "TensorRT-LLM": "NVIDIA/TensorRT-LLM"}
THREAD = re.compile(rf"\b({'|'.join(PROJECTS)}) (\d{{3,6}})\b")


def thread_url(name: str) -> str:
    """Return the address of "SGLang 26957"; "" for what is no thread. GitHub leads from issues/N to pull/N."""
    found = THREAD.fullmatch(name)
    return f"{HUB}/{PROJECTS[found[1]]}/issues/{found[2]}" if found else ""
