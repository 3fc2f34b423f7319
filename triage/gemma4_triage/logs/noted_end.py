"""An end that a note beside a log tells of alone, or a traceback that is cut off: what the start has chosen by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.native_crashes import of_the_transport
from gemma4_triage.logs.options_near import LEFT_TO_THE_RELEASE
from gemma4_triage.logs.rule import at
from gemma4_triage.logs.said_in_notes import DIES, SAID_BY_A_NOTE
from gemma4_triage.logs.switched_on import switched_on
from gemma4_triage.logs.told_for_vllm import of_vllm
from gemma4_triage.logs.tracebacks import TORN

_CAPTURES = (
    "once with --disable-cuda-graph: the log ends as graphs were captured. If it then serves, fewer and smaller ones "
    "(--cuda-graph-max-bs), or another backend"
)
_KEEP = (
    "start it again, and keep all of stdout and stderr of every rank to its end: the first exception, signal or line "
    "of the kernel (dmesg -T) says of what it died"
)
_TRITON = (
    "with --attention-backend triton: line {0} says that this model needs it for its images, and the start names "
    "{1}, whose kernels have refused what the model asks of them"
)


_SIGNALS = (
    (
        pattern(r"\b(?:137|-9)\b|SIGKILL"),
        "dmesg -T | grep -i oom on the host, docker inspect or kubectl describe pod: by its code it was killed from "
        "outside, mostly for the host's memory",
    ),
    (
        pattern(r"\b(?:139|-11)\b|SIGSEGV|segfault"),
        "start it with PYTHONFAULTHANDLER=1, which prints where it was: by its code it ended in native code, mostly a "
        "library that does not fit this GPU, its driver or the CPU; SGLang's image has those that do",
    ),
    (
        pattern(r"\b(?:134|-6)\b|SIGABRT"),
        "the lines of native code above its end (terminate called, what(): …, an assertion of a .cpp or .cu): by its "
        "code it aborted itself; PYTHONFAULTHANDLER=1 prints where it was",
    ),
)
"""What a code or a signal says that a note names."""


def is_told_by_a_note_alone(death: Death) -> bool:
    """Return whether no line of the log itself tells of an end."""
    return not death.type_name and death.message.startswith(SAID_BY_A_NOTE)


_OF_ANY_LIST = pattern(r"(?:list|tuple|string|deque) index out of range|pop from empty \w+|list assignment index \w.*")


def _says_nothing(death: Death) -> bool:
    """Say whether an exception without frames has no words but Python's own, which any code may raise."""
    words = death.message.strip()
    if death.statement and words != TORN:
        return False
    return not words or words == TORN or _OF_ANY_LIST.fullmatch(words) is not None


