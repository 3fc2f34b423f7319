"""What the words of an exception ask for by themselves: a most, one of a list, or no graph where one is captured."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.known_arguments import is_an_argument
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.looked_at_first import health_checks_in_the_batch

_EXCEEDS = pattern(r"\b([a-z]+(?:_[a-z0-9]+)+) ?[(=:] ?(\d+)\)? exceeds [\w ,'-]{3,60}?\((\d+)\)")
_ONE_OF = pattern(
    r"[Oo]nly \[([^\]]{3,200})\] ([a-z]+(?: [a-z]+){0,3}) (?:are|is) (?:currently )?supported(?: (?:for|with) "
    r"([a-z][\w -]{2,40}))?"
)
_DTYPE = pattern(r"(?i)unsupported (?:data ?type|dtype)\W+(?:torch\.)?(float8_\w+|float4_\w+)")
_NO_FP8 = pattern(r"(?i)\bfp8\b.{0,60}(?:not|n't|un)[ -]?(?:yet )?support|(?:not|un)[ -]?support\w*.{0,40}\bfp8\b")
_ATTENDS = pattern(r"layers/(?:radix_)?attention")
_THOUGHTS = pattern(
    r"(?i)(?:</?think(?:ing)?>|<\|channel\|?>|\[/?THINK\]).{0,80}grammar|grammar.{0,80}(?:</?think|<\|channel)"
)
_WITHOUT_THOUGHTS = (
    "thinking off for requests with a schema or with strict or forced tools (chat_template_kwargs enable_thinking "
    "false): the grammar was laid on the answer from its first token, and does not know the mark of a thought that the "
    "model writes ahead of it. With a --reasoning-parser a later release waits for the end of the thought"
)
_DRAFT_GRAPH = pattern(r"\w*draft\w*_cuda_graph_runner\.py:")
_TRACKS = pattern(r"(?:\S+)? set_mamba_track_\w+$")
_UNTRACKED = (
    "a later release (0.5.16 has the change of SGLang 27998); until then without --speculative-algorithm (MTP, EAGLE), "
    "or without the strategy that tracks states (--mamba-scheduler-strategy no_buffer): a request in the batch has no "
    "place yet to which its state is tracked, as a step of drafts is verified before that is given out"
)
_OF_DRAFTS = pattern(r"(?:\S+)? \w*draft\w*$")
_DRAFTS_STORED = (
    "once without --speculative-algorithm: it is the pool of the draft's own KV on the host that the store refused, "
    "where a client that runs as a process of its own (standalone) knows the target's buffer alone. Or the store's "
    "client within the server, or the release before (0.5.12), which registered no such pool; then a later one"
)
_A_VARIABLE = r"[\"'`]?\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b[\"'`]?"
_TO_BE_SET = pattern(
    rf"{_A_VARIABLE} (?:must|has to|should|needs to) be set|{_A_VARIABLE} (?:environment variable )?(?:is )?"
    rf"(?:not (?:set|defined)|unset|undefined|missing)|(?i:[Pp]lease set|environment variable|env var) {_A_VARIABLE}"
)
_NO_SUCH_PLACE = pattern(
    rf"{_A_VARIABLE}[^.]{{0,60}} (?:does not exist|is not a (?:valid )?(?:directory|folder|file|path))"
)
_NAMES_ONE = pattern(r"'([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)'")
_SERVES_MOST = ("triton", "flashinfer", "fa3")


def by_its_words(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what to set where the words of an exception say it, the surest first."""
    words = " ".join(death.message.split())
    yield from _in_letters(facts)
    yield from _of_an_environment(death, words)
    yield from health_checks_in_the_batch(facts, death)
    if found := _EXCEEDS.search(words):
        yield f"--{found[1].replace('_', '-')} of at most {found[3]}, where it has {found[2]} now"
    if found := _ONE_OF.search(words):
        yield from _one_of(found[1], found[2], found[3])
    if found := _DTYPE.search(words):
        yield _of_a_dtype(facts, found[1])
    given = {**facts.arguments, **facts.settings}.get("kv_cache_dtype", "")
    if given.startswith("fp8") and _NO_FP8.search(words) and _ATTENDS.match(death.path):
        yield (
            f"--kv-cache-dtype auto in place of {given}, which the start sets and this attention backend refuses; or "
            "another --attention-backend, which has it (fa3, trtllm_mha, flashinfer, by GPU)"
        )
    if _THOUGHTS.search(words):
        yield _WITHOUT_THOUGHTS
    if "NoneType" in words and any(map(_TRACKS.match, death.frames[-2:])):
        yield _UNTRACKED
    if "register buffer to Mooncake" in words and any(map(_OF_DRAFTS.match, death.frames[-4:])):
        yield _DRAFTS_STORED
    if any(map(_DRAFT_GRAPH.match, death.frames)):
        yield (
            "once with --disable-cuda-graph: it died as the graph of the drafts' own steps was captured, for which "
            "something was not set that a batch has; else without --speculative-algorithm. A later release mends it"
        )


def _of_an_environment(death: Death, words: str) -> Iterator[str]:
    """Yield which variable of the environment to set, or to mend, that an exception names."""
    if death.type_name == "KeyError" and not death.statement and (one := _NAMES_ONE.fullmatch(words.strip())):
        yield (
            f"set {one[1]} in the environment of every process of the server (of the container or pod, of each node), "
            "if it is a variable, as a name in capitals mostly is: the guide of what it is of says to what"
        )
    elif found := _TO_BE_SET.search(words):
        name = next(filter(None, found.groups()))
        yield f"set {name} in the environment of every process of the server (container, pod, each node), as it asks"
    elif found := _NO_SUCH_PLACE.search(words):
        yield f"unset {found[1]} in the environment, or give it a path that is there, inside the container too"


_LETTERS = pattern(r"\[(?:'[^']', ){2,}'[^']'\]$")


def _in_letters(facts: LogFacts) -> Iterator[str]:
    """Yield which argument is a string that was taken apart into its letters where a list of names is meant."""
    for name, value in facts.arguments.items():
        if _LETTERS.match(value):
            yield (
                f"--{name.replace('_', '-')} as a list of names: the start has the letters of "
                f"{''.join(value[2:-2].split(chr(39) + ', ' + chr(39)))} one by one, so whoever starts the server "
                f"handed "
                "it a string where a list is meant (in a trainer's configuration, too); a later release of that program"
            )


def _one_of(listed: str, what: str, purpose: str | None) -> Iterator[str]:
    names = [name.strip(" '\"") for name in listed.split(",")]
    name = next((one for one in _SERVES_MOST if one in names), names[0])
    argument = what.strip().removesuffix("s").replace(" ", "_")
    if is_an_argument(argument):
        flag = argument.replace("_", "-")
        yield (
            f"--{flag} {name} on the command line (or another of {', '.join(names)}): what the start does not give, "
            "the release chooses itself, for this model or GPU, and its own choice is refused here"
        )
        if purpose:
            yield f"or without {purpose.strip()}; a later release may choose one that fits"


def _of_a_dtype(facts: LogFacts, dtype: str) -> str:
    given = {**facts.arguments, **facts.settings}
    kind = "fp8" if dtype.startswith("float8") else "fp4"
    of_cache = given.get("kv_cache_dtype", "").startswith(kind)
    rest = "" if of_cache else f", if it is of {kind}; else a checkpoint of another type than {dtype}"
    return (
        f"once with --kv-cache-dtype auto{rest}: something between ranks or kernels is handed values of {dtype}, which "
        "it does not take (with --enable-dp-attention it gathers them: once without that too); then a later release"
    )
