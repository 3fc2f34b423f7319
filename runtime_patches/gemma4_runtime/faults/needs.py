"""Whether an injected fault can act on this server at all. `Patch.needs` names what each one needs.

A server that is announced as broken on purpose, and is not, proves nothing, so a fault that cannot act is refused. A
fault of MTP or of one attention backend is named instead: on a server without it is a control, as in the scenario
e4b-triton and the sides without MTP of `diff backends --load pressure`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gemma4_runtime import current
from gemma4_runtime.catalog.faults import FAULTS
from gemma4_runtime.errors import NotServed
from gemma4_runtime.patch import Patch
from gemma4_runtime.release import SpeculativeAlgorithm
from gemma4_runtime.release.arguments import attention_backends, decodes_in_graphs, settled, supports_spec_v2


@dataclass(frozen=True)
class Need:
    """One property of a server, read from SGLang's arguments once they are settled.

    Attributes:
        holds: Says whether the server has it.
        text: What the server must have.
        instead: What to do about it.
        refused: Whether the start is refused without it; else a line says that the fault cannot act.
    """

    holds: Callable[[Any], bool]
    text: str
    instead: str
    refused: bool = True


def _has_mtp(arguments: Any) -> bool:
    return SpeculativeAlgorithm.from_string(arguments.speculative_algorithm).is_frozen_kv_mtp()


def _has_mtp_v1(arguments: Any) -> bool:
    algorithm = SpeculativeAlgorithm.from_string(arguments.speculative_algorithm)
    return algorithm.is_frozen_kv_mtp() and not supports_spec_v2(algorithm)


def _verifies_outside_graphs(arguments: Any) -> bool:
    # A server without MTP verifies nothing, which the need "mtp" is about.
    return not (_has_mtp(arguments) and decodes_in_graphs(arguments))


def _pages_of_several(arguments: Any) -> bool:
    return (arguments.page_size or 1) > 1


def _decodes_alone(arguments: Any) -> bool:
    # Speculation extends rows instead. With pages of one token everything is allocated by `alloc`.
    return arguments.speculative_algorithm is None or not _pages_of_several(arguments)


def _has_shared_kv_layers(arguments: Any) -> bool:
    text = arguments.get_model_config().hf_text_config
    return bool(getattr(text, "num_kv_shared_layers", 0))


def _has_trtllm_mha(arguments: Any) -> bool:
    backends = {*attention_backends(arguments), arguments.speculative_draft_attention_backend}
    return "trtllm_mha" in backends


NEEDS: Mapping[str, Need] = {
    "mtp": Need(_has_mtp, "MTP", "name an assistant as the draft model", refused=False),
    "mtp-v1": Need(_has_mtp_v1, "MTP without spec v2", "name an assistant as the draft model, and leave mtp-v2 out"),
    "verify-outside-graphs": Need(
        _verifies_outside_graphs, "verifications outside CUDA graphs", "set --disable-cuda-graph"
    ),
    "overlap": Need(
        lambda arguments: not arguments.disable_overlap_schedule,
        "overlap scheduling",
        "choose mtp-v2, and leave --disable-overlap-schedule out",
    ),
    "decode-allocations": Need(
        _decodes_alone, "decode allocations, and a server with speculation makes none", "serve without MTP"
    ),
    "pages": Need(_pages_of_several, "pages of several tokens", "set --page-size above 1"),
    "swa-pool": Need(
        lambda arguments: not arguments.disable_hybrid_swa_memory,
        "a KV pool of its own for the sliding layers",
        "leave --disable-hybrid-swa-memory out",
    ),
    "prefix-cache": Need(
        lambda arguments: not arguments.disable_radix_cache, "the prefix cache", "leave --disable-radix-cache out"
    ),
    "shared-kv-layers": Need(
        _has_shared_kv_layers,
        "layers that read the keys of layers before them, and this model has none",
        "serve E2B or E4B",
    ),
    "trtllm_mha": Need(_has_trtllm_mha, "trtllm_mha attention", "set --attention-backend trtllm_mha", refused=False),
}
"""By the words of `Patch.needs`."""


def after_last_check(_: None, server_args: Any, **_unknown: Any) -> None:
    """Run after SGLang has settled its arguments: `ServerArgs._handle_other_validations`, later `check_server_args`.

    Raises:
        NotServed: a fault in force cannot act on this server.
    """
    for fault, need in _lacking(server_args):
        text = f"the fault {fault.id} cannot act on this server: it needs {need.text}"
        if need.refused:
            raise NotServed(
                f"{text}. {need.instead[0].upper()}{need.instead[1:]}, or leave {fault.id} out of GEMMA4_TRIAGE_FAULTS."
            )
        print(f"gemma4-triage: FAULT WITHOUT EFFECT: {text}", file=sys.stderr, flush=True)


def _lacking(arguments: Any) -> Iterator[tuple[Patch, Need]]:
    arguments = settled(arguments)
    for fault in FAULTS:
        for name in fault.needs or () if current.switched_on(fault.id) else ():
            if not NEEDS[name].holds(arguments):
                yield fault, NEEDS[name]
