"""SGLang arguments that a CPU needs, added to those that the user gave and never in place of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# Option to value; None for a switch. Without these SGLang looks for CUDA, or for what only its CUDA build brings; the
# Triton interpreter has no bf16 arithmetic.
CPU_ARGUMENTS: dict[str, str | None] = {
    "--device": "cpu",
    "--dtype": "float32",
    "--disable-cuda-graph": None,
    "--disable-overlap-schedule": None,
    "--sampling-backend": "pytorch",
    "--grammar-backend": "none",
}


def missing_cpu_arguments(given: Sequence[str]) -> tuple[str, ...]:
    """Say what of CPU_ARGUMENTS is not among the words that the user gave, nor in the file that `--config` names."""
    options = _options(given)
    absent = [option for option in CPU_ARGUMENTS if not any(_means(word, option) for word in options)]
    return tuple(word for option in absent for word in (option, CPU_ARGUMENTS[option]) if word is not None)


def _means(word: str, option: str) -> bool:
    # SGLang's argparse takes unambiguous abbreviations. An ambiguous one it refuses, so counting it does no harm.
    return len(word) > len("--") and option.startswith(word)


def _options(given: Sequence[str]) -> list[str]:
    found = [word.partition("=")[0] for word in given if word.startswith("--")]
    # As SGLang's ConfigArgumentMerger does: the word after a literal --config, YAML keys without the dashes.
    if "--config" in given[:-1]:
        found += [f"--{key}".replace("_", "-") for key in _keys(Path(given[list(given).index("--config") + 1]))]
    return found


def _keys(path: Path) -> list[str]:
    # Comes with SGLang; the base install does without.
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        # SGLang reads the file next, and says what is wrong with it.
        return []
    return [str(key) for key in content] if isinstance(content, dict) else []
