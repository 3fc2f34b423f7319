"""Hooks that several entries share: a hook that two patches name is registered once."""

from __future__ import annotations

from gemma4_runtime.patch import Hook, How

_AT = "gemma4_runtime.probes"

PATHS = Hook("scheduler.internal_state", How.AFTER, "gemma4_runtime.fusion.paths:after_internal_state")
OWN_LINES = (
    "SGLang's own lines run for that call. Which path was taken, and why, is counted in /server_info and doctor."
)
"""The fallback of what PATHS counts."""

FAULT_HOOKS: tuple[Hook, ...] = (
    Hook("server_args.last_check", How.AFTER, "gemma4_runtime.faults.needs:after_last_check"),
    Hook("scheduler.internal_state", How.AFTER, "gemma4_runtime.injections:after_internal_state"),
)
"""Of every fault: one that cannot act on the server is refused, and one that can is counted."""
REPORTING = (PATHS, *FAULT_HOOKS)
"""Hooks that tell of a patch and are not its work: that they were called says nothing of it."""

KNOWN_POOLS = Hook("server_args.last_check", How.BEFORE, f"{_AT}.geometry:refuse_unknown_pools", ("0.5.23",))
"""Of probes that follow slots: a start whose pools they do not know is refused."""

PAGE_HOOKS: tuple[Hook, ...] = (
    Hook("trtllm.init", How.AFTER, f"{_AT}.page_table:after_init"),
    Hook("trtllm.init_metadata", How.AFTER, f"{_AT}.page_table:after_metadata"),
    Hook("trtllm.init_graph_metadata", How.AFTER, f"{_AT}.page_table:after_graph_metadata"),
    Hook("trtllm.forward_decode", How.BEFORE, f"{_AT}.page_table:before_dispatch"),
    Hook("trtllm.forward_extend", How.BEFORE, f"{_AT}.page_table:before_dispatch"),
    Hook("attention.init_in_graph", How.BEFORE, f"{_AT}.page_table:before_in_graph"),
    Hook("triton.init", How.AFTER, f"{_AT}.page_table:after_init"),
    Hook("triton.init_metadata", How.AFTER, f"{_AT}.page_table_triton:after_metadata"),
    Hook("triton.init_graph_metadata", How.AFTER, f"{_AT}.page_table_triton:after_graph_metadata"),
    Hook("triton.forward_decode", How.BEFORE, f"{_AT}.page_table_triton:before_decode"),
    Hook("triton.forward_extend", How.BEFORE, f"{_AT}.page_table_triton:before_extend"),
    Hook("flashinfer.init", How.AFTER, f"{_AT}.page_table:after_init"),
    Hook("flashinfer.init_metadata", How.AFTER, f"{_AT}.page_table_flashinfer:after_plan"),
    Hook("flashinfer.init_graph_metadata", How.AFTER, f"{_AT}.page_table_flashinfer:after_graph_plan"),
    Hook("flashinfer.forward_decode", How.BEFORE, f"{_AT}.page_table_flashinfer:before_dispatch"),
    Hook("flashinfer.forward_extend", How.BEFORE, f"{_AT}.page_table_flashinfer:before_dispatch"),
    Hook("scheduler.run_batch", How.AROUND, f"{_AT}.page_table_steps:around_run_batch"),
    Hook("scheduler.process_result", How.AROUND, f"{_AT}.page_table_steps:around_process_batch_result"),
    Hook("req.update_finish_state", How.BEFORE, f"{_AT}.page_table_steps:before_update_finish_state"),
)
"""Where indices are checked before kernels follow them, of `page-table` and `clamp`."""
