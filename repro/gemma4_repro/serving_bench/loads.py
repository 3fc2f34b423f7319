"""The loads, the servers that each is sent to, and what they are to show. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from gemma4_repro.bench.arms import REFERENCE, WITHOUT_PLUGIN, BenchArm

HOST_MODEL = "toy-e4b"
ENCODER_FILE = "GEMMA4_BENCH_ENCODER"
"""Variable of a server: where the encoder's times go."""
SPEEDUP, TTFT, BETTER = "speedup", "ttft_speedup", "better_speedup"
_PATCHES = "GEMMA4_TRIAGE_PATCHES"


@dataclass(frozen=True)
class Shape:
    """What is sent to a server in one round of a load.

    Attributes:
        requests: Sent at once.
        prompt_tokens: Of each request; with pictures, of its text.
        new_tokens: Of each answer.
        pictures: Of each request.
        encoder: No requests, but these pictures through the vision encoder alone, within the server.
        compared: Tokens of an answer whose log probabilities are compared between arms, as far as the tokens before
            them agree.
        stream_every: Tokens of an answer in each piece that the server sends. With one, many requests at once are bound
            by what sends and reads the pieces, and not by the engine.
    """

    id: str
    requests: int
    prompt_tokens: int
    new_tokens: int
    pictures: int = 0
    encoder: str = ""
    compared: int = 1
    stream_every: int = 1


@dataclass(frozen=True)
class Aim:
    """What is to be shown of one arm: `value` of its rows of these shapes is above what is named for their model.

    Attributes:
        end: Of the ratio, what counts: the `low` end of its interval, or its `median`.
    """

    id: str
    title: str
    arm: str
    value: str
    shapes: tuple[str, ...]
    above: Mapping[str, float]
    end: str = "low"


@dataclass(frozen=True)
class Load:
    """A load, with the servers that it is sent to.

    Attributes:
        pool_tokens: Of every server's larger KV pool; where `equal_bytes`, of the reference's, and an arm whose pools
            leave KV-shared layers out has as many as the same bytes hold.
        arguments: Of every server.
        pictures: The models have their vision tower, and the servers their tokenizer.
        assistant: The servers draft by MTP, unless an arm's arguments take that away.
        host: The shapes of a trial on a CPU, if there is one.
        layers: Of the models that are not measured whole, because several of them would not fit into one GPU.
        better_of: Arms of which the faster one, shape by shape, is what `better_speedup` of a row compares with.
    """

    id: str
    title: str
    models: tuple[str, ...]
    arms: tuple[BenchArm, ...]
    shapes: tuple[Shape, ...]
    pool_tokens: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    aims: tuple[Aim, ...] = ()
    pictures: bool = False
    equal_bytes: bool = False
    assistant: bool = False
    host: tuple[Shape, ...] = ()
    layers: Mapping[str, int] = field(default_factory=dict)
    better_of: tuple[str, ...] = ()


