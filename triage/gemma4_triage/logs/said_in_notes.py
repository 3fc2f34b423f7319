"""What somebody writes beside a log that no log shows: that a server stands, by what, or when answers are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemma4_triage.logs import silence_in_words
from gemma4_triage.logs.facts import Death, LogFacts, Place, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.silence_in_words import says_so

NAME = "noted_silence"
SHOWN = frozenset({"wrong_among_others", "wrong_as_it_samples", "own_rid", "metrics_empty", "calls_noted"})
SHOWN |= {"schema_among_others", "right_elsewhere"}
SHOWN |= {"one_token", "two_builds", "wrong_when_long", "goes_on", "busy_while_idle"}
"""Names under which `keep` keeps what notes say of answers."""
_CLAUSES = pattern(rb";\s+|\.\s+(?=[A-Z])|,? but ")
"""Between them a note may turn from this server to another try."""
_TURNS = pattern(
    rb",? (?:and )?then |, (?=(?:dies|died|crash|goes down|one|an?|any|longer|later|every|each|all|both|the server|"
    rb"server|and )\b)"
)
"""Between them a note turns from what was well to an end."""

DIES = "noted_death"
"""Name under which a note is kept by which the server dies where no line shows it."""
SAID_BY_A_NOTE = "a note says: "
"""Where the message of such an end begins."""
_ENDED = pattern(
    rb"(?i)\b(?:dies|died|crash(?:es|ed)|segfaults|segfaulted|core dumps?|aborts)\b(?! (?:on|if) (?:the )?other)|"
    rb"\bgoes down\b|\b(?:kills|ends|takes down) the (?:\w+ )?(?:server|scheduler|process|engine|worker)\b|"
    rb"\b(?:kills|crashes) it\b|"
    rb"\b(?:server|scheduler|engine|worker|process) (?:is )?gone\b|\btakes (?:it|the server) down\b|"
    rb"\b(?:server|scheduler|engine|worker|process) (?:exits|quits|restarts|stops(?! (?:answer|respond)))|"
    rb"\b(?:server|engine|container|pod|it) (?:does not|doesn't|won't|cannot|can't|never|will not) (?:start|come up|"
    rb"boot)s?"
    rb"(?= *(?:$|[;:,.(]|any ?more|at all|again))|\b(?:the )?(?:start|startup|launch) fails\b|\bCrashLoopBackOff\b|"
    rb"\brestarts in a loop\b|"
    rb"\bpods? (?:gets?|are|is|keeps?) (?:being )?restart(?:ed|ing)\b|"
    rb"\b(?:ranks|stages|workers|servers|processes|instances|nodes|pods|schedulers|engines) (?:all )?(?:die|exit|"
    rb"crash)\b|"
    rb"\b(?:exits|fails) (?:during|in|at|as it) (?:the )?(?:start|startup|warm-?up|capture|loading|autotune|"
    rb"FlashInfer)\w*|"
    rb"\b(?:server|engine|scheduler|process|container|pod|worker|node) "
    rb"(?:shuts down(?! (?:cleanly|as|on))|vanishes|disappears|terminates|reboots|panics)\b|"
    rb"\bis restarted by (?:k8s|kubernetes|systemd|docker)\b|\bpanics at\b|\b(?:cannot|could not) be started\b|"
    rb"\bfails to (?:start|load|come up|launch)\b|\bsegmentation fault\b|\bcore dumped\b|"
    rb"\bpod restarts\b|\bexits silently\b|\bkills the (?:\w+ )?(?:pod|container)\b|"
    rb"\b(?:server|scheduler|engine|worker|process|pod|container)s? (?:is|was|gets|got|are|were|has been) (?:then )?"
    rb"(?:OOM-?)?killed\b|\bSIG(?:SEGV|ABRT|KILL|BUS)\b|"
    rb"\bexit(?:s|ed)?(?: with)? (?:code|status)[ :=]{1,3}(?!0\b)-?\d{1,3}\b|"
    # By the name of what it failed of, and no more.
    rb"^#+ *(?:(?:then|and|at last|ends in|it ends in):? )?(?:an? )?(?:(?:CUDA|torch) )?(?:error:? )?(?:an? )?"
    rb"(?:illegal memory access|device-side assert|segfault|segmentation fault)\b(?! (?:is gone|no longer|never))"
)
_NOT_ENDED = pattern(
    rb"(?i)\b(?:no|not|n't|nothing|never|without(?: a)?|no longer|any ?more|instead of|before|until|used to) "
    rb"(?:\w+ ){0,2}(?:dies|died|crash|segfault|core dump|abort)|"
    # Of somebody else, or of another try than this log's.
    rb"\b(?:client|router|gateway|browser|script|benchmark|notebook|other)s? (?:\w+ )?"
    rb"(?:dies|died|crash|abort|goes|(?:(?:is|was|gets|got) )?killed)|"
    rb"\bold (?:server|process|worker|engine|pod|container)\b|"
    rb"\b(?:prefill|decode|remote|peer) (?:\w+ )?(?:(?:is|was|gets|got|were|are) )(?:\w+ )?killed|"
    rb"\bkilled (?:by (?:us|me|hand|ctrl|the user)|on purpose|manually|while\b|it myself)|"
    rb"^#+ *(?:with|without|same|if|vllm|on|in)\b|\b(?:fine|works?|ok)\b|\brequests? (?:\w+ )?(?:aborts|died)"
)

TRANSFERS = "noted_transfers"
"""Name under which a note is kept by which KV no longer gets from a prefill to a decode server."""
_FAILS = rb"(?:fail(?:s|ed|ing|ures?)?|break(?:s|ing)?|broke|tim(?:es?|ed) out|(?:gets?|is|are) lost|unstable)"
_MOVED = pattern(rb"(?i)\btransfers?\b.{0,50}\b" + _FAILS + rb"\b|\bfail(?:s|ed|ures?|ing)?\b.{0,20}\btransfers?\b")
_NOT_MOVED = pattern(
    rb"(?i)\b(?:no|not|n't|never|without|nothing) (?:\w+ ){0,2}(?:transfers?|" + _FAILS + rb")\b|"
    rb"^#+ *(?:with|without|same|if)\b"
)

_FEW = rb"(?:\b(?:alone|one at a time|one request|single|sequential\w*|batch (?:size )?(?:of )?1)\b|\b\d clients?\b)"
_MANY = rb"(?:\b(?:concurren\w+|parallel|together|under load|many|several)\b|\b\d{2,5}\b(?![.%]))"
_WRONG = pattern(rb"(?i)\b(?:wrong|garbled|gibberish|garbage|nonsense|differs?|mixed up|accuracy|gsm8k|mmlu)\b")
_AMONG = pattern(rb"(?i)" + _FEW + rb".{0,80}" + _MANY + rb"|" + _MANY + rb".{0,80}" + _FEW)
_SCHEMAS = pattern(rb"(?i)\b(?:json_?schemas?|schemas?|grammars?|response_format|structured outputs?|regex|guided)\b")
_BOTH_KINDS = pattern(
    rb"(?i)\b(?:one|those|requests?|other|others|answers?|neighbours?|batch(?:es)?|mix\w*|prompts?) (?:\w+ ){0,3}?"
    rb"(?:without|with and without|with no|that have no|beside|among)\b|\bmixed (?:batch|load)|\bwith and without\b"
)
_OTHERS = (
    rb"(?:vllm|transformers|hugging ?face|hf|llama\.cpp|ollama|lmdeploy|tensorrt-llm|sglang|sentence-transformers)"
)
_RIGHT_ELSEWHERE = pattern(
    rb"(?i)\b" + _OTHERS + rb"\b[^.;]{0,60}\b(?:same|these|this very|very same) (?:[\w-]+ ){0,2}(?:files?|checkpoints?|"
    rb"weights|models?|prompts?|requests?|folder)\b[^.;]{0,40}\b(?:well|right|fine|good|ok|correct(?:ly)?|normal(?:ly)?|"
    rb"clean)\b|\b" + _OTHERS + rb"\b[^.;]{0,60}\b(?:well|right|fine|good|ok|correct(?:ly)?|normal(?:ly)?|clean)\b"
    rb"[^.;]{0,40}\b(?:same|these|this very|very same) (?:[\w-]+ ){0,2}(?:files?|checkpoints?|weights|models?|prompts?|"
    rb"requests?|folder)\b|\b(?:right|fine|good|correct|well) (?:in|with|under|on) " + _OTHERS + rb"\b"
)
_LENGTHS = pattern(
    rb"(?i)\b(?:short|a few) (?:\w+ )?(?:prompts?|answers?|requests?|ones|inputs?)\b.{0,40}"
    rb"\b(?:fine|good|right|ok|correct|well|answered)\b|"
    rb"\b(?:beyond|past|above|over|pass(?:es)?|longer than|more than|exceeds?|from) (?:about |some |the |roughly )?"
    rb"\d[\d,.]*k? ?tokens?\b|\bas soon as (?:\w+ ){0,3}(?:long|longer)\b|\bonly (?:with |on )?long (?:prompts|"
    rb"answers|inputs)\b"
)
_SPOILT = pattern(
    rb"(?i)\b(?:wrong|garbled|gibberish|garbage|nonsens\w*|meaningless|degenerate|rubbish|incoherent|repeats itself)\b"
)
_CUT = pattern(rb"(?i)\brandom tokens\b|\bcut off\b|\bruns? past\b|\brepeats\b|\bbroken\b|\bunreadable\b|[!]{3,}")
_EMPTY = pattern(rb"(?i)\bempty\b|\bno (?:samples|metrics)\b")
_OWN_RID = pattern(rb"""["']?\brid["']? ?[:=] ?["'][^"']""")
_CALLS = pattern(rb"(?i)\btool_?calls?\b|\bfunction calls?\b")
_THOUGHTS = pattern(rb"(?i)reasoning|\bthink|\bthought")
_ONE_TOKEN = pattern(rb"(?i)\boutput_ids?\W{1,4}(\d{2,7})(?:, \1){2}")
_TWO_BUILDS = pattern(rb"(?i)\b(image|build|release) A: .{3,160}\b\1 B: ")
_HOT = rb"temperature[ =:]+(?:of )?(?:0\.[5-9]|1(?:\.\d)?|2(?:\.0)?)(?![.\d]*\d)"
_COLD = rb"(?:temperature[ =:]+(?:of )?0(?:\.[0-4]\d*)?(?![.\d]*\d)|greedy|top_k[ =:]+1\b)"
_FINE = rb"\b(?:fine|right|ok|correct|good|well|readable|coherent|normal|sane|clean)\b"
_SAMPLED = pattern(
    rb"(?i)"
    + _HOT
    + rb".{0,160}"
    + _COLD
    + rb".{0,40}"
    + _FINE
    + rb"|"
    # The other way round the second one has to be wrong in so many words.
    + _COLD
    + rb"[^;]{0,40}?"
    + _FINE
    + rb".{0,60}?"
    + _HOT
    + rb"[^;]{0,60}?"
    rb"\b(?:unreadable|garbage|garbled|nonsens\w*|gibberish|rubbish|wrong|broken|random|incoherent|noise|worse)\b"
)


