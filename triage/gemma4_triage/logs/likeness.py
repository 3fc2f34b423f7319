"""How much alike what ended two servers is: in exceptions, words of messages and frames, weighed by how rare they are.

A signature of a known issue holds letter by letter or not at all. Most failures have none, and still come in families:
what other public incidents came to is the best guess at a new one that has their words and frames.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import log, sqrt

from gemma4_triage.known_issues.catalog import Incident, incidents
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.other_platform import platform
from gemma4_triage.logs.tracebacks import TORN

ALIKE = 0.45
"""The least likeness that is told of, of 1: of those below, most were another cause."""
_LEAST_WEIGHT, _LEAST_RARE, _RARE = 13.0, 2, 4.3
"""What two failures need in common: a sum of weights, and so many signs that few incidents have."""
_UNKNOWN, _OF_ARGUMENTS = 2.5, 0.3
_LONGEST = 600  # characters of a message
_WORD = pattern(r"[A-Za-z_][A-Za-z0-9_]{2,}")
_RANK = pattern(r"(?:tp|dp|pp|ep|t|pid)\d*")
_SWITCH = pattern(r"--(?:enable|disable)_\w+=True")
_NUMBER = pattern(r"\d+|0x[0-9a-f]+")
_FRAME = pattern(r"([\w.<>-]+)(?::[\d?]+)? (\S+)")
_ITS_OWN = frozenset(
    {"model_path", "tokenizer_path", "served_model_name", "host", "port", "device", "random_seed", "chat_template"}
)
_UNSET = frozenset({"None", "False", "", "auto"})
_OF_ENDS = frozenset({"sigquit", "child", "killed", "exception", "answered-500", "health", "unhealthy", "nan"})
"""Alarms that say that something ended, and not why, or in the same words whatever the cause."""
_COMMON_WORDS = """
the and for not are was with this that from you can may see have has but its into only use set any all one two than
then when where which while been will would should could did does got get try trying tried please more most less other
such each per via also out off over under same own cuda error kernel errors might asynchronously reported some call
stacktrace below incorrect debugging consider passing cuda_launch_blocking compile torch_use_cuda_dsa enable device
side assertions gpu total capacity gib mib free process memory allocated pytorch reserved unallocated large setting
pytorch_cuda_alloc_conf expandable_segments true avoid fragmentation documentation management https org docs stable
notes html environment variables including non private pools graphs graph keyword unexpected argument attribute object
import name module cannot found post http info completions chat internal request requests assertion failed failure
exception traceback occurred encountered illegal access invalid unhandled operation index bounds details run triggered
begin end take several minutes load weight weights capture captured avail dtype type bfloat16 torch usage raise return
self none false line file last recent available evictable protected session_held uncached pool leak detected swa full
subprocess sigquit cleanup triggering crashed exit code
mem token_to_kv_pool_allocator available_size evictable_size protected_size max_total_num_tokens
"""
_COMMON = frozenset(_COMMON_WORDS.split())
"""Words of how Python, torch and CUDA tell of any failure, and SGLang of any leak."""


@dataclass(frozen=True)
class Likeness:
    """A public incident, how much alike it is (0 to 1), and in what, the rarest first."""

    incident: Incident
    share: float
    signs: tuple[str, ...]


def signs_of(facts: LogFacts) -> tuple[frozenset[str], frozenset[str]]:
    """Return what a log says of failures, as words, "file.py:function" and "!Type", and its server's arguments."""
    found: set[str] = set()
    for death in (*facts.deaths, *facts.errors):
        found |= _of_death(death)
    for alarm in facts.alarms:
        if alarm.kind not in _OF_ENDS:
            for text in (alarm.text, *alarm.more):
                found |= _words(text)
    given = {
        f"--{name}={value}" if not value[0].isdigit() and len(value) < 30 else f"--{name}"
        for name, value in facts.arguments.items()
        if value not in _UNSET and name not in _ITS_OWN
    }
    return frozenset(found), frozenset(given) if found else frozenset()


