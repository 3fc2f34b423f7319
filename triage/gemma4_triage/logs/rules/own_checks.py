"""SGLang's own checks: the KV canary, which hashes what slots hold, and the invariant checks of 0.5.17 and later.

Sources: srt/kv_canary/runner/violation_reporter.py; srt/utils/invariants.py and
managers/scheduler_components/invariant_checker.py of 0.5.23. Whether the server goes on is up to `--kv-canary`,
`SGLANG_INVARIANT_CHECK` and `SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE`.
"""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Wording, of_wordings

_CANARY = pattern(r"kv_canary violation: |KV cache canary violation detected")
_INVARIANT = pattern(r"invariant-check (?:FAILED )?\[")
_FREE_TWICE = pattern(r"\bKV double free: sub-pool")
_FREE_AND_HELD = pattern(r"\bKV page use-after-free: ")

RULE = of_wordings(
    "own-checks",
    "a check of SGLang's own failed",
    (
        Wording(
            _CANARY,
            "SGLang's KV canary found a slot that does not hold what was written for its token.",
            "The line names slot, position and what was expected: a page given twice or freed early reads so.",
        ),
        Wording(
            _INVARIANT,
            "SGLang's invariant check met a value outside of what it allows.",
            "The brackets name the check: write locations and draft tokens are held against the size of their pools.",
        ),
        Wording(
            _FREE_TWICE,
            "SGLang's check at idle found pages on a free list twice: two requests will be given the same page.",
            "The probe swa-allocator stops at the free that puts a page there twice.",
        ),
        Wording(
            _FREE_AND_HELD,
            "SGLang's check at idle found pages on the free list that a request or the prefix cache still holds.",
            "The probe swa-allocator stops at the free of a page that is still held; the leak audit names its holder.",
        ),
    ),
    Confidence.LIKELY,
    what="what SGLang's check said",
    ruled_out_if=("the check itself is wrong in this release: the probes trap nothing under the same load",),
    next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    alarms=("own-check",),
)
