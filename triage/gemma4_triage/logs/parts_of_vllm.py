"""Which part of vLLM an exception came out of, by its frames, and what to switch off once there."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gemma4_triage.logs.facts import Death
from gemma4_triage.logs.late_pattern import pattern

# Of the frames' files and functions; the innermost frame that fits counts, of one frame the first entry.
_PARTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        pattern(r"\w*cascade\w*\.py:| \w*cascade_attention\w*$"),
        "once with --disable-cascade-attn: prefixes that many requests share are then attended to as others are",
    ),
    (
        pattern(r"(?:\w+_mtp|mtp\w*|rejection_sampler|\w*eagle\w*|\w*spec_decode\w*|ngram_proposer|dflash)\.py:"),
        "once without drafts (--speculative-config); if it then does not happen, an earlier or a later release of "
        "vLLM, or such requests (penalties, allowed_token_ids, structured output) at a server without drafts",
    ),
    (
        pattern(
            r"\w*(?:offloading|kv_connector|lmcache)\w*\.py:| (?:update_state_after_alloc|get_num_new_matched_tokens|"
            r"build_connector_meta|request_finished_all_groups)$"
        ),
        "once without KV that is kept or sent elsewhere (--kv-offloading-size, --kv-transfer-config), then once with "
        "--no-enable-prefix-caching; a later release of vLLM",
    ),
    (
        pattern(r"backend_(?:xgrammar|guidance|outlines|lm_format_enforcer)\w*\.py:|structured_output\w*\.py:"),
        "once with another --structured-outputs-config.backend (auto, xgrammar, guidance; earlier "
        "--guided-decoding-backend): it is the backend of structured output, which does not take the form that a "
        "schema, a grammar or a forced or strict tool has here; requests without these are served; a later release of "
        "vLLM",
    ),
    (
        pattern(r" _?capture_(?:model|cudagraphs|\w+_graphs?)$"),
        "it captured CUDA graphs: smaller sizes (--max-num-seqs, --max-cudagraph-capture-size), then --enforce-eager; "
        "a later release of vLLM",
    ),
)
_SERVES = pattern(r".* (?:run_busy_loop|_process_engine_step|step_with_batch_queue|schedule|step|execute_model)$")


def look_in_vllm(frames: Iterable[str]) -> str:
    """Return what to try first for the innermost frame that is of a part known here; "" if none is."""
    for frame in reversed(tuple(frames)):
        for fits, look in _PARTS:
            if fits.search(frame):
                return look
    return ""


def served(death: Death) -> bool:
    """Say whether a process of vLLM had begun to take requests when it died."""
    return any(map(_SERVES.match, death.frames))
