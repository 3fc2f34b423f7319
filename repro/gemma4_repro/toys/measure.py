"""Measures the toys and writes `measured.json` and the model card beside each checkpoint.

`python -m gemma4_repro.toys.measure [--toys repro/toys] [--only e4b|26b|26b-assistant]`
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gemma4_repro.toys import card, measure_drafts, measure_experts, measure_target
from gemma4_repro.toys.locate import ASSISTANT_NAME, EXPERTS_ASSISTANT_NAME, EXPERTS_NAME, TARGET_NAME


def of_pair(toys: Path) -> dict:
    """Return every number of the E4B cards."""
    return _of_pair(toys / TARGET_NAME, toys / ASSISTANT_NAME)


def of_experts_pair(toys: Path) -> dict:
    """Return every number of the 26B assistant's card."""
    return _of_pair(toys / EXPERTS_NAME, toys / EXPERTS_ASSISTANT_NAME)


def _of_pair(target: Path, assistant: Path) -> dict:
    pair = measure_drafts.load_pair(target, assistant)
    speech = measure_target.speak(pair.target)
    return measure_target.measure(pair.target, speech) | measure_drafts.measure(pair, speech)


def of_experts(toys: Path) -> dict:
    """Return every number of the 26B card."""
    target = measure_target.load_target(toys / EXPERTS_NAME)
    speech = measure_target.speak(target)
    return measure_target.measure(target, speech) | measure_experts.measure(target)


KINDS: dict[str, tuple[tuple[str, ...], Callable[[Path], dict]]] = {
    "e4b": ((TARGET_NAME, ASSISTANT_NAME), of_pair),
    "26b": ((EXPERTS_NAME,), of_experts),
    "26b-assistant": ((EXPERTS_ASSISTANT_NAME,), of_experts_pair),
}
"""By model: the toys' names, and what measures them."""


def write(toys: Path, kind: str) -> dict:
    """Measure one model of KINDS in `toys`; write `measured.json` and `README.md` into its folders."""
    started = time.monotonic()
    names, measured = KINDS[kind]
    numbers = _rounded(measured(toys))
    print(f"Measured in {time.monotonic() - started:.0f} s")
    for name in names:
        (toys / name / "measured.json").write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
        card.write(toys / name)
    return numbers


def _rounded(numbers: dict) -> dict:
    return {
        key: _rounded(value) if isinstance(value, dict) else round(value, 4) if isinstance(value, float) else value
        for key, value in numbers.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--toys", type=Path, default=Path("repro/toys"), help="the folder that holds the toys")
    parser.add_argument("--only", choices=KINDS, help="measure this model alone")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for kind in [args.only] if args.only else KINDS:
        print(json.dumps(write(args.toys, kind), indent=2))


if __name__ == "__main__":
    main()
