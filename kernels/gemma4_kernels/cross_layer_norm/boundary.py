"""What lies between a layer and the next one: which results the layer's tail has to leave, and of which rows."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple


class NextNorm(Enum):
    """Whose weight norms the hidden states after a layer."""

    LAYER = "the input norm of the next layer"
    FINAL = "the model's norm"
    NONE = "no one's: the next layer is on another pipeline rank"


class Boundary(NamedTuple):
    """What stands between two layers.

    Attributes:
        next_norm: whose norm to apply.
        hidden: is the un-normed result read by anyone, so that it has to be stored?
        last_rows_only: from here on only each request's last row goes on, so only those are computed.
    """

    next_norm: NextNorm
    hidden: bool
    last_rows_only: bool


def boundary_after(
    layer: int,
    *,
    layers: int,
    end_layer: int | None = None,
    captured: Collection[int] = (),
    cross_decoder_from: int | None = None,
) -> Boundary:
    """Return the boundary after `layer`.

    Args:
        layer: 0..end_layer - 1.
        layers: of the whole model.
        end_layer: one past the last layer of this pipeline rank; None: layers.
        captured: layers whose input is kept for aux hidden states, as SGLang's `layers_to_capture`; `layers` means the
            last layer's output.
        cross_decoder_from: the first layer that shares another's KV, in a forward whose cross-decoder gets the last
            row of each request only (YOCO fast prefill); None in any other forward.

    Raises:
        ValueError: a layer that is not there; or captures or pipeline ranks together with a cross-decoder of last rows,
            whose rows would be missing there.
    """
    end_layer = layers if end_layer is None else end_layer
    if not 0 <= layer < end_layer <= layers:
        raise ValueError(f"layer is {layer}, expected 0..{end_layer - 1} of {layers}")
    if cross_decoder_from is not None and (captured or end_layer != layers):
        raise ValueError("a cross-decoder of last rows leaves no rows for captures or for another pipeline rank")
    after = layer + 1
    if after == layers:
        return Boundary(NextNorm.FINAL, hidden=layers in captured, last_rows_only=False)
    if after == end_layer:
        return Boundary(NextNorm.NONE, hidden=True, last_rows_only=False)
    return Boundary(NextNorm.LAYER, hidden=True, last_rows_only=after == cross_decoder_from)


def needs_own_input_norm(layer: int, *, start_layer: int = 0) -> bool:
    """Has no tail normed this layer's input: is it the first one of the model or of its pipeline rank?"""
    return layer == start_layer
