"""SGLang's own checks: the KV canary, which hashes what slots hold, and the invariant checks of 0.5.17 and later.

Sources: srt/kv_canary/runner/violation_reporter.py; srt/utils/invariants.py of 0.5.23. Whether the server goes on is up
to `--kv-canary` and `SGLANG_INVARIANT_CHECK`.
"""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings

_CANARY = re.compile(r"kv_canary violation: |KV cache canary violation detected")
_INVARIANT = re.compile(r"invariant-check (?:FAILED )?\[")

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
    ),
    Confidence.LIKELY,
    what="what SGLang's check said",
    ruled_out_if=("the check itself is wrong in this release: the probes trap nothing under the same load",),
    next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    alarms=("own-check",),
)
