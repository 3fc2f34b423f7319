"""Runs one load on every side of a comparison, one engine after the other, and transformers beside them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gemma4_dumps.listing import DumpEntry
from gemma4_repro.arm_request import REQUEST_NAME, ArmRequest, read_phase
from gemma4_repro.collect import collect
from gemma4_repro.expect_evidence import dumps_of
from gemma4_repro.host_environment import hermetic_environment
from gemma4_repro.outcome import Outcome
from gemma4_repro.parity import load
from gemma4_repro.parity.oracle_run import OracleRun
from gemma4_repro.parity.pictures import make_pictures, remove_pictures
from gemma4_repro.parity.reach_recorder import REACHED_NAME, read_reached
from gemma4_repro.parity.side import TIME_LIMITS_S, Side
from gemma4_repro.parity.tracks import Oracle, Track, read_arm, read_finished
from gemma4_repro.parity.usage_recorder import USAGE_NAME, Usage, read_usage
from gemma4_repro.readiness import check_sglang, model_arguments, refuse_cuda
from gemma4_repro.run_folder import prepare_run_folder, remove_traces, writing
from gemma4_repro.supervisor import Supervisor


class Listener(Protocol):
    """Is told how a comparison comes along. `waiting` is called several times a second and should be quick."""

    def importing(self, sglang_version: str, folder: Path) -> None: ...
    def started(self, name: str, title: str, limit_s: float) -> None: ...
    def waiting(self, phase: str | None, elapsed_s: float) -> None: ...
    def ended(self, arm: ArmRun) -> None: ...


@dataclass(frozen=True)
class Options:
    """scenario, load_name: keys of `load.SCENARIOS` and `load.LOADS`. typed: what the user typed. time_limit_s: per
    side, None: its own.

    compared: ids of the patches in which the sides differ, if that is the question, or of the faults that all have.
    watched: target keys of which to record whether a side came to them. prompt_logprobs: ask for those of prompts too.
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


@dataclass(frozen=True)
class ArmRun:
    """One side's engine run. tracks: one per prompt; empty if it did not come to its end. reached: of those watched.

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
    toys = load.toys_of(options.scenario)
    release = check_sglang()
    models = model_arguments(toys)
    names = tuple(side.id for side in sides)
    folder = prepare_run_folder(verb, names, options.output, options.overwrite)
    environment = hermetic_environment()
    arms = []

    def tick() -> None:
        listener.waiting("importing sglang and transformers", time.monotonic() - began)

    with writing(folder), ExitStack() as stack:
        supervisor = stack.enter_context(Supervisor(folder / "prefork.txt", environment, command))
        listener.importing(release, folder)
        sent = load.text_load(options.load_name)
        if options.scenario == load.PICTURES:
            toy, sent = make_pictures(folder, environment, tick)
            models |= {"model_path": str(toy)}
        oracle_run = stack.enter_context(OracleRun(folder, Path(models["model_path"]), sent, environment))
        ready = supervisor.wait_ready(tick=tick)
        refuse_cuda(ready)
        # Before any engine starts: without it nothing can be said of them.
        oracle = oracle_run.wait(tick)
        for side in sides:
            arm = _run_side(
                supervisor, side, folder / side.id, models, sent, oracle_run.vocabulary_size, options, listener
            )
            listener.ended(arm)
            arms.append(arm)
    if not options.keep_traces:
        remove_traces(folder, names)
        oracle_run.remove_files()
        remove_pictures(folder)
    return LiveRun(
        folder=folder,
        sglang_version=release,
        duration_s=time.monotonic() - began,
        import_s=float(ready["import_s"]),
        oracle=oracle,
        arms=tuple(arms),
        compared=options.compared,
        prompt_logprobs=options.prompt_logprobs,
        scenario=options.scenario,
        load_name=options.load_name,
        swa_above=sent.swa_above,
    )


def _run_side(
    supervisor: Supervisor,
    side: Side,
    folder: Path,
    models: Mapping[str, Any],
    sent: load.Load,
    vocabulary_size: int,
    options: Options,
    listener: Listener,
) -> ArmRun:
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
        vocabulary_size=vocabulary_size,
        prompt_logprobs=options.prompt_logprobs,
        watched=list(options.watched),
    )
    (folder / REQUEST_NAME).write_text(request.model_dump_json(), encoding="utf-8")
    limit_s = options.time_limit_s or TIME_LIMITS_S[side.backend]
    listener.started(side.id, side.title, limit_s)
    began = time.monotonic()

    def tick() -> None:
        phase = read_phase(folder)
        listener.waiting(phase.value if phase else None, time.monotonic() - began)

    outcome = collect(side.id, folder, supervisor.run(folder, limit_s, tick), limit_s)
    tracks = read_arm(folder, sent.prompts, outcome.result)
    return ArmRun(
        side=side,
        outcome=outcome,
        tracks=tracks,
        usage=read_usage(folder / USAGE_NAME),
        dumps=tuple(dumps_of(outcome)),
        reached=read_reached(folder / REACHED_NAME),
        finished=() if tracks else read_finished(folder, sent.prompts, vocabulary_size),
    )
