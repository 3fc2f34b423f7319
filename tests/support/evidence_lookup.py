"""Looks a piece of evidence up in the files themselves, without the code that made it."""

import json
import re
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from gemma4_triage.finding import Evidence

_ENTRY = re.compile(r"(\w+)\[([\d, ]+)\]")


def stands_there(evidence: Evidence, root: Path) -> bool:
    """Say whether `evidence.value` is what the named field of the named source below `root` holds."""
    dump = root / evidence.source
    if not dump.is_dir():
        (file,) = root.rglob(evidence.source)
        return _same(_dotted(json.loads(file.read_text()), evidence.field), evidence.value)
    entry = _ENTRY.fullmatch(evidence.field)
    if entry is not None:
        index = tuple(int(number) for number in entry[2].split(","))
        return _same(load_file(dump / "tensors.safetensors")[entry[1]][index].item(), evidence.value)
    if evidence.field.startswith("events."):
        events = [json.loads(line) for line in (dump / "events.jsonl").read_text().splitlines()]
        return _same(_dotted(events, evidence.field.removeprefix("events.")), evidence.value)
    return _same(_dotted(json.loads((dump / "manifest.json").read_text()), evidence.field), evidence.value)


def _dotted(fields: Any, path: str) -> Any:
    for name in path.split("."):
        fields = fields[int(name)] if isinstance(fields, list) else fields.get(name)
        if fields is None:
            break
    return fields


def _same(found: Any, claimed: Any) -> bool:
    return type(found) is type(claimed) and found == claimed
