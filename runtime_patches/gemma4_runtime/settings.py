"""Settings from the environment. A value that cannot be read is an error that names variable, value and choices."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gemma4_dumps.included import WORDS, words
from gemma4_dumps.wording import names_near
from gemma4_runtime.errors import SettingsError


class Mode(StrEnum):
    """What a probe does with a violation.

    `on`, written as 1, is `trap` where a CUDA graph does not run and `contain` where one does. `clamp` is asked for by
    the patch of that name and no word of the variable; see `indices/act.py`.
    """

    OFF = "off"
    LOG = "log"
    CONTAIN = "contain"
    TRAP = "trap"
    ON = "on"
    CLAMP = "clamp"

    @property
    def neutralises(self) -> bool:
        """Whether bad entries are replaced before a kernel follows them."""
        return self in (Mode.CONTAIN, Mode.CLAMP)

    def at(self, in_graph: bool) -> Mode:
        """Return the mode at one site: `on` is resolved, the others are what they are."""
        if self is not Mode.ON:
            return self
        return Mode.CONTAIN if in_graph else Mode.TRAP

    @property
    def text(self) -> str:
        """For people."""
        return "1: trap, and contain in CUDA graphs" if self is Mode.ON else self.value


class Leak(StrEnum):
    """What the leak audit does with a finding. `raise` ends the process; `dump` does not take the server down."""

    OFF = "off"
    DUMP = "dump"
    RAISE = "raise"


class HostEngine(StrEnum):
    OFF = "off"
    ON = "on"
    FORCE = "force"


class DeviceModel(StrEnum):
    """How the host engine's attention meets a page that lies outside the buffer."""

    SM100 = "sm100"
    SM90 = "sm90"


_MODE_WORDS = {"": "off", "0": "off", "off": "off", "log": "log", "contain": "contain", "trap": "trap", "1": "on"}
_LEAK_WORDS = {"": "off", "0": "off", "off": "off", "dump": "dump", "raise": "raise"}
_YES_OR_NO = {"": False, "0": False, "1": True}
_AS_CHOSEN = {"": None, "0": False, "1": True}
_HOST_WORDS = {"": "off", "0": "off", "off": "off", "1": "on", "force": "force"}


def _word(table: Mapping[str, Any]) -> BeforeValidator:
    def read(value: Any) -> Any:
        if value is None or isinstance(value, bool):
            # The default; from the environment come words.
            return value
        word = str(value).strip().lower()
        if word not in table:
            raise ValueError("allowed: " + ", ".join(word for word in table if word))
        return table[word]

    return BeforeValidator(read)


def _items(value: Any) -> tuple[str, ...]:
    if value is None or isinstance(value, tuple):
        return value or ()
    items = tuple(item.strip() for item in str(value).split(",") if item.strip())
    duplicates = sorted({item for item in items if items.count(item) > 1})
    if duplicates:
        raise ValueError(f"named twice: {', '.join(duplicates)}")
    return items


def _included(value: Any) -> tuple[str, ...]:
    items = _items(value)
    if not set(items) <= WORDS.keys():
        raise ValueError(f"allowed: {', '.join(WORDS)}, or both with a comma between them")
    return items


def _number(allowed: str) -> BeforeValidator:
    def read(value: Any) -> int:
        word = str(value).strip()
        if not word.isascii() or not word.isdigit():
            if not word:
                return 0
            raise ValueError(f"allowed: {allowed}")
        return int(word)

    return BeforeValidator(read)


_STEPS = _number("a number of scheduler steps, 1 or more; 0 for none")
_SEED = _number("a seed, 1 or more; 0 for SGLang's own order")
_MIB = _number("a number of MiB, 1 or more; 0 for what memory allows")


def _rows(value: Any) -> int:
    word = str(value).strip() or "256"
    if not word.isascii() or not word.isdigit() or int(word) < 1:
        raise ValueError("allowed: a number of tokens, 1 or more")
    return int(word)


def _drafts(value: Any) -> str | tuple[tuple[int, float], ...]:
    """Read a word, or rows such as 1:1.6,16:1.8,64:3: requests, and the tokens that a verification needs there."""
    if isinstance(value, tuple):
        return value
    word = str(value).strip().lower() or "auto"
    if word in ("auto", "always", "never"):
        return word
    rows: list[tuple[int, float]] = []
    for item in word.split(","):
        size, _, needed = (part.strip() for part in item.partition(":"))
        if not (size.isascii() and size.isdigit() and _DECIMAL.fullmatch(needed) and int(size) > 0):
            raise ValueError("allowed: auto, always, never, or rows of requests:tokens, such as 1:1.6,16:1.8,64:3")
        rows.append((int(size), float(needed)))
    if [size for size, _ in rows] != sorted({size for size, _ in rows}):
        raise ValueError("the rows' requests do not rise")
    return tuple(rows)


