"""Fuzz everything that reads a dump: `python tests/fuzz/run.py --inputs 100000`.

Starts from the dumps of `seeds.py`. Every input is read whole; every fifth is also diagnosed and goes through one verb
of the command line. Prints how many inputs ended how, and exits 1 at the first exception that is not a DumpError, exit
code that is not allowed, or cause that is certain although its evidence was changed, with the input kept in --keep.
"""

import argparse
import os
import random
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutations import mutate
from seeds import corpus
from target import COMMANDS, hold_against_certainty, lay_out, read_all, run_command

ADDRESS_SPACE_BYTES = 4 * 1024**3


def fuzz(
    inputs: int, seed: int, keep: Path, command_every: int = 5, commands: Sequence[tuple[str, ...]] = COMMANDS
) -> Counter[str]:
    """Count the outcomes. Raises what an input brought about, after it has been kept."""
    outcomes: Counter[str] = Counter()
    seeds = corpus()
    # In memory where there is such a folder: a disk would be most of the time.
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for number in range(inputs):
            random_ = random.Random(f"{seed}:{number}")
            kind, files = mutate(random_.choice(seeds), seeds, random_)
            path = lay_out(Path(folder), files)
            try:
                outcomes[f"{kind}: {read_all(path)}"] += 1
                if number % command_every == 0:
                    outcomes[hold_against_certainty(path, seeds)] += 1
                    outcomes[run_command(path, random_.choice(commands))] += 1
            except Exception as error:
                error.add_note(f"input {number} of seed {seed}, kept in {lay_out(keep, files)}")
                raise
    return outcomes


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--only", metavar="VERB", help="every input, through the commands that begin with this one")
    chosen = options.parse_args()
    commands = [command for command in COMMANDS if chosen.only in (None, command[0])]
    if not commands:
        options.error(f"no command begins with {chosen.only}")
    # What NumPy warns of would stand on a user's stderr.
    warnings.simplefilter("error", RuntimeWarning)
    # Whatever asks for more than any dump should becomes a MemoryError, which is no DumpError.
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    begin = time.monotonic()
    outcomes = fuzz(chosen.inputs, chosen.seed, chosen.keep, 5 if chosen.only is None else 1, commands)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:>8}  {outcome}")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{chosen.inputs} inputs in {time.monotonic() - begin:.0f} s, peak {peak_mb:.0f} MB, nothing but DumpErrors,")
    print("and no cause is certain whose evidence was changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
