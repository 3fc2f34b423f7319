"""The catalog of rules is complete, and what rules name exists."""

import re
from pathlib import Path

import pytest

import gemma4_triage.diagnose.rules as package
from command_line import parse_command
from gemma4_dumps.store import DumpStore
from gemma4_repro.corpus.faults import FAULTS, LOGIT_FAULTS
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.material import read_store
from gemma4_triage.finding import Confidence

ROOT = Path(__file__).parents[2]
FOLDER = Path(package.__file__).parent
CORPUS = ROOT / "tests" / "data" / "corpus_dumps"
IDS = [rule.id for rule in RULES]


def test_every_file_in_rules_is_listed_once_under_its_own_name():
    files = {path.stem.replace("_", "-") for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    assert set(IDS) == files
    assert len(IDS) == len(set(IDS))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_rule_is_small_and_says_what_it_is_about(path):
    text = path.read_text()
    assert text.startswith('"""')
    assert len(text.splitlines()) <= 145


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_what_a_rule_names_exists(rule):
    assert set(rule.explains) <= set(IDS) - {rule.id}
    assert set(rule.injected_by) <= {patch.id for patch in CATALOG if patch.kind is Kind.FAULT}


def test_fallbacks_come_last_and_the_last_one_takes_everything():
    fallbacks = [rule.fallback for rule in RULES]
    assert fallbacks == sorted(fallbacks)
    assert IDS[-1] == "unknown-verdict"


def test_every_fault_belongs_to_one_cause():
    named = [fault for rule in RULES for fault in rule.injected_by]
    no_dump = {fault for case in LOGIT_FAULTS for fault in case.inject}
    assert sorted(named) == sorted(
        patch.id for patch in CATALOG if patch.kind is Kind.FAULT and patch.id not in no_dump
    )


def findings():
    for case in FAULTS:
        for incident in group(read_store(DumpStore(CORPUS / case.id), None).dumps):
            yield from conclude(incident)


@pytest.mark.parametrize("finding", findings(), ids=lambda finding: finding.rule)
def test_commands_parse_fixes_exist_and_issues_are_written_alike(finding):
    assert finding.next_commands
    for line in finding.next_commands:
        parse_command(line)
    assert finding.fix in {None, *(patch.id for patch in CATALOG if patch.kind is Kind.FIX)}
    assert all(re.fullmatch(r"(SGLang|TensorRT-LLM|vLLM|FlashInfer) \d+", issue) for issue in finding.upstream)
    assert finding.cause.endswith(".")
    # What would rule it out is what the evidence leaves open: nothing, where the cause is certain.
    assert bool(finding.ruled_out_if) is (finding.confidence is not Confidence.CERTAIN)
    assert finding.advice
