"""`before` of a child: which bound trtllm_mha was given for lengths, beside the lengths, on record.

One line of JSON per metadata build, in the file that LENGTH_BOUNDS names: {bound, longest}.
"""

import json
import os
from pathlib import Path
from typing import Any

FILE = "LENGTH_BOUNDS"


def record() -> None:
    from gemma4_runtime.optimisations import mtp_v2_lengths

    original = mtp_v2_lengths.bounded

    def bounded(lengths: Any, bound: int) -> Any:
        with Path(os.environ[FILE]).open("a") as file:
            file.write(json.dumps({"bound": bound, "longest": int(lengths.max())}) + "\n")
        return original(lengths, bound)

    mtp_v2_lengths.bounded = bounded


def read(path: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
