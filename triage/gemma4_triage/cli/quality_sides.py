"""The two servers that `quality` asks: running ones by address, or its own, checked before any is started."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemma4_triage.cli.check_start import with_home
from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.input_file import read_input

if TYPE_CHECKING:
    from gemma4_repro.quality.run import Launch, Side
    from gemma4_triage.cli.server_start import Start

_PATCHES, _HOST_ENGINE = "GEMMA4_TRIAGE_PATCHES", "GEMMA4_TRIAGE_HOST_ENGINE"
_DUMPS = "SGLANG_TRTLLM_MHA_DEBUG_DIR"
_OURS = ("--host", "--port", "--api-key")
_MODEL, _TOKENIZER = ("--model-path", "--model"), ("--tokenizer-path",)
_DRAFT, _DEVICE, _LOAD_FORMAT = ("--speculative-draft-model-path",), ("--device",), ("--load-format",)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True)
class Server:
    """One side before it runs: `label` is its patch set or its address, `start` says how to start it, if it is ours."""

    name: str
    label: str
    url: str | None = None
    start: Start | None = None
    port: int = 0

    @property
    def chosen(self) -> tuple[str, ...]:
        """Ids of the fixes, optimisations and faults of a server of ours, in the catalog's order."""
        from gemma4_runtime.patch import Kind

        kinds = (Kind.FIX, Kind.OPTIMISATION, Kind.FAULT)
        return tuple(patch.id for patch in self.start.patches if patch.kind in kinds) if self.start else ()

    def side(self, folder: Path) -> Side:
        """Return what the run needs of it. Dumps and guard manifests go below the run's folder."""
        from gemma4_repro.quality.run import Launch, Side

        launch: Launch | None = None
        if self.start is not None:
            dumps = {_DUMPS: str(folder / self.name / "dumps")}
            launch = Launch(self.start.command, {**self.start.environment, **dumps}, self.port)
        return Side(self.name, self.url, launch)

    def document(self) -> dict[str, Any]:
        """Return what a reader of the run's document wants to know of it."""
        if self.start is None:
            return {"url": self.url}
        return {"patches": self.label, "attached": list(self.chosen), "shell_line": self.start.shell_line}


def running_servers(base_url: str, with_url: str) -> tuple[Server, Server]:
    """Return both addresses as servers. Raises UnknownName for what is no address, UsageMistake for one server."""
    from gemma4_repro.quality.ask import api_root
    from gemma4_repro.quality.run import BASE, WITH

    roots = api_root(base_url), api_root(with_url)
    if roots[0] == roots[1]:
        raise UsageMistake(f"--base-url and --with-url are the same server, {roots[0]}", "name two that differ")
    return Server(BASE, roots[0], url=roots[0]), Server(WITH, roots[1], url=roots[1])


def own_servers(
    base: str, with_: str, host_engine: bool, arguments: Sequence[str], colours: bool
) -> tuple[Server, Server]:
    """Return how both sides' servers are started.

    Raises:
        UsageMistake: The arguments name no model, one that is not whole, or what `quality` has to choose; or both
            sides have the same patches.
        EnvironmentCannot: A server could not be had as asked, or needs a GPU and there is none.
        EnvironmentLacks: No two ports are free.
    """
    from gemma4_repro.bench.server import free_ports
    from gemma4_repro.quality.run import BASE, WITH
    from gemma4_triage.cli.server_start import plan_for_user

    arguments = with_home(arguments)
    _check_arguments(arguments, colours)
    host = {_HOST_ENGINE: "1"} if host_engine else {}
    servers = []
    for (name, patches), port in zip(((BASE, base), (WITH, with_)), free_ports(2), strict=True):
        words = [*arguments, "--host", "127.0.0.1", "--port", str(port)]
        start = plan_for_user({_PATCHES: patches, **host}, words, typed={_PATCHES: f"--{name}"})
        servers.append(Server(name, patches, start=start, port=port))
    first, second = servers
    if first.chosen == second.chosen:
        raise UsageMistake(
            f"--base {base!r} and --with {with_!r} are the same patches: {', '.join(first.chosen) or 'none'}",
            "name with --with what is to be judged, as default,+ID or default,-ID",
        )
    _refuse_no_gpu(first.start, arguments)
    return first, second


def _refuse_no_gpu(start: Start | None, arguments: Sequence[str]) -> None:
    from gemma4_runtime.settings import HostEngine
    from gemma4_triage.inspection.cuda_presence import cuda_is_present

    on_cpu = start is not None and start.settings.host_engine is not HostEngine.OFF
    if not on_cpu and _value(arguments, _DEVICE) in (None, "cuda") and not cuda_is_present():
        raise EnvironmentCannot(
            "the CUDA driver shows no GPU to this process, and the servers that quality starts need one",
            "--host-engine starts them on this CPU; --base-url and --with-url name servers that run elsewhere",
        )


def _check_arguments(arguments: Sequence[str], colours: bool) -> None:
    if taken := [option for option in _OURS if _value(arguments, (option,)) is not None]:
        raise UsageMistake(
            f"{taken[0]} is among SGLang's arguments, and quality chooses host, port and key of its servers",
            "leave it out, or start two servers yourself and name them with --base-url and --with-url",
        )
    model = _value(arguments, _MODEL)
    if model is None:
        if "--config" not in arguments:
            raise UsageMistake("SGLang's arguments name no --model-path", "say which model after --")
        return
    folder = Path(model)
    # ORGANISATION/NAME that is no folder here is one of Hugging Face's, which SGLang looks for.
    if not os.path.exists(folder) and (model.startswith(("/", ".", "~")) or model.count("/") != 1):
        raise UsageMistake(f"--model-path {model} is not there", "name the folder of a checkpoint")
    if os.path.isdir(folder):
        _check_checkpoint(folder, Path(_value(arguments, _TOKENIZER) or folder), colours)
    if _value(arguments, _LOAD_FORMAT) in (None, "auto", "safetensors"):
        for path in (folder, Path(_value(arguments, _DRAFT) or folder)):
            _check_weights(path)


def _check_weights(folder: Path) -> None:
    from gemma4_triage.inspection.checkpoint import check_weights

    # Where there is no *.safetensors, SGLang takes weights in PyTorch's own form.
    if os.path.isdir(folder) and (any(folder.glob("*.safetensors*")) or not any(folder.glob("*.bin"))):
        check_weights(folder)


def _check_checkpoint(folder: Path, tokenizer: Path, colours: bool) -> None:
    try:
        config = json.loads(read_input(folder / "config.json"))
        sees = isinstance(config, dict) and bool(config.get("vision_config"))
    except (OSError, ValueError) as error:
        raise UsageMistake(
            f"{folder} is no checkpoint: its config.json cannot be read", "name the folder of a checkpoint"
        ) from error
    if os.path.isdir(tokenizer) and not any((tokenizer / name).is_file() for name in _TOKENIZER_FILES):
        raise UsageMistake(
            f"{tokenizer} holds no tokenizer: neither {' nor '.join(_TOKENIZER_FILES)} is there",
            "complete the checkpoint, or name a tokenizer with SGLang's --tokenizer-path",
        )
    if colours and not sees:
        raise UsageMistake(f"--colours shows images, and {folder} has no vision_config", "leave --colours out")


def _value(arguments: Sequence[str], options: Sequence[str]) -> str | None:
    """Return the value of an option in SGLang's words, the last one as argparse does; empty if the words end there."""
    found = None
    for position, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in options:
            found = value if equals else next(iter(arguments[position + 1 : position + 2]), "")
    return found
