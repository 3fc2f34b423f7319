"""manifest.json: from bytes to a Manifest, distrusting every one of them."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from .errors import DumpIncompatible, DumpUnreadable
from .safe_file import read_regular
from .schema import SCHEMA_VERSION, Manifest

MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 8 * 1024**2


def load_manifest(dump_directory: Path) -> Manifest:
    """Read and check a dump's manifest.

    Raises DumpUnreadable if it is absent, damaged or not a manifest, DumpIncompatible for another major version.
    """
    return parse_manifest(read_regular(dump_directory / MANIFEST_NAME, MAX_MANIFEST_BYTES))


def parse_manifest(data: bytes) -> Manifest:
    """The same for bytes at hand."""
    try:
        # pydantic's parser, not json's: it bounds nesting and refuses NaN and lone surrogates.
        fields = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise DumpUnreadable(f"{MANIFEST_NAME} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise DumpUnreadable(f"{MANIFEST_NAME} holds a {type(fields).__name__}, not an object")
    _require_same_major(fields.get("schema_version"))
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DumpUnreadable(
            f"{MANIFEST_NAME} does not fit schema {SCHEMA_VERSION}: {place}: {first['msg']} "
            f"({error.error_count()} problems in all)"
        ) from error


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of manifest.json. Raises ValueError if something non-finite got in."""
    return json.dumps(manifest.model_dump(mode="json"), indent=1, allow_nan=False).encode() + b"\n"


def _require_same_major(version: Any) -> None:
    if not isinstance(version, str) or not version.partition(".")[0].isdecimal():
        raise DumpUnreadable(f"{MANIFEST_NAME} has no readable schema_version (found {str(version)[:40]!r})")
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise DumpIncompatible(f"the dump has schema {version[:40]}; this release reads {SCHEMA_VERSION[:2]}x")
