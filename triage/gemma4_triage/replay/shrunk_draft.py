"""A cut call as a dump: everything that the first dump says of the place, and only the entries that are left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.included import KEYS, KV, PAGE_IDS, VALUES
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence
from gemma4_dumps.wording import number_of
from gemma4_triage.inspection.offending_rows import TRANSLATED
from gemma4_triage.replay.call import UNKNOWN, AttentionCall
from gemma4_triage.replay.cut import Cut
from gemma4_triage.replay.damage import Kind, kinds
from gemma4_triage.replay.dumped_values import read_dumped_values
from gemma4_triage.replay.image import pages_of
from gemma4_triage.replay.rebuild import QUERY_COUNTS

SHRUNK_FROM = "shrunk_from"

_VERDICTS = {
    Kind.OUT_OF_RANGE: "out_of_range",
    Kind.NEGATIVE: "negative",
    Kind.MISSING: "table_too_narrow",
    Kind.NULL: "null_page_live",
    Kind.OTHER_PAGE: "wrong_space",
}
_KEPT = ("rule", "mode", "action", "site", "layer", "pool_kind", "provenance", "role", "backend", "forward_mode")
_KEPT += ("graph", "step", "page_size", "versions", "gpu", "launch_args", "guards", "repeat_command")


def shrunk_draft(dump: Dump, whole: AttentionCall, cut: Cut, kind: Kind, same_pages: bool) -> DumpDraft:
    """Return the draft of a smaller dump.

    `kind` is the worst that is read, by which the verdict goes; `same_pages` says that page ids are still those of
    `dump`, and so are the values that it may hold of them.

    Raises:
        DumpError: values cannot be read.
    """
    manifest, call = dump.manifest, cut.call
    tensors = _tensors(call)
    offences = _offences(call, tensors[call.table].shape)
    extent = "pages_in_buffer" if call.paged else "slots_in_buffer"
    rows, columns = (", ".join(map(str, numbers)) for numbers in (cut.rows, cut.columns))
    first = offences[0]
    return DumpDraft(
        **{name: getattr(manifest, name) for name in _KEPT},
        verdict=_VERDICTS[kind],
        summary=f"{first.value} in {first.table}[{first.row}, {first.column}], shrunk from {manifest.dump_id}: "
        f"{manifest.summary}",
        extents={**manifest.extents, extent: call.bound} | ({"table_columns": len(cut.columns)} if call.paged else {}),
        scalars={
            **manifest.scalars,
            SHRUNK_FROM: manifest.dump_id,
            "shrunk_from_verdict": manifest.verdict,
            "shrunk_from_size": ", ".join(
                (
                    number_of(whole.rows, "row"),
                    number_of(whole.ids.shape[1], "column"),
                    number_of(int(whole.key_counts.sum()), "key"),
                )
            ),
            "shrunk_rows": rows,
            "shrunk_columns": columns,
        },
        offences=offences,
        # It becomes part of a folder's name.
        rank=manifest.host.rank if 0 <= manifest.host.rank < 2**31 else 0,
        tensors={name: TensorPayload.from_array(array) for name, array in tensors.items()}
        | (_values(dump, call) if same_pages else {}),
    )


def _tensors(call: AttentionCall) -> dict[str, np.ndarray]:
    if call.paged:
        # Columns that the first dump did not have are not in this one either.
        there = call.ids[:, (call.ids != UNKNOWN).all(axis=0)]
        tensors = {call.table: _narrow(there), "cache_seqlens": _narrow(call.key_counts)}
        tensors[QUERY_COUNTS] = _narrow(call.query_counts)
    else:
        tensors = {
            call.table: _narrow(call.ids[call.live & (call.ids != UNKNOWN)]),
            f"{call.table}_indptr": _narrow(np.concatenate([[0], np.cumsum(call.key_counts)])),
        }
    if call.translated is not None:
        tensors[TRANSLATED] = _narrow(np.maximum(call.translated, -1))
    tensors["request_slots"] = call.request_slots
    return tensors


def _values(dump: Dump, call: AttentionCall) -> dict[str, TensorPayload]:
    """Return the values of the pages that are left, as they are stored."""
    dumped = read_dumped_values(dump, call)
    if dumped is None:
        return {}
    tables = [call.ids] if call.translated is None else [call.ids, call.translated]
    named = np.unique(np.concatenate([pages_of(call, table)[call.live] for table in tables]))
    kept = [page for page in named.tolist() if page in dumped.places]
    found = {PAGE_IDS: TensorPayload.from_array(np.array(kept, np.int64))}
    for name in (KEYS, VALUES):
        stored = dumped.stored(name, kept)
        found[name] = TensorPayload(data=stored, dtype=dump.manifest.tensors[name].dtype, shape=stored.shape)
    return {name: replace(tensor, cut_with=KV) for name, tensor in found.items()}


def _offences(call: AttentionCall, table_shape: tuple[int, ...]) -> list[Offence]:
    found = kinds(call)
    offences = []
    for row, column in np.argwhere(found != Kind.RIGHT).tolist():
        missing = found[row, column] == Kind.MISSING
        offences.append(
            Offence(
                table=call.table,
                row=row,
                # Of a row that is too long: how many columns there are, and how many it needs.
                column=table_shape[-1] if missing else column,
                value=column + 1 if missing else int(call.ids[row, column]),
                lower=0 if missing else 1,
                upper=table_shape[-1] + 1 if missing else call.bound,
                request_slot=int(slot) if (slot := call.request_slots[row]) >= 0 else None,
            )
        )
    return offences


def _narrow(array: np.ndarray) -> np.ndarray:
    """int32 where it fits, as SGLang has its tables."""
    limits = np.iinfo(np.int32)
    fits = not array.size or (array.min() >= limits.min and array.max() <= limits.max)
    return np.ascontiguousarray(array.astype(np.int32) if fits else array)
