"""Environment of the in-process tests: SGLang's modules must import on a machine without a GPU."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A setting in the caller's shell must not reach a test that does not set it.
for _name in [name for name in os.environ if name.startswith(("GEMMA4_TRIAGE_", "SGLANG_TRTLLM_MHA_DEBUG"))]:
    del os.environ[_name]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    return ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and this machine has none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
