"""Check a dump against its own manifest."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .contradictions import impossible_count, other_defect, other_page_size, other_page_size_of_writes, other_structure
from .errors import DumpError, DumpNotFound
from .event_file import damage_of_events
from .manifest_file import EVENTS_NAME, MANIFEST_NAME, broken_seal, load_named_manifest
from .safe_file import open_regular, read_chunks
from .schema import Manifest, Offence, TensorRecord
from .tensor_file import TENSORS_NAME, TensorIndex, index_tensors
from .wording import number_of

_MOST_OFFENCES = 64
_POOLS = ("pages_full_pool", "pages_swa_pool")
_OWNER = 4
"""Of an audit's table `suspects`: the column that has the request slot which owned the page last."""


@dataclass(frozen=True)
class Check:
    """One thing that was checked.

    Attributes:
        subject: What was checked, for example a file name.
        detail: What was found.
    """

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
    return VerifyReport(directory, manifest, check_files(directory, manifest))


def check_files(directory: Path, manifest: Manifest, hash_at_most: int | None = None) -> tuple[Check, ...]:
    """Hold each file of a dump against `manifest`, and the values that the manifest repeats against the tensors.

    Files are read in chunks, and only where the manifest knows their size. What vouches for the manifest itself is the
    SHA-256 that it was written with; one of schema 1.0 has none.

    Args:
        directory: Of the dump.
        manifest: Of the dump.
        hash_at_most: Files of more bytes are held against their size alone; None for none.
    """
    checks = _check_manifest(directory)
    checks += [_check_file(directory, name, manifest, hash_at_most) for name in sorted(manifest.files)]
    if not manifest.files:
        checks.append(Check("files", False, "the manifest lists no file"))
    # What is read is what the manifest vouches for.
    checks += [
        Check(name, False, "the manifest does not list it")
        for name in (EVENTS_NAME, TENSORS_NAME)
        if manifest.files and name not in manifest.files and os.path.lexists(directory / name)
    ]
    if all(check.ok for check in checks) and EVENTS_NAME in manifest.files:
        size_bytes = manifest.files[EVENTS_NAME].size_bytes
        is_read = hash_at_most is None or size_bytes <= hash_at_most
        if is_read and (damaged := damage_of_events(directory, True)) is not None:
            checks.append(Check(EVENTS_NAME, False, damaged))
    if manifest.tensors or TENSORS_NAME in manifest.files:
        checks += _check_tensors(directory, manifest)
    told = (
        _impossible(manifest),
        _other_row_ends(manifest),
        _other_entry(manifest),
        _other_count(manifest),
        other_structure(manifest),
        other_defect(manifest),
        impossible_count(manifest),
        other_page_size(manifest),
    )
    checks += [Check("offences", False, contradiction) for contradiction in told if contradiction]
    return tuple(checks)


def _check_manifest(directory: Path) -> list[Check]:
    """Return what is wrong with manifest.json itself, if anything is; whoever has read it holds it in memory."""
    if not os.path.lexists(directory / MANIFEST_NAME):
        return []
    try:
        changed = broken_seal(directory)
    except DumpError as error:
        changed = str(error)
    return [Check(MANIFEST_NAME, False, changed)] if changed else []


def _check_file(directory: Path, name: str, manifest: Manifest, hash_at_most: int | None) -> Check:
    record = manifest.files[name]
    try:
        with open_regular(directory / name) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes != record.size_bytes:
                # A file of any length may stand here: only one of the right length is worth hashing.
                return Check(name, False, f"{size_bytes} bytes, the manifest says {record.size_bytes}")
            if hash_at_most is not None and size_bytes > hash_at_most:
                return Check(name, True, f"{size_bytes} bytes, not hashed")
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


def _check_tensors(directory: Path, manifest: Manifest) -> list[Check]:
    try:
        index = index_tensors(directory / TENSORS_NAME, manifest.tensors)
        contradiction = _contradiction(index, manifest) or other_page_size_of_writes(index, manifest)
    except DumpError as error:
        return [Check("tensors", False, str(error))]
    checks = [Check("tensors", True, f"{number_of(len(index.records), 'tensor')} as the manifest describes them")]
    if contradiction:
        checks.append(Check("offences", False, contradiction))
    return checks


