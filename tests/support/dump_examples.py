"""Dumps that tests write, the seed bug, page tables and slot lists, and changes to the files of a written one."""

import dataclasses
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.manifest_file import MANIFEST_NAME, seal_of
from gemma4_dumps.reader import read_dump
from gemma4_dumps.schema import Layer, Offence, Provenance
from gemma4_dumps.store import DumpStore

SMALL = {"q_heads": 4, "kv_heads": 2, "head_dim": 8, "max_seq_len_q": 1, "window_left": -1}


def seed_bug_draft(**changes: Any) -> DumpDraft:
    """Page 70 of the full pool (161 pages) in a table that indexes the SWA pool's buffer (65 pages)."""
    table = (np.arange(80, dtype=np.int32) % 60).reshape(4, 20)
    table[2, 7] = 70
    draft = DumpDraft(
        rule="page-table-bounds",
        verdict="out_of_range",
        summary="1 page id is at or above 65.",
        mode="trap",
        action="trapped",
        site="TRTLLMHAAttnBackend.init_forward_metadata",
        layer=Layer(id=4, type="sliding"),
        pool_kind="swa",
        provenance=Provenance(table_space="full", buffer_space="swa", table_origin="req_to_token"),
        role="draft",
        backend="trtllm_mha",
        forward_mode="DECODE",
        step=88,
        page_size=64,
        extents={"pages_in_buffer": 65, "pages_full_pool": 161, "pages_swa_pool": 65},
        scalars={"window": 512},
        offences=[Offence(table="page_table", row=2, column=7, value=70, lower=0, upper=65, request_slot=9)],
        versions={"sglang": "0.5.13.post1"},
        guards={"attached": ["page-table-bounds"], "verified": True},
        launch_args=["--model-path", "toy", "--api-key", "hunter2"],
        tensors={"page_table": TensorPayload.from_array(table)},
        events=[{"event": "alloc", "step": 87}],
    )
    return dataclasses.replace(draft, **changes)


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


def flip(file: Path, at: int = -1) -> None:
    """Flip the lowest bit of a byte, the last one unless told."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def renew_hashes(folder: Path) -> None:
    """Write the sizes and SHA-256 of the dump's files into its manifest anew."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, record in manifest["files"].items():
        data = (folder / name).read_bytes()
        record |= {"sha256": sha256(data).hexdigest(), "size_bytes": len(data)}
    put_manifest(folder, manifest)


def put_manifest(folder: Path, fields: dict[str, Any]) -> None:
    """Write a dump's manifest.json with the SHA-256 that goes with these fields, as a writer would."""
    (folder / MANIFEST_NAME).write_text(json.dumps(fields | {"manifest_sha256": seal_of(fields)}))
