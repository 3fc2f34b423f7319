"""Dumps and stores larger than any probe writes, made cheaply: a sparse file, hard links."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from dump_examples import put_manifest, seed_bug_draft
from gemma4_dumps.writer import write_dump

MAX_LINKS = 30_000


def sparse_dump(root: Path, cache_bytes: int, hashed: bool = False) -> Path:
    """Write the seed bug with a KV cache of zeros behind its page table; the file takes no room on disk.

    Args:
        root: the store.
        cache_bytes: how large the KV cache is.
        hashed: whether the manifest has the SHA-256 of such a file, else a wrong one.
    """
    path = write_dump(root, seed_bug_draft()).path
    assert path is not None
    tensors = path / "tensors.safetensors"
    (length,) = struct.unpack("<Q", tensors.read_bytes()[:8])
    values = tensors.read_bytes()[8 + length :]
    header = json.loads(tensors.read_bytes()[8 : 8 + length])
    end = len(values) + cache_bytes
    header["kv"] = {"dtype": "U8", "shape": [cache_bytes], "data_offsets": [len(values), end]}
    encoded = json.dumps(header).encode()
    with open(tensors, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded + values)
        file.truncate(8 + len(encoded) + end)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["tensors"]["kv"] = {"shape": [cache_bytes], "dtype": "uint8", "stride": [1]}
    record = manifest["files"]["tensors.safetensors"]
    record["size_bytes"] = tensors.stat().st_size
    if hashed:
        with open(tensors, "rb") as file:
            record["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    put_manifest(path, manifest)
    return path


def crowd(root: Path, count: int) -> None:
    """Write `count` whole dumps, a second apart, all the same event again."""
    original = write_dump(root.parent / "original", seed_bug_draft()).path
    assert original is not None
    root.mkdir()
    names = [path.name for path in original.iterdir()]
    linked, oldest = original, datetime.now(UTC) - timedelta(seconds=count)
    for number in range(count):
        time = oldest + timedelta(seconds=number)
        path = root / f"{time:%Y%m%dT%H%M%S.%fZ}_vm_r0_p1_page-table-bounds_{number:04d}"
        path.mkdir()
        for name in names:
            if number % MAX_LINKS:
                os.link(linked / name, path / name)
            else:
                (path / name).write_bytes((original / name).read_bytes())
        linked = linked if number % MAX_LINKS else path


class Measured(NamedTuple):
    """One run of the command line in a process of its own, whose resident memory was `peak_mb` at most."""

    code: int
    out: str
    err: str
    wall_s: float
    cpu_s: float
    peak_mb: float


_MEASURE = """
import re, resource, sys, time
begin = time.perf_counter()
from gemma4_triage.cli.app import main
code = main(sys.argv[1:])
sys.stdout.flush()
wall_s, used = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss: that one counts the parent before exec too.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
print(f"\\nmeasured {code} {wall_s} {used.ru_utime + used.ru_stime} {peak / 1024}", file=sys.stderr)
"""


def measured_cli(*words: object) -> Measured:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *map(str, words)], capture_output=True, text=True, check=True, timeout=600
    )
    err, _, numbers = done.stderr.rpartition("\nmeasured ")
    code, wall_s, cpu_s, peak_mb = numbers.split()
    return Measured(int(code), done.stdout, err, float(wall_s), float(cpu_s), float(peak_mb))
