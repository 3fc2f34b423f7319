"""Names that SGLang's flashinfer backend imports only where CUDA is present. They are held, never run."""

from __future__ import annotations

from typing import Any


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
