"""What the fuzzers begin with: samples, small dumps and real ones.

These are the samples, as they are and with the SHA-256 of its own that a manifest has since schema 1.1, two small dumps
of what no sample holds (KV values, a slot list), and real dumps of each kind that `replay` takes beside attention.
"""

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from mutations import MANIFEST, Files

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.manifest_file import SEAL, seal_of
from gemma4_dumps.schema import SCHEMA_VERSION, Offence, Provenance
from gemma4_dumps.writer import write_dump

SAMPLES = Path(__file__).parents[2] / "dumps" / "samples"
CORPUS = Path(__file__).parents[1] / "data" / "corpus_dumps"
_KINDS = ("*_swa-*", "*_batch-shapes_*", "*_geometry_*")


def corpus() -> list[Files]:
    """Return the files of every seed."""
    with tempfile.TemporaryDirectory() as made:
        for draft in (_page_table_with_values(), _slot_list()):
            outcome = write_dump(made, draft)
            assert outcome.path is not None, outcome
        folders = [path for root in (SAMPLES, Path(made)) for path in sorted(root.iterdir()) if path.is_dir()]
        folders += [path for kind in _KINDS for path in sorted(CORPUS.glob(f"*/{kind}"))]
        found = [{file.name: file.read_bytes() for file in path.iterdir()} for path in folders]
    return found + [_with_seal(files) for files in found if SEAL not in json.loads(files[MANIFEST])]


def _with_seal(files: Files) -> Files:
    fields = json.loads(files[MANIFEST]) | {"schema_version": SCHEMA_VERSION}
    return files | {MANIFEST: json.dumps(fields | {SEAL: seal_of(fields)}).encode()}


def _page_table_with_values() -> DumpDraft:
    table = np.arange(1, 9, dtype=np.int32).reshape(2, 4)
    right = table + 1
    table[1, 2] = 20
    values = np.linspace(-2, 2, 10 * 4 * 2 * 8, dtype=np.float32).reshape(10, 4, 2, 8)
    tensors = {
        "page_table": table,
        "translated_page_table": right,
        "cache_seqlens": np.array([13, 16], np.int32),
        "request_slots": np.array([1, 2]),
        "kv_page_ids": np.arange(10),
        "key_pages": values,
        "value_pages": -values,
        "query": np.full((2, 4, 8), 0.5, np.float32),
        "token_ids": np.arange(30),
    }
    return _draft("page_table", "pages", 12, 20, tensors)


def _slot_list() -> DumpDraft:
    tensors = {
        "kv_indices": np.array([4, 5, 6, 7, 8, 99, 12], np.int64),
        "kv_indices_indptr": np.array([0, 3, 7], np.int32),
        "request_slots": np.array([1, 2]),
    }
    return _draft("kv_indices", "slots", 48, 99, tensors)


def _draft(table: str, unit: str, bound: int, value: int, tensors: dict[str, np.ndarray]) -> DumpDraft:
    return DumpDraft(
        rule="page-table-bounds",
        verdict="out_of_range",
        summary="a seed of the fuzzers",
        mode="trap",
        action="trapped",
        site="tests.fuzz",
        provenance=Provenance(table_space="full", buffer_space="full", table_origin=f"tests.fuzz.{table}"),
        page_size=4,
        extents={f"{unit}_in_buffer": bound},
        scalars={"q_heads": 4, "kv_heads": 2, "head_dim": 8, "window_left": 9, "max_seq_len_q": 1, "scaling": 1.0},
        offences=[Offence(table=table, row=1, column=2, value=value, lower=1, upper=bound)],
        tensors={name: TensorPayload.from_array(array) for name, array in tensors.items()},
        created_utc=datetime(2026, 1, 1, tzinfo=UTC),
    )
