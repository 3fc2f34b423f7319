"""`before` of a child: the logits that a request's next token is drawn from, on record.

One line of JSON per request and forward of the target, in the file that ROW_LOGITS names: {rid, length: of the request,
mode: the forward's, logits: [vocabulary]}.
"""

import functools
import json
import os
from pathlib import Path
from typing import Any

FILE = "ROW_LOGITS"


def record() -> None:
    from sglang.srt.model_executor.model_runner import ModelRunner

    original = ModelRunner.forward

    @functools.wraps(original)
    def forward(runner: Any, forward_batch: Any, *more: Any, **named: Any) -> Any:
        output = original(runner, forward_batch, *more, **named)
        rows = zip(
            forward_batch.rids or [],
            forward_batch.seq_lens.tolist(),
            output.logits_output.next_token_logits.tolist(),
            strict=True,
        )
        with Path(os.environ[FILE]).open("a") as file:
            for rid, length, logits in rows:
                row = {"rid": rid, "length": length, "mode": forward_batch.forward_mode.name, "logits": logits}
                file.write(json.dumps(row) + "\n")
        return output

    ModelRunner.forward = forward


def read(path: Path) -> dict[tuple[str, int], tuple[str, list[float]]]:
    """(request, its length) -> (mode, logits)."""
    lines = map(json.loads, path.read_text().splitlines())
    return {(one["rid"], one["length"]): (one["mode"], one["logits"]) for one in lines}
