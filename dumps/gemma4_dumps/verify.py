"""Check a dump against its own manifest."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .errors import DumpError, DumpNotFound
from .manifest_file import load_named_manifest
from .safe_file import open_regular, read_chunks
from .schema import Manifest
from .tensor_file import TENSORS_NAME, index_tensors
from .wording import number_of


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
    manifest = load_named_manifest(directory)
    checks = [_check_file(directory, name, manifest) for name in sorted(manifest.files)]
    if not manifest.files:
        checks.append(Check("files", False, "the manifest lists no file"))
    if manifest.tensors or TENSORS_NAME in manifest.files:
        checks.append(_check_tensors(directory, manifest))
    return VerifyReport(directory, manifest, tuple(checks))


def _check_file(directory: Path, name: str, manifest: Manifest) -> Check:
    record = manifest.files[name]
    try:
        with open_regular(directory / name) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes != record.size_bytes:
                # A file of any length may stand here: only one of the right length is worth hashing.
                return Check(name, False, f"{size_bytes} bytes, the manifest says {record.size_bytes}")
            found = _sha256(file, directory / name)
    except DumpError as error:
        return Check(name, False, str(error))
    if found != record.sha256:
        return Check(name, False, f"SHA-256 {found[:12]}…, the manifest says {record.sha256[:12]}…")
    return Check(name, True, f"{size_bytes} bytes, SHA-256 {found[:12]}…")


def _sha256(file: BinaryIO, path: Path) -> str:
    digest = hashlib.sha256()
    for chunk in read_chunks(file, path):
        digest.update(chunk)
    return digest.hexdigest()


def _check_tensors(directory: Path, manifest: Manifest) -> Check:
    try:
        index = index_tensors(directory / TENSORS_NAME, manifest.tensors)
    except DumpError as error:
        return Check("tensors", False, str(error))
    return Check("tensors", True, f"{number_of(len(index.records), 'tensor')} as the manifest describes them")
