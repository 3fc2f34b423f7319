"""A token id that no vocabulary has reached the detokenizer."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings

_WORDINGS = (
    Wording(
        re.compile(
            r"out of range integral type conversion attempted|piece id is out of range|"
            r"can't convert negative int to unsigned|"
            r"token id .{0,40}(?:out of|outside).{0,20}(?:vocab|range)"
        ),
        "A token id outside the vocabulary reached the detokenizer: sampling or a draft gave what is no token.",
        "once with --enable-nan-detection: NaN logits are the usual source",
    ),
)

RULE = of_wordings(
    "token-outside-vocabulary",
    "a token id that no vocabulary has",
    _WORDINGS,
    Confidence.LIKELY,
    settings=("speculative_algorithm", "quantization", "disable_overlap_schedule"),
    ruled_out_if=("a client sent token ids of its own (input_ids, skip_tokenizer_init)",),
    next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    advice=("once without drafts, once with --disable-overlap-schedule: a value that is read before it is written",),
)