def _contradiction(index: TensorIndex, manifest: Manifest) -> str | None:
    """Return the first number of the manifest that its tensors or its own offences contradict; None if there is none.

    A table under a CUDA graph may be the next step's by the time that it is copied, so of a table the values of a trap
    only are compared. What an allocator's probe or an audit copied was copied in the call itself.

    Raises DumpUnreadable if the tensor cannot be read.
    """
    comparable = manifest.action == "trapped" or manifest.rule == "leak-audit" or manifest.rule.startswith("swa-")
    for offence in manifest.offences[:_MOST_OFFENCES]:
        record = index.records.get(offence.table)
        if contradiction := _other_extents(offence, record, manifest):
            return contradiction
        # A row that needs more columns than there are names the first of those that it lacks.
        if not comparable or manifest.verdict == "table_too_narrow":
            continue
        if record is None or len(record.shape) != 2 or not record.dtype.startswith("int"):
            continue
        rows, columns = record.shape
        if not (0 <= offence.row < rows and 0 <= offence.column < columns):
            # What a truncation cut off cannot be compared.
            if record.truncated_from_shape is None:
                return f"{offence.table} has no [{offence.row}, {offence.column}], which the manifest lists"
            continue
        at = offence.row * columns + offence.column
        value = int(index.read(offence.table, at, at + 1)[0])
        if value != offence.value:
            return f"{offence.table}[{offence.row}, {offence.column}] is {value}, the manifest says {offence.value}"
        if offence.table != "suspects" or columns <= _OWNER or offence.request_slot is None:
            continue
        place = offence.row * columns + _OWNER
        owner = int(index.read(offence.table, place, place + 1)[0])
        if owner != offence.request_slot:
            return f"suspects has owner {owner} in row {offence.row}, the manifest says {offence.request_slot}"
    return None


def _impossible(manifest: Manifest) -> str | None:
    """Say which of the manifest's numbers no server has, or which two of them cannot both be."""
    listed, count = len(manifest.offences), manifest.offence_count
    if manifest.page_size is not None and manifest.page_size < 1:
        return f"a page has {manifest.page_size} slots by the manifest"
    if manifest.step is not None and manifest.step < 0:
        return f"the step is {manifest.step} by the manifest"
    if none := next((name for name, count in manifest.extents.items() if name in _POOLS and count < 1), None):
        return f"{none} is {manifest.extents[none]} by the manifest, and such a pool has pages"
    if count < listed or (count and not listed):
        return f"{listed} are listed, and {count} counted"
    return None


def _other_entry(manifest: Manifest) -> str | None:
    """Say how the entry of a request that is wrong is another in the scalars of `request-rows` than in the offence."""
    if manifest.rule != "request-rows" or not manifest.offences:
        return None
    first, scalars = manifest.offences[0], manifest.scalars
    pairs: list[tuple[str, object, object]] = [
        ("value", scalars.get("value"), first.value),
        ("request slot", scalars.get("request_slot"), first.request_slot),
        ("token", scalars.get("token"), first.column),
    ]
    if isinstance(scalars.get("expected"), int):
        pairs.append(("expected value", scalars["expected"], first.lower))
    if first.table != "rows":
        pairs.append(("structure", scalars.get("structure"), first.table))
    return next(
        (
            f"the {name} is {one} by the scalars, and {other} by the offence"
            for name, one, other in pairs
            if one != other
        ),
        None,
    )


def _other_count(manifest: Manifest) -> str | None:
    """Say how many pages an audit's table has, if that is another number than it counts."""
    table = manifest.tensors.get("suspects")
    if manifest.rule != "leak-audit" or table is None or table.truncated_from_shape is not None or not table.shape:
        return None
    rows = table.shape[0]
    return None if rows == manifest.offence_count else f"suspects has {rows} rows, and {manifest.offence_count} counted"


def _other_row_ends(manifest: Manifest) -> str | None:
    """Say how the rows that overflow are others in the scalars than in the offences."""
    width, longest = (manifest.scalars.get(name) for name in ("width", "longest"))
    bad = manifest.offences
    if manifest.verdict != "row_overflow" or not bad or not (isinstance(width, int) and isinstance(longest, int)):
        return None
    if other := next((one for one in bad if one.column != width), None):
        return f"a row has {width} columns by the scalars, and the offence says {other.column}"
    most = max(one.value for one in bad)
    return None if most == longest else f"the longest row is {longest} by the scalars, and {most} by the offences"


def _other_extents(offence: Offence, record: TensorRecord | None, manifest: Manifest) -> str | None:
    """Say how a table's width or its buffer's pages are others in the extents than in the tensor and the offence."""
    if manifest.rule != "page-table-bounds":
        return None
    columns, pages = (manifest.extents.get(name) for name in ("table_columns", "pages_in_buffer"))
    if columns is not None and "page_table" in offence.table and record is not None:
        whole = len(record.shape) == 2 and record.truncated_from_shape is None
        # A graph's table, and every one of a later SGLang, is wider than what a dump holds: columns that rows use.
        if whole and record.shape[1] > columns:
            return f"{offence.table} has {record.shape[1]} columns, the manifest says {columns}"
    # An offence with another lower bound is of a row's length, whose upper bound is the table's width.
    if pages is not None and offence.lower == 1 and offence.upper != pages:
        return f"the buffer has {pages} pages by the extents, and the offence says {offence.upper}"
    return None
