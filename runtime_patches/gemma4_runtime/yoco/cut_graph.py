"""A prefill in piecewise CUDA graphs whose KV-shared layers run in the graphs of a few rows.

SGLang compiles the model once and cuts it at every attention: between two of them is one CUDA graph for each captured
number of tokens. `Cut` cuts once more, before the first attention that writes no keys. Up to there a prefill of 1000
tokens replays the graphs of 1024. Then the last row of each request goes where the graphs of 32 tokens would have put
it, and these run the rest. So nothing is captured for it beside what SGLang captures anyway.

A CUDA graph reads and writes where it did at its capture. What crosses the cut in a run of 32 tokens is kept from its
capture on: the places that the rows are copied to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx

from gemma4_runtime.errors import RuntimePatchError
from gemma4_runtime.release import forward_context, get_forward_context, graph_capture_stream, piecewise_context

MOST_REQUESTS = 128
"""Captured sizes up to this may take the rows of a batch. What crosses a cut is kept in memory for each of them: 1 MiB
for 32 rows of E4B."""

_ATTENTION = "unified_attention_with_output"


@dataclass(frozen=True)
class LastRows:
    """What is left of a prefill behind the cut.

    Attributes:
        rows: [B] int64, on the device: the row of each request's last token.
        batch: The batch that decodes these rows; None where nothing is sampled from the prefill, and nothing runs.
        view: The attention backend's copy that planned it.
    """

    rows: Tensor
    batch: Any
    view: Any


class Cut:
    """Stands for a compiled model in SGLang's runner of piecewise graphs; `last_rows` makes its next run short.

    Args:
        whole: The compiled model, one submodule for each attention and for each run of operations between two.
        node: The call of an attention in it: from there on, everything runs on the last rows.
    """

    def __init__(self, whole: fx.GraphModule, node: fx.Node) -> None:
        self._whole = whole
        self._head, self._tail, crossing = _halves(whole, node)
        self._computed = [one.op != "placeholder" for one in crossing]
        self._kept: dict[int, list[Any]] = {}
        self._moves: list[tuple[int, bool]] | None = None
        self._outputs: list[Tensor] = []
        self._asked: LastRows | None = None

    def serves(self, requests: int, tokens: int) -> bool:
        """Say whether there are graphs of fewer rows than `tokens` that take the last rows of so many requests."""
        few = self._few(requests)
        return few is not None and few < tokens

    @contextmanager
    def last_rows(self, asked: LastRows) -> Iterator[None]:
        """Run the layers behind the cut on these rows alone while the context lasts."""
        self._asked = asked
        try:
            yield
        finally:
            self._asked = None

    def __call__(self, *args: Any) -> Any:
        tokens = next((value for value in args if isinstance(value, int)), 0)
        if self._asked is not None:
            return self._short(self._asked, tokens, args)
        if graph_capture_stream() is None or not 0 < tokens <= MOST_REQUESTS:
            return self._whole(*args)
        # Run twice for a capture: what the second run leaves are the captured places.
        crossing = list(self._head(*args))
        self._kept[tokens] = crossing
        self._outputs = list(self._tail(*crossing))
        return tuple(self._outputs)

    def _few(self, requests: int) -> int | None:
        return min((size for size in self._kept if size >= requests), default=None)

    def _to_move(self, crossing: Iterable[Any], kept: list[Any]) -> list[tuple[int, bool]]:
        """Return what has to be copied: the place of each value, and whether it has a row for each token.

        Weights and numbers are the same in both runs.

        Raises:
            RuntimePatchError: The tokens of a value are not in its first dimension.
        """
        moves = []
        for at, (source, there) in enumerate(zip(crossing, kept, strict=True)):
            if not isinstance(source, Tensor) or (source.shape == there.shape and not self._computed[at]):
                continue
            if source.shape[1:] != there.shape[1:]:
                raise RuntimePatchError(
                    f"yoco cannot cut these piecewise CUDA graphs: a value has the shapes {tuple(source.shape)} and "
                    f"{tuple(there.shape)} in two of them. Leave it out: GEMMA4_TRIAGE_PATCHES=default,-yoco"
                )
            moves.append((at, source.shape != there.shape))
        return moves

    def _short(self, asked: LastRows, tokens: int, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
        results = tuple(one.new_zeros((tokens, *one.shape[1:])) for one in self._outputs)
        requests = len(asked.rows)
        few = self._few(requests)
        assert few is not None, "serves() was not asked"
        crossing = self._head(*args)
        if asked.batch is None:
            return results
        kept = self._kept[few]
        if self._moves is None:
            self._moves = self._to_move(crossing, kept)
        # All are read before any is written: captures that never run at once share their memory.
        values = [
            crossing[at].index_select(0, asked.rows) if rows else crossing[at].clone() for at, rows in self._moves
        ]
        for (at, rows), value in zip(self._moves, values, strict=True):
            (kept[at][:requests] if rows else kept[at]).copy_(value)
        context = piecewise_context()
        before = context.forward_batch
        context.forward_batch = asked.batch
        try:
            with forward_context(replace(get_forward_context(), attn_backend=asked.view)):
                found = self._tail(*kept)
        finally:
            context.forward_batch = before
        for result, some in zip(results, found, strict=True):
            result[asked.rows] = some[:requests]
        return results


def cut(whole: Any) -> Cut | None:
    """Cut a compiled model before the first of its last attentions that write no keys; None where there is no such."""
    if not isinstance(whole, fx.GraphModule):
        return None
    attentions = [(node, keys) for node in whole.graph.nodes if (keys := _writes_keys(whole, node)) is not None]
    shared = None
    for node, keys in reversed(attentions):
        if keys:
            break
        shared = node
    return None if shared is None or len(attentions) < 2 or shared is attentions[0][0] else Cut(whole, shared)


def _writes_keys(whole: fx.GraphModule, node: fx.Node) -> bool | None:
    """Say whether the call of a submodule is one of an attention with keys of its own; None if of no attention."""
    if node.op != "call_module":
        return None
    # Not `getattr`: there, SGLang has put the CUDA graphs in the place of what they were captured from.
    submodule = whole._modules[str(node.target)]
    if not isinstance(submodule, fx.GraphModule):
        return None
    for inner in submodule.graph.nodes:
        if inner.op == "call_function" and _ATTENTION in str(inner.target):
            return (inner.kwargs["key"] if "key" in inner.kwargs else inner.args[1]) is not None
    return None


def _halves(whole: fx.GraphModule, node: fx.Node) -> tuple[fx.GraphModule, fx.GraphModule, list[fx.Node]]:
    """Return what comes before the node, which gives all that crosses the cut, the rest, which takes it, and it."""
    nodes = list(whole.graph.nodes)
    at = nodes.index(node)
    before, after = nodes[:at], set(nodes[at:])
    crossing = [one for one in before if after & set(one.users)]
    first, second = fx.Graph(), fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for one in before:
        copies[one] = first.node_copy(one, copies.__getitem__)
    first.output(tuple(copies[one] for one in crossing))
    copies = {one: second.placeholder(f"crossing_{number}") for number, one in enumerate(crossing)}
    for one in nodes[at:]:
        copies[one] = second.node_copy(one, copies.__getitem__)
    # The submodules are those of `whole`: the same CUDA graphs.
    return fx.GraphModule(whole, first), fx.GraphModule(whole, second), crossing
