"""A leak audit of the live engine: a mixed load, MTP and GEMMA4_TRIAGE_LEAK=dump, and what it counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gemma4_repro.engine.outcome import Ending
from gemma4_repro.errors import UnknownName
from gemma4_repro.expect_ending import Completes
from gemma4_repro.expect_evidence import IdleClean
from gemma4_repro.runner import Listener, Options, run_scenario
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.scenarios.e4b_engine import E4B_TOYS, e4b_engine
from gemma4_repro.workloads import MixedWorkload
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind

AUDIT_EVERY_STEPS = 4
_ARM = "audit"
_LIMIT_S = 120.0


class Tally(BaseModel):
    """What the probe counted: `<dumps>/audits/*.json`. audits: how many, by where; let_pass: SGLang's own failures."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    audits: dict[str, int] = {}
    steps: int = 0
    events: int = 0
    page_size: int = 0
    pages: dict[str, int] = {}
    equations: list[str] = []
    let_pass: dict[str, int] = {}
    cannot: str | None = None


@dataclass(frozen=True)
class LiveAudit:
    """problem: how the engine ended, None if it served everything and shut down."""

    folder: Path
    faults: tuple[str, ...]
    requests: int
    tally: Tally
    problem: str | None

    @property
    def dumps(self) -> Path:
        return self.folder / _ARM / "dumps"

    @property
    def log(self) -> Path:
        return self.folder / _ARM / "log.txt"


def live_scenario(faults: tuple[str, ...], requests: int) -> Scenario:
    """Raises UnknownName for an unknown fault."""
    known = [patch.id for patch in CATALOG if patch.kind is Kind.FAULT]
    for fault in faults:
        if fault not in known:
            raise UnknownName(f"there is no fault {fault!r}", f"known faults: {', '.join(known)}")
    environment = {
        "GEMMA4_TRIAGE_PATCHES": "default",
        "GEMMA4_TRIAGE_LEAK": "dump",
        "GEMMA4_TRIAGE_LEAK_EVERY": str(AUDIT_EVERY_STEPS),
    }
    arm = Arm(
        id=_ARM,
        title=f"mixed load with MTP, audited at idle and every {AUDIT_EVERY_STEPS} steps",
        environment=environment | ({"GEMMA4_TRIAGE_FAULTS": ",".join(faults)} if faults else {}),
        engine_arguments=e4b_engine("trtllm_mha"),
        workload=MixedWorkload(requests, prompt_tokens=101, shortest_new_tokens=4, longest_new_tokens=60),
        time_limit_s=_LIMIT_S,
        expectations=(Completes(), IdleClean()),
    )
    return Scenario(
        id="audit-live",
        symptom="pages that belong to nobody",
        hardware="CPU (host engine)",
        expected_s=40,
        toys=E4B_TOYS,
        arms=(arm,),
    )


def run_live_audit(scenario: Scenario, requests: int, listener: Listener) -> LiveAudit:
    """Run the scenario to its end. Raises like `run_scenario`."""
    (arm,) = scenario.arms
    faults = tuple(filter(None, arm.environment.get("GEMMA4_TRIAGE_FAULTS", "").split(",")))
    words = [word for fault in faults for word in ("--fault", fault)]
    typed = ("gemma4-triage", "audit", "--live", *words, "--requests", str(requests))
    run = run_scenario(scenario, Options(typed=typed), listener)
    ended = run.verdicts[0].outcome
    problem = None
    if ended.ending is not Ending.COMPLETED:
        said = f": {ended.raised[0].type_name}: {ended.raised[0].message}" if ended.raised else ""
        problem = f"the engine {ended.ending.value}{said}"
    return LiveAudit(run.folder, faults, requests, _tally(ended.dumps / "audits"), problem)


def _tally(folder: Path) -> Tally:
    """Return the scheduler's, which counted most: other processes have no pools."""
    found = [Tally()]
    for path in folder.glob("*.json"):
        try:
            found.append(Tally.model_validate_json(path.read_text(encoding="utf-8")))
        except (OSError, ValidationError):
            continue
    return max(found, key=lambda tally: tally.events)
