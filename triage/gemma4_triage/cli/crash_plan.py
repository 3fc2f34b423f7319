"""What running a cell of the crash matrix comes to: checked checkpoints, the server's command line and its clients'."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_repro.bench.server_arguments import command_words
from gemma4_repro.bench.server_environment import clean_environment
from gemma4_repro.crash.cells import Cell
from gemma4_repro.crash.expected import Expected, Situation, expected
from gemma4_repro.crash.loads import Load, Size
from gemma4_repro.crash.machine import Gpu, needs_of_model, obstacle
from gemma4_repro.crash.runner import REAL, TOY, Client, Limits, Plan
from gemma4_repro.engine.host_environment import hermetic_environment
from gemma4_repro.toys.locate import toy_path
from gemma4_triage.cli.server_start import HOST_ENGINE, PATCHES, Start, plan_for_user
from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.inspection.checkpoint import check_assistant, check_target
from gemma4_triage.inspection.cuda_presence import cuda_devices
from gemma4_triage.terminal import shell_words

SM100, SM90 = "sm100", "sm90"
_NO_GPU = "gemma4-triage repro crash --matrix says what this machine can run; --toy runs a cell on this CPU"
_SERVER = "gemma4-triage", "serve"


@dataclass(frozen=True)
class Asked:
    """A cell and the options of the command line that change what is started.

    Args:
        more: SGLang arguments behind the cell's own; the last of two wins there.
        patches: In place of the cell's, or None.
        device_model: Of the CPU engine, with `toy`.
    """

    cell: Cell
    loads: tuple[Load, ...]
    toy: bool = False
    model: str | None = None
    draft_model: str | None = None
    patches: str | None = None
    fault: str | None = None
    device_model: str | None = None
    more: tuple[str, ...] = ()

    @property
    def chosen_patches(self) -> str:
        return self.patches or self.cell.patches(self.toy)

    @property
    def typed(self) -> str:
        """Return the command that asks for the same again."""
        options = {
            "--model": self.model,
            "--draft-model": self.draft_model,
            "--patches": self.patches,
            "--fault": self.fault,
            "--device-model": self.device_model,
        }
        words = ["gemma4-triage", "repro", "crash", self.cell.id, *(["--toy"] if self.toy else [])]
        words += [word for name, value in options.items() if value is not None for word in (name, value)]
        words += [word for load in self.loads for word in ("--load", load.id)]
        return shell_words([*words, *(["--", *self.more] if self.more else [])])


@dataclass(frozen=True)
class Checkpoints:
    """target, assistant: folders, or placeholders for a command line that is only shown. remarks: for the screen."""

    target: str
    assistant: str | None
    remarks: tuple[str, ...] = ()


def toys(cell: Cell) -> Checkpoints:
    """Return the toys that stand in for the cell's model. Raises EnvironmentCannot if one is not there."""
    names = (cell.model.toy, cell.model.toy_assistant) if cell.mtp.drafts else (cell.model.toy,)
    try:
        paths = [str(toy_path(name)) for name in names]
    except FileNotFoundError as error:
        first = str(error).splitlines()[0].partition(":")[0]
        raise EnvironmentCannot(first, f"a cell of {cell.model.title} without MTP has its toy") from error
    return Checkpoints(paths[0], paths[1] if cell.mtp.drafts else None)


def placeholders(asked: Asked) -> Checkpoints:
    """Return the paths as given, or words in their place."""
    return Checkpoints(asked.model or "MODEL", (asked.draft_model or "DRAFT_MODEL") if asked.cell.mtp.drafts else None)


def real_checkpoints(asked: Asked, gpus: Sequence[Gpu]) -> Checkpoints:
    """Check the checkpoints, then the machine.

    Raises:
        UsageMistake: A checkpoint was not named, is not whole or is of another kind.
        EnvironmentCannot: There is no GPU, or one of an architecture or with memory that the cell cannot use.
    """
    cell = asked.cell
    if asked.model is None:
        raise UsageMistake(f"{cell.id} needs --model, a checkpoint of {cell.model.title}", "--toy runs it on this CPU")
    if cell.mtp.drafts and asked.draft_model is None:
        raise UsageMistake(
            f"{cell.id} drafts, and needs --draft-model, the MTP assistant of --model",
            "name the assistant's folder; --toy runs the cell on this CPU",
        )
    target = Path(asked.model).expanduser()
    needs, remark = check_target(target, cell.model)
    remarks = [remark] if remark else []
    if asked.draft_model is not None and cell.mtp.drafts:
        assistant = Path(asked.draft_model).expanduser()
        needs = replace(needs, weights_bytes=needs.weights_bytes + check_assistant(assistant, target))
    else:
        assistant = None
        if asked.draft_model is not None:
            remarks.append(f"{cell.id} makes no drafts: --draft-model is not used")
    reason = obstacle(cell, gpus[0] if gpus else None, needs)
    if reason:
        raise EnvironmentCannot(f"{cell.id} cannot run here: {reason}", _NO_GPU)
    return Checkpoints(str(target), None if assistant is None else str(assistant), tuple(remarks))