def _of_death(death: Death) -> set[str]:
    # What stands for the end of a traceback that is cut off is no word of the log's.
    message = "" if death.message == TORN else death.message
    found = _words(message)
    whole = " ".join(_NUMBER.sub("", message.lower()).split())
    # The whole of a short message is rarer than its words.
    if 2 <= len(whole.split()) <= 12 and "leak detected" not in whole:
        found.add(f"={whole[:120]}")
    if death.type_name:
        found.add(f"!{death.type_name.rpartition('.')[2]}")
    if death.package:
        found.add(f"@{death.package}")
    # Of a traceback that is cut off the last line that stands there is not the one that failed.
    found |= {word for word in _words(death.statement) if "_" in word and death.message != TORN}
    return found | _signs_of_frames(death.frames)


def _signs_of_frames(frames: Iterable[str]) -> set[str]:
    found = [match for frame in frames if (match := _FRAME.match(frame))]
    return {match[1] for match in found} | {f"{match[1]}:{match[2]}" for match in found}


def _words(text: str) -> set[str]:
    words = (word.lower() for word in _WORD.findall(text[:_LONGEST]))
    return {word for word in words if word not in _COMMON and not _RANK.fullmatch(word)}


_NEEDS = (
    (pattern(r"(?i)\bdeepep"), ("moe_a2a_backend", "enable_deepep_moe")),
    (pattern(r"\bEAGLE|\bMTP\b"), ("speculative_algorithm", "speculative_config")),
)
"""What a cause speaks of, and the options without which no server has it."""
_SPEAKS_OF = (
    (
        pattern(r"\bNGRAM\b|\bDFLASH\b|\b[Dd]rafts?\b(?!'s weights| are not)|\b[Ss]pec v2\b"),
        ("speculative_algorithm", "speculative_config", "speculative_draft_model_path", "speculative_algo"),
    ),
    (pattern(r"\bLoRA\b"), ("enable_lora", "lora_paths", "lora_modules")),
    (
        pattern(r"(?i)\bhi(?:radix)?cache|hierarchical cache|load(?:ed|s)? back\b|\bhost pages?\b|from the host"),
        ("enable_hierarchical_cache", "hicache_storage_backend", "enable_lmcache"),
    ),
    (
        pattern(r"\b(?:prefill|decode) servers?\b"),
        ("disaggregation_mode", "kv_transfer_config"),
    ),
)
"""What a cause speaks of, perhaps in passing, and the options that such a server has; of others it is told less."""
_LACKS_IT = 0.75  # of the share
_OF_A_PLATFORM = (
    (
        "rocm",
        pattern(r"\b(?:ROCm|AMD|HIP)\b|\bMI\d{3}|\bgfx\d|\b(?i:aiter)\b"),
        ("rocm", "hip", "aiter", "hsa"),
    ),
    ("xpu", pattern(r"\bXPU\b|\bIntel (?:Arc|GPU)"), ("xpu",)),
    ("npu", pattern(r"\bNPUs?\b|\bAscend\b|\bCANN\b"), ("npu", "ascend", "aclnn", "hccl")),
    ("hpu", pattern(r"\bGaudi\b|\bHPU\b"), ("hpu", "habana")),
    ("musa", pattern(r"\bMUSA\b|\bMoore Threads\b"), ("musa",)),
    ("mps", pattern(r"\bMPS\b|\bApple\b|\bMLX\b"), ("mps", "mlx")),
)
"""Kinds of machines, what names them in a cause, and parts of the words that a log of one has."""
_BY_PYTHON = pattern(
    r"'?NoneType'?|object is not (?:iterable|callable|subscriptable|an iterator)|has no len\(\)|index out of range|"
    r"unsupported operand type|object has no attribute|(?:not enough|too many) values to unpack|"
    r"cannot be interpreted as|must be \w+, not \w+|No such file or directory|division by zero|"
    r"dictionary changed size|before assignment|is not defined|cannot access local variable|"
    r"not supported between instances of"
)
"""Messages that Python words itself, whatever the code was."""
_PYTHONS = """
nonetype iterable callable subscriptable iterator len list range unsupported operand types enough values unpack many
expected got interpreted integer errno directory such zero division dictionary changed size during iteration referenced
before assignment defined access local variable too int float str dict tuple bool real number required supported between
instances
"""
_WORDS_OF_PYTHON = frozenset(_PYTHONS.split())