_WHEN = pattern(
    r"(?i)\b(?:happens|dies|died|crash(?:es|ed)?|fails|every time|always) (?:only )?"
    r"(?:whenever|when|as soon as|once|if|with|on) (.{8,200})"
)
_OF_GRAMMARS = pattern(r"(?i)\bgrammar|response_format|json_?schema|\bregex\b|\bebnf\b|structural_tag")
_A_SCHEMA = (
    "that response_format alone, to a server of its own, and its schema looked at: one that is no JSON schema, or that "
    "the grammar's library does not take, has raised where nobody catches it, and the scheduler died of one client's "
    "request. Refuse it before it reaches the server; another --grammar-backend; a later release answers it with 400 "
    "(SGLang 4578)"
)
_BY_A_PROBE = (
    "a liveness probe on /health with a timeout above the longest prefill (/health_generate asks the scheduler for an "
    "answer, and waits behind what runs), SGLANG_HEALTH_CHECK_TIMEOUT as long, and a smaller --chunked-prefill-size: "
    "what restarts it may be the probe alone (kubectl describe pod: Liveness probe failed)"
)
_OF_REQUESTS = (
    (pattern(r"(?i)\bliveness\b|\bprobes?\b|\bhealth ?-?checks?\b"), _BY_A_PROBE),
    (_OF_GRAMMARS, _A_SCHEMA),
    (
        pattern(r"(?i)\bimages?\b|\bpictures?\b|\bvideos?\b|\baudio\b"),
        "such a request alone, then as text alone, then with one small image: what an encoder takes of the GPU grows "
        "with images and their size. --limit-mm-data-per-request, a lower --mem-fraction-static, and refused before "
        "the server until it holds; then a later release",
    ),
    (
        pattern(
            r"(?i)\b(?:long|longer|longest|huge) (?:prompt|context|input|request)s?\b|\b\d{2,4}k (?:tokens|prompts?)\b"
        ),
        "such a prompt alone, then with a smaller --chunked-prefill-size (2048) and --mem-fraction-static, then "
        "with another --attention-backend: a length at which it dies is a bound of one of them; --context-length below "
        "it until then",
    ),
    (
        pattern(r"(?i)\badapters?\b|\bLoRAs?\b"),
        "the same request without its adapter, and the adapter merged into the weights until it holds; another "
        "--lora-backend (triton), then a later release",
    ),
    (
        pattern(r"(?i)\babort\w*|\bcancel\w*|\bdisconnect\w*|\bclients? (?:goes|go) away"),
        "clients and routers that wait longer and give up fewer: a request that ends in the middle of a step is a "
        "frequent defect; then a later release",
    ),
)
"""What notes name as that by which a server dies, and what to do about such requests."""
_SIZES = pattern(
    r"(?i)\b(?:shapes?|sizes?)\b.{0,40}\b(?:differs?|mismatch|do(?:es)? not (?:fit|match)|unequal)|"
    r"\[\d+(?:, \d+)*\] in the (?:checkpoint|file|weights)\b.{0,20}\[\d+(?:, \d+)*\] in the (?:model|class)\b"
)
_OF_SIZES = (
    "a later release, whose class of this model has the sizes of its checkpoint: the note has a parameter whose size "
    "is not that of the tensor, which no option of the start changes; the publisher's own checkpoint, if this is "
    "another's copy"
)
_AUDIO_OF_GEMMA = pattern(r"(?i)\bembed_audio\b|\baudio embedder|Gemma4Unified\w*Embedder")


def noted_of_it(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what notes beside a traceback without words of its own make the first thing to try."""
    if not _says_nothing(death):
        return
    notes = [facts.remarks[name] for name in ("notes", "asked_schema") if name in facts.remarks]
    text = "\n".join(one.text for one in notes if one.text.lstrip().startswith("#"))
    if _OF_GRAMMARS.search(text):
        yield _A_SCHEMA
    if _SIZES.search(text):
        yield f"{_OF_SIZES} (of Gemma-4's sound: SGLang 34392)" if _AUDIO_OF_GEMMA.search(text) else _OF_SIZES
    if (when := _WHEN.search(text)) is not None and "warm-up" not in when[1] and "warmup" not in when[1]:
        yield f"once without what the note says that it happens by ({when[1].strip()}), then once with that alone"


_FILE_OF_A_BACKEND = pattern(r"layers/attention/(?!hybrid|base|tbo|[nd]sa_)(\w+?)_backend\.py$")
_CALLED = {"flashattention": "fa3", "flashinfer_mla": "flashinfer"}
_IN_A_BACKEND = (
    "once with another --attention-backend than {0} ({1}): the last frames stand in its file, and what each backend "
    "takes of a model (layers that share keys and values, windows, sizes of heads) differs; then a later release"
)


def in_a_backend(death: Death) -> Iterator[str]:
    """Yield which attention backend to leave where its file has the last frames, and what it raised is cut off."""
    found = _FILE_OF_A_BACKEND.match(death.path) if death.message == TORN else None
    if found is not None:
        name = _CALLED.get(found[1], found[1])
        others = "torch_native" if name == "intel_amx" else "flashinfer, fa3" if name == "triton" else "triton"
        yield _IN_A_BACKEND.format(name, others)


_BACKENDS = ("triton", "flashinfer", "fa3", "trtllm_mha", "flashmla", "torch_native", "aiter", "cutlass_mla")
_SEVERAL = 3
_CLAUSES, _FAILS = (
    pattern(r"[;:\n]|, (?!and |or )|\. |,? but "),
    pattern(r"(?i)\b(?:crash\w*|dies|died|fail\w*|wrong|garbage|degenerate|broken|hangs?|nor|too|also|same)\b"),
)
_NONE_OF_THEM = (
    "by the notes no attention backend serves it ({0}): what they have in common is the model's code in this release "
    "(layers that share keys and values, windows): a later release, or an engine that has this model; the same prompt "
    "in transformers says that the checkpoint is right"
)


def _failing(facts: LogFacts, chosen: str | None) -> list[str]:
    """Return the attention backends that fail by a clause of a note, and the one that was chosen."""
    notes = "\n".join(facts.remarks[name].text for name in (DIES, "notes") if name in facts.remarks)
    failing = " ".join(clause for clause in _CLAUSES.split(notes) if _FAILS.search(clause))
    return [one for one in _BACKENDS if one == chosen or re.search(rf"\b{one}\b", failing)]


def _others(failing: list[str]) -> str:
    """Return which attention backends to take in the place of these."""
    best = ("flashinfer", "fa3") if "triton" in failing else ("triton serves most",)
    return ", ".join(one for one in best if one not in failing)


def chosen_by_hand(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what to leave to the release where nothing says of what a process died; nothing where something does."""
    if death.frames or not (is_told_by_a_note_alone(death) or _says_nothing(death)):
        return
    given = {
        name: value
        for name, value in facts.arguments.items()
        if name.endswith("_backend") and value not in LEFT_TO_THE_RELEASE
    }
    asks, backend = facts.remarks.get("needs_triton"), given.get("attention_backend")
    if asks is not None and backend not in (None, "triton"):
        yield _TRITON.format(asks.place.line, backend)
        del given["attention_backend"]
    if given:
        named = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())
        of_kernels = any(name in given for name in ("attention_backend", "moe_runner_backend"))
        failing = _failing(facts, given.get("attention_backend"))
        if len(failing) >= _SEVERAL:
            yield _NONE_OF_THEM.format(", ".join(failing))
        other = _others(failing) if of_kernels else ""
        each = "one at a time" if len(given) > 1 else "as the release chooses by itself"
        yield (
            f"once without {named}, {each}: the start names it by hand, and no kernel is right for every model and "
            f"GPU; then with another in its place{f' ({other})' if other else ''}"
        )


