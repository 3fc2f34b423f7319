"""JSON documents that this project wrote itself, known by how they begin: they are about evidence, and are none."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

RUN_KINDS = ("repro", "corpus", "diff-backends", "diff-patches")
"""What `kind` is in the verdict.json of a finished run."""
_DRAWN = ("bench-probes", "bench-kernels", "bench-serving")
_BEGINNING_BYTES = 64 * 1024
_VERSION = re.compile(rb'"schema_version"\s*:\s*"\d{1,4}\.\d{1,4}"')
_KIND = re.compile(rb'"kind"\s*:\s*"([a-z][a-z-]{0,40})"')
# As documents of commands do, which may quote manifests and ledgers; those themselves have no kind.
_SAYS_ITS_KIND = re.compile(rb'\s*\{\s*"schema_version"\s*:\s*"[^"]{0,20}"\s*,\s*"kind"')
_COMMAND = re.compile(rb'"command"\s*:')
# One object in a line, and another in the next: a log whose lines are JSON, which may have any keys.
_LINES = re.compile(rb"\s*\{[^\n]*\}\s*\n\s*\{")


def is_guard_manifest(head: bytes) -> bool:
    """Return whether a file that begins so is a guard manifest."""
    keys = (b'"patches"', b'"pid"', b'"settings"', b'"created_utc"')
    return all(key in head for key in keys) and b'"dump_id"' not in head and not _SAYS_ITS_KIND.match(head)


def is_ledger(head: bytes) -> bool:
    """Return whether a file that begins so is what a leak audit left."""
    keys = (b'"equations"', b'"audits"', b'"pid"')
    return all(key in head for key in keys) and b'"dump_id"' not in head and not _SAYS_ITS_KIND.match(head)


class OwnDocument(NamedTuple):
    """What such a file is.

    Attributes:
        what: names it, with an article.
        read_by: says what reads it, in a clause.
        is_run: whether it is the record of a finished run.
    """

    what: str
    read_by: str
    is_run: bool = False


def own_document(start: bytes, name: str) -> OwnDocument | None:
    """Return what a file with these first bytes is; None for one that is not of this project.

    Args:
        start: What the file begins with, unpacked.
        name: How the file was named, for a command that reads it.
    """
    head = start[:_BEGINNING_BYTES]
    if head.lstrip()[:1] != b"{" or _VERSION.search(head) is None or _LINES.match(head):
        return None
    found = _KIND.search(head)
    kind = found[1].decode() if found else ""
    # A manifest has kinds of patches in it, and a document may have a dump's id, each further down.
    if 0 <= head.find(b'"dump_id"') < (found.start() if found else len(head)) and b'"verdict"' in head:
        return OwnDocument("a dump's manifest without its dump", "name the dump's folder, where it is manifest.json")
    if is_guard_manifest(head) or is_ledger(head) or kind == "collection":
        return OwnDocument("evidence and no log", f"gemma4-triage diagnose {shlex.quote(name)} reads it")
    if kind in RUN_KINDS:
        return OwnDocument("the verdict of a finished run", f"gemma4-triage report {shlex.quote(name)} shows it", True)
    if kind in _DRAWN:
        return OwnDocument(
            "what a bench measured", f"gemma4-triage bench plot {shlex.quote(name)} -o bench.svg draws it"
        )
    if not kind and _COMMAND.search(head) is None:
        return None
    return OwnDocument("what gemma4-triage wrote as JSON", "name the evidence that it is about")
