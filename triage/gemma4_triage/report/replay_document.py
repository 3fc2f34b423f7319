"""A replay as the JSON document of `replay --json`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gemma4_dumps.reader import Dump
from gemma4_triage.replay.backend_run import REFERENCE
from gemma4_triage.replay.damage import RowDamage
from gemma4_triage.replay.outcome import BackendOutcome, Replay
from gemma4_triage.replay.shrink import Shrunk
from gemma4_triage.report.diagnosis_document import damaged_document


def replay_document(dump: Dump, result: Replay, shrunk: Shrunk | None, names: Sequence[str]) -> dict[str, Any]:
    """dump: that was given. names: the backends that were asked for. shrunk: the one replayed, if it was cut down."""
    call, geometry = result.call, result.call.geometry
    return {
        "dump": call.dump_id,
        "fine": result.fine,
        "worst": result.worst.word,
        "backends_asked": list(names),
        "call": {
            "table": call.table,
            "paged": call.paged,
            "table_space": call.table_space,
            "buffer_space": call.buffer_space,
            "ids_of_another_pool": call.foreign,
            "rows": call.rows,
            "columns": call.ids.shape[1],
            "queries": len(call.queries[0]),
            "bound": call.bound,
            "page_size": geometry.page_size,
            "q_heads": geometry.q_heads,
            "kv_heads": geometry.kv_heads,
            "head_dim": geometry.head_dim,
            "window_left": call.window_left,
            "kv_dtype": geometry.dtype,
            "assumed": list(geometry.assumed),
            "notes": list(call.notes),
        },
        "values": result.values_from,
        "scale": result.scale,
        "pages_materialised": result.pages,
        "unknown_intentions": result.unknown_intentions,
        "rows": [_row(damage) for damage in result.damages],
        REFERENCE: {name: asdict(difference) for name, difference in result.reference.items()},
        "backends": [_backend(outcome) for outcome in result.backends],
        "shrunk": None if shrunk is None else shrunk_document(shrunk),
        "damaged": damaged_document([dump]),
    }


def shrunk_document(shrunk: Shrunk) -> dict[str, Any]:
    sizes = ("rows", "columns", "keys")
    return {
        "from": shrunk.dump.manifest.scalars["shrunk_from"],
        "path": str(shrunk.dump.path),
        "fails_by": shrunk.kind.word,
        "before": dict(zip(sizes, shrunk.before, strict=True)) | {"tensor_bytes": shrunk.bytes_before},
        "after": dict(zip(sizes, shrunk.after, strict=True)) | {"tensor_bytes": shrunk.bytes_after},
        "rows": list(shrunk.rows),
        "columns": list(shrunk.columns),
        "calls_tried": shrunk.tried,
    }


def _row(damage: RowDamage) -> dict[str, Any]:
    column, entry, kind = damage.first
    return {
        "row": damage.row,
        "request_slot": damage.request_slot if damage.request_slot >= 0 else None,
        "keys": damage.keys,
        "columns_read": list(damage.columns),
        "reads_outside": damage.outside,
        "bad_reads": {kind.word: count for kind, count in damage.counts.items()},
        "hidden_by_the_window": damage.hidden,
        "first": {"column": column, "entry": entry, "kind": kind.word},
    }


def _backend(outcome: BackendOutcome) -> dict[str, Any]:
    return asdict(outcome) | {
        "wrong": outcome.wrong,
        "variants": [asdict(variant) | {"wrong": variant.wrong} for variant in outcome.variants],
    }
