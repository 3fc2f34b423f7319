"""What starting a server comes to: its environment, its command, and whether the plugin would let it start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.store import default_root
from gemma4_repro.engine.host_environment import REQUIRED, host_engine_is_forced
from gemma4_runtime.errors import HostEngineRefused, RuntimePatchError, UnsupportedRelease
from gemma4_runtime.host_environment import NEEDED, with_stand_ins
from gemma4_runtime.patch import Kind, Patch, check_conflicts
from gemma4_runtime.releases import HOW_TO_INSTALL, installed_or_base
from gemma4_runtime.selection import select
from gemma4_runtime.settings import VARIABLES, HostEngine, Settings, read_settings
from gemma4_runtime.standing import attaches_untested, refusal, way_out
from gemma4_triage.cli.server_arguments import missing_cpu_arguments
from gemma4_triage.errors import EnvironmentCannot
from gemma4_triage.inspection.cuda_presence import cuda_is_present
from gemma4_triage.inspection.environment import guard_obstacles
from gemma4_triage.terminal import shell_words

PATCHES, HOST_ENGINE = "GEMMA4_TRIAGE_PATCHES", "GEMMA4_TRIAGE_HOST_ENGINE"
_DEFAULT_PATCHES = "default"


@dataclass(frozen=True)
class Start:
    """What a server would be started with.

    Attributes:
        settings: what was asked for.
        patches: those that are chosen.
        variables: those of ours that the server gets, by name, inherited ones too.
        environment: all variables that it gets.
        command: what is executed, a word each.
        added: SGLang arguments that were not given.
        overridden: variable to what was inherited, where an option changed it.
        kept: variables of the host engine's environment that were inherited with another value than it sets.
        missing_probes: id to reason, where allow_missing lets the server start without them.
    """

    settings: Settings
    patches: tuple[Patch, ...]
    variables: Mapping[str, str]
    environment: Mapping[str, str]
    command: tuple[str, ...]
    added: tuple[str, ...]
    overridden: Mapping[str, str]
    kept: Mapping[str, str]
    missing_probes: Mapping[str, str]

    @property
    def dump_folder(self) -> Path:
        return (self.settings.dump_dir or default_root()).absolute()

    @property
    def shell_line(self) -> str:
        """Assignments and command, quoted for a shell."""
        # Only the value may be quoted: a shell takes 'NAME=a b' for a command.
        words = [f"{name}={shell_words([value])}" for name, value in self.variables.items()]
        return " ".join([*words, shell_words(self.command)])


_MODE = "SGLANG_TRTLLM_MHA_DEBUG"


def plan_for_user(
    options: Mapping[str, str],
    arguments: Sequence[str],
    inherited: Mapping[str, str] = os.environ,
    elsewhere: bool = False,
    typed: Mapping[str, str] = MappingProxyType({}),
) -> Start:
    """Return what `plan_start` does, and say what it refuses in a command's own words.

    Args:
        options: as for plan_start.
        arguments: as for plan_start.
        inherited: as for plan_start.
        elsewhere: as for plan_start.
        typed: variable to the option that was written for it, which is then named in its place.

    Raises:
        SettingsError: A setting cannot be read, or names a patch that does not exist.
        RuntimePatchError: The plugin would stop the server.
        EnvironmentCannot: SGLang is missing or of another release.
    """
    try:
        return plan_start(options, arguments, inherited, elsewhere)
    except RuntimePatchError as error:
        if error.exit_code == ExitCode.USAGE:
            for variable, option in typed.items():
                for said, instead in ((f"{variable}=", f"{option} "), (f"unset {variable}", f"leave {option} out")):
                    error.message = error.message.replace(said, instead)
            if typed:
                # Where options are written, an option is also what turns on what they need.
                for said, instead in ((f"{_MODE} is off", "--debug is off"), (f" set {_MODE} to", " set --debug to")):
                    error.message = error.message.replace(said, instead)
            error.hint = "correct the option or the variable; --help says which belongs to which"
        else:
            error.hint = error.hint or "gemma4-triage doctor shows what can be had here"
        raise


def plan_start(
    options: Mapping[str, str],
    arguments: Sequence[str],
    inherited: Mapping[str, str] = os.environ,
    elsewhere: bool = False,
) -> Start:
    """Return everything about a start, checked as far as it can be without importing SGLang.

    Args:
        options: variable to value, for each option that was given; they win over what was inherited.
        arguments: those for SGLang.
        inherited: variables of this process.
        elsewhere: the start is only looked at, and may be for a machine that has SGLang.

    Raises:
        SettingsError: A setting cannot be read, or names a patch that does not exist.
        PatchConflict: The plugin would stop the server, as for the two below.
        UnsupportedRelease: A patch is for another release.
        HostEngineRefused: This machine has CUDA.
        EnvironmentCannot: SGLang is missing, or it would not load the plugin, or dumps cannot be written.
    """
    inherited = dict(inherited)
    options = dict(options)
    if HOST_ENGINE in options and host_engine_is_forced(inherited):
        # Asks for the same, and allows it beside CUDA.
        options[HOST_ENGINE] = inherited[HOST_ENGINE]
    ours = {PATCHES: inherited.get(PATCHES) or _DEFAULT_PATCHES, **options}
    settings = settings_of(inherited | ours)
    patches = select(settings, release=installed_or_base())
    check_conflicts(patches)
    elsewhere = elsewhere and not is_sglang_installed()
    missing_probes = {} if elsewhere else _check_release(settings, patches)
    if patches and not elsewhere and (obstacles := guard_obstacles(settings)):
        raise EnvironmentCannot("; ".join(f"{check.name}: {check.detail}" for check in obstacles), _ASK_DOCTOR)
    added: tuple[str, ...] = ()
    kept: dict[str, str] = {}
    if settings.host_engine is not HostEngine.OFF:
        _check_cuda(settings)
        added = missing_cpu_arguments(arguments)
        kept = {name: inherited[name] for name in REQUIRED if inherited.get(name) and name not in {*NEEDED, *VARIABLES}}
        ours |= {name: value for name, value in REQUIRED.items() if name not in {*kept, *VARIABLES}}
        ours |= with_stand_ins(inherited)
    on = settings.host_engine is not HostEngine.OFF
    names = [*VARIABLES, *REQUIRED, *with_stand_ins(inherited)] if on else VARIABLES
    environment = inherited | ours
    return Start(
        settings=settings,
        patches=patches,
        variables={name: environment[name] for name in names if environment.get(name) or name in ours},
        environment=environment,
        command=(*_entry_point(arguments), *arguments, *added),
        added=added,
        overridden={name: inherited[name] for name in ours if inherited.get(name) not in (None, "", ours[name])},
        kept={name: value for name, value in kept.items() if value != REQUIRED[name]},
        missing_probes=missing_probes,
    )


def is_sglang_installed() -> bool:
    """Return whether this environment has SGLang, of whatever release."""
    try:
        version("sglang")
    except PackageNotFoundError:
        return False
    return True


def _entry_point(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return what starts the installed SGLang's server: `sglang serve`, which older releases do not have.

    It looks for the model on the command line alone, so a line that leaves it to --config gets the older form.
    """
    if not is_sglang_installed():
        return "sglang", "serve"
    program = Path(sys.executable).with_name("sglang")
    named = any(word.partition("=")[0] in ("--model-path", "--model") for word in arguments)
    if named and os.access(program, os.X_OK):
        return str(program), "serve"
    return sys.executable, "-m", "sglang.launch_server"


