"""Makes tests/data/contained_dumps with the live engine on this CPU.

Usage: PYTHONPATH=tests/support python tests/tools/make_contained_dumps.py RUN CASE

RUN/CASE/dumps gets what a server writes that is set up as in production: `contain` leaves out the probe that waits for
the device and would see the fault's own call, and its consequences are seen. All cases in RUN are trimmed then. Takes
about a minute each.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from engine_child import generate
from engine_process import HOST
from gemma4_repro.toys.language import held_out_prompts
from toy_arguments import ENGINE, MTP
from trim_corpus_dumps import trim

TO = Path(__file__).parents[1] / "data" / "contained_dumps"
SETTINGS = {
    "GEMMA4_TRIAGE_PATCHES": "default",
    "GEMMA4_TRIAGE_FAULTS": "free-of-page-zero",
    "SGLANG_TRTLLM_MHA_DEBUG": "contain",
    "GEMMA4_TRIAGE_LEAK": "dump",
}
NEW_TOKENS = 40
IDLE_S = 1.5


@dataclass(frozen=True)
class Load:
    """What is served. Between two rounds the server is idle, and audited.

    Attributes:
        rounds: the lengths of the prompts that are sent at once.
        every: steps between two audits while it is busy, 0 for none.
    """

    rounds: tuple[tuple[int, ...], ...]
    every: int = 0


LOADS = {
    "one-after-the-other": Load(((60,), (60, 40))),
    "at-once": Load(((60, 40, 33), (60, 40, 17), (50, 20, 60)), every=4),
}


def serve(load: Load) -> None:
    """Have one engine serve one round after the other. Requests of the later ones are ended by containment."""
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**ENGINE, **MTP)
    prompts = iter(held_out_prompts(sum(map(len, load.rounds)), 60, 5))
    for lengths in load.rounds:
        generate(engine, [next(prompts)[:n] for n in lengths], NEW_TOKENS, each_alone=True)
        time.sleep(IDLE_S)
    engine.shutdown()


def main(run: Path, case: str) -> None:
    load = LOADS[case]
    every = {"GEMMA4_TRIAGE_LEAK_EVERY": str(load.every)} if load.every else {}
    os.environ |= HOST | SETTINGS | every | {"SGLANG_TRTLLM_MHA_DEBUG_DIR": str(run / case / "dumps")}
    serve(load)
    trim(run, TO)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
