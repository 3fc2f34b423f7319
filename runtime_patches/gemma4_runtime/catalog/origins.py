"""Origins and upstream states that entries of several kinds share."""

from __future__ import annotations

SEED = "SGLang pull requests for Gemma-4 on trtllm_mha with MTP"
NO_UPSTREAM = "not upstream up to 0.5.23"
