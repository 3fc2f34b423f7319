"""Check a dump against its own manifest."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from .errors import DumpError, DumpNotFound
from .manifest_file import load_manifest
from .safe_file import MAX_FILE_BYTES, read_regular
from .schema import Manifest
from .staging import TENSORS_NAME
from .tensor_file import decode_tensors


@dataclass(frozen=True)
class Check:
    """subject: what was checked, for example a file name. detail: what was found."""

    subject: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class VerifyReport:
    path: Path
    manifest: Manifest
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def verify_dump(path: Path | str) -> VerifyReport:
    """Compare every file's size and SHA-256, and every tensor's type and shape, with the manifest.

    Raises DumpNotFound, DumpUnreadable, DumpIncompatible if there is no manifest to compare with.
    """
    directory = Path(path)
    if not os.path.isdir(directory):
        raise DumpNotFound(f"{directory!s:.200} is not a directory")
    manifest = load_manifest(directory)
    checks = [_check_file(directory, name, manifest) for name in sorted(manifest.files)]
    if not manifest.files:
        checks.append(Check("files", False, "the manifest lists no file"))
    if manifest.tensors or TENSORS_NAME in manifest.files:
        checks.append(_check_tensors(directory, manifest))
    return VerifyReport(directory, manifest, tuple(checks))


def _check_file(directory: Path, name: str, manifest: Manifest) -> Check:
    record = manifest.files[name]
    try:
        data = read_regular(directory / name, MAX_FILE_BYTES)
    except DumpError as error:
        return Check(name, False, str(error))
    if len(data) != record.size_bytes:
        return Check(name, False, f"{len(data)} bytes, the manifest says {record.size_bytes}")
    if (found := hashlib.sha256(data).hexdigest()) != record.sha256:
        return Check(name, False, f"SHA-256 {found[:12]}…, the manifest says {record.sha256[:12]}…")
    return Check(name, True, f"{len(data)} bytes, SHA-256 {found[:12]}…")


def _check_tensors(directory: Path, manifest: Manifest) -> Check:
    try:
        arrays = decode_tensors(read_regular(directory / TENSORS_NAME, MAX_FILE_BYTES), manifest.tensors)
    except DumpError as error:
        return Check("tensors", False, str(error))
    return Check("tensors", True, f"{len(arrays)} tensors as the manifest describes them")
