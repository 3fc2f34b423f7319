"""Records traces of decode steps under CUDA graphs: `python -m gemma4_repro.bench.record_trace --size e4b --out PATH`.

Starts SGLang's server as the bench does (dummy weights, see checkpoint.py), sends one burst, has SGLang profile some of
its decode steps, and writes what `gemma4-triage profile` needs of the trace. Several arms, each with a PATH, have their
servers up at once and are profiled in turn. Needs CUDA. Exits 0 if every PATH is written, 2 for arguments, 3 if this
machine cannot do it.

SGLang counts: /start_profile with num_steps begins at once, and ends by itself when that many batches later the next
one begins. It writes `<profile id>-TP-0.trace.json.gz` to output_dir before that batch, so the file is whole when the
burst is answered.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gemma4_repro.bench.arms import ARMS, REFERENCE, BenchArm
from gemma4_repro.bench.burst import prompts
from gemma4_repro.bench.checkpoint import SIZES, geometry, make_pair
from gemma4_repro.bench.cores import split_cores
from gemma4_repro.bench.fleet import Fleet
from gemma4_repro.bench.plan import CUDA_SIZES
from gemma4_repro.bench.server import BenchServer, ServerLost
from gemma4_repro.bench.server_arguments import STEPS_PER_WINDOW, cuda_arguments
from gemma4_repro.bench.trim_trace import NotATrace, trim, write_trace
from gemma4_repro.errors import EnvironmentLacks, ReproError, UnknownName
from gemma4_repro.parity.side import attached

SAMPLE_BYTES = 200_000
"""A sample in the repository should be no larger; --steps makes it smaller."""

_START_LIMIT_S = 400
_WARM_LIMIT_S = 200
_BURST_LIMIT_S = 120
_POLL_S = 0.005
ATTENTION = {
    # As the probes' bench: XQA decodes and drafts, Triton prefills and verifies.
    "hybrid": {},
    # As the serving bench.
    "triton": {
        "prefill_attention_backend": None,
        "decode_attention_backend": None,
        "speculative_draft_attention_backend": None,
        "attention_backend": "triton",
    },
}
# Decode steps before the profile begins, in SGLang's log lines, and after it has ended at least.
_WINDOWS_BEFORE = 2
_STEPS_AFTER = 200


def main(words: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    options = _parse(words)
    try:
        record(options)
    except ReproError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


def record(options: argparse.Namespace) -> None:
    """Raises EnvironmentLacks with what went wrong and the log's end."""
    arms = [_arm(id) for id in options.arm]
    with tempfile.TemporaryDirectory(prefix="gemma4-trace-") as scratch:
        folder = Path(scratch)
        try:
            pair = make_pair(folder / "models", SIZES[options.size])
            arguments = cuda_arguments(pair, options.mtp, (options.batch,)) | ATTENTION[options.attention]
            names = ", ".join(options.arm)
            _tell(f"starting SGLang: size {options.size}, {names}, MTP {'on' if options.mtp else 'off'}")
            with Fleet(tuple(arms), 1, folder / "servers", arguments, False, split_cores()[1]) as fleet:
                _wait_until_ready(fleet)
                for arm, out in zip(arms, options.out, strict=True):
                    trace = _profile(fleet.servers[arm.id], folder / "traces" / arm.id, options)
                    _write(trim(_load(trace), _recorded(options, arm)), out, options.steps)
        except FileNotFoundError as error:
            raise EnvironmentLacks(f"a file is not there: {error}") from error
        except (ServerLost, NotATrace, OSError) as error:
            raise EnvironmentLacks(str(error)) from error


def _write(document: dict[str, Any], out: Path, steps: int) -> None:
    size = write_trace(document, out)
    _tell(f"wrote {out}: {len(document['traceEvents'])} events, {size} bytes")
    if size > SAMPLE_BYTES:
        _tell(f"that is more than the {SAMPLE_BYTES} bytes of a sample; --steps {max(1, steps - 2)} gives less")


def _profile(server: BenchServer, output: Path, options: argparse.Namespace) -> Path:
    """Return the trace that SGLang wrote."""
    output.mkdir(parents=True)
    _tell(f"{server.name}: warming up")
    _burst(server, options.batch, 64, _WARM_LIMIT_S)
    # One more for the step whose end is the beginning of none, and the batch at which SGLang stops runs unseen.
    batches = options.steps + 2
    new_tokens = (
        4 * (_WINDOWS_BEFORE * STEPS_PER_WINDOW + batches + _STEPS_AFTER)
        if options.mtp
        else (_WINDOWS_BEFORE * STEPS_PER_WINDOW + batches + _STEPS_AFTER)
    )
    with ThreadPoolExecutor(1) as pool:
        windows = _decode_lines(server, options.batch)
        answer = pool.submit(_burst, server, options.batch, new_tokens, _BURST_LIMIT_S)
        _wait_for_decode(server, options.batch, windows + _WINDOWS_BEFORE, answer)
        _tell(f"profiling {batches} batches in mid-decode")
        body = {
            "output_dir": str(output),
            "num_steps": batches,
            "activities": ["CPU", "GPU"],
            "with_stack": False,
            "record_shapes": False,
        }
        said = server.ask("/start_profile", body, timeout_s=_BURST_LIMIT_S)
        _tell(f"SGLang says: {str(said).strip()}")
        answer.result()
    found = sorted(output.glob("*.trace.json.gz"))
    if len(found) != 1:
        raise server.lost(f"left {len(found)} traces where one was expected: the burst may have ended too soon")
    _tell(f"{found[0].name}: {found[0].stat().st_size} bytes")
    return found[0]


