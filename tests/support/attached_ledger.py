"""The leak ledger attached to this process's SGLang, for the tests of a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import ATTACH_ORDER
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings


@contextmanager
def attached_ledger(folder: Path) -> Iterator[None]:
    """Attach it once for all tests of a file: a probe with this many hooks takes seconds to attach.

    Args:
        folder: Where dumps go that no guard of a test takes.
    """
    patches = [patch for patch in CATALOG if patch.id in ("leak-ledger", "host-alloc-kernels")]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GEMMA4_TRIAGE_LEAK", "dump")
        environment.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(folder))
        session = Session(read_settings(), tuple(sorted(patches, key=lambda patch: ATTACH_ORDER.index(patch.kind))))
        session.start()
        HookRegistry.apply_hooks()
        yield
        session.stop()


def prompt(seed: int, length: int) -> list[int]:
    """Return tokens of a prompt, other ones for another seed."""
    return [(seed * 31 + i * i) % 97 for i in range(length)]