_OTHER_SIDE = {
    "decode": pattern(
        r"(?i)\bprefill (?:\w+ )?(?:is |was |were |gets? |got )?(?:\w+ )?"
        r"(?:killed|died|dies|dead|gone|down|goes|lost|restart\w*|crash\w*|stopped|evicted|removed|scaled)"
    ),
    "prefill": pattern(
        r"(?i)\bdecode (?:\w+ )?(?:is |was |were |gets? |got )?(?:\w+ )?"
        r"(?:killed|died|dies|dead|gone|down|goes|lost|restart\w*|crash\w*|stopped|evicted|removed|scaled)"
    ),
}
_FOLLOWS = (
    "restart this {0} server too, behind a {1} server that was lost: requests whose KV was on its way between them "
    "hold "
    "their places here, in some releases for ever, and what then asks for one (/health_generate, so a liveness probe "
    "too) is never let in",
    "a later release on both sides, which fails such requests after a time ({2} bounds it, and a heartbeat between the "
    "servers finds the lost one); until then a liveness probe on /health with a longer timeout, and "
    "/health_generate for readiness alone, so that one lost server does not take others with it",
)


def _of_the_other_side(facts: LogFacts) -> Iterator[str]:
    """Yield what to do about one server of a split pair that ended behind the other, by what notes say."""
    mode = facts.settings.get("disaggregation_mode", "null")
    notes = "\n".join(facts.remarks[name].text for name in (DIES, "notes") if name in facts.remarks)
    if mode in _OTHER_SIDE and _OTHER_SIDE[mode].search(notes):
        other = "prefill" if mode == "decode" else "decode"
        bound = "WAITING" if mode == "decode" else "BOOTSTRAP"
        yield from (one.format(mode, other, f"SGLANG_DISAGGREGATION_{bound}_TIMEOUT") for one in _FOLLOWS)


_EMPTY = pattern(
    r"(?i)\b(?:empty|zero-?(?:length|sized?|token)) (?:\w+[- ]){0,3}(?:tensors?|batch(?:es)?|positions|inputs?)\b|"
    r"\b(?:batch(?:es)?|step|extend|prefill) (?:\w+ ){0,3}(?:without|of no|with no|of (?:0|zero)) (?:an? )?tokens?\b|"
    r"#new-token: 0\b"
)
_HAS_RUN = (
    " By the notes it had a step without a token in it{0}, for which kernels fail one after the other, whichever is "
    "asked first."
)
_NOTHING_TO_RUN = (
    "{0}: a prefill in chunks that was put off for want of room has counted as computed, so that nothing of it was "
    "left to run (SGLang 24318), and a check in the kernel that failed only hands it to the next: a later release; "
    "until then fewer requests at once (--max-running-requests), or --disable-radix-cache"
)