def _burst(server: BenchServer, batch: int, new_tokens: int, limit_s: float) -> None:
    body = {
        "input_ids": prompts(batch, CUDA_SIZES["prompt_tokens"], seed=batch),
        "sampling_params": {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True},
    }
    server.ask("/flush_cache?timeout=5", {})
    answers = server.ask("/generate", body, timeout_s=limit_s)
    if not isinstance(answers, list) or len(answers) != batch:
        raise server.lost(f"answered {str(answers)[:200]}")


def _wait_for_decode(server: BenchServer, batch: int, lines: int, answer: Future[None]) -> None:
    """Wait for so many log lines of decode steps with every request running."""
    while _decode_lines(server, batch) < lines:
        if answer.done():
            answer.result()
            raise server.lost(f"answered before it had logged {_WINDOWS_BEFORE} windows of decode steps")
        time.sleep(_POLL_S)


def _decode_lines(server: BenchServer, batch: int) -> int:
    text = server.log_path.read_text(encoding="utf-8", errors="replace")
    return len(re.findall(rf"Decode batch\b.*#running-req: {batch}\b", text))


def _wait_until_ready(fleet: Fleet) -> None:
    fleet.wait_until_ready(time.monotonic() + _START_LIMIT_S, lambda name: _tell(f"{name} is up"))
    if fleet.lost:
        raise EnvironmentLacks("; ".join(fleet.lost.values()))


def _load(path: Path) -> Any:
    try:
        return json.loads(gzip.decompress(path.read_bytes()))
    except (EOFError, zlib.error, ValueError) as error:
        raise NotATrace(f"{path.name}, which SGLang wrote, cannot be read: {error}") from error


def _arm(id: str) -> BenchArm:
    if id == REFERENCE:
        return next(arm for arm in ARMS if arm.id == REFERENCE)
    return BenchArm(id, f"plugin loaded, patches {id}", {"GEMMA4_TRIAGE_PATCHES": id})


def _recorded(options: argparse.Namespace, arm: BenchArm) -> dict[str, Any]:
    return {
        "size": options.size,
        "model": geometry(SIZES[options.size]),
        "batch": options.batch,
        "mtp": options.mtp,
        "attention": options.attention,
        "environment": dict(arm.environment),
        "versions": {name: _version(name) for name in ("gemma4-triage", "sglang", "torch", "triton")},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gemma4_repro.bench.record_trace", description="Record a trace of decode steps on a GPU."
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="e4b", help="the dummy model (default: e4b)")
    parser.add_argument(
        "--arm",
        action="append",
        metavar="none|PATCHES",
        help="none: SGLang as shipped, the plugin is not loaded (default); else GEMMA4_TRIAGE_PATCHES, such as default;"
        " more than once for several, each with its --out",
    )
    parser.add_argument("--attention", choices=sorted(ATTENTION), default="hybrid", help="hybrid: XQA (default)")
    parser.add_argument("--batch", type=_positive, default=8, help="requests that decode together (default: 8)")
    parser.add_argument("--steps", type=_positive, default=5, help="whole decode steps in the trace (default: 5)")
    parser.add_argument("--mtp", action="store_true", help="with the assistant's drafts")
    parser.add_argument(
        "--out", type=Path, action="append", required=True, help="the trace to write, .json.gz; one of each --arm"
    )
    parser.add_argument("--force", action="store_true", help="overwrite it")
    options = parser.parse_args(words)
    options.arm = options.arm or [REFERENCE]
    if not all(id.strip() for id in options.arm):
        parser.error("--arm is empty; none is SGLang as shipped")
    for id in options.arm:
        try:
            attached("" if id == REFERENCE else id)
        except UnknownName as error:
            parser.error(f"--arm {id}: {error}")
    paths = {out.absolute() for out in options.out}
    if not len(set(options.arm)) == len(options.arm) == len(options.out) == len(paths):
        parser.error(
            f"{len(options.arm)} --arm and {len(options.out)} --out: each arm once, each with a path of its own"
        )
    for out in options.out:
        if out.suffixes[-2:] != [".json", ".gz"]:
            parser.error(f"--out is {out}; its name has to end in .json.gz")
        if not out.absolute().parent.is_dir():
            parser.error(f"--out is {out}, and its folder does not exist")
        if out.is_dir():
            parser.error(f"--out is {out}, a folder")
        if out.exists() and not options.force:
            parser.error(f"{out} exists; --force overwrites it")
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
