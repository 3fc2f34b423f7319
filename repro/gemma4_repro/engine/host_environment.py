"""The environment in which Python starts for the engine: what the host engine needs, and nothing that the user left."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gemma4_runtime.host_environment import with_stand_ins

# Read by libraries at import, hence before Python starts; spec: the host engine's environment.
REQUIRED: Mapping[str, str] = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TRITON_INTERPRET": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    # One thread: results do not depend on the machine, and a process without threads may be forked.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "GEMMA4_TRIAGE_HOST_ENGINE": "1",
    # Before it ends, a crashing engine sleeps 5 s "to let GPU activity settle" and looks for py-spy and CUDA core
    # dumps. There is no GPU here, and the traceback is in the log before that.
    "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
    "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
    # Of trtllm_mha's kernels, 512 MB that are zeroed at start; the stand-ins of those kernels need none.
    "SGLANG_FLASHINFER_WORKSPACE_SIZE": str(1 << 20),
}
_SCRUBBED = ("GEMMA4_", "SGLANG_", "SGL_", "TRITON_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "FLASHINFER_")
_FORCE = "force"


def hermetic_environment(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the user's environment without settings that change the engine, and with REQUIRED.

    GEMMA4_TRIAGE_HOST_ENGINE=force is kept: it is how a user allows the host engine on a machine with CUDA.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith(_SCRUBBED)}
    environment = {**kept, **REQUIRED, **with_stand_ins(kept)}
    if host_engine_is_forced(inherited):
        environment["GEMMA4_TRIAGE_HOST_ENGINE"] = _FORCE
    return environment


def host_engine_is_forced(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get("GEMMA4_TRIAGE_HOST_ENGINE", "").strip().lower() == _FORCE
