"""One burst: the requests of a shape at once to one server, each on a connection of its own, by the client's clock."""

from __future__ import annotations

import base64
import http.client
import json
import pickle
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4_repro.bench.burst import prompts
from gemma4_repro.bench.server import BenchServer
from gemma4_repro.serving_bench.agree import Told
from gemma4_repro.serving_bench.loads import Shape
from gemma4_repro.serving_bench.plan import ENCODER_LINES

_PICTURE = "<|image|>"
_WIDTH, _HEIGHT = 768, 576
_LIKELY = 256
"""How many tokens an answer's first position is asked about."""
# No tensors: the server draws them itself.
_NO_TENSORS = base64.b64encode(pickle.dumps([])).decode()


@dataclass(frozen=True)
class Burst:
    """What one burst took.

    Attributes:
        ttft_s: of each request, from the burst's start to its first token.
        tokens: of all prompts and answers.
        tpot_s: of each request, from its first token to its last, per token after the first; empty where no answer has
            two.
        accepted: tokens per verification, mean of the requests; None without MTP.
    """

    model: str
    shape: str
    arm: str
    round: int
    wall_s: float
    ttft_s: tuple[float, ...]
    tokens: int
    tpot_s: tuple[float, ...] = ()
    accepted: float | None = None


def load_weights(server: BenchServer, loader: str, limit_s: float = 60) -> None:
    """Have the server call this one of its custom weight loaders on its model, not on a draft's. Raises ServerLost."""
    body = {"serialized_named_tensors": [_NO_TENSORS], "load_format": loader, "flush_cache": True}
    server.ask("/update_weights_from_tensor", body | {"disable_draft_model": True}, timeout_s=limit_s)


def run_burst(
    server: BenchServer, model: str, shape: Shape, number: int, bodies: list[dict[str, Any]], limit_s: float
) -> Burst:
    """Raises ServerLost, also if an answer is shorter than asked for."""
    if shape.encoder:
        line = _encode(server, shape, limit_s)
        seconds = statistics.median(line["seconds"])
        return Burst(model, shape.id, server.arm.id, number, seconds, (seconds,), line["soft_tokens"])
    # The last answer leaves before the scheduler has put the batch away; until then it would refuse, so let it wait.
    server.ask("/flush_cache?timeout=5", {})
    started = time.perf_counter()
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: _stream(server, body, started, limit_s), bodies))
    wall_s = time.perf_counter() - started
    told = [answer.info for answer in answers]
    if any(info["completion_tokens"] != shape.new_tokens for info in told):
        raise server.lost(f"answered with {[info['completion_tokens'] for info in told]} tokens")
    tokens = sum(info["prompt_tokens"] + info["completion_tokens"] for info in told)
    rounds = [info["spec_verify_ct"] for info in told if info.get("spec_verify_ct")]
    return Burst(
        model,
        shape.id,
        server.arm.id,
        number,
        wall_s,
        tuple(answer.first_s for answer in answers),
        tokens,
        tuple((answer.last_s - answer.first_s) / (shape.new_tokens - 1) for answer in answers if shape.new_tokens > 1),
        # The first token is the prefill's.
        len(told) * (shape.new_tokens - 1) / sum(rounds) if rounds else None,
    )


def median_ttft_s(burst: Burst) -> float:
    return statistics.median(burst.ttft_s)


def median_tpot_s(burst: Burst) -> float:
    return statistics.median(burst.tpot_s)


def bodies_of(shape: Shape, number: int, folder: Path) -> list[dict[str, Any]]:
    """Return the requests of a round, the same for every arm. folder: for its pictures."""
    if shape.encoder:
        return []
    sampling = {"temperature": 0, "max_new_tokens": shape.new_tokens, "ignore_eos": True}
    if shape.stream_every > 1:
        sampling["stream_interval"] = shape.stream_every
    seed = 1000 * number + shape.requests
    if not shape.pictures:
        made = [{"input_ids": ids} for ids in prompts(shape.requests, shape.prompt_tokens, seed)]
    else:
        made = [_with_pictures(shape, seed * 100 + request, folder) for request in range(shape.requests)]
    return [body | {"sampling_params": sampling, "stream": True} for body in made]


def told_of(
    server: BenchServer, shape: Shape, bodies: list[dict[str, Any]], vocabulary: int, limit_s: float
) -> list[Told]:
    """Return per request the first tokens of its answer, and log probabilities of some tokens in their places.

    These are spread over the vocabulary; of the encoder it is some values of its soft tokens.

    Raises:
        ServerLost: it does not answer.
    """
    if shape.encoder:
        return [Told((), (tuple(_encode(server, shape, limit_s)["values"]),))]
    ids = list(range(0, vocabulary, max(1, vocabulary // _LIKELY)))
    asked = {"return_logprob": True, "logprob_start_len": -1, "token_ids_logprob": ids}
    server.ask("/flush_cache?timeout=5", {})

    def ask(body: dict[str, Any]) -> Told:
        sampling = body["sampling_params"] | {"max_new_tokens": shape.compared}
        answer = server.ask("/generate", body | asked | {"sampling_params": sampling, "stream": False}, limit_s)
        info = answer["meta_info"]
        chosen = tuple(entry[1] for entry in info["output_token_logprobs"])
        places = tuple(tuple(entry[0] for entry in place) for place in info["output_token_ids_logprobs"])
        return Told(chosen, places)

    # One after another, so that their prefills are alike in all arms; at once where decode steps are compared.
    with ThreadPoolExecutor(1 if shape.compared == 1 else len(bodies)) as pool:
        return list(pool.map(ask, bodies))


def _encode(server: BenchServer, shape: Shape, limit_s: float) -> dict[str, Any]:
    load_weights(server, shape.encoder, limit_s)
    lines = (server.folder / ENCODER_LINES).read_text(encoding="utf-8").splitlines()
    return json.loads(lines[-1])


@dataclass(frozen=True)
class _Answer:
    """Seconds from the burst's start to the first event and to the last, and what that one told of the request."""

    first_s: float
    last_s: float
    info: dict[str, Any]


def _stream(server: BenchServer, body: dict[str, Any], started: float, limit_s: float) -> _Answer:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/generate", json.dumps(body).encode(), headers)
    first_s, last_s, info = None, 0.0, None
    try:
        with urllib.request.urlopen(request, timeout=limit_s) as answer:
            for line in answer:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                last_s = time.perf_counter() - started
                event = json.loads(line[len(b"data: ") :])
                if "error" in event:
                    raise server.lost(f"/generate: {event['error']}")
                first_s, info = first_s or last_s, event["meta_info"]
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise server.lost(f"/generate: {error}") from error
    if first_s is None or info is None:
        raise server.lost("/generate: the answer has no token")
    return _Answer(first_s, last_s, info)


def _with_pictures(shape: Shape, seed: int, folder: Path) -> dict[str, Any]:
    # Of SGLang's installation, not of the base's.
    import numpy
    from PIL import Image

    draw = numpy.random.default_rng(seed)
    paths = []
    for picture in range(shape.pictures):
        path = folder / f"{seed}-{picture}.bmp"
        if not path.exists():
            Image.fromarray(draw.integers(0, 256, (_HEIGHT, _WIDTH, 3), dtype=numpy.uint8)).save(path)
        paths.append(str(path))
    words = " ".join("bal" for _ in range(shape.prompt_tokens))
    return {"text": f"{words} {' '.join([_PICTURE] * shape.pictures)} bel", "image_data": paths}