_DECIMAL = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)
_Knob = Annotated[bool | None, _word(_AS_CHOSEN)]
_Items = Annotated[tuple[str, ...], BeforeValidator(_items)]

ALLOW_MISSING = "GEMMA4_TRIAGE_ALLOW_MISSING"
ALLOW_UNTESTED = "GEMMA4_TRIAGE_ALLOW_UNTESTED"
INCLUDE = "GEMMA4_TRIAGE_INCLUDE"
FORCE_EAGLE = "SGLANG_GEMMA4_FORCE_EAGLE"
MTP_V2 = "SGLANG_FROZEN_KV_MTP_V2"
MTP_V2_ALIAS = "SGLANG_FROZEN_KV_MTP_EXPERIMENTAL_V2"
DRAFTS = "GEMMA4_TRIAGE_DRAFTS"
VISION_BUDGET = "GEMMA4_TRIAGE_VISION_BUDGET_MB"
_INCLUDES = "page-table"


class Settings(BaseModel):
    """Everything that the environment can ask of the runtime. With no variable set, `wants_nothing` is true."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    mode: Annotated[Mode, _word(_MODE_WORDS)] = Field(Mode.OFF, validation_alias="SGLANG_TRTLLM_MHA_DEBUG")
    dump_dir: Annotated[Path | None, BeforeValidator(lambda value: value or None)] = Field(
        None, validation_alias="SGLANG_TRTLLM_MHA_DEBUG_DIR"
    )
    probes: _Items = Field((), validation_alias="GEMMA4_TRIAGE_PROBES")
    patches: _Items = Field((), validation_alias="GEMMA4_TRIAGE_PATCHES")
    faults: _Items = Field((), validation_alias="GEMMA4_TRIAGE_FAULTS")
    include: Annotated[tuple[str, ...], BeforeValidator(_included)] = Field((), validation_alias=INCLUDE)
    leak: Annotated[Leak, _word(_LEAK_WORDS)] = Field(Leak.OFF, validation_alias="GEMMA4_TRIAGE_LEAK")
    leak_every: Annotated[int, _STEPS] = Field(0, validation_alias="GEMMA4_TRIAGE_LEAK_EVERY")
    pool_seed: Annotated[int, _SEED] = Field(0, validation_alias="GEMMA4_TRIAGE_POOL_SEED")
    cost: Annotated[bool, _word(_YES_OR_NO)] = Field(False, validation_alias="GEMMA4_TRIAGE_COST")
    host_engine: Annotated[HostEngine, _word(_HOST_WORDS)] = Field(
        HostEngine.OFF, validation_alias="GEMMA4_TRIAGE_HOST_ENGINE"
    )
    device_model: Annotated[DeviceModel, _word({"": "sm100", "sm100": "sm100", "sm90": "sm90"})] = Field(
        DeviceModel.SM100, validation_alias="GEMMA4_TRIAGE_DEVICE_MODEL"
    )
    yoco: _Knob = Field(None, validation_alias="SGLANG_GEMMA4_YOCO")
    yoco_rows: Annotated[int, BeforeValidator(_rows)] = Field(256, validation_alias="GEMMA4_TRIAGE_YOCO_ROWS")
    vision_budget_mb: Annotated[int, _MIB] = Field(0, validation_alias=VISION_BUDGET)
    force_eagle: _Knob = Field(None, validation_alias=FORCE_EAGLE)
    piecewise_multimodal: _Knob = Field(None, validation_alias="SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM")
    mtp_v2: _Knob = Field(None, validation_alias=MTP_V2)
    mtp_v2_alias: _Knob = Field(None, validation_alias=MTP_V2_ALIAS)
    drafts: Annotated[str | tuple[tuple[int, float], ...], BeforeValidator(_drafts)] = Field(
        "auto", validation_alias=DRAFTS
    )
    allow_missing: Annotated[bool, _word(_YES_OR_NO)] = Field(False, validation_alias=ALLOW_MISSING)
    allow_untested: Annotated[bool, _word(_YES_OR_NO)] = Field(False, validation_alias=ALLOW_UNTESTED)

    def knob(self, name: str) -> bool | None:
        """Say what a pull request's own knob says, under either of its names; None if it says nothing."""
        return next((said for field in _names_of(name) if (said := getattr(self, field)) is not None), None)

    def knob_variable(self, name: str) -> str:
        """Return the variable that speaks for a knob: the one of its names that is set, else the first."""
        fields = _names_of(name)
        return _variable(next((field for field in fields if getattr(self, field) is not None), fields[0]))

    @property
    def include_text(self) -> str:
        """What dumps hold on request, in words."""
        return words(self.include)

    @property
    def leak_text(self) -> str:
        """The leak audit's settings in words."""
        every = f" and every {self.leak_every} steps" if self.leak_every else ""
        return f"{self.leak.value}, at idle{every}"

    @property
    def wants_nothing(self) -> bool:
        return (
            self.mode is Mode.OFF
            and self.leak is Leak.OFF
            and not (self.patches or self.faults or any(getattr(self, name) for name in _KNOB_FIELDS))
            and self.host_engine is HostEngine.OFF
            # Refused where patches are selected, which an unset GEMMA4_TRIAGE_PATCHES must not skip.
            and not self.vision_budget_mb
            and not self.pool_seed
            and self.drafts == "auto"
        )