_BY_TOOLS = pattern(
    r"device-side assert triggered|current working operator name is|"
    r"Memory access fault by GPU|HSA_STATUS_ERROR|HSAIL|GPU core ?dump|NVRM: Xid|"
    r"MMU Fault|Fatal Python error|"
    r"Subprocess \w+ .*crashed|"
    r"(?i:ninja(?:: build stopped| exited| build failed))|subcommand failed|error: ld returned|"
    r"returned non-zero exit status|shared memory, Required|dynamic shared memory size|Segmentation fault|"
    r"\*\*\* SIG[A-Z]+|Caught signal \d+|Watchdog caught collective operation timeout|split_with_sizes expects|"
    r"Sizes of tensors must match|The size of tensor a|shapes cannot be multiplied|is invalid for input of size|"
    r"Expected all tensors to be on the same device|The expanded size of the tensor|is out of bounds for (?:axis|dim)"
)
"""Messages that a driver, a compiler, a linker or torch words itself, of whatever kernel or tensor it was."""
_NAMES = pattern(
    r"mooncake|nixl|uc[xpt]_|\bucx\b|nccl_|libnccl|aiter|deep_?(?:ep|gemm)|flash_?(?:infer|attn|mla)|xgrammar|_all_?reduce|_reduce_|"
    r"memcpy|moe|attn|attention|gemm|_kernel|kernel_|radix|mamba"
)
"""What names a library, a kernel or a part in such a message all the same."""
_MOVES_KV = pattern(r"_(?:transfer|storage)_backend=")


def _worded_by_others(facts: LogFacts) -> frozenset[str]:
    """Return the signs that messages of Python, torch, drivers and compilers give, which tell of no cause alone.

    Of Python's own the names in them do, and of a death's frames those tell that are next to where it was raised.
    """
    found: set[str] = set()
    for death in (*facts.deaths, *facts.errors):
        if by_tools := bool(_BY_TOOLS.search(death.message)):
            found |= _apart_from_names(_of_death(replace(death, frames=(), statement="")))
        by_python = bool(_BY_PYTHON.search(death.message)) and hasattr(builtins, death.type_name)
        if by_python:
            signs = _of_death(Death(death.place, "", death.type_name, death.message))
            found |= {sign for sign in signs if sign[0] in "!=" or sign in _WORDS_OF_PYTHON}
        if by_python or by_tools:
            found |= _signs_of_frames(death.frames) - _signs_of_frames(_innermost(death))
    for alarm in facts.alarms:
        for text in (alarm.text, *alarm.more):
            found |= _apart_from_names(_words(text)) if _BY_TOOLS.search(text) else set()
    return frozenset(found)


def _apart_from_names(signs: set[str]) -> set[str]:
    return {sign for sign in signs if sign[0] in "!=" or not _NAMES.search(sign)}


_OF_LOOPS = ("scheduler.py:", "tp_worker.py:", "tp_worker_overlap_thread.py:", "_contextlib.py:", "threading.py:")
"""Files whose frames every step passes through."""
_NEAR = 3  # frames


def _innermost(death: Death) -> tuple[str, ...]:
    """Return the frames next to where it was raised: of SGLang's the innermost ones, and what those called."""
    of_sglang = death.caller.rpartition("/")[2]
    called = next((n for n, frame in enumerate(reversed(death.frames)) if frame.startswith(f"{of_sglang}:")), 0)
    near = death.frames[-_NEAR - called :]
    return (*(frame for frame in near[:-1] if not frame.startswith(_OF_LOOPS)), *near[-1:])


