"""Fix `spec-v2-hidden-rows`: under spec v2 a request gets the hidden states of its own tokens.

SGLang appends row i for request i. The rows are those of the verification, several per request, so from the second
request on they are another's, and only one row per step is returned. Without speculation there is one row per token.
"""

from __future__ import annotations

from typing import Any


def append_rows(request: Any, batch: Any, result: Any, place: int, tokens: Any) -> None:
    """Called where SGLang appends. place: of the request in the batch; tokens: what the step brought it."""
    states = result.logits_output.hidden_states
    if not batch.is_spec_v2:
        request.hidden_states.append(states[place].cpu().clone().tolist())
        return
    first = place * result.speculative_num_draft_tokens
    ended = 0 if request.finished_len is None else max(len(request.output_ids) - request.finished_len, 0)
    kept = states[first : first + len(tokens) - ended]
    request.hidden_states.extend(kept.cpu().tolist())