def _of_an_empty_step(facts: LogFacts) -> tuple[str, tuple[str, ...]]:
    """Return what notes say of a step without a token, and what to do about it; nothing if they say none."""
    notes = "\n".join(facts.remarks[name].text for name in (DIES, "notes") if name in facts.remarks)
    if not _EMPTY.search(notes):
        return "", ()
    retracted = any(rank.retractions.events for rank in facts.ranks)
    ratio = facts.settings.get("swa_full_tokens_ratio", "")
    small = ratio.replace(".", "", 1).isdecimal() and float(ratio) < _SMALL_SHARE
    room = f"a larger --swa-full-tokens-ratio than {ratio}" if small else "more room for KV"
    return _HAS_RUN.format(", right behind a retraction" * retracted), (_NOTHING_TO_RUN.format(room),)


_SMALL_SHARE = 0.5
_RIGHT_ABOVE = 20  # lines
_CANCELLED = (
    " What stands last before it is that a task was cancelled (CancelledError) in {0}: as a client goes away, or its "
    "time is up, while its request runs. That is no Exception to Python, so code that catches those lets it pass, up "
    "to what runs the server."
)
_LEFT = (
    "clients and proxies that wait longer than the longest prefill takes (curl --max-time, timeout of the client, "
    "read timeout of the proxy), or stream, and give up fewer requests meanwhile; a smaller prompt ends sooner",
    "a later release, where that call (is_disconnected, an abort) is guarded",
)
_OF_A_CLIENT = pattern(
    r"is_disconnected|_stream\w*|tokenizer_manager|http_server|serving_|entrypoints|starlette|uvicorn"
)


_NOT_UP = pattern(
    r"(?i)(?:does not|doesn't|won't|cannot|can't|never|will not) (?:start|come up|boot)|\b(?:start|startup|"
    r"launch) fails\b|\bfails to (?:start|load|come up|launch)\b|\b(?:cannot|could not) be started\b"
)


def _cancelled(facts: LogFacts, death: Death) -> Remark | None:
    """Return where a task was cancelled right above a note of an end; None if none was."""
    said = facts.remarks.get("cancelled")
    return said if said is not None and 0 < death.place.line - said.place.line <= _RIGHT_ABOVE else None


_OF_NATIVE_CODE = pattern(r"\w::\w|\.so\b")


def _in_a_transport(death: Death) -> Iterator[str]:
    """Yield what to do where a note names a function or a library of what carries or stores KV."""
    name = death.message.lower()
    if _OF_NATIVE_CODE.search(name) and ("mooncake" in name or "nixl" in name):
        yield of_the_transport(name)


def told(facts: LogFacts, death: Death) -> Finding:
    """Return the finding on an end that a note alone tells of."""
    what = "did not come up" if _NOT_UP.search(death.message) else "died"
    cancelled, behind = _cancelled(facts, death), tuple(_of_the_other_side(facts))
    empty, of_empty = _of_an_empty_step(facts)
    ready = facts.served or "ready" in facts.remarks or "http_ready" in facts.remarks
    captures = "before_graphs" in facts.remarks and "graphs_end" not in facts.remarks and not of_vllm(facts)
    return Finding(
        rule="other-crash",
        cause=f"Unknown cause: a note beside the log says that the server {what}, and no line shows of what."
        + (_CANCELLED.format(cancelled.text) if cancelled else "")
        + empty,
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, death.place, death.message.removeprefix(SAID_BY_A_NOTE), "the note"),
            *((at(facts, cancelled.place, "CancelledError", "what was cancelled above it"),) if cancelled else ()),
        ),
        ruled_out_if=("the log was cut off before what failed: its last lines of every rank and node say more",),
        advice=(
            *of_empty,
            *(_LEFT if cancelled and _OF_A_CLIENT.search(cancelled.text) else ()),
            *behind,
            *_in_a_transport(death),
            *(advice for words, advice in (*_SIGNALS, *_OF_REQUESTS) if words.search(death.message)),
            *(() if behind else chosen_by_hand(facts, death)),
            *((_CAPTURES,) if captures and not ready else ()),
            *switched_on(facts, death),
            _KEEP,
        ),
        next_commands=() if of_vllm(facts) else ("gemma4-triage doctor",),
    )
