"""manifest.json: from bytes to a Manifest, distrusting every one of them."""

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .errors import DumpError, DumpIncompatible, DumpUnreadable
from .safe_file import read_regular
from .schema import SCHEMA_VERSION, Heading, Manifest
from .strict_json import strict_json

MANIFEST_NAME = "manifest.json"
EVENTS_NAME = "events.jsonl"
"""The name of the events beside it. Here and not where they are written: whoever reads a dump writes none."""
MAX_MANIFEST_BYTES = 2 * 1024**2
"""Real ones have some 10 KiB. Parsed, hostile JSON takes fifty times its size in memory."""
SEAL = "manifest_sha256"

Signature = tuple[str | None, ...]


def load_manifest(dump_directory: Path) -> Manifest:
    """Read and check a dump's manifest.

    Raises DumpUnreadable if it is absent, damaged or not a manifest, DumpIncompatible for another major version.
    """
    try:
        data = read_regular(dump_directory / MANIFEST_NAME, MAX_MANIFEST_BYTES)
    except DumpUnreadable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            if any(dump_directory.glob(f"*/{MANIFEST_NAME}")):
                words = shlex.quote(str(dump_directory))
                hint = f"gemma4-triage dumps list --dir {words} shows them; gemma4-triage diagnose {words} reads all"
                raise DumpUnreadable("it holds dumps, and is none itself", hint) from error
            raise DumpUnreadable(f"there is no {MANIFEST_NAME} in it: torn, or no dump") from error
        raise
    return parse_manifest(data)


def load_named_manifest(dump_directory: Path) -> Manifest:
    """Return the same, with errors that say of which dump they are."""
    try:
        return load_manifest(dump_directory)
    except DumpError as error:
        raise type(error)(f"{str(dump_directory)[-200:]}: {error}", error.hint) from error


def parse_manifest(data: bytes) -> Manifest:
    """Return the same for bytes at hand."""
    try:
        return Manifest.model_validate(_fields(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DumpUnreadable(
            f"{MANIFEST_NAME} does not fit schema {SCHEMA_VERSION}: {place}: {first['msg']} "
            f"({error.error_count()} problems in all)"
        ) from error


def load_heading(dump_directory: Path | str) -> Heading:
    """Return what a list shows of a dump's manifest.

    All of the file is parsed, but only what is shown is held against the schema, and no object is searched for keys
    that it has twice. Whatever does not fit is read as `load_manifest` does, whose errors are raised.
    """
    try:
        data = read_regular(f"{dump_directory}/{MANIFEST_NAME}", MAX_MANIFEST_BYTES)
        heading = Heading.model_validate_json(data)
        _require_same_major(heading.schema_version)
    except (ValidationError, DumpError):
        whole = load_manifest(Path(dump_directory))
        return Heading.model_validate(whole.model_dump(include=set(Heading.model_fields)))
    return heading


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of manifest.json. Raises ValueError if something non-finite got in."""
    return json.dumps(manifest.model_dump(mode="json"), indent=1, allow_nan=False).encode() + b"\n"


def sealed(manifest: Manifest) -> bytes:
    """Return the bytes of manifest.json with the SHA-256 of all that is in it, so that a later change shows.

    Raises ValueError if something non-finite got in.
    """
    own = seal_of(_fields(encode_manifest(manifest), unique_keys=False))
    return encode_manifest(manifest.model_copy(update={SEAL: own}))


def broken_seal(dump_directory: Path) -> str | None:
    """Say how the manifest in a dump's folder is not as it was written; None if it is.

    One without a SHA-256 of its own, as schema 1.0 had none, says nothing.

    Raises DumpUnreadable if it is absent or no JSON, DumpIncompatible for another major version.
    """
    fields = _fields(read_regular(dump_directory / MANIFEST_NAME, MAX_MANIFEST_BYTES), unique_keys=False)
    if SEAL not in fields:
        is_old = str(fields["schema_version"]).partition(".")[2] == "0"
        return None if is_old else "it lacks the SHA-256 of itself that it was written with"
    found, written = seal_of(fields), str(fields[SEAL])
    if written != found:
        return f"it was changed since it was written: SHA-256 {found[:12]}…, and it says {written[:12]}… of itself"
    return None


def seal_of(fields: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest's fields but the seal, whatever their order and white space."""
    others = {name: value for name, value in fields.items() if name != SEAL}
    return hashlib.sha256(json.dumps(others, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def signature_of(manifest: Manifest) -> Signature:
    """Dumps of one signature are the same event again."""
    return (manifest.rule, manifest.verdict, manifest.role, manifest.layer.type, manifest.site)


def load_signature(dump_directory: Path) -> Signature:
    """`signature_of` without checking all the rest against the schema, which takes ten times as long.

    Raises like `load_manifest`, but for fields that do not matter here.
    """
    fields = _fields(read_regular(dump_directory / MANIFEST_NAME, MAX_MANIFEST_BYTES), unique_keys=False)
    layer = fields.get("layer")
    parts = [fields.get(name) for name in ("rule", "verdict", "role")]
    parts += [layer.get("type") if isinstance(layer, dict) else None, fields.get("site")]
    if not all(part is None or isinstance(part, str) for part in parts):
        raise DumpUnreadable(f"{MANIFEST_NAME} does not fit schema {SCHEMA_VERSION}")
    return tuple(parts)


def _fields(data: bytes, unique_keys: bool = True) -> dict[str, Any]:
    fields = strict_json(data, MANIFEST_NAME, unique_keys)
    if not isinstance(fields, dict):
        raise DumpUnreadable(f"{MANIFEST_NAME} holds no JSON object")
    _require_same_major(fields.get("schema_version"))
    return fields


def _require_same_major(version: Any) -> None:
    if not isinstance(version, str) or not version.partition(".")[0].isdecimal():
        raise DumpUnreadable(f"{MANIFEST_NAME} has no readable schema_version (found {str(version)[:40]!r})")
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise DumpIncompatible(f"the dump has schema {version[:40]}; this release reads {SCHEMA_VERSION[:2]}x")
