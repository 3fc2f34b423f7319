"""Zips of evidence, read in place: unpacked into a private folder that goes when the process ends.

What somebody sends may be a bomb or name paths outside. Nothing is written before every name has been looked at, sizes
are counted while they are written, and only the two ways of packing that every zip has are taken.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from .errors import DumpUnreadable
from .safe_file import CHUNK_BYTES, DIRECTORY_MODE, as_unreadable, write_chunks

MAX_ENTRIES = 20_000
MAX_TOTAL_BYTES = 4 * 1024**3
MAX_ALL_BYTES = 8 * 1024**3
"""Of all zips of one command together: somebody may send thousands."""
MAX_DEPTH = 16
MAX_NAME_BYTES = 240
MAX_RATIO = 500
"""How many times its size an entry may become; dumps and logs come to a tenth or a hundredth."""
_RATIO_FROM_BYTES = 64 * 1024**2
_MAGIC = b"PK\x03\x04"
_EMPTY_MAGIC = b"PK\x05\x06"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1

_folders: dict[tuple[str, int, int], Path] = {}
_origins: dict[str, str] = {}
_sizes: list[int] = []
"""Of what was unpacked of each zip, in bytes."""


class ArchiveRefused(DumpUnreadable):
    """A zip that is damaged, a bomb, or has names that lead outside of it."""

    hint = "have it made again with gemma4-triage dumps export, or unpack it yourself and name the folder"


def is_zip(path: Path | str) -> bool:
    """Return whether a regular file begins as a zip does."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(4) in (_MAGIC, _EMPTY_MAGIC)
    except (OSError, ValueError):
        return False


def unpack(path: Path | str) -> Path:
    """Return the folder that holds what is in the zip; the same zip is unpacked once.

    Raises:
        ArchiveRefused: It is damaged or encrypted, unpacks to more than MAX_TOTAL_BYTES or MAX_RATIO times its size,
            with all before it to more than MAX_ALL_BYTES, or names a path outside, a link or the same file twice.
            Nothing of it is left.
        DumpUnreadable: It cannot be read, or the temporary folder cannot be written.
    """
    zip_path = Path(path)
    with as_unreadable(zip_path):
        status = os.stat(zip_path)
    key = os.path.realpath(zip_path), status.st_mtime_ns, status.st_size
    if key not in _folders:
        _folders[key] = _unpack(zip_path)
    _origins[str(_folders[key])] = str(path)
    return _folders[key]


def origin(path: Path) -> str:
    """Return how to name a path to a reader: of an unpacked file, the zip and the place in it, as `a.zip/dump`."""
    text = str(path)
    for folder, zip_name in _origins.items():
        if text == folder:
            return zip_name
        if text.startswith(f"{folder}/"):
            return f"{zip_name}/{text[len(folder) + 1 :]}"
    return text


def inside(text: str) -> Path | None:
    """Return the path that `a.zip` or `a.zip/dump` stands for, unpacked; None if no part of it is a zip.

    Raises like `unpack`. What is not in the zip is a path that does not exist.
    """
    path = Path(text)
    for zip_path in (path, *path.parents):
        if is_zip(zip_path):
            return unpack(zip_path) / path.relative_to(zip_path)
    return None


def _unpack(path: Path) -> Path:
    with as_unreadable(path):
        folder = Path(tempfile.mkdtemp(prefix="gemma4-triage-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _checked(archive, path)
            size = sum(info.file_size for info, _ in entries)
            if sum(_sizes) + size > MAX_ALL_BYTES:
                raise ArchiveRefused(f"{path} and the zips before it unpack to more than {MAX_ALL_BYTES} bytes")
            _sizes.append(size)
            _extract(archive, entries, folder)
    except ArchiveRefused:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ArchiveRefused(f"{path} is a damaged zip: {error}") from error
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise DumpUnreadable(f"{path} cannot be unpacked: {error.strerror or error}") from error
    return folder


def _checked(archive: zipfile.ZipFile, path: Path) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """Return the archive's files with their places; raises ArchiveRefused for the first that must not be written."""
    infos = archive.infolist()
    if len(infos) > MAX_ENTRIES:
        raise ArchiveRefused(f"{path} has {len(infos)} entries; at most {MAX_ENTRIES} are unpacked")
    found: dict[PurePosixPath, zipfile.ZipInfo] = {}
    for info in infos:
        place = _place(info, path)
        if info.is_dir():
            continue
        if place in found:
            raise ArchiveRefused(f"{path} holds {info.filename[:200]!r} twice")
        found[place] = info
    total = sum(info.file_size for info in found.values())
    if total > MAX_TOTAL_BYTES:
        raise ArchiveRefused(f"{path} unpacks to {total} bytes; at most {MAX_TOTAL_BYTES} are unpacked")
    return [(info, place) for place, info in found.items()]


def _place(info: zipfile.ZipInfo, path: Path) -> PurePosixPath:
    name = info.filename
    place = PurePosixPath(name)
    parts = place.parts
    outside = place.is_absolute() or ".." in parts or "\\" in name or "\0" in name or not parts or ":" in parts[0]
    if outside:
        raise ArchiveRefused(f"{path} names a path outside of it: {name[:200]!r}")
    if len(parts) > MAX_DEPTH or any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts):
        raise ArchiveRefused(f"{path} has a name that is too long or too deep: {name[:200]!r}")
    mode = info.external_attr >> 16
    if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveRefused(f"{path} holds {name[:200]!r}, which is a link or no file")
    if info.flag_bits & _ENCRYPTED:
        raise ArchiveRefused(f"{path} is encrypted: {name[:200]!r}")
    if info.compress_type not in _METHODS:
        raise ArchiveRefused(f"{path} packs {name[:200]!r} in a way that is not read (method {info.compress_type})")
    if info.file_size > max(_RATIO_FROM_BYTES, MAX_RATIO * info.compress_size):
        raise ArchiveRefused(f"{path} holds {name[:200]!r}, which grows more than {MAX_RATIO} times")
    return place


def _extract(archive: zipfile.ZipFile, entries: list[tuple[zipfile.ZipInfo, PurePosixPath]], folder: Path) -> None:
    for info, place in entries:
        target = folder / place
        target.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        with archive.open(info) as entry:
            # The size in the directory is what was checked; zipfile reads no further than that.
            write_chunks(target, iter(lambda entry=entry: entry.read(CHUNK_BYTES), b""))
