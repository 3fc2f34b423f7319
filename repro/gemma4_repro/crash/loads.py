"""The published loads, and the command line of SGLang's own client for each.

Lengths and counts are the published ones. Where a publication names no count or no length, the record says what was
chosen instead. Prompts of the `random-ids` loads are sent as token ids, so their lengths are exact and nothing is
downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemma4_repro.errors import UnknownName

SUMMARISATION = "summarisation"


@dataclass(frozen=True)
class Size:
    """How much is asked for: tokens of each prompt and answer, how many requests, and how many of them at a time."""

    prompt_tokens: int
    answer_tokens: int
    requests: int
    at_a_time: int


@dataclass(frozen=True)
class Load:
    """One run of `python -m sglang.bench_serving`.

    Args:
        chosen: What no publication says and was chosen here, in words; empty if nothing.
        toy: The size for the CPU engine and a toy.
        chat: Requests go to the chat endpoint, as text.
        images: Images in each request, and `resolution`, their size in pixels.
    """

    id: str
    published: str
    chosen: str
    size: Size
    toy: Size
    chat: bool = False
    images: int = 0
    resolution: str = "480x480"

    def size_for(self, toy: bool, brief: bool) -> Size:
        """Return what to ask for. brief: each step takes seconds, so fewer and shorter answers will do."""
        if not toy or not brief:
            return self.toy if toy else self.size
        few = min(self.toy.requests, 4)
        return Size(self.toy.prompt_tokens, max(2, self.toy.answer_tokens // 16), few, min(self.toy.at_a_time, few))

    def client_words(self, model: str, port: int, size: Size, result: Path | str, toy: bool = False) -> list[str]:
        """Return the client's command line behind `python`. result: the JSONL file that it writes."""
        backend = "sglang-oai-chat" if self.chat else "sglang"
        words = ["-m", "sglang.bench_serving", "--backend", backend, "--base-url", f"http://127.0.0.1:{port}"]
        words += ["--model", model, "--dataset-name", "image" if self.images else "random-ids"]
        if self.images:
            # A toy's image is one soft token wide per 48 pixels; a small one keeps the prompt inside its pools.
            count, resolution = (1, "96x96") if toy else (self.images, self.resolution)
            words += ["--image-count", str(count), "--image-resolution", resolution]
        if not self.chat:
            words.append("--tokenize-prompt")
        options = {
            "--random-input-len": size.prompt_tokens,
            "--random-output-len": size.answer_tokens,
            "--random-range-ratio": "1.0",
            "--num-prompts": size.requests,
            "--max-concurrency": size.at_a_time,
            "--warmup-requests": 0 if toy else 1,
            "--seed": 1,
        }
        words += [word for name, value in options.items() for word in (name, str(value))]
        return [*words, "--disable-tqdm", "--output-file", str(result)]


_COUNT = "80 requests: no count was published"
LOADS = (
    Load(
        SUMMARISATION,
        "8000 tokens in, 1000 out, 80 requests, 64 at a time: dies about 30 s in, at about 85% of the SWA pool",
        "",
        Size(8000, 1000, 80, 64),
        Size(101, 64, 8, 8),
    ),
    Load("chat-1k", "1000 in, 1000 out, 32 at a time", _COUNT, Size(1000, 1000, 80, 32), Size(60, 32, 8, 8)),
    Load("prefill-3k", "3000 in, 100 out", f"{_COUNT}, 32 at a time", Size(3000, 100, 80, 32), Size(90, 16, 4, 4)),
    Load("even-500", "500 in, 500 out", f"{_COUNT}, 32 at a time", Size(500, 500, 80, 32), Size(30, 32, 4, 4)),
    Load("decode-1k", "100 in, 1000 out", f"{_COUNT}, 32 at a time", Size(100, 1000, 80, 32), Size(12, 48, 4, 4)),
    Load("prefill-7k", "7000 in, 10 out, 30 requests", "30 at a time", Size(7000, 10, 30, 30), Size(200, 4, 4, 4)),
    Load(
        "images",
        "6 images of 480 x 480 in each of 100 requests",
        "128 tokens of text in, 128 out, 16 at a time",
        Size(128, 128, 100, 16),
        Size(8, 8, 2, 2),
        chat=True,
        images=6,
    ),
    Load(
        "chats",
        "50 chats of 200 tokens",
        "one turn each: 200 tokens in and 200 out, 16 at a time",
        Size(200, 200, 50, 16),
        Size(12, 24, 4, 4),
        chat=True,
    ),
)
ALL = "all"


def choose_loads(names: tuple[str, ...]) -> tuple[Load, ...]:
    """Return the named loads in the catalog's order, `all` of them, or the one that showed the crash if none is named.

    Raises:
        UnknownName: No load has that name.
    """
    known = [load.id for load in LOADS]
    for name in names:
        if name not in (*known, ALL):
            raise UnknownName(f"there is no load {name!r}", f"loads: {', '.join(known)}, or {ALL}")
    wanted = set(known) if ALL in names else set(names or (SUMMARISATION,))
    return tuple(load for load in LOADS if load.id in wanted)
