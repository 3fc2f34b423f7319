"""Drafts that the dump tests write: the seed bug as it is seen by the page-table probe."""

import dataclasses
from typing import Any

import numpy as np

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.schema import Layer, Offence, Provenance


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
