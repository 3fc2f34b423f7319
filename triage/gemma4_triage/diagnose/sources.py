"""From what a command line names to evidence: dumps, folders at any depth, zips, logs and other files, by content.

| what lies there                                       | is                                                          |
|-------------------------------------------------------|-------------------------------------------------------------|
| a folder with a dump's manifest.json or other files,  | a dump, complete or torn, whatever its folder is called     |
| or with a dump's name                                 |                                                             |
| `guards/` and `audits/` beside dumps                  | guard manifests and leak ledgers of those processes         |
| a zip                                                 | what is in it; a zip in a zip is left alone                 |
| a file that a reader of readers/catalog.py takes      | what that reader makes of it                                |
| a file of a dump that is named                        | that dump                                                   |
| another JSON document of this project                 | left alone, and said                                        |
| text with lines that a server writes                  | a serving log                                               |
| what gdb or torchfrtrace print                        | left alone, and said                                        |
| an archive, or what is packed and not read, there     | counted, said, and the exit code 4 where all else is well   |
| any other file in a folder                            | counted, not read; named by itself it is taken for a log    |

What all of it may cost together is a Budget (material.py); what is beyond that is counted, and said.

Symbolic links in folders are not followed: what somebody sends may lead to anybody's files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from gemma4_dumps.directory_name import time_key
from gemma4_dumps.errors import DumpError, DumpUnreadable
from gemma4_dumps.manifest_file import EVENTS_NAME, MANIFEST_NAME
from gemma4_dumps.reader import read_dump
from gemma4_dumps.safe_file import as_unreadable
from gemma4_dumps.store import DumpStore
from gemma4_dumps.tensor_file import TENSORS_NAME
from gemma4_dumps.unpacked import inside, is_zip, origin, unpack
from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.by_content import binary_of, is_dump, is_log, kind_of, text_of
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import GUARDS, LEDGERS, Ledger
from gemma4_triage.diagnose.material import (
    Budget,
    Material,
    Unreadable,
    full,
    joined,
    read_fields,
    read_store,
)
from gemma4_triage.errors import NothingChecked, UsageMistake
from gemma4_triage.logs.source import STDIN, NotUnpacked
from gemma4_triage.own_document import OwnDocument, own_document
from gemma4_triage.readers import collection, flashinfer_log
from gemma4_triage.readers.catalog import Reader, head_of, reader_of
from gemma4_triage.readers.reading import NotThis, Reading
from gemma4_triage.time_limit import until

MAX_FILES = 50_000
MAX_LOGS = 64
MAX_DEPTH = 24
_MOST_TOLD = 4
_TOO_MANY = f"after {MAX_FILES} files and folders"
_TOO_DEEP = f"at {MAX_DEPTH} folders inside one another"
_FILE_ENDINGS = (".log", ".txt", ".out", ".err", ".gz", ".zst", ".zip", ".json", ".jsonl", ".pkl")


@dataclass
class Evidence:
    """What was found.

    Attributes:
        material: dumps, guard manifests, ledgers, and what could not be read.
        logs: paths of serving logs, or "-".
        found_logs: those of them that were found in folders; they are read until `end_s` and no longer.
        end_s: when reading has taken long enough, of time.monotonic().
        readings: what the readers made of other files.
        left_alone: how many files of folders are no evidence.
        not_read: how many files and folders were beyond a limit.
        remarks: what a reader has to know of it, a sentence each.
    """

    material: Material = field(default_factory=Material)
    logs: list[str] = field(default_factory=list)
    found_logs: set[str] = field(default_factory=set)
    end_s: float = float("inf")
    readings: list[Reading] = field(default_factory=list)
    left_alone: int = 0
    not_read: int = 0
    remarks: list[str] = field(default_factory=list)


def gather(store: DumpStore, names: Iterable[str], limit: int | None) -> Evidence:
    """Return the evidence that the names stand for, each file once.

    Args:
        store: where a name that is no path is looked for.
        names: paths, names of dumps, beginnings of such names, "latest", or "-" for a log on stdin.
        limit: how many dumps of each folder to read at most, the newest; None for all.

    Raises:
        DumpError: A dump or zip that was named cannot be found or read.
        NothingChecked: A folder that was named holds no evidence, or all that was named is documents of this project.
        UsageMistake: A file that was named is of no kind that is read.
    """
    found = _Finder(limit)
    for name in names:
        if name == STDIN:
            found.evidence.logs.append(STDIN)
            continue
        before = found.count
        path = _path(store, name)
        if os.path.isdir(path):
            if found.named_folder(path, in_zip=not os.path.isdir(name)) and found.is_empty_since(before):
                raise NothingChecked(_nothing_in(path, name), "name dumps, logs, zips, or folders that hold some")
        else:
            found.named_file(path)
    return found.result()


def gather_folder(folder: Path, limit: int | None) -> Evidence:
    """Return the evidence in one folder and below, which may be none. Raises like `gather`."""
    found = _Finder(limit)
    found.named_folder(folder)
    return found.result()


def _path(store: DumpStore, name: str) -> Path:
    """Return the path that a name stands for, unpacked if it lies in a zip."""
    unpacked = inside(name)
    if unpacked is None:
        if not os.path.lexists(name) and name.lower().endswith(_FILE_ENDINGS):
            with as_unreadable(Path(name).parent), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.stat(name)
            raise UsageMistake(f"there is no file {name:.200}", "check the path; a dump is named by its folder")
        if os.path.islink(name) and not os.path.exists(name):
            raise UsageMistake(
                f"{name:.200} is a link to {os.readlink(name):.200}, which is not there", "check the path"
            )
        # os.path says no of what it may not look at; the store says why.
        return Path(name) if os.path.isfile(name) or is_special(name) else store.resolve(name)
    if not os.path.lexists(unpacked):
        return store.resolve(name)
    return unpacked


def is_special(name: str) -> bool:
    """Return whether a path is there and neither a file nor a folder, such as a pipe."""
    return os.path.exists(name) and not os.path.isfile(name) and not os.path.isdir(name)


def _nothing_in(path: Path, name: str) -> str:
    with as_unreadable(path):
        if not os.listdir(path):
            return f"{name} is empty"
    if os.path.lexists(path / MANIFEST_NAME):
        return f"{name} has a {MANIFEST_NAME}, but not of a dump"
    return f"{name} holds no dump, no log and nothing else that is read"


class _Finder:
    """Walks what was named."""

    def __init__(self, limit: int | None) -> None:
        self.evidence = Evidence()
        self._limit = limit
        self._budget = Budget(limit is not None)
        self.evidence.end_s = self._budget.end_s
        self._parts: list[Material] = []
        self._seen: set[str] = set()
        self._named: set[Path] = set()
        self._files = 0
        self._by_reader: dict[tuple[str, Path], tuple[Reader, list[Path]]] = {}
        self._own: list[tuple[Path, OwnDocument]] = []
        self._texts: list[str] = []
        self._not_unpacked: list[tuple[Path, NotUnpacked]] = []

    @property
    def count(self) -> int:
        """Return how many pieces of evidence there are so far."""
        pieces = sum(
            len(part.dumps) + len(part.guards) + len(part.ledgers) + len(part.unreadable) for part in self._parts
        )
        pieces += len(self.evidence.logs) + len(self._by_reader) + len(self.evidence.readings)
        return pieces + len(self._own)

    def is_empty_since(self, before: int) -> bool:
        """Return whether there are as many pieces as there were, and nothing was left for a limit."""
        return self.count == before and not self._is_unfinished

    @property
    def _is_unfinished(self) -> bool:
        return bool(self._budget.skipped or self.evidence.not_read or self._not_unpacked or self._texts)

    def result(self) -> Evidence:
        """Read what is left to read, and return everything."""
        with until(self._budget.end_s):
            for reader, paths in self._by_reader.values():
                self._read(reader, paths)
        self._tell_of_own()
        self.evidence.remarks += self._texts
        self.evidence.not_read += len(self._not_unpacked)
        for path, error in self._not_unpacked[:_MOST_TOLD]:
            # A command cannot name what lies in a zip.
            hint = error.hint if origin(path) == str(path) else "unpack the zip and it, and name the folder"
            self.evidence.remarks.append(f"not read: {error.message.replace(str(path), origin(path))}; {hint}")
        if (more := len(self._not_unpacked) - _MOST_TOLD) > 0:
            self.evidence.remarks.append(f"not read: {number_of(more, 'more archive')}")
        found = self.evidence.found_logs
        if self._limit is not None and len(found) > MAX_LOGS:
            self.evidence.found_logs = set(sorted(found, key=_changed_s, reverse=True)[:MAX_LOGS])
            left = found - self.evidence.found_logs
            what, first = number_of(len(left), "older log"), full(Path(max(left, key=_changed_s)))
            self.evidence.remarks.append(f"not read: {what}, the newest of them {first}; --limit 0 reads all of them")
            self.evidence.not_read += len(left)
            self.evidence.logs = [log for log in self.evidence.logs if log not in left]
        self.evidence.material = joined(self._parts)
        places = {os.path.realpath(dump.path) for part in self._parts for dump in part.dumps}
        if copies := len(places) - len(self.evidence.material.dumps):
            self.evidence.remarks.append(f"left out: {number_of(copies, 'copy', 'copies')} of dumps that are here too")
        self.evidence.not_read += self._budget.skipped
        self.evidence.remarks += [self._budget.remark] if self._budget.remark else []
        return self.evidence

    def named_folder(self, path: Path, in_zip: bool = False) -> bool:
        """Do what `folder` does with one that was named, and raise DumpUnreadable with its whole path."""
        try:
            return self.folder(path, in_zip=in_zip)
        except DumpUnreadable as error:
            said = f"{path.name} cannot be read: "
            if not error.message.startswith(said):
                raise
            raise DumpUnreadable(f"{full(path)} cannot be read: {error.message[len(said) :]}", error.hint) from error

    def _tell_of_own(self) -> None:
        """Count this project's own documents, and say of those that were named, else of the first, what they are.

        Raises NothingChecked if there is nothing else.
        """
        self.evidence.left_alone += len(self._own)
        named = [one for one in self._own if one[0] in self._named]
        for path, own in named or self._own[:1]:
            if self.count == len(self._own) and not self._is_unfinished:
                raise NothingChecked(f"{origin(path)} is {own.what}, and nothing else is there", own.read_by)
            others = "" if named or len(self._own) == 1 else f"; {number_of(len(self._own) - 1, 'file')} more like it"
            self.evidence.remarks.append(f"left alone: {origin(path)} is {own.what}: {own.read_by}{others}")

    def folder(self, path: Path, depth: int = 0, in_zip: bool = False) -> bool:
        """Take what lies in a folder; a dump that was named itself (depth 0) and is damaged is an error.

        Returns whether the folder was new.
        """
        if not self._is_new(path):
            return False
        if depth == 0 and (is_dump(path) or time_key(path.name)):
            self._parts.append(Material(dumps=(read_dump(path),)))
            return True
        self._files += 1
        if self._is_too_much(path):
            return True
        entries = self._entries(path)
        folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        names = {entry.name for entry in folders}
        if names & {GUARDS, LEDGERS} or any(time_key(name) for name in names):
            self._parts.append(read_store(DumpStore(path), self._limit, self._budget))
        indexed = any(entry.name == flashinfer_log.SESSION for entry in entries)
        one_call = any(entry.name == flashinfer_log.ONE_CALL for entry in entries)
        bundled = collection.FOLDERS if any(entry.name == collection.NAME for entry in entries) else frozenset()
        for entry in folders:
            below = Path(entry.path)
            if time_key(entry.name) or entry.name in (GUARDS, LEDGERS, *bundled):
                continue
            # What an index of FlashInfer's names is in it, and may be thousands of folders.
            if indexed and flashinfer_log.CALL_FOLDER.search(entry.name):
                continue
            if is_dump(below):
                self._dump(below)
            elif depth < MAX_DEPTH:
                try:
                    self.folder(below, depth + 1, in_zip)
                except DumpUnreadable as error:
                    self._parts.append(Material(unreadable=(Unreadable(below, str(error)),)))
            else:
                self._budget.leave(1, _TOO_DEEP, below)
        for entry in entries:
            # torch's files of tensors are zips, of any size.
            if entry.is_file(follow_symlinks=False) and not (one_call and entry.name.endswith(".pt")):
                self._file(Path(entry.path), in_zip)
        return True

    def _entries(self, path: Path) -> list[os.DirEntry[str]]:
        """Return what lies in a folder, by name: the first MAX_FILES that the system lists, and counts the others."""
        with as_unreadable(path), os.scandir(path) as listed:
            entries = sorted(islice(listed, MAX_FILES), key=lambda entry: entry.name)
            beyond = next(listed, None)
            more = sum(1 for _ in listed)
        if beyond is not None:
            self._budget.leave(1 + more, _TOO_MANY, Path(beyond.path))
        return entries

    def named_file(self, path: Path) -> None:
        """Take a file that was named; what no reader takes is a log, and says itself if it cannot be one."""
        if not self._is_new(path):
            return
        self._named.add(path)
        if path.name in (MANIFEST_NAME, TENSORS_NAME, EVENTS_NAME) and is_dump(path.parent):
            self.folder(path.parent)
            return
        if is_zip(path):
            self.folder(unpack(path), 1, in_zip=True)
            return
        if is_special(str(path)) or not os.path.exists(path):
            self.evidence.logs.append(str(path))
            return
        try:
            head = head_of(path)
        except OSError as error:
            raise UsageMistake(f"{path} cannot be read: {error.strerror}", "check who may read it") from error
        if not self._takes(path, head):
            if (what := binary_of(head) or text_of(head)) is not None:
                raise UsageMistake(f"{path} is {what[0]}", what[1].format(path))
            self.evidence.logs.append(str(path))

    def _is_too_much(self, path: Path) -> bool:
        """Return whether one more file or folder is beyond a limit, and count it then."""
        if self._files > MAX_FILES:
            self._budget.leave(1, _TOO_MANY, path)
            return True
        return self._budget.is_over(path)

    def _is_new(self, path: Path) -> bool:
        place = os.path.realpath(path)
        if place in self._seen:
            return False
        self._seen.add(place)
        return True

    def _dump(self, path: Path) -> None:
        if not self._is_new(path) or not self._budget.admits(path / MANIFEST_NAME):
            return
        try:
            self._parts.append(Material(dumps=(read_dump(path),)))
        except DumpError as error:
            self._parts.append(Material(unreadable=(Unreadable(path, str(error)),)))

    def _file(self, path: Path, in_zip: bool) -> None:
        self._files += 1
        if self._is_too_much(path):
            return
        if not self._is_new(path):
            self.evidence.left_alone += 1
            return
        if is_zip(path):
            if in_zip:
                self.evidence.remarks.append(f"not read: {origin(path)}: a zip in a zip; unpack the outer one")
                self.evidence.not_read += 1
                return
            try:
                unpacked = unpack(path)
                # Whoever zips what lies in a dump, and not its folder, sends a dump too.
                if is_dump(unpacked):
                    self._dump(unpacked)
                else:
                    self.folder(unpacked, 1, in_zip=True)
            except DumpUnreadable as error:
                self._parts.append(Material(unreadable=(Unreadable(path, str(error)),)))
            return
        try:
            head = _head(path)
        except DumpUnreadable as error:
            self._parts.append(Material(unreadable=(Unreadable(path, str(error)),)))
            return
        if self._takes(path, head):
            return
        try:
            has_log_lines = is_log(path)
        except NotUnpacked as error:
            self._not_unpacked.append((path, error))
            return
        if has_log_lines:
            self.evidence.logs.append(str(path))
            self.evidence.found_logs.add(str(path))
        else:
            self.evidence.left_alone += 1
            if (what := text_of(head)) is not None and len(self._texts) < _MOST_TOLD:
                self._texts.append(f"left alone: {origin(path)} is {what[0]}; {what[1]}")

    def _takes(self, path: Path, head: bytes) -> bool:
        """Take the file and say so if it is a guard manifest, a ledger, or of a reader."""
        if head.lstrip()[:1] == b"{" and (kind := kind_of(head)) is not None:
            if self._budget.admits(path):
                self._parts.append(_fields(path, kind))
            return True
        reader = reader_of(head)
        if reader is None:
            own = own_document(head, origin(path))
            if own is not None:
                self._own.append((path, own))
            return own is not None
        if not self._budget.admits(path, is_parsed=False):
            return True
        folder = path.parent.parent if path.name == flashinfer_log.ONE_CALL else path.parent
        self._by_reader.setdefault((reader.id, folder), (reader, []))[1].append(path)
        return True

    def _read(self, reader: Reader, paths: list[Path]) -> None:
        if self._budget.is_over(paths[0]):
            self._budget.skipped += len(paths) - 1
            return
        try:
            for reading in reader.read(paths):
                self.evidence.readings.append(_named(reading))
        except NotThis:
            self.evidence.left_alone += len(paths)
            named = [origin(path) for path in paths if path in self._named]
            self.evidence.remarks += [f"{name} begins as {reader.what} does, and holds nothing of it" for name in named]
        except DumpError as error:
            self._parts.append(Material(unreadable=(Unreadable(paths[0], str(error)),)))


def _named(reading: Reading) -> Reading:
    """Return the reading with every path as a reader knows it: what lies in a zip is named by the zip."""
    folder = reading.identity.folder
    identity = replace(reading.identity, folder=origin(Path(folder)) if folder else "")
    findings = tuple(
        one.model_copy(
            update={
                "evidence": tuple(
                    piece.model_copy(update={"source": origin(Path(piece.source))}) for piece in one.evidence
                )
            }
        )
        for one in reading.findings
    )
    return replace(reading, name=origin(Path(reading.name)), identity=identity, findings=findings)


def _fields(path: Path, kind: str) -> Material:
    unreadable: list[Unreadable] = []
    fields = read_fields(path, unreadable)
    if fields is None:
        return Material(unreadable=tuple(unreadable))
    if kind == GUARDS:
        return Material(guards=(Guards(path.name, "", fields),))
    return Material(ledgers=(Ledger(path.name, fields),))


def _head(path: Path) -> bytes:
    with as_unreadable(path):
        return head_of(path)


def _changed_s(name: str) -> float:
    try:
        return os.path.getmtime(name)
    except OSError:
        return 0.0
