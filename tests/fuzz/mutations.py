"""Damage to a dump, at random but repeatable: raw, in the manifest's JSON, and in the tensor file's header."""

import json
import math
import random
import struct
from typing import Any

MANIFEST, TENSORS, EVENTS = "manifest.json", "tensors.safetensors", "events.jsonl"
Files = dict[str, bytes]

_ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.5, -1e308),
    *["", "x", "page", "..", "../../etc/passwd", "/etc/passwd", "\x00", "\x1b[2J", "\u202e", "int32", "bool"],
    *["float8_e5m2", "page-table-bounds", "leak-audit", "contained", "9" * 400, "1.9", "2.0", "0.1", "nan", "a,b"],
    *([], {}, [[]], [{}], {"": None}, {"id": "x"}, [1, 2], [-1], [2**40, 1], [10**30] * 40, [1] * 100, [0, 10**20]),
]
_ODD_KEYS = [*map(str, _ODD_VALUES[:20]), "page_table_indptr", "translated_page_table", "suspects", "id", "patches"]
_NAMES = ["page_table", "kv_indices", "kv_indices_indptr", "cache_seqlens", "request_slots", "query_counts"]
_NAMES += ["kv_page_ids", "key_pages", "value_pages", "query", "token_ids", "out_cache_loc_indptr"]
_SHAPES: list[list[int]] = [[], [0], [3], [40], [8, 20], [2, 17], [1, 0], [2, 2, 2], [1] * 40, [0, 2**70]]
_SHAPES += [[3, 4, 2, 8], [2, 4, 8]]
_BYTES = [b"", b"\0", b"\xff", b"\n", b'"', b"{", b"}", b"[", b"]", b",", b":", b"-"]
_BYTES += [b"NaN", b"Infinity", b"1e999", b"\\ud800"]
_TAGS = {"int32": "I32", "int64": "I64", "uint64": "U64", "float32": "F32", "bool": "BOOL", "float8_e5m2": "F8_E5M2"}
_SIZES = {"int32": 4, "int64": 8, "uint64": 8, "float32": 4, "bool": 1, "float8_e5m2": 1}


def mutate(files: Files, others: list[Files], random_: random.Random) -> tuple[str, Files]:
    """Return one or more mutations of `files`; their name, and the result. others: to cross with."""
    kind = random_.choice(["manifest"] * 4 + ["header", "tensors"] * 2 + ["raw"] * 2 + ["values", "swap", "events"])
    changed = dict(files)
    for _ in range(random_.choice([1, 1, 1, 2, 4])):
        _MUTATIONS[kind](changed, others, random_)
    return kind, changed


def _manifest(files: Files, others: list[Files], random_: random.Random) -> None:
    files[MANIFEST] = _edit_json(files[MANIFEST], others, MANIFEST, random_)


def _header(files: Files, others: list[Files], random_: random.Random) -> None:
    data = files[TENSORS]
    if len(data) < 8:
        return
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data):
        return
    header, values = data[8 : 8 + length], data[8 + length :]
    edited = _edit_json(header, [], TENSORS, random_)
    claimed = len(edited) if random_.random() < 0.9 else random_.choice([0, 1, length, 2**31, 2**62, 2**64 - 1])
    files[TENSORS] = struct.pack("<Q", claimed) + edited + values


def _tensors(files: Files, others: list[Files], random_: random.Random) -> None:
    """Write other tensors, which header and manifest agree on: what gets past their comparison to the readers."""
    try:
        manifest = json.loads(files[MANIFEST])
    except (ValueError, RecursionError):
        return
    if not isinstance(manifest, dict):
        return
    names = [*_ODD_KEYS[-5:-2], *_NAMES]
    layouts, header, values = {}, {}, b""
    for name in random_.sample(names, random_.randint(1, 4)):
        dtype = random_.choice(list(_TAGS))
        shape = random_.choice(
            [[], [0], [3], [40], [8, 20], [2, 17], [1, 0], [2, 2, 2], [1] * 40, [0, 2**70], [3, 4, 2, 8], [2, 4, 8]]
        )
        stride = random_.choice([[1] * len(shape), shape, [0], [2**41], [-1] * len(shape)])
        layouts[name] = {"shape": shape, "dtype": dtype, "stride": stride, "storage_offset": random_.choice([0, 3])}
        added = random_.choice([random_.randbytes, _small])(math.prod(shape) * _SIZES[dtype])
        header[name] = {"dtype": _TAGS[dtype], "shape": shape, "data_offsets": [len(values), len(values) + len(added)]}
        values += added
    if random_.random() < 0.5:
        # Beside those that are there, in their place where the name is the same.
        layouts, header, values = _beside(files[TENSORS], manifest.get("tensors"), layouts, header, values)
    manifest["tensors"] = layouts
    encoded = json.dumps(header).encode()
    files[MANIFEST] = json.dumps(manifest).encode()
    files[TENSORS] = struct.pack("<Q", len(encoded)) + encoded + values