def what_is_in_the_way(cell: Cell, gpus: Sequence[Gpu]) -> str | None:
    """Return why this machine cannot run the cell with the published weights; None if it can."""
    return obstacle(cell, gpus[0] if gpus else None, needs_of_model(cell.model))


def serve_words(asked: Asked, checkpoints: Checkpoints, port: int, dumps: str) -> list[str]:
    """Return the words behind `gemma4-triage serve`."""
    cell = asked.cell
    words = ["--patches", asked.chosen_patches, *(["--debug", "1"] if cell.bounds else [])]
    words += ["--fault", asked.fault] if asked.fault else []
    if asked.toy:
        words += ["--host-engine", "--device-model", asked.device_model or SM100]
    arguments = cell.server_arguments(checkpoints.target, checkpoints.assistant, port, asked.toy)
    return [*words, "--dir", dumps, "--", *command_words(arguments), *asked.more]


def shown_lines(asked: Asked, checkpoints: Checkpoints, port: int, folder: str) -> list[str]:
    """Return the shell lines of the server and of its clients, in the order in which to start them."""
    server = [*_SERVER, *serve_words(asked, checkpoints, port, f"{folder}/dumps")]
    clients = [["python", *words] for _, _, words in _clients(asked, checkpoints, port, folder)]
    return [shell_words(words) for words in (server, *clients)]


def make_plan(asked: Asked, checkpoints: Checkpoints, port: int, folder: Path, time_limit_s: float | None) -> Plan:
    """Return everything that a run starts. folder: the cell's, in the run's. time_limit_s: for each load."""
    limits = TOY if asked.toy else REAL
    environment = _environment(asked.toy)
    words = serve_words(asked, checkpoints, port, str(folder / "dumps"))
    return Plan(
        cell_id=asked.cell.id,
        folder=folder,
        url=f"http://127.0.0.1:{port}",
        server_command=(sys.executable, "-m", "gemma4_triage", "serve", *words),
        server_environment=environment,
        clients=tuple(
            Client(load, size, (sys.executable, *client), folder / f"bench_{load.id}.jsonl")
            for load, size, client in _clients(asked, checkpoints, port, str(folder))
        ),
        client_environment=environment,
        limits=limits if time_limit_s is None else Limits(limits.start_s, time_limit_s, limits.stall_s),
    )


def check_start(asked: Asked, checkpoints: Checkpoints, port: int) -> Start:
    """Ask the plugin's own selection whether it would start such a server, and with which patches.

    Raises:
        UsageMistake: Patches that cannot be read.
        EnvironmentCannot: SGLang is missing or of another release, or cannot be guarded.
    """
    options = settings_of(asked)
    # The server will not see a GPU that this process may see.
    options |= {HOST_ENGINE: "force"} if asked.toy else {}
    arguments = command_words(asked.cell.server_arguments(checkpoints.target, checkpoints.assistant, port, asked.toy))
    return plan_for_user(options, arguments, _environment(asked.toy), typed={PATCHES: "--patches"})


def expect(asked: Asked, start: Start, gpus: Sequence[Gpu]) -> Expected:
    """Return what to expect of the cell with the patches that its server starts with."""
    patches = frozenset(patch.id for patch in start.patches)
    eager = asked.toy or "--disable-cuda-graph" in asked.more
    return expected(asked.cell, Situation(device_of(asked, gpus), patches, asked.fault, eager))


def settings_of(asked: Asked) -> dict[str, str]:
    """Return the variables that the options of `serve` stand for."""
    settings = {PATCHES: asked.chosen_patches}
    settings |= {"SGLANG_TRTLLM_MHA_DEBUG": "1"} if asked.cell.bounds else {}
    return settings | ({"GEMMA4_TRIAGE_FAULTS": asked.fault} if asked.fault else {})


def device_of(asked: Asked, gpus: Sequence[Gpu]) -> str:
    """Return the architecture that expectations are about: the first GPU's, or of the CPU engine its device model."""
    return (asked.device_model or SM100) if asked.toy else gpus[0].device


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that the CUDA driver shows to this process."""
    return cuda_devices()


def _environment(toy: bool) -> dict[str, str]:
    """Return the user's environment without settings that would make the cell another one."""
    return hermetic_environment() | {"CUDA_VISIBLE_DEVICES": ""} if toy else clean_environment()


def _clients(asked: Asked, checkpoints: Checkpoints, port: int, folder: str) -> Iterator[tuple[Load, Size, list[str]]]:
    """Yield each load, the size to ask for, and the client's words behind `python`."""
    brief = asked.cell.backend.interprets_triton
    for load in asked.loads:
        size = load.size_for(asked.toy, brief)
        result = f"{folder}/bench_{load.id}.jsonl"
        yield load, size, load.client_words(checkpoints.target, port, size, result, asked.toy)
