"""Measures `gemma4-triage logs` or `diagnose --log` on a generated log: MB/s and peak memory of the reading process.

Usage: python tests/tools/measure_log_reading.py --megabytes 1000 [--diagnose]. Prints one JSON document. The
log goes through a pipe and never lies on a disk; it is made of batch lines, access lines and long request lines in the
ratio of a busy server, or with --batches of batch lines only.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from made_logs import decode, prefill, stamp

PERIOD_S = 20000  # of the server's clock, in one block


def block(batches_only: bool = False) -> tuple[bytes, int, int]:
    """About 35 MB of log, and how many of its lines are batch lines and others."""
    rows, batches = [], 0
    for second in range(PERIOD_S):
        rows += [prefill(second, new=700 + second % 90, cached=64), decode(second), decode(second, rank="DP1 TP0")]
        batches += 3
        if batches_only:
            continue
        rows += 4 * [f'{stamp(second)} INFO:     10.0.0.1:5123 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n']
        rows.append(f"{stamp(second)} Receive: obj=GenerateReqInput(text='{'word ' * 120}')\n")
    return "".join(rows).encode(), batches, len(rows) - batches


def read(command: list[str], text: bytes, repeats: int) -> tuple[dict, float]:
    """Return the document of a command that reads the text so many times on stdin, and the seconds that it took."""
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert reader.stdin is not None
    assert reader.stdout is not None
    begin = time.perf_counter()
    for _ in range(repeats):
        reader.stdin.write(text)
    reader.stdin.close()
    document = json.loads(reader.stdout.read())
    seconds = time.perf_counter() - begin
    reader.wait()
    return document, seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--diagnose", action="store_true", help="read it with diagnose --log, beside no dumps")
    parser.add_argument("--batches", action="store_true", help="a log of batch lines only")
    arguments = parser.parse_args()
    wanted = arguments.megabytes * 1_000_000
    text, batches, others = block(arguments.batches)
    repeats = -(-wanted // len(text))
    with tempfile.TemporaryDirectory() as empty:
        words = ["diagnose", "--dir", empty, "--log", "-"] if arguments.diagnose else ["logs", "-"]
        document, seconds = read([sys.executable, "-m", "gemma4_triage", *words, "--json"], text, repeats)
    (log,) = document["incidents"][0]["logs"] if arguments.diagnose else document["logs"]
    assert log["lines"] == repeats * (batches + others)
    assert log["understood_lines"] == repeats * batches
    megabytes = repeats * len(text) / 1e6
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = used.ru_utime + used.ru_stime
    print(
        json.dumps(
            {
                "megabytes": round(megabytes),
                "lines": log["lines"],
                "understood_lines": log["understood_lines"],
                "other_lines": repeats * others,
                "seconds": round(seconds, 2),
                "megabytes_per_s": round(megabytes / seconds, 1),
                "cpu_seconds": round(cpu_seconds, 2),
                "megabytes_per_cpu_s": round(megabytes / cpu_seconds, 1),
                "lines_per_s": round(log["lines"] / seconds),
                "peak_rss_mib": round(used.ru_maxrss / 1024, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
