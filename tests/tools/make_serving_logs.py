"""Makes serving logs with the real server on this CPU: the sources of tests/data/logs.

Usage: PYTHONPATH=tests/support python tests/tools/make_serving_logs.py NAME FOLDER, where NAME is a key of LOADS.
It writes FOLDER/NAME.log and takes about a minute.
"""

import os
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from random import Random
from typing import Any

from engine_process import HOST
from gemma4_repro.toys.language import FIRST_WORD, VOCAB_SIZE, held_out_prompts
from server_process import flags, free_port, running_server
from toy_arguments import ENGINE, MTP

SERVER = ENGINE | {"decode_log_interval": 4, "random_seed": 1}
Prompts = list[list[int]]


@dataclass(frozen=True)
class Load:
    """rounds: sent one after the other; the prompts of one round at once, each continued for new_tokens tokens."""

    rounds: Callable[[], list[Prompts]]
    new_tokens: int
    arguments: dict[str, Any] = field(default_factory=dict)


def spoken(count: int, length: int, seed: int) -> Prompts:
    """Prompts of the language that the toys learnt: drafts are accepted."""
    return held_out_prompts(count, length, seed)


def noise(count: int, length: int, seed: int) -> Prompts:
    """Random words: what follows cannot be known, and drafts are rejected."""
    random = Random(seed)
    return [[random.randrange(FIRST_WORD, VOCAB_SIZE) for _ in range(length)] for _ in range(count)]


def conversations_then_strangers() -> list[Prompts]:
    """Six long prompts again and again, which the prefix cache holds; then prompts that it has never seen."""
    known = spoken(6, 120, 3)
    return [known] * 6 + [noise(6, 120, seed) for seed in range(6)]


LOADS = {
    "healthy": Load(lambda: [spoken(3, 100, seed) for seed in range(4)], 60, MTP),
    "accept-drop": Load(lambda: [spoken(4, 60, 1)] * 4 + [noise(4, 60, seed) for seed in range(4)], 100, MTP),
    "swa-starved": Load(lambda: [spoken(8, 101, 20)], 150, MTP),
    "full-starved": Load(lambda: [spoken(8, 101, 20)], 300, {"max_total_tokens": 1120, "swa_full_tokens_ratio": 1.0}),
    "prefix-loss": Load(conversations_then_strangers, 4, MTP),
}


def ask(url: str, prompt: list[int], new_tokens: int) -> None:
    sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": new_tokens}
    body = dumps({"input_ids": prompt, "sampling_params": sampling}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        answer.read()


def main(name: str, folder: str) -> None:
    load, port = LOADS[name], free_port()
    command = [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | HOST | {"GEMMA4_TRIAGE_PATCHES": "default"}
    log = Path(folder) / f"{name}.log"
    with running_server(command + flags(SERVER | load.arguments), port, environment, log):
        for prompts in load.rounds():
            with ThreadPoolExecutor(len(prompts)) as pool:
                list(pool.map(lambda prompt: ask(f"http://127.0.0.1:{port}", prompt, load.new_tokens), prompts))
    print(f"Wrote {log}")


if __name__ == "__main__":
    main(*sys.argv[1:])