_PREFIX = "GEMMA4_TRIAGE_"
# Read by the command line alone.
_OTHERS = ("GEMMA4_TRIAGE_TRACEBACK",)
VARIABLES = tuple(str(field.validation_alias) for field in Settings.model_fields.values())
_SECOND_NAME = "_alias"
_KNOB_FIELDS = tuple(name for name, field in Settings.model_fields.items() if field.annotation == bool | None)
KNOBS = tuple(name for name in _KNOB_FIELDS if not name.endswith(_SECOND_NAME))
"""The pull requests' own switches, as fields of Settings. `Patch.knob` says whose each is."""


def knob_variables(name: str) -> tuple[str, ...]:
    """Return the variables of a knob, its usual name first."""
    return tuple(_variable(field) for field in _names_of(name))


def _names_of(knob: str) -> tuple[str, ...]:
    return tuple(field for field in (knob, knob + _SECOND_NAME) if field in _KNOB_FIELDS)


def _variable(field: str) -> str:
    return str(Settings.model_fields[field].validation_alias)


def read_settings() -> Settings:
    """Read the environment.

    Raises:
        SettingsError: naming each variable that cannot be read, its value, and what is allowed.
    """
    strangers = [n for n in os.environ if n.startswith(_PREFIX) and n not in (*VARIABLES, *_OTHERS)]
    if strangers:
        known = [name for name in VARIABLES if name.startswith(_PREFIX)]
        said = (names_near(name, known, prefix=_PREFIX, few=len(known)) for name in sorted(strangers))
        raise SettingsError(f"{', '.join(sorted(strangers))}: no such setting; {'; '.join(dict.fromkeys(said))}")
    try:
        settings = Settings.model_validate({name: os.environ[name] for name in VARIABLES if name in os.environ})
    except ValidationError as error:
        lines = [
            f"{item['loc'][0]}={item['input']!r} cannot be read: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise SettingsError("\n".join(lines)) from None
    if None not in (settings.mtp_v2, settings.mtp_v2_alias) and settings.mtp_v2 != settings.mtp_v2_alias:
        raise SettingsError(
            f"{MTP_V2}='{int(bool(settings.mtp_v2))}' and {MTP_V2_ALIAS}='{int(bool(settings.mtp_v2_alias))}' are two "
            "names of one setting and differ; unset one of them"
        )
    if settings.probes and settings.mode is Mode.OFF:
        raise SettingsError(
            f"GEMMA4_TRIAGE_PROBES={','.join(settings.probes)!r} chooses probes but SGLANG_TRTLLM_MHA_DEBUG is off; "
            "set SGLANG_TRTLLM_MHA_DEBUG to log, contain, trap or 1, or unset GEMMA4_TRIAGE_PROBES"
        )
    if settings.include and (settings.mode is Mode.OFF or (settings.probes and _INCLUDES not in settings.probes)):
        raise SettingsError(
            f"{INCLUDE}={','.join(settings.include)!r} is for dumps of the probe {_INCLUDES}, which is not on; "
            "set SGLANG_TRTLLM_MHA_DEBUG to log, contain, trap or 1, and leave GEMMA4_TRIAGE_PROBES out or name it "
            f"there, or unset {INCLUDE}"
        )
    if settings.leak_every and settings.leak is Leak.OFF:
        raise SettingsError(
            f"GEMMA4_TRIAGE_LEAK_EVERY='{settings.leak_every}' audits every so many steps but GEMMA4_TRIAGE_LEAK is "
            "off; set GEMMA4_TRIAGE_LEAK to dump or raise, or unset GEMMA4_TRIAGE_LEAK_EVERY"
        )
    if settings.cost and settings.mode is Mode.OFF and settings.leak is Leak.OFF:
        raise SettingsError(
            "GEMMA4_TRIAGE_COST='1' times probes and none is on; set SGLANG_TRTLLM_MHA_DEBUG or GEMMA4_TRIAGE_LEAK, "
            "or unset GEMMA4_TRIAGE_COST"
        )
    return settings