def _arm(
    id: str,
    title: str,
    patches: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    smoke: bool = False,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> BenchArm:
    return BenchArm(id, title, {_PATCHES: patches, **environment}, smoke=smoke, arguments=arguments)


def _encoder(pictures: int) -> Shape:
    words = "1 picture" if pictures == 1 else f"{pictures} pictures"
    return Shape(f"encoder, {words}", 1, 0, 0, pictures, f"gemma4_repro.serving_bench.encoder.encode_{pictures}")


# Elsewhere than on a GPU the plugin is always loaded, for the host engine's leaves.
_NONE = _arm(REFERENCE, "SGLang as shipped: the plugin is not loaded", "none", WITHOUT_PLUGIN, smoke=True)
_DEFAULT = _arm("default", "all defaults of the patched runtime", "default")
_WITHOUT_GRAPHS = _arm("without-graphs", "all defaults but piecewise-multimodal", "default,-piecewise-multimodal")
_GRAPHS = {"SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM": "1"}
_V1 = BenchArm(
    REFERENCE, "MTP as SGLang ships it, without overlap: the plugin is not loaded", dict(_NONE.environment), smoke=True
)
_V2 = {"SGLANG_FROZEN_KV_MTP_V2": "1"}
_OVERLAP = {"disable_overlap_schedule": None}
_NO_MTP = dict.fromkeys(
    (
        "speculative_algorithm",
        "speculative_draft_model_path",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
    )
)
_SHIPPED_NO_MTP = _arm("no-mtp", "SGLang as shipped, without MTP", "none", WITHOUT_PLUGIN, arguments=_NO_MTP | _OVERLAP)
_DEFAULT_V2 = _arm("default-v2", "all defaults, and mtp-v2, overlapped", "default", _V2, arguments=_OVERLAP)
# Short questions with long answers, and long texts with short ones.
_TALK = tuple(
    Shape(f"{requests} x {sizes[0]}/{sizes[1]}", requests, *sizes)
    for sizes in ((200, 128), (2000, 64))
    for requests in (1, 16, 64)
)


def _lengths(*tokens: int, answer: int = 2) -> tuple[Shape, ...]:
    """Prompts of these lengths, alone and sixteen at once."""
    return tuple(Shape(f"{requests} x {one}/{answer}", requests, one, answer) for requests in (1, 16) for one in tokens)


_ALL_LENGTHS = _lengths(64, 128, 256, 512, 1024, 2048, 4000, 8000, 16000)
_SHORT = tuple(shape.id for shape in _ALL_LENGTHS if shape.prompt_tokens <= 1024 and shape.requests == 1)
# One chat to more than a draft pays for.
_BATCHES = tuple(
    Shape(f"{requests} x 200/256", requests, 200, 256, stream_every=64) for requests in (1, 2, 4, 8, 16, 32, 64, 128)
)
_MTP_LENGTHS = _lengths(128, 512, 1024, 2048, 4000, answer=8)
# From one chat to more than small-m-linear takes.
_ANSWERS = tuple(Shape(f"{requests} x 1000/128", requests, 1000, 128, compared=16) for requests in (1, 4, 8, 16, 64))
# On a B200, of the pull requests' own fast prefill: 3.45 s to 2.28 s and 4.22 s to 3.24 s.
_PUBLISHED_YOCO = {"e2b": 1.51, "e4b": 1.30}

LOADS = {
    load.id: load
    for load in (
        Load(
            "prefill",
            "long prompts, short answers: YOCO fast prefill",
            ("e2b", "e4b"),
            (
                _NONE,
                _arm("yoco", "YOCO fast prefill alone", "yoco", smoke=True),
                _arm("without-yoco", "all defaults but yoco", "default,-yoco"),
                _DEFAULT,
            ),
            (Shape("16 x 7000/10", 16, 7000, 10), Shape("1 x 7000/10", 1, 7000, 10), Shape("1 x 1000/10", 1, 1000, 10)),
            pool_tokens=131072,
            aims=(
                Aim(
                    "beats-published",
                    "yoco serves 7000/10 faster than the published ratio, on a B200, of the pull requests' own",
                    "yoco",
                    SPEEDUP,
                    ("16 x 7000/10",),
                    _PUBLISHED_YOCO,
                ),
                Aim("first-token", "the first token comes earlier", "yoco", TTFT, ("1 x 7000/10",), {}),
            ),
            host=(Shape("2 x 300/2", 2, 300, 2),),
        ),
        Load(
            "long-context",
            "more context than the KV pools hold, in pools of the same bytes: owner-only KV pools",
            ("e2b", "e4b"),
            (_NONE, _arm("owner-only-kv", "owner-only KV pools alone", "owner-only-kv", smoke=True), _DEFAULT),
            (Shape("16 x 8000/256", 16, 8000, 256),),
            pool_tokens=49152,
            aims=(
                Aim(
                    "more-from-the-same-bytes",
                    "the load is served faster from pools of the same bytes",
                    "owner-only-kv",
                    SPEEDUP,
                    ("16 x 8000/256",),
                    {},
                ),
            ),
            equal_bytes=True,
            host=(Shape("4 x 60/4", 4, 60, 4),),
        ),
        Load(
            "pictures",
            "pictures that no cache has seen: the batched vision encoder",
            ("e2b",),
            (_NONE, _arm("vision-batching", "the batched vision encoder alone", "vision-batching"), _DEFAULT),
            (
                *(_encoder(pictures) for pictures in (1, 6, 24)),
                Shape("1 x 6 pictures", 1, 16, 4, 6),
                Shape("8 x 6 pictures", 8, 16, 4, 6),
            ),
            pool_tokens=65536,
            arguments={"mm_attention_backend": "triton_attn"},
            aims=(
                Aim(
                    "faster",
                    "six pictures and more are encoded, and requests with six are served, faster",
                    "vision-batching",
                    SPEEDUP,
                    ("encoder, 6 pictures", "encoder, 24 pictures", "1 x 6 pictures", "8 x 6 pictures"),
                    {},
                ),
            ),
            pictures=True,
        ),
        Load(
            "graphs",
            "short prompts: piecewise CUDA graphs for prefills of multimodal models",
            ("e2b", "e4b"),
            (
                _NONE,
                _arm("graphs", "piecewise-multimodal alone", "piecewise-multimodal", _GRAPHS),
            ),
            _lengths(64, 128, 512, 1024, 2048, 4000),
            pool_tokens=131072,
            # Sizes to capture, a part of SGLang's own list, of which each is compiled and captured; the longest prompt
            # is above all of them.
            arguments={"piecewise_cuda_graph_tokens": [128, 512, 1024, 2048]},
            aims=(Aim("first-token", "the first token comes earlier", "graphs", TTFT, ("1 x 128/2", "1 x 512/2"), {}),),
        ),
        Load(
            "lengths",
            "prompts of every length: piecewise CUDA graphs for the short ones, YOCO above",
            ("e2b", "e4b", "26b"),
            (_NONE, _WITHOUT_GRAPHS, replace(_DEFAULT, smoke=True)),
            _ALL_LENGTHS,
            pool_tokens=262144 + 16384,
            layers={"26b": 12},
            aims=(
                Aim(
                    "short-prompts",
                    "the first token of a prompt of up to 1024 tokens comes earlier",
                    "default",
                    TTFT,
                    _SHORT,
                    {"e2b": 1.9, "e4b": 1.9},
                ),
                Aim(
                    "never-slower",
                    "no length is served slower than by SGLang as shipped",
                    "default",
                    SPEEDUP,
                    tuple(shape.id for shape in _ALL_LENGTHS),
                    dict.fromkeys(("e2b", "e4b", "26b"), 0.97),
                ),
            ),
            host=(Shape("2 x 300/2", 2, 300, 2),),
        ),
        Load(
            "lengths-mtp",
            "prompts of every length with MTP: piecewise CUDA graphs for the short ones, YOCO above",
            ("e2b", "e4b"),
            (
                _V1,
                replace(_WITHOUT_GRAPHS, environment={**_WITHOUT_GRAPHS.environment, **_V2}, arguments=_OVERLAP),
                replace(_DEFAULT, environment={**_DEFAULT.environment, **_V2}, arguments=_OVERLAP),
            ),
            _MTP_LENGTHS,
            pool_tokens=147456,
            arguments={"swa_full_tokens_ratio": 1.0},
            aims=(
                Aim(
                    "never-slower",
                    "no length is served slower than by MTP as shipped",
                    "default",
                    SPEEDUP,
                    tuple(shape.id for shape in _MTP_LENGTHS),
                    dict.fromkeys(("e2b", "e4b"), 0.97),
                ),
            ),
            assistant=True,
        ),
        Load(
            "mtp-batches",
            "chats with MTP and without, one to 128 at once: from which batch on drafts cost more than they bring",
            ("e2b", "e4b", "26b"),
            (
                _V1,
                _SHIPPED_NO_MTP,
                _arm(
                    "default-v2",
                    "all defaults, and mtp-v2, overlapped, with drafts in every step",
                    "default",
                    {**_V2, "GEMMA4_TRIAGE_DRAFTS": "always"},
                    smoke=True,
                    arguments=_OVERLAP,
                ),
                _arm(
                    "default-v2-sglang-attention",
                    "as default-v2, but decode-attention",
                    "default,-decode-attention",
                    {**_V2, "GEMMA4_TRIAGE_DRAFTS": "always"},
                    arguments=_OVERLAP,
                ),
                _arm(
                    "default-no-mtp", "all defaults, without MTP", "default", smoke=True, arguments=_NO_MTP | _OVERLAP
                ),
                _arm(
                    "default-policy",
                    "all defaults, and mtp-v2, overlapped, with drafts where they pay",
                    "default",
                    _V2,
                    smoke=True,
                    arguments=_OVERLAP,
                ),
            ),
            _BATCHES,
            # All requests of each shape, in whole pages.
            pool_tokens=65536,
            arguments={"swa_full_tokens_ratio": 1.0},
            aims=(
                Aim(
                    "never-slower",
                    "every batch is served as fast as by the better of drafts in every step and no MTP, less 2%",
                    "default-policy",
                    BETTER,
                    tuple(shape.id for shape in _BATCHES),
                    dict.fromkeys(("e2b", "e4b", "26b"), 0.98),
                    # A burst's time scatters by more than that.
                    end="median",
                ),
                Aim(
                    "faster-than-v1",
                    "every batch is served faster than by MTP as shipped",
                    "default-policy",
                    SPEEDUP,
                    tuple(shape.id for shape in _BATCHES),
                    {},
                ),
            ),
            assistant=True,
            layers={"26b": 12},
            better_of=("default-v2", "default-no-mtp"),
            host=(Shape("1 x 60/24", 1, 60, 24), Shape("4 x 60/24", 4, 60, 24)),
        ),
        Load(
            "decode",
            "long answers, few at once: the matrix products and the attention of a decode step",
            ("e2b", "e4b"),
            (
                _NONE,
                _arm(
                    "without-products",
                    "all defaults but small-m-linear and decode-attention",
                    "default,-small-m-linear,-decode-attention",
                ),
                _arm(
                    "products",
                    "all defaults but decode-attention, small-m-linear among them",
                    "default,-decode-attention",
                    smoke=True,
                ),
                _arm("attention", "all defaults, decode-attention among them", "default"),
            ),
            _ANSWERS,
            pool_tokens=147456,
            # As in the load mtp: who may begin when is not what is measured.
            arguments={"swa_full_tokens_ratio": 1.0},
            aims=(
                Aim(
                    "faster-than-shipped",
                    "the load is served faster than by SGLang as shipped",
                    "products",
                    SPEEDUP,
                    tuple(shape.id for shape in _ANSWERS),
                    {},
                ),
            ),
            host=(Shape("2 x 60/24", 2, 60, 24, compared=8),),
        ),
        Load(
            "mtp",
            "chats and summaries with MTP: overlap scheduling",
            ("e2b", "e4b"),
            (
                _V1,
                _SHIPPED_NO_MTP,
                _arm("v2-sync", "mtp-v2, step by step", "mtp-v2", _V2, arguments={"disable_overlap_schedule": True}),
                _arm("v2", "mtp-v2, overlapped", "mtp-v2", _V2, smoke=True, arguments=_OVERLAP),
                # Beside no-mtp: the same waits are there without drafts.
                _arm(
                    "no-mtp-lists",
                    "swa-window-lists alone, without MTP",
                    "swa-window-lists",
                    arguments=_NO_MTP | _OVERLAP,
                ),
                _DEFAULT_V2,
            ),
            _TALK,
            pool_tokens=147456,
            # Both pools hold all requests of each shape: who may begin when is not what is measured.
            arguments={"swa_full_tokens_ratio": 1.0},
            aims=(
                Aim(
                    "faster-than-v1",
                    "the load is served faster than by MTP as shipped",
                    "v2",
                    SPEEDUP,
                    tuple(shape.id for shape in _TALK),
                    {},
                ),
            ),
            assistant=True,
            host=(Shape("2 x 60/24", 2, 60, 24),),
        ),
    )
}

HOST_LOADS = tuple(load.id for load in LOADS.values() if load.host)
"""Loads that can be tried on a CPU."""