_ASK_DOCTOR = "gemma4-triage doctor shows everything that is checked"


def _check_release(settings: Settings, patches: Sequence[Patch]) -> dict[str, str]:
    """Return the probes that the installed SGLang will be without. Raises EnvironmentCannot, UnsupportedRelease."""
    try:
        installed = version("sglang")
    except PackageNotFoundError:
        raise EnvironmentCannot("SGLang is not installed, and serve starts its server", HOW_TO_INSTALL) from None
    tested = (p for p in patches if not (settings.allow_untested and attaches_untested(p, installed)))
    foreign = {patch: reason for patch in tested if (reason := refusal(patch, installed))}
    for patch, reason in foreign.items():
        if not (settings.allow_missing and patch.kind is Kind.PROBE):
            raise UnsupportedRelease(reason, way_out(installed))
    return {patch.id: reason for patch, reason in foreign.items()}


def _check_cuda(settings: Settings) -> None:
    if settings.host_engine is not HostEngine.FORCE and cuda_is_present():
        raise HostEngineRefused(
            "the host engine would replace CUDA kernels by CPU stand-ins and this machine has CUDA; hide the GPU with "
            f"CUDA_VISIBLE_DEVICES='', or allow it with {HOST_ENGINE}=force"
        )


def settings_of(environment: Mapping[str, str]) -> Settings:
    """Return the settings that a process with these variables would read. Raises SettingsError."""
    with _process_environment(environment):
        return read_settings()


@contextmanager
def _process_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Settings are read from the process's environment, and the server's is not yet this one's."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