def keep(kept: dict[str, Remark], line: bytes, place: Place) -> None:
    """Keep the last note by which the server, or requests to it, stand, and what notes say of wrong answers.

    Args:
        kept: remarks by their names.
        line: of the log, as it stands.
        place: of the line.
    """
    if not line.startswith(b"#"):
        return
    said = Remark(place, "", line[:400].decode(errors="replace").strip())
    if _WRONG.search(line) and _AMONG.search(line) and not _is_worse_alone(line):
        kept.setdefault("wrong_among_others", said)
    bad = any(words.search(line) for words in (_WRONG, _SPOILT, _CUT))
    if bad and _SCHEMAS.search(line) and _BOTH_KINDS.search(line):
        kept.setdefault("schema_among_others", said)
    if bad and _RIGHT_ELSEWHERE.search(line):
        kept.setdefault("right_elsewhere", said)
    if _LENGTHS.search(line) and _SPOILT.search(line):
        kept.setdefault("wrong_when_long", said)
    spoken = line + kept["notes"].text.encode() if "notes" in kept else line
    if _EMPTY.search(line) and b"metrics" in spoken:
        kept.setdefault("metrics_empty", said)
    if _ONE_TOKEN.search(line):
        kept.setdefault("one_token", said)
    if _TWO_BUILDS.search(line):
        kept.setdefault("two_builds", said)
    if _OWN_RID.search(line):
        kept.setdefault("own_rid", said)
    if _CALLS.search(line) and not _THOUGHTS.search(line):
        kept.setdefault("calls_noted", said)
    if _SAMPLED.search(line):
        kept.setdefault("wrong_as_it_samples", said)
    if silence_in_words.goes_on(line):
        kept.setdefault("goes_on", said)
    if silence_in_words.turns_while_idle(line):
        kept.setdefault("busy_while_idle", said)
    if any(map(says_so, _CLAUSES.split(line))):
        # The last one, behind which the least work can stand.
        kept[NAME] = said
    # Before an end a server may have been well.
    parts = [part for clause in _CLAUSES.split(line) for part in _TURNS.split(clause)]
    if any(_ENDED.search(part) and not _NOT_ENDED.search(part) for part in parts):
        kept[DIES] = said
    if any(_MOVED.search(part) and not _NOT_MOVED.search(part) for part in parts):
        kept[TRANSFERS] = said


