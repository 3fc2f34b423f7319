"""Reads SGLang's server arguments; later releases keep them as they were given, beside what they came to."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.releases import at_least, read_as

_KEPT_RAW = at_least(read_as(), "0.5.23")


def settled(arguments: Any) -> Any:
    """Returns what to read a server's arguments from, once SGLang has settled them.

    Args:
        arguments: `ServerArgs`, as a scheduler and a model runner have them.
    """
    if not _KEPT_RAW:
        return arguments
    from gemma4_runtime.release import resolving_view

    return resolving_view(arguments)


def attention_backends(arguments: Any) -> tuple[str | None, str | None]:
    """Returns the attention backends of prefill and of decode.

    Args:
        arguments: `ServerArgs`.
    """
    if not _KEPT_RAW:
        return arguments.get_attention_backends()
    from gemma4_runtime.release import attention_backends_of

    return attention_backends_of(settled(arguments))


def decodes_in_graphs(arguments: Any) -> bool:
    """Returns whether decoding, and the verification of drafts, replay CUDA graphs, as they do on a GPU by default.

    Args:
        arguments: `ServerArgs`.
    """
    arguments = settled(arguments)
    # Later releases settle it by the phase.
    decode = getattr(getattr(arguments, "cuda_graph_config", None), "decode", None)
    disabled = arguments.disable_cuda_graph or getattr(decode, "backend", None) == "disabled"
    return arguments.device == "cuda" and not disabled


def supports_spec_v2(algorithm: Any) -> bool:
    """Returns whether speculation takes part in overlap scheduling; from 0.5.14 on there is no other.

    Args:
        algorithm: A `SpeculativeAlgorithm`.
    """
    return algorithm.supports_spec_v2() if hasattr(algorithm, "supports_spec_v2") else True
