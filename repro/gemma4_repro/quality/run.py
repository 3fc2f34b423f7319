"""Asks two servers the same items, one after the other: servers that run already, or its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gemma4_repro.bench.server import LOG_NAME, ServerLost, ServerProcess
from gemma4_repro.errors import EnvironmentLacks, UnknownName
from gemma4_repro.quality.ask import Answer, Asked, Item, ask_all, paths_taken, served_model

_POLL_S = 0.5
BASE, WITH = "base", "with"
Paths = dict[str, dict[str, int]]
"""Patch to path to how often."""


@dataclass(frozen=True)
class Launch:
    """How a server is started: its command, all of its environment, and the port on loopback that the command names."""

    command: Sequence[str]
    environment: Mapping[str, str]
    port: int


@dataclass(frozen=True)
class Side:
    """One of the two: `name` is BASE or WITH. Exactly one of `url` (it runs already) and `launch` is given."""

    name: str
    url: str | None = None
    launch: Launch | None = None


@dataclass(frozen=True)
class Limits:
    """How many requests are under way at a time, and how long to wait for one, and for a server to start."""

    parallel: int
    request_s: float
    start_s: float


@dataclass
class Measured:
    """What the sides answered, and by side how often each patch took which path while it was asked and before that.

    `paths` and `paths_at_start` are None where the server does not say. CUDA graphs are captured at the start, and a
    replay counts nothing; SGLang's own warm-up counts at the start too.

    `failure`: why a server never started, or is empty; then what comes after it was not asked.
    """

    asked: dict[str, Asked] = field(default_factory=dict)
    paths: dict[str, Paths | None] = field(default_factory=dict)
    paths_at_start: dict[str, Paths | None] = field(default_factory=dict)
    failure: str = ""
    interrupted: bool = False


def check_running(sides: Sequence[Side], model: str | None) -> dict[str, str]:
    """Look at every server that runs already, and return by side which model is asked there.

    Args:
        sides: Those without an address are left out.
        model: Which of several served models is asked; None for the only one.

    Raises:
        EnvironmentLacks: A server that should run cannot be reached.
        UnknownName: It does not serve the model; or the sides serve models of different names.
    """
    names = {side.name: served_model(side.url, model) for side in sides if side.url is not None}
    if len(set(names.values())) > 1:
        raise UnknownName(
            f"--base-url serves {names[BASE]!r} and --with-url {names[WITH]!r}: what differs would be the models",
            "start both with the same --served-model-name if they are one checkpoint",
        )
    return names


def run_sides(
    sides: Sequence[Side],
    items: Sequence[Item],
    folder: Path,
    limits: Limits,
    names: Mapping[str, str],
    keep: Callable[[str, Sequence[Answer]], None],
    tell: Callable[[str], None],
) -> Measured:
    """Ask each side everything. Every server that was started has ended when this returns or raises.

    Args:
        sides: Base first.
        items: What is asked.
        folder: The run's; it has a folder for each side.
        limits: See Limits.
        names: By side of a server that runs already, the model that is asked there: what check_running returns.
        keep: Is called with a side's name and answers as soon as that side is through, whatever has ended it.
        tell: Gets a line about what happens now.
    """
    measured = Measured()
    position = {item.id: number for number, item in enumerate(items)}
    measured.asked = {side.name: Asked(names.get(side.name, "")) for side in sides}
    for side in sides:
        asked = measured.asked[side.name]
        try:
            with _server(side, folder / side.name, limits.start_s, tell) as root:
                asked.model = asked.model or served_model(root, None)
                at_start = measured.paths_at_start[side.name] = paths_taken(root)
                tell(f"{side.name}: asking {root} for {asked.model}: {len(items)} prompts")
                ask_all(root, items, asked, limits.parallel, limits.request_s, partial(_tell_of, tell, side.name))
                measured.paths[side.name] = _since(paths_taken(root), at_start)
                if asked.ended and side.launch is not None:
                    asked.ended += f"; its log is {folder / side.name / LOG_NAME}"
        except ServerLost as error:
            measured.failure = error.brief
        except EnvironmentLacks as error:
            measured.failure = str(error)
        except KeyboardInterrupt:
            measured.interrupted = True
        finally:
            # As they were asked, not as they came back.
            if answers := sorted(asked.answers, key=lambda answer: position[answer.id]):
                keep(side.name, answers)
        if asked.ended:
            tell(f"{side.name}: {asked.ended}")
        if measured.failure or measured.interrupted:
            break
    return measured


def _since(paths: Paths | None, earlier: Paths | None) -> Paths | None:
    if paths is None or earlier is None:
        return paths
    return {
        patch: {path: times - earlier.get(patch, {}).get(path, 0) for path, times in counted.items()}
        for patch, counted in paths.items()
    }


def _tell_of(tell: Callable[[str], None], side: str, text: str) -> None:
    tell(f"{side}: {text}")


@contextmanager
def _server(side: Side, folder: Path, limit_s: float, tell: Callable[[str], None]) -> Iterator[str]:
    """Yield the root of the side's API, once it answers. Raises ServerLost."""
    if side.launch is None:
        assert side.url is not None, "a side has an address or a launch"
        yield side.url
        return
    started = time.monotonic()
    tell(f"{side.name}: starting its server; its log is {folder / LOG_NAME}")
    url = f"http://127.0.0.1:{side.launch.port}"
    server = ServerProcess(side.name, side.launch.command, folder / LOG_NAME, url, side.launch.environment)
    try:
        while not server.is_ready():
            if time.monotonic() - started > limit_s:
                raise server.lost(f"was not ready in {limit_s:.0f} s")
            time.sleep(_POLL_S)
        tell(f"{side.name}: its server is up after {time.monotonic() - started:.0f} s")
        yield f"{server.url}/v1"
    finally:
        server.close()