_SCORE = pattern(rb"(?<![\d.])0\.\d{2,3}(?![\d.])")
_FIRST_FEW = pattern(_FEW)


def _is_worse_alone(line: bytes) -> bool:
    """Return whether scores of few requests at once, which come first, are below those of many."""
    few, scores = _FIRST_FEW.search(line), list(_SCORE.finditer(line))
    return bool(few and scores and few.start() < scores[0].start() and float(scores[0][0]) < float(scores[-1][0]))


def noted_death(kept: Mapping[str, Remark], last_work: int) -> Death | None:
    """Return the end of a process that a note alone tells of, behind all work; None if none does."""
    said = kept.get(DIES)
    if said is None or said.place.line < last_work:
        return None
    text = said.text.lstrip("# ")
    # As CUDA words it: rules and records know it by that.
    by_cuda = next((whole for short, whole in _BY_CUDA if short in text and whole not in text), "")
    return Death(said.place, "", "", f"{SAID_BY_A_NOTE}{text}{f' (CUDA error: {by_cuda})' if by_cuda else ''}")


_BY_CUDA = (
    ("illegal memory access", "an illegal memory access was encountered"),
    ("device-side assert", "device-side assert triggered"),
)


# What notes and lines name: the words, and what to leave out by them.
_NAMED = (
    (
        pattern(r"ncclCommWindowRegister|use_symmetric_memory|symm_mem\b"),
        "once without --enable-symm-mem: all ranks register its memory with NCCL together, also while the server runs, "
        "and that has never come back; then another release of NCCL (pip list | grep nccl)",
    ),
    (
        pattern(r"grammar|response_format|json_schema"),
        "no response_format, regex and forced tools once, refused before they reach the server: ranks ask each other "
        "whether a grammar is ready, and with --enable-dp-attention those without such a request have not come there; "
        "then a later release",
    ),
    (
        pattern(r"(?i)flashinfer.{0,12}all_?reduce|all_?reduce.{0,8}fusion"),
        "once without FlashInfer's fused all-reduce (--enforce-disable-flashinfer-allreduce-fusion; of vLLM "
        "VLLM_FLASHINFER_ALLREDUCE_BACKEND=mnnvl, or fuse_allreduce_rms false in --compilation-config): its kernels "
        "write into the memory of the other GPUs, which of another node they reach over a fabric (mnnvl) alone",
    ),
    (
        pattern(r"\bACS(?:Ctl)?\b|ReqRedir\+"),
        "ACS off on the bridges between the GPUs (in the firmware, or setpci of ECAP_ACS; lspci -vvv then shows "
        "ReqRedir- and CmpltRedir-), and NCCL_P2P_DISABLE=1 until then: with it, what one GPU writes to another goes "
        "through the root complex and the IOMMU, and NCCL waits for a flag that does not come",
    ),
    (
        pattern(r"via P2P/"),
        "once with NCCL_P2P_DISABLE=1: NCCL took the way from GPU to GPU (via P2P in its lines), which over PCIe works "
        "in name alone where IOMMU or ACS are on, or in a virtual machine; p2pBandwidthLatencyTest of CUDA's samples "
        "shows it",
    ),
    (
        pattern(r"recv_object|pp_proxy|\bPP\d\b.{0,40}\b(?:waits?|stands|in)\b"),
        "once with --pp-size 1 (--tp for the other GPUs): stages of the pipeline wait for each other, which no line "
        "says; then a later release",
    ),
    (
        pattern(r"(?i)deep_?ep|nvshmem"),
        "once with --moe-a2a-backend none: what carries tokens to experts waits for all ranks",
    ),
)


def waits_its_turn(note: Remark) -> bool:
    """Say whether a note has a request wait for the end of another, and no server that stands."""
    return silence_in_words.waits_its_turn(note.text.encode())


def goes_on(facts: LogFacts) -> bool:
    """Say whether a note has the server take in requests, or none wait, while earlier ones were never answered."""
    return "goes_on" in facts.remarks


def named_in_notes(facts: LogFacts, stacks: bool = False) -> Iterator[str]:
    """Yield what to leave out by what notes beside the log, and lines of NCCL and fused sums, name.

    Args:
        facts: the log.
        stacks: whether frames of stacks that somebody took name it too.
    """
    names = ("stands", "notes", "fused_sums", "nccl_p2p")
    said = "\n".join(facts.remarks[name].text for name in names if name in facts.remarks)
    said += "\n".join(("", *(frame for stack in facts.stacks for frame in stack.frames))) if stacks else ""
    yield from (advice for words, advice in _NAMED if words.search(said))
