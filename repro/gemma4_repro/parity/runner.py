"""Runs one load on every side of a comparison, an engine each, and before them transformers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gemma4_dumps.listing import DumpEntry
from gemma4_repro import run_engines
from gemma4_repro.engine.arm_request import ArmRequest
from gemma4_repro.engine.outcome import Outcome
from gemma4_repro.engine.readiness import model_arguments
from gemma4_repro.expect_evidence import dumps_of
from gemma4_repro.parity import load
from gemma4_repro.parity.oracle_run import OracleRun
from gemma4_repro.parity.pictures import make_pictures, remove_pictures
from gemma4_repro.parity.side import TIME_LIMITS_S, Side
from gemma4_repro.parity.tracks import Oracle, Track, read_arm, read_finished
from gemma4_repro.recorders.catalog import remove_traces
from gemma4_repro.recorders.reach import REACHED_NAME, read_reached
from gemma4_repro.recorders.usage import USAGE_NAME, Usage, read_usage
from gemma4_repro.run_engines import EngineRun, Place


class Listener(Protocol):
    """Is told how a comparison comes along. waiting: see run_engines.Listener."""

    def importing(self, sglang_version: str, folder: Path) -> None: ...
    def started(self, name: str, title: str, limit_s: float) -> None: ...
    def waiting(self, phases: dict[str, str | None], elapsed_s: float) -> None: ...
    def ended(self, arm: ArmRun) -> None: ...


@dataclass(frozen=True)
class Options:
    """How a comparison is run.

    Attributes:
        scenario, load_name: keys of `load.SCENARIOS` and `load.LOADS`.
        typed: what the user typed.
        time_limit_s: per side, None: its own.
        compared: ids of the patches in which the sides differ, if that is the question, or of the faults that all have.
        watched: target keys of which to record whether a side came to them.
        prompt_logprobs: ask for those of prompts too.
        side_by_side: see run_engines.Options.
    """

    scenario: str
    typed: tuple[str, ...]
    output: Path | None = None
    overwrite: bool = False
    keep_traces: bool = False
    time_limit_s: float | None = None
    compared: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    prompt_logprobs: bool = True
    load_name: str = load.PROMPTS
    side_by_side: int | None = None


@dataclass(frozen=True)
class ArmRun:
    """One side's engine run.

    Attributes:
        tracks: one per prompt; empty if it did not come to its end.
        reached: of those watched.
        finished: of a run that did not, the answers that it had finished, without logprobs.
    """

    side: Side
    outcome: Outcome
    tracks: tuple[Track, ...]
    usage: Usage
    dumps: tuple[DumpEntry, ...]
    reached: frozenset[str] = frozenset()
    finished: tuple[Track, ...] = ()


@dataclass(frozen=True)
class LiveRun:
    """A finished comparison's runs, not judged yet. import_s: of SGLang, once for all, part of duration_s.

    scenario, load_name, compared, prompt_logprobs: see Options. swa_above: see Load.
    """

    folder: Path
    sglang_version: str
    duration_s: float
    import_s: float
    oracle: Oracle
    arms: tuple[ArmRun, ...]
    compared: tuple[str, ...] = ()
    prompt_logprobs: bool = True
    scenario: str = "e4b"
    load_name: str = load.PROMPTS
    swa_above: float | None = None

    def arm(self, side_id: str) -> ArmRun:
        return next(arm for arm in self.arms if arm.side.id == side_id)


def run_sides(
    verb: str, sides: Sequence[Side], options: Options, listener: Listener, command: Sequence[str] | None = None
) -> LiveRun:
    """Run every side. verb: names the run's folder. command: of the prefork process, for tests.

    Raises:
        UnknownName: a scenario that cannot be compared, or not under that load.
        OutputRefused, OutputUnwritable: see run_folder.
        EnvironmentLacks: no SGLang, an unknown release, no toys, CUDA present, the import or the oracle failed.
    """
    began = time.monotonic()
    load.check_load(options.load_name, options.scenario)
    models = model_arguments(load.toys_of(options.scenario))
    names = tuple(side.id for side in sides)
    reading = _Reading(sides, listener)

    def requests(place: Place) -> list[EngineRun]:
        sent = load.text_load(options.load_name)
        if options.scenario == load.PICTURES:
            toy, sent = make_pictures(place.folder, place.environment, place.tick)
            models["model_path"] = str(toy)
        with OracleRun(place.folder, Path(models["model_path"]), sent, place.environment) as oracle:
            # Before any engine starts: without it nothing can be said of them.
            reading.expect(sent, oracle.wait(place.tick), oracle.vocabulary_size)
        if not options.keep_traces:
            oracle.remove_files()
        return [
            _engine_run(side, place.folder / side.id, models, sent, oracle.vocabulary_size, options) for side in sides
        ]

    how = run_engines.Options(verb, names, options.output, options.overwrite, options.side_by_side, command)
    engines = run_engines.run_engines(requests, how, reading)
    if not options.keep_traces:
        remove_traces(engines.folder, names)
        remove_pictures(engines.folder)
    return LiveRun(
        folder=engines.folder,
        sglang_version=engines.sglang_version,
        duration_s=time.monotonic() - began,
        import_s=engines.import_s,
        oracle=reading.oracle,
        arms=tuple(reading.arms),
        compared=options.compared,
        prompt_logprobs=options.prompt_logprobs,
        scenario=options.scenario,
        load_name=options.load_name,
        swa_above=reading.sent.swa_above,
    )


class _Reading:
    """Reads what each side recorded as soon as its engine has ended, and tells the comparison's listener."""

    def __init__(self, sides: Sequence[Side], listener: Listener) -> None:
        self._side_of = {side.id: side for side in sides}
        self._listener = listener
        self.arms: list[ArmRun] = []
        self.importing, self.waiting = listener.importing, listener.waiting

    def expect(self, sent: load.Load, oracle: Oracle, vocabulary_size: int) -> None:
        """Note what is sent, and what transformers says of it."""
        self.sent, self.oracle, self._vocabulary_size = sent, oracle, vocabulary_size

    def started(self, run: EngineRun) -> None:
        side = self._side_of[run.request.arm]
        self._listener.started(side.id, side.title, run.limit_s)

    def ended(self, outcome: Outcome) -> None:
        folder, prompts = outcome.folder, self.sent.prompts
        tracks = read_arm(folder, prompts, outcome.result)
        arm = ArmRun(
            side=self._side_of[outcome.arm],
            outcome=outcome,
            tracks=tracks,
            usage=read_usage(folder / USAGE_NAME),
            dumps=tuple(dumps_of(outcome)),
            reached=read_reached(folder / REACHED_NAME),
            finished=() if tracks else read_finished(folder, prompts, self._vocabulary_size),
        )
        self.arms.append(arm)
        self._listener.ended(arm)


def _engine_run(
    side: Side, folder: Path, models: Mapping[str, Any], sent: load.Load, vocabulary_size: int, options: Options
) -> EngineRun:
    request = ArmRequest(
        arm=side.id,
        folder=folder,
        command=list(options.typed),
        environment=side.environment() | {"SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / "dumps")},
        engine_arguments=side.engine_arguments({**sent.engine, **models}),
        prompts=sent.prompts,
        new_tokens=sent.new_tokens,
        texts=sent.texts,
        pictures=sent.pictures,
        recorders=["drafts", "layers", "usage", "reach"],
        vocabulary_size=vocabulary_size,
        prompt_logprobs=options.prompt_logprobs,
        watched=list(options.watched),
    )
    return EngineRun(request, options.time_limit_s or TIME_LIMITS_S[side.backend])
