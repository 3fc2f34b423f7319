"""What the tests of `collect` share: a store of their own, what a zip holds, and what is diagnosed of it."""

import json
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """Keep dumps of this machine's user out of a test's zip."""
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path / "store"))


def opened(path: Path) -> dict[str, bytes]:
    """Return the files of a zip by their names."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def diagnosed(cli, path: Path) -> tuple[int, list[str]]:
    """Return the exit code of `diagnose`, and the rules of all that it finds."""
    code, out, _ = cli("diagnose", path, "--json")
    return code, [one["rule"] for each in json.loads(out).get("incidents", []) for one in each["findings"]]
