"""What a shell completes: names of dumps, and the words that an option or argument takes."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module

import typer

from gemma4_dumps.errors import UserError
from gemma4_triage.cli.store_options import open_store


def complete_dump(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of dumps for a shell; none where a folder cannot be read, since a shell shows no error."""
    from gemma4_dumps.directory_name import short_id

    try:
        store = open_store(context.params.get("directory"))
        names = [name for found in store.all_names() for name in found]
        ids = map(short_id, names) if incomplete else ()
        return [name for name in ("latest", *names, *ids) if name.startswith(incomplete)]
    except UserError:
        return []


def complete_dump_or_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return names of dumps, and the folders of runs in the state directory, for a shell."""
    from gemma4_repro.engine.run_folder import runs_root

    with suppress(OSError):
        runs = sorted(map(str, runs_root().iterdir()), reverse=True)
        return [*complete_dump(context, incomplete), *(run for run in runs if run.startswith(incomplete))]
    return complete_dump(context, incomplete)


def words(*known: str | Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return what completes one word, or the last of several with commas between; `+` and `-` may stand before one.

    Args:
        known: The words, or what returns some of them, imported only when a shell asks.
    """

    def complete(incomplete: str) -> list[str]:
        return _ending(incomplete, (word for one in known for word in ((one,) if isinstance(one, str) else one())))

    return complete


def words_of(argument: str, known: Callable[[str | None], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Return what completes words that depend on what was typed for a command's argument.

    Args:
        argument: Its name.
        known: Returns the words for a value of it, and those of all its values for None or a value that is none.
    """

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        # A line that ends behind an option's name is parsed no further, and its arguments are left over.
        typed = context.params.get(argument) or next(iter(context.args), None)
        return _ending(incomplete, known(typed))

    return complete


def _ending(incomplete: str, every: Iterable[str]) -> list[str]:
    """Return what the last word of a list with commas can be, with the list and its sign before it."""
    before, comma, last = incomplete.rpartition(",")
    sign = last[:1] if last[:1] in ("+", "-") else ""
    return [f"{before}{comma}{sign}{word}" for word in every if word.startswith(last.removeprefix(sign))]


def listed(module: str, name: str) -> Callable[[], list[str]]:
    """Return what gives the keys of a table, or the ids of a list, that a module has: imported only when asked."""

    def ids() -> list[str]:
        return [getattr(one, "id", one) for one in getattr(import_module(module), name)]

    return ids


def presets() -> list[str]:
    """Return what `serve --preset` takes."""
    from gemma4_runtime.presets import PRESETS

    return [one.id for one in PRESETS]


def releases() -> list[str]:
    """Return the releases of SGLang that are known."""
    from gemma4_runtime.releases import KNOWN

    return [*KNOWN]


def kinds() -> list[str]:
    """Return the kinds of patches."""
    from gemma4_runtime.patch import Kind

    return [kind.value for kind in Kind]


def patches(*kinds: str) -> Callable[[], list[str]]:
    """Return what names the patches of these kinds; of all of them if none is named."""

    def ids() -> list[str]:
        from gemma4_runtime.catalog import CATALOG

        return [one.id for one in CATALOG if not kinds or one.kind.value in kinds]

    return ids


def patch_sets() -> list[str]:
    """Return what a list of patches begins with, and the patches that may stand in it."""
    return ["default", "none", *patches("fix", "optimisation")()]


def explained() -> list[str]:
    """Return what `patches explain` takes."""
    return ["default", "none", *presets(), *patches()()]


def known_issues() -> list[str]:
    """Return the ids of the known issues."""
    from gemma4_triage.known_issues.catalog import known_issues as every

    return [issue.id for issue in every()]


def topics() -> list[str]:
    """Return the topics of the known issues."""
    from gemma4_triage.known_issues.catalog import known_issues as every

    return sorted({issue.topic for issue in every()})


def samples() -> list[str]:
    """Return the names of the samples."""
    from gemma4_triage.samples import SAMPLES

    return [sample.id for sample in SAMPLES]


def scenarios() -> list[str]:
    """Return what `repro` takes."""
    from gemma4_repro.catalog import SCENARIOS

    return ["corpus", "crash", "mutations", *(one.id for one in SCENARIOS)]


def arms_of_scenario(scenario: str | None) -> list[str]:
    """Return the arms of a scenario; of all scenarios, each once, where there is none of that name."""
    from gemma4_repro.catalog import SCENARIOS

    chosen = [one for one in SCENARIOS if one.id == scenario] or SCENARIOS
    return list(dict.fromkeys(arm.id for one in chosen for arm in one.arms))


def models_of_load(load: str | None) -> list[str]:
    """Return the models of a load of `bench serving`; of all loads, each once, where there is none of that name."""
    from gemma4_repro.serving_bench.loads import LOADS

    chosen = [LOADS[load]] if load in LOADS else LOADS.values()
    return list(dict.fromkeys(model for one in chosen for model in one.models))


def arms_of_load(load: str | None) -> list[str]:
    """Return the arms of a load of `bench serving`; of all loads, each once, where there is none of that name."""
    from gemma4_repro.serving_bench.loads import LOADS

    chosen = [LOADS[load]] if load in LOADS else LOADS.values()
    return list(dict.fromkeys(arm.id for one in chosen for arm in one.arms))


def corpus_cases() -> list[str]:
    """Return the cases of the corpus."""
    from gemma4_repro.corpus.catalog import CASES

    return [one.id for one in CASES]


def crash_cells() -> list[str]:
    """Return the cells of the published crashes."""
    from gemma4_repro.crash.cells import CELLS

    return [one.id for one in CELLS]
