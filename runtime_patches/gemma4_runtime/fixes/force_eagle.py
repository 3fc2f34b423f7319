"""On request: a Gemma-4 assistant is not made a FROZEN_KV_MTP draft; where EAGLE cannot serve, the start says why.

SGLang promotes NEXTN and EAGLE to FROZEN_KV_MTP if the draft is a Gemma-4 assistant. SGLANG_GEMMA4_FORCE_EAGLE=1
opts out of that. Such an assistant has no keys of its own: its layers only ask, and read the target's KV, which EAGLE
does not hand them. EAGLE also sizes hidden states by the draft's width, and an assistant takes the target's. So EAGLE
can serve none, and this says so at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_runtime.errors import NotServed
from gemma4_runtime.release import get_config
from gemma4_runtime.settings import FORCE_EAGLE


def around_resolve_alias(
    original: Callable[..., Any],
    speculative_algorithm: str | None,
    speculative_draft_model_path: str | None,
    trust_remote_code: bool = False,
    kwargs: dict[str, Any] | None = None,
) -> str | None:
    """Run around `_resolve_speculative_algorithm_alias`.

    Raises:
        NotServed: the draft is a Gemma-4 assistant, which EAGLE cannot serve.
    """
    kwargs, draft = kwargs or {}, speculative_draft_model_path
    resolved = original(speculative_algorithm, draft, trust_remote_code=trust_remote_code, kwargs=kwargs)
    if resolved != "FROZEN_KV_MTP" or speculative_algorithm not in ("EAGLE", "NEXTN") or draft is None:
        return resolved
    config = get_config(draft, trust_remote_code=trust_remote_code, **kwargs)
    width, target = config.get_text_config().hidden_size, config.backbone_hidden_size
    sizes = f" Its hidden size is {width}, the target's {target}." if width != target else ""
    raise NotServed(
        f"{FORCE_EAGLE}=1 keeps {draft} from FROZEN_KV_MTP, and EAGLE cannot serve it: "
        f"a Gemma-4 assistant has no keys of its own, it reads the target's.{sizes} "
        f"Unset {FORCE_EAGLE}, or name a draft that was trained for EAGLE."
    )