def _beside(
    data: bytes, known: Any, layouts: dict[str, Any], header: dict[str, Any], values: bytes
) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Write the new tensors before the old ones; the new ones alone if the old are damaged."""
    try:
        (length,) = struct.unpack("<Q", data[:8])
        old = json.loads(data[8 : 8 + length])
        kept = {name: old[name] for name in known if name not in header and name in old}
        spans = {name: data[8 + length :][slice(*entry["data_offsets"])] for name, entry in kept.items()}
    except (ValueError, RecursionError, struct.error, TypeError, KeyError, AttributeError):
        return layouts, header, values
    for name, span in spans.items():
        layouts[name] = known[name]
        header[name] = kept[name] | {"data_offsets": [len(values), len(values) + len(span)]}
        values += span
    return layouts, header, values


def _small(length: int) -> bytes:
    return bytes(at % 7 if at % 4 == 0 else 0 for at in range(length))


def _values(files: Files, others: list[Files], random_: random.Random) -> None:
    """Change the last bytes of the tensor file, where indices and row ends stand."""
    data = bytearray(files[TENSORS])
    for _ in range(random_.randint(1, 8)):
        if len(data) >= 8:
            at = random_.randrange(max(len(data) - 400, 0), len(data) - 7) & ~3
            data[at : at + 4] = struct.pack("<i", random_.choice([-1, 0, 1, 70, 2**31 - 1, -(2**31)]))
    files[TENSORS] = bytes(data)


def _raw(files: Files, others: list[Files], random_: random.Random) -> None:
    name = random_.choice([MANIFEST, TENSORS, EVENTS])
    data = bytearray(files.get(name, b""))
    at = random_.randrange(len(data) + 1)
    match random_.randrange(5):
        case 0:
            del data[at:]
        case 1 if data:
            data[at % len(data)] ^= 1 << random_.randrange(8)
        case 2:
            data[at:at] = random_.choice(_BYTES) * random_.choice([1, 1, 3, 5000])
        case 3:
            del data[at : at + random_.randint(1, 64)]
        case _:
            data[at : at + 8] = random_.randbytes(8)
    files[name] = bytes(data)


def _swap(files: Files, others: list[Files], random_: random.Random) -> None:
    """Put a file of another dump in its place, or none."""
    name = random_.choice([MANIFEST, TENSORS, EVENTS])
    if random_.random() < 0.5:
        files.pop(name, None)
        files.setdefault(MANIFEST, b"")
        files.setdefault(TENSORS, b"")
    else:
        files[name] = random_.choice(others)[name]


def _events(files: Files, others: list[Files], random_: random.Random) -> None:
    lines = files.get(EVENTS, b"").splitlines() or [b"{}"]
    at = random_.randrange(len(lines))
    match random_.randrange(4):
        case 0:
            lines[at] = random_.choice([*_BYTES, b"[" * 500, b'{"a":1,"a":2}', b"\xff\xfe", lines[at] * 2])
        case 1:
            del lines[at]
        case _:
            lines[at] = _edit_json(lines[at], [], EVENTS, random_)
    files[EVENTS] = b"\n".join(lines)


_MUTATIONS = {
    "manifest": _manifest,
    "header": _header,
    "tensors": _tensors,
    "values": _values,
    "raw": _raw,
    "swap": _swap,
    "events": _events,
}


def _edit_json(data: bytes, others: list[Files], name: str, random_: random.Random) -> bytes:
    """Replace, delete, copy or double one value somewhere in a document; bytes that are no JSON stay as they are."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    place = _somewhere(document, random_)
    if place is None:
        return json.dumps(random_.choice(_ODD_VALUES)).encode()
    container, key = place
    match random_.randrange(10):
        case 0:
            del container[key]
        case 1 if isinstance(container, dict):
            container[random_.choice(_ODD_KEYS)] = container[key]
        case 2:
            container[key] = [container[key]] * random_.choice([2, 3, 300])
        case 3:
            other = _somewhere(json.loads(random_.choice(others)[name]), random_) if others else None
            container[key] = None if other is None else other[0][other[1]]
        case 4 if isinstance(container[key], int):
            container[key] += random_.choice([-1, 1, 64, 2**32, 2**63])
        case 5 if isinstance(container, dict):
            text = json.dumps(document)
            twice = f"{json.dumps(key)}: "
            return text.replace(twice, f"{twice}{json.dumps(random_.choice(_ODD_VALUES))}, {twice}", 1).encode()
        case _:
            container[key] = random_.choice(_ODD_VALUES)
    return json.dumps(document).encode()


def _somewhere(document: Any, random_: random.Random) -> tuple[Any, Any] | None:
    """Return a container and one of its keys, at a random depth."""
    place = None
    while isinstance(document, dict | list) and document:
        key = random_.choice(list(document)) if isinstance(document, dict) else random_.randrange(len(document))
        place = (document, key)
        if random_.random() < 0.4:
            break
        document = document[key]
    return place
