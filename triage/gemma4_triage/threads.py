"""Issues and pull requests on GitHub, as rules and patches name them: "SGLang 26957"."""

from __future__ import annotations

import re

HUB = "https://github.com"
PROJECTS = {
    "SGLang": "sgl-project/sglang",
    "TensorRT-LLM": "NVIDIA/TensorRT-LLM",
    "vLLM": "vllm-project/vllm",
    "FlashInfer": "flashinfer-ai/flashinfer",
}
THREAD = re.compile(rf"\b({'|'.join(PROJECTS)}) (\d{{3,6}})\b")
_NAMES = {repository: name for name, repository in PROJECTS.items()}


def thread_url(name: str) -> str:
    """Return the address of "SGLang 26957"; "" for what is no thread. GitHub leads from issues/N to pull/N."""
    found = THREAD.fullmatch(name)
    return f"{HUB}/{PROJECTS[found[1]]}/issues/{found[2]}" if found else ""


def thread_name(thread: str) -> str:
    """Return "SGLang 26957" for "sgl-project/sglang 26957", and a thread of any other project as it is."""
    repository, _, number = thread.rpartition(" ")
    return f"{_NAMES.get(repository, repository)} {number}"
