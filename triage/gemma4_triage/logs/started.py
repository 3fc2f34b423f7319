"""What a server was started with: its arguments, its model and its release, as far as its log says."""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

from gemma4_triage.logs.facts import LogFacts

_NUMBERS = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_ARCHITECTURE = re.compile(r"\btype=(\w{1,80})")


class _Parsers(NamedTuple):
    """The parsers of a family of models, as the registries of SGLang's parsers name them.

    Attributes:
        names: words of a model's path or architecture.
        tools: what --tool-call-parser takes for it, the one to advise first; empty if that differs within the family.
        thoughts: what --reasoning-parser takes for it, the one to advise first; empty if it writes no thoughts.
    """

    names: tuple[str, ...]
    tools: tuple[str, ...]
    thoughts: tuple[str, ...]


_QWEN = ("qwen25", "qwen")
_GLM_45 = ("glm45", "glm")
# The first family with a word that fits counts. Checked against function_call/function_call_parser.py and
# parser/reasoning_parser.py of SGLang 0.5.13.post1 and 0.5.23.
_PARSERS = (
    _Parsers(("gemma-4", "gemma4"), ("gemma4",), ("gemma4",)),
    _Parsers(("gpt-oss", "gptoss"), ("gpt-oss",), ("gpt-oss",)),
    _Parsers(("qwen3-coder",), ("qwen3_coder",), ()),
    _Parsers(("qwen3.5", "qwen3.6", "qwen3.8", "qwen3_5"), ("qwen3_coder",), ("qwen3",)),
    _Parsers(("thinking-2507",), _QWEN, ("qwen3-thinking", "qwen3")),
    _Parsers(("instruct-2507", "qwen3-vl", "qwen3-next"), _QWEN, ()),
    _Parsers(("qwen3",), _QWEN, ("qwen3",)),
    _Parsers(("qwq",), _QWEN, ("deepseek-r1",)),
    _Parsers(("qwen2.5",), _QWEN, ()),
    _Parsers(("kimi-k2-thinking", "kimi-k2.5", "kimi-k2.6"), ("kimi_k2",), ("kimi_k2",)),
    _Parsers(("kimi-k2",), ("kimi_k2",), ()),
    _Parsers(("glm-4.5", "glm-4.6"), _GLM_45, ("glm45",)),
    _Parsers(("glm-4.7", "glm-5"), ("glm47",), ("glm45",)),
    _Parsers(("deepseek-v4",), ("deepseekv4",), ("deepseek-v4",)),
    _Parsers(("deepseek-v3.2", "deepseek-v3_2"), ("deepseekv32",), ("deepseek-v3",)),
    _Parsers(("deepseek-v3.1", "deepseek-v3_1"), ("deepseekv31",), ("deepseek-v3",)),
    _Parsers(("deepseek-r1-distill",), (), ("deepseek-r1",)),
    _Parsers(("deepseek-r1",), ("deepseekv3",), ("deepseek-r1",)),
    _Parsers(("minimax-m2",), ("minimax-m2",), ("minimax", "minimax-append-think")),
    _Parsers(("mimo-v2",), ("mimo",), ("mimo", "qwen3")),
    _Parsers(("nemotron-3",), ("qwen3_coder",), ("nemotron_3",)),
    _Parsers(("step-3.5", "step3.5", "step3p5"), ("step3p5",), ("step3p5",)),
    _Parsers(("llama-4", "llama4"), ("pythonic",), ()),
    _Parsers(("llama-3",), ("llama3",), ()),
)
_NO_SIGN = re.compile(r"[^a-z0-9]")
_STATES = (
    "mamba",
    "qwen3-next",
    "qwen3.5",
    "qwen3.6",
    "qwen3.8",
    "qwen3_5",
    "nemotron-h",
    "nemotron-nano",
    "kimi-linear",
)


class Started:
    """Questions about the last start of a server in a log."""

    def __init__(self, facts: LogFacts) -> None:
        self._settings = facts.settings
        self._remarks = facts.remarks
        self.release = facts.release

    @cached_property
    def model(self) -> str:
        """Return its path and its architecture, in small letters."""
        loaded = self._remarks.get("after_weights")
        found = None if loaded is None else _ARCHITECTURE.search(loaded.text)
        return f"{self._settings.get('model_path', '')} {found[1] if found else ''}".lower()

    def of(self, *words: str) -> bool:
        """Say whether the model's path or architecture holds one of these words."""
        return any(word in self.model for word in words)

    def has(self, name: str) -> bool:
        """Say whether the start line has an argument, whatever its value."""
        return name in self._settings

    def value(self, name: str, default: str = "") -> str:
        """Return an argument's value; the default where the log does not say or says None."""
        said = self._settings.get(name, "None")
        return default if said == "None" else said

    def on(self, name: str) -> bool:
        """Say whether a switch is on."""
        return self._settings.get(name) == "True"

    def lacks(self, name: str) -> bool:
        """Say whether the start line has an argument and it is None."""
        return self._settings.get(name) == "None"

    def older_than(self, *release: int) -> bool:
        """Say whether the log names a release, and it is an older one."""
        found = _NUMBERS.match(self.release)
        return found is not None and tuple(map(int, found.groups())) < release

    @property
    def is_float16(self) -> bool:
        """Say whether the weights were loaded as float16, by the start line or by the line of the weights."""
        loaded = self._remarks.get("after_weights")
        told = loaded is not None and "dtype=torch.float16" in loaded.text
        return told or self.value("dtype") in ("float16", "half")

    @property
    def keeps_states(self) -> bool:
        """Say whether the model has layers that keep a state in place of keys and values."""
        return "states" in self._remarks or self.of(*_STATES)

    @cached_property
    def words(self) -> dict[str, str]:
        """Return what sentences about this server say of it."""
        said = {name: self.value(name, "auto") for name in ("kv_cache_dtype", "speculative_algorithm")}
        said["attention_backend"] = self.value("attention_backend")
        said["no_scales"] = " without scales" if "no_kv_scales" in self._remarks else ""
        said |= {"tool_parser": self._parsers.tools[0]} if self._parsers.tools else {}
        said |= {"thought_parser": self._parsers.thoughts[0]} if self._parsers.thoughts else {}
        said |= {name: self.value(name) for name in ("tool_call_parser", "reasoning_parser")}
        return said

    @property
    def has_other_tool_parser(self) -> bool:
        """Say whether --tool-call-parser names a parser of another family than the model's."""
        return self._is_other(self.value("tool_call_parser"), self._parsers.tools)

    @property
    def has_other_thought_parser(self) -> bool:
        """Say whether --reasoning-parser names a parser of another family than the model's."""
        return self._is_other(self.value("reasoning_parser"), self._parsers.thoughts)

    @cached_property
    def _parsers(self) -> _Parsers:
        return next((family for family in _PARSERS if self.of(*family.names)), _Parsers((), (), ()))

    def _is_other(self, parser: str, known: tuple[str, ...]) -> bool:
        # One that is named as the model is was made for it, though the table has only the family's.
        named = _NO_SIGN.sub("", parser.lower())
        return bool(known) and parser not in ("", "auto", *known) and named not in _NO_SIGN.sub("", self.model)
