"""How many tokens a verification has to bring before drafts pay, by the rows of a bench: the tables of `draft-policy`.

    python -m gemma4_repro.serving_bench.needed docs/bench/FILE.json

prints them, model by model, as the policy has them and as GEMMA4_TRIAGE_DRAFTS takes them. Imports no torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

_WITH = "default-v2"
# The second is of rows from before the load mtp-batches.
_WITHOUT = ("default-no-mtp", "no-mtp-lists")
# The first is of rows from before the load mtp-batches had longer answers.
_SIZES = ("x 200/128", "x 200/256")
# What a server that drafts falls back to is its own step without drafts, if the rows have it: its answers then came a
# token at a time, but for probes.
_POLICY, _NO_DRAFTS = "default-policy", 1.1


def needed_rows(document: dict[str, Any], model: str) -> tuple[tuple[int, float], ...]:
    """Return (requests, tokens): what a step with drafts takes over one without, by times per output token.

    A step with drafts takes the time per token times the tokens that a verification brought.

    Args:
        document: Of `bench serving mtp-batches`, or of `mtp`.
        model: One of the document's.

    Raises:
        LookupError: no rows of a server with drafts, or of one without.
    """
    rows = {(row["shape"], row["arm"]): row for row in document["rows"] if row["model"] == model}
    without = next((arm for arm in _WITHOUT if arm in document["arms"]), None)
    if without is None or _WITH not in document["arms"]:
        raise LookupError(f"its arms lack {_WITH}, or both {' and '.join(_WITHOUT)}")
    found = []
    for shape in document["shapes"]:
        if not shape["id"].endswith(_SIZES):
            continue
        drafts, plain = rows[shape["id"], _WITH], rows[shape["id"], without]
        step, other = drafts["tpot_ms"]["median"] * drafts["accepted"], plain["tpot_ms"]["median"]
        policy = rows.get((shape["id"], _POLICY))
        if policy is not None and policy["accepted"] < _NO_DRAFTS:
            other = policy["tpot_ms"]["median"] * policy["accepted"]
        found.append((shape["requests"], round(step / other, 2)))
    return tuple(sorted(found))


def main(words: list[str]) -> None:
    """Print the table of each model of these documents; a file of something else ends it with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", type=Path, nargs="+", help="of `gemma4-triage bench serving mtp-batches --output`")
    for path in parser.parse_args(words).rows:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            tables = {model: needed_rows(document, model) for model in document["models"]}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            parser.error(f"{path} holds no rows of the load mtp-batches: {error}")
        for model, rows in tables.items():
            print(f"{model}: {','.join(f'{size}:{needed:g}' for size, needed in rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])