def _of_another_platform(facts: LogFacts, signs: frozenset[str], cause: str) -> bool:
    """Say whether a cause is of a kind of machine of which nothing in this log tells."""
    own = platform(facts)
    return any(
        own != name and words.search(cause) and not any(mark in sign.lower() for mark in marks for sign in signs)
        for name, words, marks in _OF_A_PLATFORM
    )


_DRAFTED = pattern(r"draft|eagle|mtp|spec_|speculat|ngram|dflash")


def of_drafts_alone(facts: LogFacts, signs: frozenset[str], cause: str) -> bool:
    """Say whether a cause is of drafts, of which neither the options nor the failure here have any."""
    words, names = _SPEAKS_OF[0]
    asked = bool(facts.arguments) and not _has(facts, names)
    return asked and words.search(cause) is not None and not any(map(_DRAFTED.search, map(str.lower, signs)))


def _has(facts: LogFacts, names: tuple[str, ...]) -> bool:
    return any(name in facts.arguments or facts.settings.get(name, "None") not in _UNSET for name in names)


def alike(facts: LogFacts, most: int = 2) -> list[Likeness]:
    """Return the public incidents whose failures are most alike, the most alike first; none if none is enough."""
    signs, arguments = signs_of(facts)
    if not signs:
        return []
    weights = _weights()
    size = sqrt(sum(weights.get(sign, sqrt(_UNKNOWN)) ** 2 for sign in signs))
    by_others = _worded_by_others(facts)
    found = []
    for incident in incidents():
        both = signs.intersection(incident.signs)
        shared = {sign: weights[sign] for sign in both}
        if sum(shared.values()) < _LEAST_WEIGHT or sum(one >= _RARE for one in shared.values()) < _LEAST_RARE:
            continue
        if facts.starts and any(_SWITCH.fullmatch(one) and one not in arguments for one in incident.arguments):
            # What that server had switched on this one has not, by its own start line.
            continue
        if facts.arguments and any(words.search(incident.cause) and not _has(facts, names) for words, names in _NEEDS):
            # Its cause needs an option that the command here does not have.
            continue
        if _of_another_platform(facts, signs, incident.cause) or of_drafts_alone(facts, signs, incident.cause):
            continue
        asked = arguments.intersection(incident.arguments)
        own = any(one >= _RARE for sign, one in shared.items() if sign not in by_others)
        # A library that moves KV, which the start of both names, may be what both died in.
        own = own or any(map(_MOVES_KV.search, asked))
        product = _squares(both) + _OF_ARGUMENTS * _squares(asked)
        share = min(product / (size * _size(incident)), 1.0)
        if "model_path" in facts.arguments and any(
            words.search(incident.cause) and not _has(facts, names) for words, names in _SPEAKS_OF
        ):
            share *= _LACKS_IT
        # Two that share nothing rare but others' words, and the way to where it was raised, are alike in no cause.
        if own and share >= ALIKE:
            found.append(Likeness(incident, share, tuple(sorted(shared, key=lambda sign: (-shared[sign], sign)))))
    found.sort(key=lambda one: (-one.share, one.incident.thread))
    # A thread may be listed with several logs.
    each = {one.incident.thread: one for one in reversed(found)}
    return [one for one in found if each[one.incident.thread] is one][:most]


def _squares(signs: Iterable[str]) -> float:
    return sum(_weights()[sign] ** 2 for sign in signs)


@cache
def _size(incident: Incident) -> float:
    return sqrt(_squares(incident.signs) + _OF_ARGUMENTS * _squares(incident.arguments))


@cache
def _weights() -> dict[str, float]:
    """Return how rare each sign is among the incidents, as the logarithm of how many there are for one that has it."""
    listed = incidents()
    counted = Counter(sign for one in listed for sign in (*one.signs, *one.arguments))
    return {sign: log((len(listed) + 1) / (count + 0.5)) for sign, count in counted.items()}
