# pyright: reportAttributeAccessIssue=false
"""The fuzzer with coverage guidance, by Atheris.

It is installed by `uv pip install atheris`, and run by `python tests/fuzz/run_atheris.py -runs=100000`. Options are
libFuzzer's.

An input is four bytes of length, so many bytes of manifest.json, then tensors.safetensors.
"""

import random
import struct
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(include=["gemma4_dumps", "gemma4_triage.inspection"]):
    from target import COMMANDS, hold_against_certainty, lay_out, read_all, run_command

from mutations import EVENTS, MANIFEST, TENSORS, Files, mutate
from seeds import corpus

_FOLDER = tempfile.TemporaryDirectory()
_SEEDS = corpus()


def one_input(data: bytes) -> None:
    """Atheris' target."""
    path = lay_out(Path(_FOLDER.name), _files(data))
    read_all(path)
    if len(data) % 5 == 0:
        hold_against_certainty(path, _SEEDS)
        run_command(path, COMMANDS[len(data) // 5 % len(COMMANDS)])


def mutate_bytes(data: bytes, max_size: int, seed: int) -> bytes:
    """Return half of the mutations know the format; the other half is libFuzzer's."""
    random_ = random.Random(seed)
    if random_.random() < 0.5:
        return atheris.Mutate(data, max_size)
    return _bytes(mutate(_files(data), _SEEDS, random_)[1])[:max_size]


def _files(data: bytes) -> Files:
    (length,) = struct.unpack("<I", data[:4].ljust(4, b"\0"))
    length = min(length, len(data) - 4) if len(data) > 4 else 0
    return {MANIFEST: data[4 : 4 + length], TENSORS: data[4 + length :], EVENTS: b""}


def _bytes(files: Files) -> bytes:
    manifest = files.get(MANIFEST, b"")
    return struct.pack("<I", len(manifest)) + manifest + files.get(TENSORS, b"")


def main() -> None:
    seeds = Path(_FOLDER.name) / "corpus"
    seeds.mkdir()
    for number, files in enumerate(_SEEDS):
        (seeds / str(number)).write_bytes(_bytes(files))
    atheris.Setup([*sys.argv, "-max_len=20000", str(seeds)], one_input, custom_mutator=mutate_bytes)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
