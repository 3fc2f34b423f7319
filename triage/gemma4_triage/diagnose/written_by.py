"""Which functions of SGLang's write a structure: where to look for what wrote it wrongly. Read in 0.5.13 and 0.5.23."""

from __future__ import annotations

from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose.accounts_of_a_batch import LOOK

WRITTEN_BY: dict[Structure, tuple[str, ...]] = {
    Structure.REQUEST_ROW: (
        *("alloc_for_extend", "alloc_for_decode", "write_cache_indices", "init_next_round_input"),
        "assign_req_to_token_pool_func",
    ),
    Structure.FULL_TABLE: ("init_forward_metadata",),
    Structure.SWA_TABLE: ("init_forward_metadata", "translate_loc_from_full_to_swa"),
    Structure.WRITE_LOCATIONS: (
        *("alloc_for_extend", "alloc_for_decode", "translate_loc_from_full_to_swa"),
        *("prepare_for_verify", "KVIndexTranslator.write_ids"),
    ),
    Structure.KERNEL_LENGTHS: ("init_forward_metadata", "_init_frozen_kv_metadata"),
    Structure.BATCH_LENGTHS: ("prepare_for_decode", "filter_batch", "merge_batch", "resolve_forward_inputs"),
    Structure.POSITIONS: ("ForwardBatch.init_new", "compute_position", "set_frozen_kv_positions"),
    Structure.ROW_INDICES: ("prepare_for_extend", "filter_batch", "merge_batch"),
    Structure.TREE_NODE: ("insert", "evict", "_split_node"),
    Structure.TREE_LOCK: ("inc_lock_ref", "dec_lock_ref", "_split_node", "_is_device_leaf"),
    Structure.REQUEST_COUNTERS: (
        *("prepare_for_decode", "alloc_for_decode", "process_batch_result_decode", "release_kv_cache"),
    ),
}
"""Of each structure that is held against its request; the names of a class' methods where several have one."""

_READ_AGAIN = (
    "Look at what sets where a chunk begins: init_next_round_input, which is called without the prefix cache between "
    "two chunks, add_chunked_req, stash_chunked_request, and what the cache leaves at the request as it takes a chunk."
)


def where_to_look(structure: Structure | None, why: object = None) -> str:
    """Return which functions to look at, as advice; `why` the entry is wrong, by its dump."""
    if why == "again":
        return _READ_AGAIN
    if why in LOOK:
        return LOOK[str(why)]
    names = WRITTEN_BY.get(structure, ()) if structure is not None else ()
    if not names:
        return "What writes this structure in the step of the dump, or in the one before it, is at fault."
    return (
        "What wrote it in the step of the dump, or in the one before it, is at fault. In SGLang these do: "
        f"{', '.join(names)}."
    )
