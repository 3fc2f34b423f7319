"""What a CPU engine needs to start at all, and to run its first batch.

| function                 | why                                                                                       |
|--------------------------|-------------------------------------------------------------------------------------------|
| is_sm100_supported       | SGLang asks whether this is Blackwell before it takes trtllm_mha                          |
| fork_workers             | workers share their parent's imports instead of repeating 10 s of them                    |
| update_intermediate_size | SGLang pads MoE sizes for CPU tensor parallelism; a dense model's size is None            |
| without_pipeline_tensors | from 0.5.19 on MTP's first prefill raises TypeError with --disable-overlap-schedule       |

HeldWrapper and fast_decode_plan are names that SGLang's flashinfer backend imports only where CUDA is present. They are
held, and never run. As for the last of the table, the scheduler passes tensors of a pipeline that the worker of
frozen-KV MTP does not take. Without pipeline stages, which this worker does not support, there are none, and None is
passed.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


def is_sm100_supported(device: object = None) -> bool:
    """Stand in for an sm100 device in argument checks, whichever device model attention uses."""
    return True


def fork_workers(result: Any, *args: Any, **kwargs: Any) -> None:
    """Run after SGLang's engine has chosen `spawn`, choose `fork`. Safe here: no CUDA context can exist before it."""
    multiprocessing.set_start_method("fork", force=True)


def update_intermediate_size(
    original: Callable[..., Any], model_config: Any, attr_name: str, intermediate_padding_size: int
) -> Any:
    """Leave a size that is None alone; the original raises TypeError (None % int) on a dense Gemma-4."""
    hf_config = getattr(model_config, "hf_config", None)
    for owner in (getattr(hf_config, "text_config", None), hf_config, model_config):
        if owner is not None and hasattr(owner, attr_name):
            if getattr(owner, attr_name) is None:
                return model_config
            break
    return original(model_config, attr_name, intermediate_padding_size)


def without_pipeline_tensors(
    original: Callable[..., Any], worker: Any, batch: Any, *args: Any, pp_proxy_tensors: Any = None, **named: Any
) -> Any:
    """Calls SGLang's function without `pp_proxy_tensors`, which are None."""
    return original(worker, batch, *args, **named)


class HeldWrapper:
    """Takes the place of a FlashInfer wrapper, which trtllm_mha inherits the construction of and never calls."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(
            f"the host engine has no stand-in for FlashInfer's wrapper method {name!r}; "
            "use attention_backend trtllm_mha or triton"
        )


def fast_decode_plan(*args: Any, **kwargs: Any) -> None:
    """Compared by identity in the backend; calling it means that the flashinfer backend itself was chosen.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("the host engine does not run the flashinfer backend; use trtllm_mha or triton")
