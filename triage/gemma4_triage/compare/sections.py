"""A manifest as one JSON object for comparing, and which of its fields are about what.

| section      | fields                                                                       |
|--------------|------------------------------------------------------------------------------|
| provenance   | whose table on whose buffer, of which layer and role                         |
| geometry     | page size, extents, backend, forward mode, graph, a layer's heads and window |
| scalars      | all other scalars                                                            |
| finding      | rule, verdict, explanation, site, step, offences                             |
| guards       | patches by id, whether they are verified, settings                           |
| versions     | versions, GPU, schema                                                        |
| launch       | command line, rank                                                           |
| completeness | what was included on request, dropped or cut, and notes                      |
| other        | fields of a newer release                                                    |
| volatile     | when, where and under which name it was written, and what is made of the rest|

Tensors are not among them: `tensors.py` compares layouts and values together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma4_dumps.plain_json import plain
from gemma4_dumps.schema import Manifest
from gemma4_triage.compare.difference import FieldDifference
from gemma4_triage.compare.fields import field_differences

SECTIONS = (
    "provenance",
    "geometry",
    "scalars",
    "finding",
    "guards",
    "versions",
    "launch",
    "completeness",
    "other",
)
VOLATILE = "volatile"

_FIELDS = {
    "provenance": ("provenance", "layer", "pool_kind", "role"),
    "geometry": ("page_size", "extents", "backend", "forward_mode", "graph"),
    "scalars": ("scalars",),
    "finding": ("rule", "verdict", "summary", "mode", "action", "site", "step", "offences", "offence_count"),
    "guards": ("guards",),
    "versions": ("versions", "gpu", "schema_version"),
    "launch": ("launch_args", "host"),
    "completeness": ("included", "notes", "dropped", "truncated"),
    VOLATILE: ("dump_id", "created_utc", "repeat_command", "manifest_sha256"),
}
_SECTION_OF = {field: section for section, fields in _FIELDS.items() for field in fields}

_GEOMETRY_SCALARS = ("window_left", "q_heads", "kv_heads", "head_dim", "scaling", "kv_dtype")
# The files' contents are compared themselves; a checksum would only say again that they differ.
_VOLATILE_PATHS = (
    "host.hostname",
    "host.pid",
    "dropped.dumps",
    "files.tensors.safetensors",
    "files.events.jsonl",
    "guards.created_utc",
    "guards.hostname",
    "guards.pid",
    "guards.settings.dump_dir",
)


def manifest_differences(a: Manifest, b: Manifest) -> dict[str, tuple[FieldDifference, ...]]:
    """Return the differences by section, in the order of SECTIONS and VOLATILE last, without empty sections."""
    found = list(field_differences(_document(a), _document(b)))
    by_section = {name: tuple(one for one in found if _section(one.path) == name) for name in (*SECTIONS, VOLATILE)}
    return {name: differences for name, differences in by_section.items() if differences}


def _section(path: str) -> str:
    field, _, rest = path.partition(".")
    if any(path == volatile or path.startswith(f"{volatile}.") for volatile in _VOLATILE_PATHS):
        return VOLATILE
    if path == "provenance.explanation":
        # A sentence about the values that were found.
        return "finding"
    if field == "scalars" and rest in _GEOMETRY_SCALARS:
        return "geometry"
    return _SECTION_OF.get(field, "other")


def _document(manifest: Manifest) -> dict[str, Any]:
    fields = plain(manifest.model_dump(exclude={"tensors"}))
    return fields | {"guards": _guards(fields["guards"], fields)}


def _guards(guards: dict[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the guard manifest without what stands in the dump's manifest too, its patches by id."""
    again = {"versions": "versions", "gpu": "gpu", "command": "launch_args"}
    told = {key: value for key, value in guards.items() if key not in again or value != manifest[again[key]]}
    rows = told.get("patches")
    if isinstance(rows, list) and all(isinstance(row, dict) and isinstance(row.get("id"), str) for row in rows):
        by_id = {row["id"]: _patch(row) for row in rows}
        # Two patches of one id: nobody writes that, and folding them would hide one.
        if len(by_id) == len(rows):
            told["patches"] = by_id
    return told


def _patch(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "id"}
