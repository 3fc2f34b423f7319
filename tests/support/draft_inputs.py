"""`before` of a child: what the MTP assistant is given to draft from, on record.

One line of JSON per row of a draft's first forward, in the file that DRAFT_INPUTS names: {rid, position: of the token
in its request, token, hidden: [backbone width]}. A position that a request drafts from again is left out.
"""

import functools
import json
import os
from pathlib import Path
from typing import Any

FILE = "DRAFT_INPUTS"


def record() -> None:
    from sglang.srt.models.gemma4_mtp import Gemma4AssistantForCausalLM

    original = Gemma4AssistantForCausalLM.forward
    seen: set[tuple[str, int]] = set()

    @functools.wraps(original)
    def forward(model: Any, input_ids: Any, positions: Any, forward_batch: Any, *more: Any, **named: Any) -> Any:
        rows = zip(
            forward_batch.rids,
            positions.tolist(),
            input_ids.tolist(),
            forward_batch.spec_info.hidden_states.tolist(),
            strict=True,
        )
        with Path(os.environ[FILE]).open("a") as file:
            for rid, position, token, hidden in rows:
                if (rid, position) not in seen:
                    seen.add((rid, position))
                    file.write(json.dumps({"rid": rid, "position": position, "token": token, "hidden": hidden}) + "\n")
        return original(model, input_ids, positions, forward_batch, *more, **named)

    Gemma4AssistantForCausalLM.forward = forward


def read(path: Path) -> dict[tuple[str, int], tuple[int, list[float]]]:
    """(request, position) -> (token, hidden state)."""
    lines = map(json.loads, path.read_text().splitlines())
    return {(one["rid"], one["position"]): (one["token"], one["hidden"]) for one in lines}
