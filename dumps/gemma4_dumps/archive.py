"""Dumps in one zip: the same dumps give the same bytes, and a half-written archive never bears the name."""

import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .directory_name import parse_name, safe_part
from .errors import DumpError, DumpUnreadable
from .manifest_file import EVENTS_NAME, MANIFEST_NAME
from .safe_file import FILE_MODE, open_regular, read_chunks
from .schema import FileRecord, Manifest
from .tensor_file import TENSORS_NAME
from .verify import verify_dump

README_NAME = "README.md"

# The zip format's own beginning of time: an archive says nothing about when it was made.
_TIME = (1980, 1, 1, 0, 0, 0)
_ZIP64_FROM_BYTES = 2**31


@dataclass(frozen=True)
class Candidate:
    """A dump that is to be archived. problems: what `dumps verify` has against it. manifest: None if unreadable."""

    path: Path
    folder: str
    manifest: Manifest | None
    problems: tuple[str, ...]
    error: DumpError | None


@dataclass(frozen=True)
class Archived:
    """A dump as it lies in the archive: its files by name, with what was really copied."""

    candidate: Candidate
    files: dict[str, FileRecord]


def examine(path: Path) -> Candidate:
    """Verify a dump that is to be archived. Raises nothing about its content."""
    try:
        report = verify_dump(path)
    except DumpError as error:
        return Candidate(path, _folder(path, None), None, (str(error),), error)
    problems = tuple(f"{check.subject}: {check.detail}" for check in report.checks if not check.ok)
    return Candidate(path, _folder(path, report.manifest), report.manifest, problems, None)


def write_archive(
    out: Path, candidates: Sequence[Candidate], readme: Callable[[Sequence[Archived]], str]
) -> list[Archived]:
    """Write a zip with a folder per dump and the README that is made of them.

    Under a temporary name, then renamed; what stood there is replaced. Nothing is left when that fails.
    Raises OSError (no room, no permission), DumpUnreadable if a dump cannot be read or changes meanwhile.
    """
    temporary_path = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                archived = [_add_dump(archive, candidate) for candidate in candidates]
                archive.writestr(_info(README_NAME), readme(archived))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary_path, out)
    finally:
        temporary_path.unlink(missing_ok=True)
    return archived


def _folder(path: Path, manifest: Manifest | None) -> str:
    """Return a plain name: that of the dump's directory, else the one that its manifest gives, if it is a dump's."""
    for name in (path.resolve().name, manifest.dump_id if manifest else ""):
        if parse_name(name) is not None:
            return name
    return f"dump-{safe_part(path.resolve().name)}"


def _add_dump(archive: zipfile.ZipFile, candidate: Candidate) -> Archived:
    listed = candidate.manifest.files if candidate.manifest else {}
    names = sorted({MANIFEST_NAME, *(listed if not candidate.problems else [TENSORS_NAME, EVENTS_NAME, *listed])})
    files: dict[str, FileRecord] = {}
    for name in names:
        try:
            files[name] = _add_file(archive, f"{candidate.folder}/{name}", candidate.path / name)
        except DumpUnreadable:
            # Of a damaged dump, what there is.
            if not candidate.problems:
                raise
    if not files:
        raise DumpUnreadable(f"{candidate.path.name} holds no file of a dump")
    for name, record in listed.items():
        if not candidate.problems and files[name].sha256 != record.sha256:
            raise DumpUnreadable(f"{candidate.path.name}: {name} changed while it was read")
    return Archived(candidate, files)


def _add_file(archive: zipfile.ZipFile, name: str, path: Path) -> FileRecord:
    with open_regular(path) as file:
        expected = os.fstat(file.fileno()).st_size
        digest, size_bytes = hashlib.sha256(), 0
        with archive.open(_info(name), "w", force_zip64=expected >= _ZIP64_FROM_BYTES) as entry:
            for chunk in read_chunks(file, path):
                size_bytes += len(chunk)
                if size_bytes > expected:
                    raise DumpUnreadable(f"{path.name} grew while it was read")
                digest.update(chunk)
                entry.write(chunk)
    return FileRecord(sha256=digest.hexdigest(), size_bytes=size_bytes)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3
    info.external_attr = (0o100000 | FILE_MODE) << 16
    return info
