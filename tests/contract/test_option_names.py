"""One vocabulary of options over all verbs: one name for one thing, old names that work unseen, lists taken alike."""

import re
from pathlib import Path

import pytest

from command_line import parse_command
from gemma4_triage.cli.app import command_tree
from gemma4_triage.cli.option_names import OF_A_VERB, SAME, SEVERAL, todays_line

ROOT = Path(__file__).parents[2]
NAMES = {
    "--output": {"--out"},
    "--dir": {"--dump-dir"},
    "--fault": {"--faults"},
    "--backend": {"--backends"},
    "--model": {"--models"},
    "--batch": {"--batches"},
    "--arm": {"--arms"},
    "--timeout": {"--time-limit", "--timeout-s"},
}
"""The name that help shows of each thing, with those that it had."""


def commands(command=None, path=()):
    command = command or command_tree()
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


OPTIONS = [
    pytest.param(path, option, id=f"{' '.join(path) or 'top'} {option.opts[0]}")
    for path, command in commands()
    for option in command.params
    if option.param_type_name == "option" and not option.hidden
]


def value_of(option) -> str:
    """Return a value that the option's type reads."""
    metavar = option.metavar or ""
    if metavar == "TIME":
        return "60"
    return "1" if metavar in ("NUMBER", "N", "M") else "x"


def parsed(path, words):
    """Return what a command is told, by parameter, with nothing but these options."""
    command = command_tree()
    for name in path:
        command = command.commands[name]
    with command.make_context(" ".join(path), list(words), resilient_parsing=True) as context:
        return context.params


def test_the_table_is_the_one_that_is_in_force():
    assert {same[0]: set(same[1:]) for same in SAME} == NAMES
    assert OF_A_VERB == {"prune": (("--keep-newest", "--keep"),)}


def test_pages_name_options_as_they_are_called_today():
    old = re.compile(rf"(?<!\S)({'|'.join(sorted(set().union(*NAMES.values(), {'--max-minutes'})))})(?![\w-])")
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        whole = page.read_text().replace("\\\n", " ")
        commands = [line for line in whole.splitlines() if re.match(r"(?:- `)?gemma4-triage ", line)]
        assert [line for line in commands if old.search(line)] == [], page.name
    assert todays_line("step --arms a --out x --max-minutes 2.5") == "step --arm a --output x --timeout 2.5m"


@pytest.mark.parametrize(("path", "option"), OPTIONS)
def test_an_option_is_shown_by_todays_name(path, option):
    assert not set(option.opts) & set().union(*NAMES.values())
    if "--output" in option.opts:
        assert "-o" in option.opts
    assert option.metavar not in ("ID", "NAME[,NAME]", "ID[,ID]")
    assert "epeatable" not in (option.help or "") or option.multiple


@pytest.mark.parametrize(
    ("path", "option"), [one for one in OPTIONS if set(one.values[1].opts) & NAMES.keys() and one.values[0]]
)
def test_an_old_name_does_the_same_and_is_hidden(path, option):
    name = next(name for name in option.opts if name in NAMES)
    told = parsed(path, (name, value_of(option)))
    assert told[option.name] is not None
    for old in NAMES[name]:
        assert parsed(path, (old, value_of(option))) == told
        assert parsed(path, (f"{old}={value_of(option)}",)) == told


@pytest.mark.parametrize(("path", "option"), [one for one in OPTIONS if one.values[1].metavar in SEVERAL])
def test_several_values_are_repeated_or_stand_between_commas(path, option):
    name = option.opts[0]
    repeated = parsed(path, (name, "8", name, "9"))
    assert repeated == parsed(path, (name, "8,9")) == parsed(path, (f"{name}=8,9",))
    assert list(repeated[option.name]) == ["8", "9"] if option.multiple else repeated[option.name] == "8,9"


def test_what_takes_several_is_shown_as_such():
    several = {"--fault", "--backend", "--batch", "--arm", "--patches", "--probes", "--with", "--base", "--only"}
    shown = {(name, option.metavar) for _, option in (one.values for one in OPTIONS) for name in option.opts}
    odd = {(name, metavar) for name, metavar in shown if name in several and metavar not in SEVERAL}
    # Of `diff` and `repro mutations`, which run all their servers with one mode of the probes.
    assert odd == {("--probes", "off|log|trap"), ("--probes", "trap|contain")}


def test_old_lines_of_the_table_still_run():
    for line in (
        "gemma4-triage dumps prune --keep 3",
        "gemma4-triage bench step --max-minutes 5 --models e4b --batches 1,16 --arms none --out x.json",
        "gemma4-triage diff backends --scenario e4b --backends triton --faults clamp --time-limit 60",
        "gemma4-triage serve --dump-dir d --faults clamp --model-path m",
    ):
        assert parse_command(line)


def test_a_misspelt_option_is_told_todays_names(cli):
    _, _, err = cli("bench", "kernels", "--outp", "x")
    assert err.splitlines()[0].endswith("(Possible options: --ops, --output)")
