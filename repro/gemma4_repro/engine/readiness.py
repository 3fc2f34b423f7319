"""Whether this installation can run a scenario, without importing torch or sglang."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gemma4_repro.engine.host_environment import host_engine_is_forced
from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.toys import toy_path
from gemma4_runtime.releases import HOW_TO_INSTALL, RUNNABLE, nearest


def check_sglang() -> str:
    """Return SGLang's installed release. Raises EnvironmentLacks if it is absent or not known."""
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        raise EnvironmentLacks("SGLang is not installed, and a reproduction runs its engine", HOW_TO_INSTALL) from None
    if installed not in RUNNABLE:
        raise EnvironmentLacks(
            f"SGLang {installed} is installed, and a reproduction runs on {' and '.join(RUNNABLE)}; "
            f"the nearest of them is {nearest(installed, RUNNABLE)}",
            HOW_TO_INSTALL,
        )
    return installed


def model_arguments(toys: tuple[str, ...]) -> dict[str, Any]:
    """Engine arguments that name the toys: target, then assistant. Raises EnvironmentLacks."""
    try:
        paths = [str(toy_path(name)) for name in toys]
    except FileNotFoundError as error:
        # Between them stand the folders that were looked at, a line each.
        first, *_, hint = str(error).splitlines()
        what = first.partition(":")[0]
        if not _has_sglang():
            raise EnvironmentLacks(f"{what}, and SGLang is not installed", HOW_TO_INSTALL) from error
        raise EnvironmentLacks(what, hint) from error
    # A target without an assistant leaves the second name over.
    return dict(zip(("model_path", "speculative_draft_model_path"), paths, strict=False))


def _has_sglang() -> bool:
    try:
        version("sglang")
    except PackageNotFoundError:
        return False
    return True


def refuse_cuda(ready: Mapping[str, Any]) -> None:
    """ready: what the prefork process said of itself. Raises EnvironmentLacks where it sees CUDA and is not forced."""
    if ready["cuda"] and not host_engine_is_forced():
        raise EnvironmentLacks(
            "this machine has CUDA, and the host engine would replace its kernels by CPU stand-ins",
            "hide the GPU with CUDA_VISIBLE_DEVICES='' or allow it with GEMMA4_TRIAGE_HOST_ENGINE=force",
        )
