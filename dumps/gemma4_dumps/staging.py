"""Write a dump under its temporary name. Tensors and events go first: the manifest is the proof that all is there."""

import hashlib
import itertools
import json
import os
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .budget import FittedTensors, fit_tensors
from .directory_name import TEMPORARY_PREFIX, format_name
from .draft import DumpDraft
from .included import included_in
from .manifest_file import EVENTS_NAME, MANIFEST_NAME, MAX_MANIFEST_BYTES, encode_manifest, sealed
from .plain_json import plain
from .redaction import redact_command, redact_fields, redact_launch_args
from .safe_file import DIRECTORY_MODE, sync_directory, write_private
from .schema import Dropped, FileRecord, Host, Manifest
from .tensor_file import TENSORS_NAME, encode_tensors

MAX_OFFENCES = 256

_sequence = itertools.count(1)
_DRAFT_ONLY = {"tensors", "events", "dropped_events", "rank", "created_utc"}


@dataclass(frozen=True)
class StagedDump:
    """A complete dump that nobody sees yet. size_bytes: of its files together."""

    temporary_path: Path
    manifest: Manifest
    size_bytes: int


def stage_dump(root: Path, draft: DumpDraft, bytes_cap: int, dropped_dumps: int) -> StagedDump:
    """Write everything under the temporary name, durably; nothing is left behind when that fails.

    Args:
        root: the store.
        draft: what the probe knows.
        bytes_cap: for the whole dump.
        dropped_dumps: how many this store has dropped so far.

    Raises:
        OSError: no room, or no permission.
        ValueError: a draft that no manifest can carry, or a cap too small.
    """
    base = _manifest_without_tensors(draft, dropped_dumps)
    events, dropped_events = _encode_events(draft.events, bytes_cap // 10)
    payloads = {plain(str(name)): payload for name, payload in draft.tensors.items()}
    tensors = fit_tensors(payloads, bytes_cap - len(encode_manifest(base)) - len(events) - 1024)
    contents = {
        TENSORS_NAME: encode_tensors({n: (t.values, t.record.dtype) for n, t in tensors.kept.items()}),
        EVENTS_NAME: events,
    }
    manifest = _complete(base, tensors, contents, draft.dropped_events + dropped_events)
    contents[MANIFEST_NAME] = sealed(manifest)
    if len(contents[MANIFEST_NAME]) > MAX_MANIFEST_BYTES:
        raise ValueError(
            f"the manifest has {len(contents[MANIFEST_NAME])} bytes; at most {MAX_MANIFEST_BYTES} are read"
        )
    size_bytes = sum(map(len, contents.values()))
    if size_bytes > bytes_cap:
        raise ValueError(f"the dump has {size_bytes} bytes even without its large tensors; the cap is {bytes_cap}")
    temporary_path = root / f"{TEMPORARY_PREFIX}{manifest.dump_id}"
    staged = False
    root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    os.mkdir(temporary_path, DIRECTORY_MODE)
    try:
        os.chmod(temporary_path, DIRECTORY_MODE)
        for name, content in contents.items():
            write_private(temporary_path / name, content)
        sync_directory(temporary_path)
        staged = True
    finally:
        if not staged:
            shutil.rmtree(temporary_path, ignore_errors=True)
    return StagedDump(temporary_path, manifest, size_bytes)


def _manifest_without_tensors(draft: DumpDraft, dropped_dumps: int) -> Manifest:
    created_utc = (draft.created_utc or datetime.now(UTC)).astimezone(UTC)
    hostname, pid = socket.gethostname(), os.getpid()
    known = {f.name: plain(getattr(draft, f.name)) for f in fields(draft) if f.name not in _DRAFT_ONLY}
    known["versions"] = {name: str(version) for name, version in known["versions"].items()}
    known["launch_args"] = redact_launch_args(known["launch_args"])
    known["guards"] = redact_fields(known["guards"])
    if known["repeat_command"] is not None:
        known["repeat_command"] = redact_command(known["repeat_command"])
    offences = known["offences"]
    known["offence_count"] = len(offences) if draft.offence_count is None else max(draft.offence_count, len(offences))
    known["offences"] = offences[:MAX_OFFENCES]
    return Manifest(
        dump_id=format_name(created_utc, hostname, draft.rank, pid, draft.rule, next(_sequence)),
        created_utc=created_utc,
        host=Host(hostname=hostname, pid=pid, rank=draft.rank),
        dropped=Dropped(dumps=dropped_dumps),
        **known,
    )


def _encode_events(events: Sequence[Any], cap_bytes: int) -> tuple[bytes, int]:
    """JSON lines of the latest events that fit in cap_bytes, and how many older ones did not."""
    lines: list[bytes] = []
    for event in reversed(events):
        line = json.dumps(redact_fields(plain(event)), allow_nan=False).encode() + b"\n"
        if len(line) > cap_bytes:
            break
        cap_bytes -= len(line)
        lines.append(line)
    return b"".join(reversed(lines)), len(events) - len(lines)


def _complete(base: Manifest, tensors: FittedTensors, contents: dict[str, bytes], dropped_events: int) -> Manifest:
    left_out = sum(t.to_shape is None for t in tensors.truncated.values())
    return base.model_copy(
        update={
            "dropped": base.dropped.model_copy(update={"events": dropped_events, "tensors": left_out}),
            "truncated": tensors.truncated,
            "tensors": {name: tensor.record for name, tensor in tensors.kept.items()},
            "included": included_in(tensors.kept),
            "files": {
                name: FileRecord(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
                for name, data in contents.items()
            },
        }
    )
