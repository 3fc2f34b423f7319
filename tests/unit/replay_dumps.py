"""Dumps for the replay's tests: page tables and slot lists with what stands around them, written and read back."""

import dataclasses

import numpy as np
from dump_examples import seed_bug_draft

from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.reader import read_dump
from gemma4_dumps.schema import Offence, Provenance
from gemma4_dumps.store import DumpStore

SMALL = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "max_seq_len_q": 1, "window_left": -1}


def offence(row, column, value, table="page_table", bound=65):
    return Offence(table=table, row=row, column=column, value=value, lower=1, upper=bound, request_slot=row + 1)


def paged_draft(table, key_counts, *, bound=65, page_size=4, space="full", translated=None, scalars=None, **changes):
    """Return a page table of `space` ids on the SWA buffer if there is a translation, else on its own pool's."""
    table = np.asarray(table, np.int32)
    tensors = {"page_table": table, "cache_seqlens": np.asarray(key_counts, np.int32)}
    tensors["request_slots"] = np.arange(1, table.shape[0] + 1, dtype=np.int64)
    if translated is not None:
        tensors["translated_page_table"] = np.asarray(translated, np.int32)
    fields = {
        "page_size": page_size,
        "extents": {"pages_in_buffer": bound},
        "scalars": SMALL | (scalars or {}),
        "offences": [],
        "provenance": Provenance(table_space=space, buffer_space=space if translated is None else "swa"),
        "tensors": {name: TensorPayload.from_array(array) for name, array in tensors.items()},
    }
    origin = {"table_origin": "Backend.forward_metadata.page_table"}
    fields["provenance"] = fields["provenance"].model_copy(update=origin)
    return dataclasses.replace(seed_bug_draft(), **(fields | changes))


def list_draft(slots, indptr, *, bound=65 * 4, page_size=4, **changes):
    """Return a slot list of full ids on the full buffer."""
    tensors = {"kv_indices": np.asarray(slots, np.int64), "kv_indices_indptr": np.asarray(indptr, np.int32)}
    tensors["request_slots"] = np.arange(1, len(indptr), dtype=np.int64)
    fields = {
        "page_size": page_size,
        "backend": "triton",
        "extents": {"slots_in_buffer": bound},
        "scalars": dict(SMALL),
        "offences": [],
        "provenance": Provenance(
            table_space="full", buffer_space="full", table_origin="TritonAttnBackend.forward_metadata.kv_indices"
        ),
        "tensors": {name: TensorPayload.from_array(array) for name, array in tensors.items()},
    }
    return dataclasses.replace(seed_bug_draft(), **(fields | changes))


def written(root, draft):
    """Return the dump, read back from a store at `root`."""
    outcome = DumpStore(root).write(draft)
    assert outcome.path is not None, outcome
    return read_dump(outcome.path)
