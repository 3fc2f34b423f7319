"""The floor under "no findings": lines that say that something died, failed, hung or became NaN, without a cause.

Batch lines and tracebacks are read elsewhere; every other line is held against the words here. A hard alarm stands
whatever follows it. A soft one (a last line of an exception, "timed out", "failed") stands only if no work follows:
servers log errors that they survive.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import compress

from gemma4_triage.logs.facts import Alarm, Death, Place
from gemma4_triage.logs.lines import DIGITS, lines_with
from gemma4_triage.logs.tracebacks import death_of

# The first that fits names the kind. Sources: SGLang's utils/watchdog.py, entrypoints/engine.py and http_server.py,
# managers/*.py, layers/sampler.py; torch's ProcessGroupNCCL and c10; bash, the kernel and container runtimes.
_HARD = {
    "killed": rb"^\W*Killed\W*$|\bline \d+: +\d+ Killed\b|\bOOMKilled\b|Killed process \d|[Oo]om[-_]kill|"
    rb"[Ee]xit(?:ed with)?[ -]?(?:[Cc]ode|status)?\W{0,12}(?:-9|137)\b|terminated with -9\b|signal 9\b|"
    rb"\bstatus=9/KILL\b|^srun: error: .{0,200}: Killed\b|\b[Ee]xited \(137\)|"
    rb"^(?:\w+: |\[\d+\][+-]? +(?:\d+ )?)[Kk]illed +\w|signal: killed\b|killed by the OOM killer|"
    rb"(?:terminated by |was sent |via signal \[|Negsignal\.|Stopped: )SIGKILL\b",
    "signalled": rb"Segmentation fault|\(core dumped\)|Fatal Python error|terminate called after throwing|\bBus error|"
    rb"^\W*Aborted\W*$|Aborted \(|Segfault encountered|\bSIG(?:SEGV|ABRT|BUS)\b|double free or corruption|"
    rb"[Ee]xit(?:ed with)?[ -]?(?:[Cc]ode|status)?\W{0,12}(?:-(?:4|6|7|8|11)|13[4569])\b|died due to signal \d|"
    rb"(?:exited (?:on|with)|unhandled) signal (?:4|6|7|8|11)\b|^\w+: (?:segmentation fault|abort|bus error)\b|"
    rb"signal: (?:aborted|segmentation fault|bus error)|general protection fault|terminate called without|"
    rb"libc\+\+abi: terminating|via signal \[SIG(?:ABRT|SEGV|BUS|ILL|FPE)|"
    rb"terminated with -(?:4|6|7|8|11)\b|\bstatus=(?:[45678]|11)/[A-Z]{3,4}\b|\bsegfault at [0-9a-f]+ ip\b|"
    rb"\b(?:free|malloc|realloc|munmap_chunk)\(\): |corrupted size vs\. prev_size|\*{3} stack smashing detected",
    "nccl": rb"NCCL error|nccl\w*Error\b|Watchdog caught collective operation timeout|NCCL operations have failed|"
    rb"ProcessGroupNCCL.{0,80}(?:exception|[Tt]imeout|abort)|NCCL communicator was aborted|NCCL watchdog thread|"
    rb"\[gloo/|Gloo connectFullMesh failed|DistNetworkError|DistStoreError|DistBackendError",
    "nvshmem": rb"(?i:nvshmem\w*.{0,80}fail)|NVSHMEM API called before|\bibv_\w+ failed|connect EPS failed",
    "weights-update": rb"Failed to update (?:parameter online|weights)|are partially updated|"
    rb"Failed to initialize custom process group",
    "nan": rb"invalid eagle tree|"
    rb"contains either `inf`, `nan`|[Nn][Aa][Nn] in the (?:logits|prob)|[Dd]etected (?:NaN|nan|inf)\b|"
    rb"\b(?:NaN|nan|inf) (?:values? )?(?:was |were )?(?:detected|found|happened)|"
    rb"logits (?:are|is|became|contain) (?:all )?(?:NaN|nan|inf)",
    "device": rb"CUDA error: |CUDA error \(|CUresult error|no kernel image is available|NPU function error|"
    rb"CUDA_ERROR_\w|cudaError[A-Z]|(?:CUBLAS|CUDNN|CUSPARSE)_STATUS_(?!SUCCESS)|NVRM: Xid|"
    rb"Unable to determine the device handle|GPU \d+ has encountered an error|GPU is lost|"
    rb"Memory access fault by GPU|HIP error: |HSA_STATUS_ERROR|fallen off the bus|[Uu]ncorrectable ECC",
    "no-memory": rb"\b[Oo]ut [Oo]f [Mm]emory\b|OutOfMemoryError|Cannot allocate memory|No space left on device|"
    rb"insufficient shared memory",
    "watchdog": rb"[Ww]atchdog [Tt]imeout|[Ww]atchdog (?:thread )?(?:crashed|fired|expired|triggered)",
    "health": rb"Health check failed|failed (?:liveness|startup) probe|health check (?:has )?(?:failed|timed out)|"
    rb"Liveness probe failed",
    "no-start": rb"warmup failed; aborting|did not become ready at|"
    rb"Initialization failed|scheduler died during initialization|Weights are not ready after|"
    rb"[Aa]ddress already in use|\b[Pp]ort (?:\d+ )?is already (?:in use|allocated)(?!, trying)|"
    rb"error: (?:unrecognized arguments|ambiguous option|argument --|the following arguments are)|"
    rb"\b(?:sglang|vllm): (?:command )?not found|"
    rb"executable file not found in|exec format error|no matching manifest for|manifest unknown|"
    rb"unknown or invalid runtime name|unknown runtime specified|"
    rb"FailedScheduling|Failed to pull image|ImagePullBackOff|ErrImagePull|CreateContainer(?:Config)?Error|"
    rb"Reason: +(?:ContainerCannotRun|StartError)|OCI runtime create failed|[Ss]tart request repeated too quickly|"
    rb"entered FATAL state|could not select device driver|nvidia-container-cli: |"
    rb"[Ff]ailed to (?:start|launch|initialize) (?:the )?(?:server|engine|scheduler|worker)",
    "child": rb"(?:crashed|exited|terminated|died|ended) \(?with (?:exit ?code |code |status )?(?!13[04-79]\b|143\b)"
    rb"[1-9]|died \(exitcode|[Ee]xit ?code[ :=]+(?!13[04-79]\b|143\b)[1-9]\d{0,2}\b|"
    rb"[Ee]xit [Cc]ode: +(?!13[04-79]\b|143\b)[1-9]\d{0,2}\b|non-zero exit code|exit status [1-9]\d*; not expected|"
    rb"(?:exited|terminated|died|ended|stopped|crashed) unexpectedly|worker died or was killed|"
    rb"\b(?:scheduler|detokenizer|tokenizer|worker|engine|server|process|rank)\w*(?: \d+)? is dead\b|"
    rb"(?:process|scheduler|worker|engine)\w*\b.{0,20} (?:not|no longer) alive\b|"
    rb"Failed with result '(?!success|timeout)|entered failed state|"
    rb"[Ll]ost connection to the (?:scheduler|engine|worker)|"
    rb"JOB \d+ ON \S+ CANCELLED AT \S+ DUE TO|Reason: +Evicted\s*$|[Pp]od evicted|node was low on resource|"
    rb"process (?:has )?(?:died|crashed)\b|Back-off restarting failed container|"
    rb"CrashLoopBackOff|\bExited \((?!0\)|137\)|143\))\d+\)|\bMain process exited, code=exited, status=(?!0/)\d|"
    rb"^srun: error: .{0,200}: (?:Exited with|Segmentation)",
    # Of uvicorn, which starts another one in its place.
    "http-worker": rb"Child process \[\d+\] died",
    "ray": rb"ActorDiedError|RayActorError|ActorUnavailableError|Worker exit detail",
    "sigquit": rb"[Rr]eceived sigquit from a child|SIGQUIT received",
    "exception": rb"hit an exception\b",
    "refused": rb"The request queue is full",
    "thread": rb"^Exception in thread |\] Exception in thread ",
    "leak": rb"[Ll]eak [Dd]etected|[Mm]emory leak\b(?! check passed)|leaked (?:semaphore|page|token|slot)",
    "own-check": rb"kv_canary violation: |KV cache canary violation detected|invariant-check (?:FAILED )?\[|"
    rb"\bKV double free: sub-pool|\bKV page use-after-free: ",
    "stopped-answering": rb"soft lockup|blocked for more than \d+ seconds|WORKER TIMEOUT|"
    rb"\b(?:deadlock(?:ed)?|hung|not responding|unresponsive|stopped responding)\b",
    # A client that goes away ends its transfer ("Aborted by AbortReq").
    "transfer": rb"(?:KVTransferError|[Uu]nexpected transfer worker error|"
    rb"[Tt]ransfer thread failed|[Tt]ransfer failed for request)(?!.*Aborted by AbortReq)|"
    rb"(?:bootstrap|handshake) (?:failed(?!.*Aborted by AbortReq)|timed out)|failed to register to bootstrap|"
    rb"Los(?:t|ing) connection with (?:prefill|decode) instance|"
    rb"local protection error|transport retry counter exceeded|Too many errors found in local RNIC|"
    rb"Error (?:querying|fetching) [\w ]{1,40} from bootstrap|"
    rb"\bNIXL_ERR_\w+|Failed to register memory\b|[Mm]ooncake memory registration failed|"
    rb"[Mm]ooncake [Tt]ransfer [Ee]ngine initialization failed|Request \S+ waiting_timeout",
    # Of SGLang's router, which is another program.
    "router": rb"[Nn]o[ _]available[ _](?:\w+ )?(?:workers|servers)|all circuits open|server_selection_failed|"
    rb"[Ff]ailed to select (?:a |PD )?\w*(?:worker|pair)|request failed: hyper::Error|gRPC health RPC error|"
    rb"[Ss]tream error from (?:prefill|decode) server|"
    rb"without boo?t?strap room|[Rr]emoving failed worker|waiting for workers .{0,400}to become healthy|"
    rb"\bpanicked at \S*\b(?:routers?|server|core|policies|tree|worker|middleware|service_discovery)\b\S*\.rs|"
    rb"[Cc]ircuit ?[Bb]reaker\b.{0,120}(?:\bto=[Oo]pen\b|-> Open\b|\b[Oo]pened\b|\bis open\b)",
    "panic": rb"\bpanicked at\b",
    "lost-answer": rb"IPC name is None",
    "grammar": rb"Grammar accept_token failed|Failed to advance FSM for request",
    "adapter": rb"[Ff]ailed to load LoRA adapter|LoRA adapter \S+ .{0,60}is incompatible",
    "image-tokens": rb"Number of tokens in multimodal embedding does not match|Insufficient multimodal embedding|"
    rb"[Ii]mage features and image tokens do not match",
    "parser": rb"(?:Tool call|Reasoning) parsing error|Error in (?:detect_and_parse|parse_streaming_increment)|"
    rb"Failed to parse (?:tool calls?|reasoning)",
    "storage": rb"Prefetch operation \S+ failed to retrieve|Expected DiskDescriptor|"
    rb"\b(?:L[23]|HiCache|[Ss]torage(?: backend)?|[Hh]ost cache) "
    rb"(?:write|read|get|set|load|backup|prefetch)\w* "
    rb"(?:failed|timed out)",
    "answered-500": rb'HTTP/\d(?:\.\d)?" 50[024]\b|Exception in ASGI application|\bError in request: '
    rb"(?!.*(?:validation|"
    rb"longer than|context length|[Ee]xceed|must (?:not )?be|should (?:not )?be|[Ii]nvalid|"
    rb"(?:is|are|does) not support|only supports?|"
    rb"is required|Please add `--|not found|does not exist|[Uu]nknown|\b4\d\d Client Error|HTTP Error 4\d\d))",
}
FATAL = frozenset(
    {"killed", "signalled", "nccl", "device", "watchdog", "no-start", "child", "sigquit", "exception"}
    | {"nvshmem", "ray"}
)
"""Kinds that end a server: what stands behind one of them is taken to follow from it."""
OF_REQUESTS = frozenset(
    {"answered-500", "transfer", "image-tokens", "parser", "nan", "leak", "own-check", "storage", "router", "adapter"}
    | {"thread", "panic", "refused", "weights-update", "grammar", "lost-answer", "http-worker"}
)
"""Kinds that a server survives: each is told, whatever stands before it."""
_SOFT = {
    # SGLang tries optional libraries, and goes on without them.
    "library": rb"cannot open shared object file",
    # Behind a dash in a list of what was tried.
    "error": rb"^(?:- )?(?:[\w.]+\.)?(?!CancelledError)(?:\w*(?:Error|Exception|Violation|Failure|OutOfResources)|"
    rb"\w+(?:Timeout|Disconnected)|TimeoutExpired|IncompleteRead)(?:: |:?\s*$|\(\)?\s*$)|"
    # Of a list of what was tried, "backend=cudnn  cudnn.NotSupportedError: ...".
    rb"^\w[\w-]{0,30}=\S{1,60} +(?:\w+\.)+\w*(?:Error|Exception): |"
    rb"^(?:\[[^\]]{0,60}\] )?Unsupported [\w /-]{3,60}(?:[:.,(=]|$)",
    "unhealthy": rb'"GET /health\w* HTTP/\d(?:\.\d)?" 503\b',
    "timeout": rb"\b(?:[Tt]imed out|Timeout!|[Tt]imeout \d+ ?s\b|"
    rb"[Tt]ime-?out (?:waiting|after|expired|exceeded|while|when))\b",
    "trouble": rb"oom_reaper: reaped|BAD TERMINATION|: command not found\b|[Pp]ermission denied|"
    rb": Operation not permitted|"
    rb"python[\w.]*: No module named \w|\b(?:rank|worker|node) \S+ (?:is )?(?:lost|unreachable)\b|FailedMount|"
    rb"watchdog got stuck|dump signal due to a collective timeout|"
    rb"\b[Ee]rror (?!in request)(?:in|while|when|during|on|processing|fetching|querying|reading|"
    rb"writing|converting|submitting|preparing|handling|loading)\b|\b[Uu]nexpected(?:ly)? (?:\w+ )?(?:error|not ready)|"
    rb"\b[Uu]nrecoverable\b|\b[Gg]iving up\b|\b[Nn]ot enough (?:host |GPU )?memory|[Mm]ismatch(?:ed)?\b",
    "failed": rb"^\W*(?:Router \(Rust\)\W+)?\d{4}-\d\d-\d\d[T ][\d:.Z]+ (?:- )? *(?:ERROR|CRITICAL)\b|"
    rb"^E\d{4} \d\d:\d\d|^ERROR! |"
    rb"^ERROR: (?:No matching distribution found|Could not find a version|Cannot install|ResolutionImpossible)|"
    # An exception with its module, behind words of somebody's own.
    rb"[\s(](?:[a-z_]\w{0,40}\.){1,6}[A-Z]\w{0,60}(?:Error|Exception): |"
    rb"\b(?:[Ff]ailed|[Ff]ailure|FAILED|[Cc]rashed|[Pp]anicked|[Cc]orrupt(?:ed|ion)?|[Ff]atal|FATAL|died)\b",
}
SURVIVABLE = frozenset(_SOFT)
"""Kinds that stand only where no work follows."""


def _alternatives(kinds: dict[str, bytes]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(b"(?P<%s>%s)" % (kind.replace("-", "_").encode(), kinds[kind]) for kind in kinds))


_HARD_LINE, _SOFT_LINE = _alternatives(_HARD), _alternatives(_SOFT)
# Whoever says this goes on; "leaked semaphore" is what Python's resource tracker says at any end.
_SURVIVED = re.compile(
    rb"(?i)\bretry|\bretries\b(?! exceeded)|\bignor|fall(?:ing|s)?[ -]?back|\bskip(?:s\b|p)|\boptional|\bwarn|"
    rb"not fatal|non-fatal|harmless|\bno errors? (?:in|on|at|from|is|was|anywhere)\b|"
    rb"will (?:use|try|continue)|\binstead\b|continu(?:e|ing)\b|using (?:the )?default|"
    rb"\bkeep(?:ing|s)?\b|\bdefaulting\b|\bpreserving\b|\bleaving\b|\boverriding\b|\bstays?\b|\bdisabl(?:ed|ing)\b|"
    rb"[;,] using\b|import failed|\bderegister|\bunlink|clean(?:er| ?up)\b|peer gone|"
    rb"(?:fail(?:ed|ures?)|errors?)\b[\w ]{0,20}[:=]\s*0(?:\.0+)?\s*$|"
    rb"\bfixing\b|\bremoved\b|successfully|manually|"
    rb"failed to import|validation(?!(?:Error: \d+ validation)? ?errors? for \w*(?:Config|Args)\b)|"
    rb"exceeds the maximum|abort(?:ing|ed)? (?:the |by Abort)?req(?:uests?)?\b"
)
_ONLY_ADVICE = re.compile(
    rb"(?i)\b(?:may|might|could(?! not| match)|avoid|prevent|if you|in case|to detect)\b|resource_tracker"
)
# Whoever says so has met no failure: "using triton to avoid a SIGSEGV".
_AVOIDED = re.compile(rb"\bto (?:avoid|prevent|work around) ")
# Of these a line with "might" in it still tells what happened, and guesses why.
_NO_ADVICE = frozenset(
    {"transfer", "answered-500", "parser", "image-tokens", "signalled", "child", "exception", "storage", "router"}
    | {"adapter"}
)
# What somebody typed at a shell is no word of a program's.
_TYPED = re.compile(rb"(?:[\w.-]+@[\w.-]+:\S*)?[$#] \w")
# A test of a client's that fails has been answered: what it says of the answers is not the server's.
_OF_A_TEST = re.compile(rb"FAILED \S{1,200}\.py::")
# Settings and requests: their words are a user's, not the server's.
_QUOTED = (b"server_args=", b"ServerArgs(", b"Namespace(", b"GenerateReqInput(", b"EmbeddingReqInput(", b'"text": ')
# Somebody stopped the server: what its processes say of their end is no failure.
_STOPS = (b"SIGTERM received. ", b"Shutting down", b"Gracefully exiting", b"KeyboardInterrupt")
_STARTS = (b"fired up and ready to roll", b"Load weight begin")
_OF_A_STOP = frozenset({"killed", "child", "sigquit", "error", "failed", "timeout", "unhealthy"})
_WORKS = (
    *(b"fired up and ready to roll", b"Application startup complete", b"Application shutdown complete"),
    *(b"Finished server process", b"Gracefully exiting", b"Load weight end", b"raph end. "),
)
# One of these is in every alarm's line in lower case: looked for first, since the expressions above are slow.
_TRIGGERS = (
    *(b"alive", b"low on resource", b"reason: ", b"lockup", b"blocked for", b"signal ", b"signal: ", b"imagepull"),
    *(b"mount", b"too quickly", b"result '", b"non-zero", b"device handle", b"due to", b"connection to the"),
    *(
        b": not found",
        b"command not found",
        b"denied",
        b"not permitted",
        b"no module named",
        b"unreachable",
        b" lost",
        b"worker timeout",
        b"evicted",
    ),
    *(b"is dead", b"terminat", b"protection fault", b"not expected", b"is lost", b"got stuck", b"dump signal"),
    b"could not select",
    b"unsupported",
    b"diskdescriptor",
    b"no matching manifest",
    b"nvidia-container-cli",
    b"ipc name is none",
    *(
        b"kill",
        b"exit",
        b"segm",
        b"segf",
        b"core dumped",
        b"fatal",
        b"terminate",
        b"bus error",
        b"abort",
        b"double free",
    ),
    *(b"sigq", b"sigs", b"siga", b"sigb", b"nccl", b"gloo", b"dist", b"nan", b" inf", b"`inf", b"cuda", b"status_"),
    *(
        b"xid",
        b"hip error",
        b"fallen off",
        b" ecc",
        b"multimodal embedding",
        b"image tokens",
        b"memory",
        b"no space",
        b"watchdog",
        b"health check",
    ),
    *(
        b"probe failed",
        b"error",
        b"fail",
        b"not ready",
        b"already in use",
        b"ed with ",
        b"died",
        b"crash",
        b"exception",
    ),
    *(
        b"leak",
        b"deadlock",
        b"hung",
        b"respon",
        b'" 50',
        b"bootstrap",
        b"handshake",
        b"access fault",
        b"oom",
        b"timed out",
        b"time-out",
        b"timeout",
    ),
    *(b"mismatch", b"giving up", b"not enough", b"unexpected", b"unrecoverable"),
    *(
        b"available workers",
        b"available_workers",
        b"e workers",
        b"available servers",
        b"selection_failed",
        b"circuit",
        b"connection with",
        b"incompatible",
    ),
    *(b"to select ", b"strap room", b"panicked at", b"nixl_err", b"queue is full"),
    *(
        b"actor",
        b"worker exit",
        b"critical",
        b".cpp:",
        b"shared object",
        b"panicked",
        b"corrupt",
        b"interrupt",
        b"violation",
        b"invariant-check",
        b"outofres",
        b"use-after-free",
        b"free(): ",
        b"alloc(): ",
        b"chunk(): ",
        b"prev_size",
        b"smashing",
    ),
)
_PROGRAM = re.compile(rb"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|Traceback |  File ")
_CRASH_FRAME = re.compile(r'  File "([^"]+)", line (\d+) in (\S+)')
_RIGHT_BELOW = 3  # lines
_CRASH_FRAMES, _NEAR = 3, 40  # frames; lines from the crash to its stack
_GROUP = re.compile(rb" {2,}\| ?")  # of a traceback within a group of exceptions
_LAST_LINE = re.compile(r"(?:- )?(?:\w+\.)*(\w+)(?:\(\))?(?:: (.*)|:)?")
_TRIED = re.compile(r"^\w[\w-]{0,30}=\S{1,60} +(?=(?:\w+\.)+\w)")  # of a list of what was tried
_RAISED = re.compile(rb"(?:[\w.]+\.)?\w*(?:Error|Exception): ")
_LONGEST_LINE = 2000  # bytes of a line that are looked at
_LONGEST_TEXT = 500  # characters: of transfers the state in which they ended stands last
_FRAMES = 12
_AGAIN, _SOON = re.compile(rb"[Rr]etry|[Rr]esum"), 3  # what follows a failure within so many lines, and makes it good
_ANSWERED = re.compile(rb'HTTP/\d(?:\.\d)?" 500\b')
_AGAIN_MARKS = (b"retry", b"resum", b"hread 0x")  # in lower case
_ACCESS = b" HTTP/"
IN_LOWER_CASE = (*_TRIGGERS, *_AGAIN_MARKS)
LETTER_BY_LETTER = (*_WORKS, *_STOPS, *_STARTS, _ACCESS)
"""One of these, or of IN_LOWER_CASE in any case, is in every line that concerns alarms."""
_MOST_ERRORS = 8
_REASON = b"Value error, "
_MOST_KEPT = 16
_OF_A_REQUEST = re.compile(rb"Exception in ASGI application|\bError in request: ")
_OF_CLIENTS = re.compile(
    rb"openai\.(?:API)?(?:Timeout|Connection)Error\b|AI_\w+Error\b|SyntaxError: Unexpected (?:token|end of JSON)"
)
_LONGEST_ANSWER = 400  # lines of the traceback of a request
_ENOUGH_LINES = 1000


# Numbers that differ from line to line and change no kind: every other one may be an exit code or a status. Each
# expression begins with what few characters are, which is what makes it fast.
_HEXADECIMAL = re.compile(rb"[0-9a-f]{8,}")
_ADDRESS = re.compile(rb"0x[0-9a-f]+")
_OF_ONE_LINE = re.compile(rb"\d(?:\d*(?:\.\d+){3}(?::\d+)?|\d:\d\d:\d\d(?:[.,]\d+)?|\d{3,})")
# Codes, statuses, marks that hold a digit, a number at the end (a count of failures), a stamp within the line.
_NUMBERS_MATTER = re.compile(rb"(?i)exit|status|code|signal|with -|http|hread x|^\s|=>|[:=]\s*\.?\s*$|.\[-- ::|^E ::")
_HAS_FRAMES = re.compile(rb"^ |hread 0x|\| ")
_MOST_SHAPES = 20_000
MANY = 64
"""Lines of a block that concern alarms: of fewer it is not worth while to ask which are alike."""


class AlarmReader:
    """Takes every line that is neither a batch line nor part of a traceback, in order; keeps one alarm of a kind."""

    def __init__(self, place: Callable[[int, bytes], Place]) -> None:
        """Begin with no alarm.

        Args:
            place: Makes the place of a line, of its number and its text.
        """
        self._place = place
        self._hard: dict[str, Alarm] = {}
        self._soft: Alarm | None = None
        self._errors: list[Death] = []
        self.caught: list[Death] = []
        self._frames: deque[bytes] = deque(maxlen=_FRAMES)
        self.last_work = 0
        self._stopping = False
        self._of_the_crash = True
        self._stack_at = 0
        self.program_lines = 0
        self._triggers = list(_TRIGGERS)
        self._work_marks = list(_WORKS)
        self._answers: list[int] = []
        self._answers_seen = 0
        self._of_a_request = self._client = -_LONGEST_ANSWER
        # What was made of a line, by what it is without numbers of its own: a kind, or "" of none.
        self._shapes: dict[bytes, str] = {}
        self._by_number: dict[bytes, bool] = {}
        self._kinds: dict[bytes, str] = {}
        self._worded: str | None = None
        self._counts: dict[str, int] = {}
        self._lasts: dict[str, tuple[int, bytes]] = {}

    def shapes(self, lines: list[bytes]) -> list[bytes]:
        """Return for each line what all lines have that say the same: its words, its rank, and numbers that matter."""
        text = b"\n".join(lines)
        found = text.translate(None, DIGITS).split(b"\n")
        if len(self._by_number) >= _MOST_SHAPES:
            self._by_number.clear()
        for bare in {*found}.difference(self._by_number):
            self._by_number[bare] = _NUMBERS_MATTER.search(bare) is not None
        by_number = list(compress(range(len(found)), map(self._by_number.__getitem__, found)))
        if b"[2" in text:
            found = [
                bare + line[20 : line.find(b"]", 20, 60)] if line[:2] == b"[2" else bare
                for line, bare in zip(lines, found, strict=True)
            ]
        if by_number:
            text = b"\n".join([lines[at] for at in by_number])
            text = _ADDRESS.sub(b"0x1", text) if b"0x" in text else text
            shapes = _OF_ONE_LINE.sub(b"1", _HEXADECIMAL.sub(b"1", text)).split(b"\n")
            for at, shape in zip(by_number, shapes, strict=True):
                found[at] = shape
        return found

    def knows(self, shape: bytes) -> bool:
        """Say whether a line like it was looked at."""
        return shape in self._shapes

    def again(self, number: int, line: bytes, shape: bytes) -> str | None:
        """Take a line like one that was looked at, if no more than its count is of interest.

        A flood of the same failure is read so: of each kind the first lines are kept, and the last one's place.

        Returns: its kind, "" of none; None if `kind_of` has to look at it.
        """
        kind = self._shapes.get(shape)
        soft = self._soft
        if kind is None or (soft is not None and number <= soft.place.line + _SOON):
            return None
        if self._frames and (not kind or kind in _SOFT or _RAISED.match(line)):
            return None
        if not kind:
            return ""
        if self._stopping and kind in _OF_A_STOP:
            return None
        if kind in _SOFT:
            stands = soft is not None and soft.place.line >= self.last_work
            told = kind != "error" or (
                len(self._errors) >= _MOST_ERRORS and number > self._of_a_request + _LONGEST_ANSWER
            )
            return kind if stands and told else None
        known = self._hard.get(kind)
        if known is None or len(known.more) < _MOST_KEPT:
            return None
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._lasts[kind] = number, line
        return kind

    def count(self, kind: str, more: int, number: int, line: bytes) -> None:
        """Take more lines like the one that `again` has just taken, with nothing between them; the last one's place."""
        if more and kind in self._counts:
            self._counts[kind] += more
            self._lasts[kind] = number, line

    def _settle(self, kind: str) -> None:
        """Take the lines that `again` has counted into what is kept of their kind."""
        if count := self._counts.pop(kind, 0):
            known = self._hard[kind]
            self._hard[kind] = replace(known, count=known.count + count, last=self._place(*self._lasts[kind]))

    def remember(self, shape: bytes, line: bytes) -> None:
        """Keep what `kind_of` has just made of a line by its words alone."""
        kind, self._worded = self._worded, None
        # Of a crash the lines below it are counted from the last one; an answer's failure comes with its traceback.
        if kind in (None, "exception", "signalled") or _HAS_FRAMES.search(line) or _OF_A_REQUEST.search(line):
            return
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        self._shapes[shape] = kind or ""

    def begin(self, lines: list[bytes], text: bytes, ends: list[int], answers: list[int]) -> set[int]:
        """Return which lines of a text, which come next, concern `kind_of`.

        Args:
            lines: all but batch lines and answers.
            text: those of them that hold one of IN_LOWER_CASE or LETTER_BY_LETTER, and others, with a newline between.
            ends: where in the text the line behind each of its lines begins, by whose index lines are returned.
            answers: the numbers, in the log, of the answers among them, which are work.
        """
        if self.program_lines < _ENOUGH_LINES:
            self.program_lines += sum(_PROGRAM.match(line) is not None for line in lines[:_ENOUGH_LINES])
        low = text.lower()
        self._answers, self._answers_seen = answers, 0
        self._triggers = [trigger for trigger in _TRIGGERS if trigger in low]
        self._work_marks = [mark for mark in (*_WORKS, *_STOPS, *_STARTS) if mark in text]
        concerned: set[int] = set()
        for mark in (*self._triggers, *_AGAIN_MARKS):
            concerned.update(lines_with(mark, low, ends))
        for mark in (*self._work_marks, _ACCESS):
            concerned.update(lines_with(mark, text, ends))
        return concerned

    def answers_before(self, number: int) -> None:
        """Take note of the answers that stand before a line."""
        if self._answers_seen < len(self._answers) and self._answers[self._answers_seen] < number:
            self._answers_seen = bisect_left(self._answers, number)
            self.works(self._answers[self._answers_seen - 1])

    def works(self, number: int) -> None:
        """Take note of a line that only a working server writes: what was soft before it was survived."""
        self.last_work = max(self.last_work, number)

    def kind_of(self, number: int, line: bytes, shape: bytes | None = None) -> str:
        """Return the kind of alarm that a line is; "" if it is none.

        Args:
            number: Of the line.
            line: As it stands.
            shape: What `shapes` has of it, where that was asked: what its words say is then known of the first one.
        """
        self._worded = None
        line = line[:_LONGEST_LINE]
        if line[:1] == b" " and b"| " in line[:16]:
            line = _GROUP.sub(b"", line, count=1)
        if _TYPED.match(line):
            return ""
        if self._errors and line.lstrip().startswith(_REASON):
            self._add_reason(number, line)
            return ""
        if b"hread 0x" in line:
            self._shapes.clear()
            # faulthandler prints every thread; the one that crashed is the current one, or the first where none is.
            crash = self._hard.get("signalled")
            first = crash is not None and number - (crash.last or crash.place).line <= _RIGHT_BELOW
            current = line.startswith(b"Current thread")
            self._of_the_crash = first or current
            if current and crash is not None and crash.last is None:
                # The newest thread comes first, so the main one, which crashes most, may be the last of a hundred.
                self._stack_at = number
                others = tuple(text for text in crash.more if ".py:" not in text)
                self._hard["signalled"] = replace(crash, more=others)
        if line.startswith(b"  File "):
            self._frames.append(line)
            self._crash_frame(number, line)
            return ""
        if self._frames and line.startswith(b"    "):
            # What a traceback quotes of its source says nothing of its own.
            return ""
        # uvicorn: '"POST /generate HTTP/1.1" 200 OK'. A refusal is an answer too.
        if line.partition(b" HTTP/")[2].partition(b'" ')[2][:1] in (b"2", b"4"):
            self.last_work = number
            return ""
        if self._work_marks and any(mark in line for mark in self._work_marks):
            self.last_work = number
            self._stopping = not any(mark in line for mark in _STARTS) and (
                self._stopping or any(mark in line for mark in _STOPS)
            )
            return ""
        # An exception that a client was told of as a 500 has ended a request, and no process.
        if self._soft is not None and number <= self._soft.place.line + _SOON and _ANSWERED.search(line):
            self.last_work = self._soft.place.line
        if self._soft is not None and number <= self._soft.place.line + _SOON and _AGAIN.search(line):
            self.last_work = number
            return ""
        self._worded = None if self._frames else ""
        if shape is None or self._frames:
            kind = self._kind_by_words(line)
        elif (kind := self._kinds.get(shape)) is None:
            if len(self._kinds) >= _MOST_SHAPES:
                self._kinds.clear()
            kind = self._kinds[shape] = self._kind_by_words(line)
        if not kind:
            return ""
        if kind == "error" and not self._frames and self._is_of_a_client(number, line):
            return ""
        self._worded = None if kind == "error" and self._frames else kind
        early = kind == "unhealthy" and not self.last_work
        if self.last_work and _OF_A_TEST.match(line):
            return ""
        return "" if early or (self._stopping and kind in _OF_A_STOP) else kind

    def client_at(self, number: int) -> None:
        """Take note of a line by which somebody says that a client wrote what follows."""
        self._client = number

    def _is_of_a_client(self, number: int, line: bytes) -> bool:
        """Say whether an exception without frames is a client's: it ends no process of the server."""
        return 0 < number - self._client <= _SOON or _OF_CLIENTS.match(line) is not None

    def _add_reason(self, number: int, line: bytes) -> None:
        """Add the reason that stands below the title of a ValidationError to its message."""
        last = self._errors[-1]
        if 0 < number - last.place.line <= _RIGHT_BELOW and "validation error" in last.message:
            reason = line[:_LONGEST_LINE].decode(errors="replace").strip()
            whole = replace(last, message=f"{last.message} {reason}"[:_LONGEST_TEXT])
            self._errors[-1] = whole
            self.caught = [whole if one is last else one for one in self.caught]

    def _kind_by_words(self, line: bytes) -> str:
        low = line.lower()
        if not self._triggers or not any(trigger in low for trigger in self._triggers):
            return ""
        for words, excuse in ((_HARD_LINE, _ONLY_ADVICE), (_SOFT_LINE, _SURVIVED)):
            found = words.search(line)
            if found and found.lastgroup and not any(mark in line for mark in _QUOTED):
                kind = found.lastgroup.replace("_", "-")
                # Below a traceback it is an exception, whatever words it has; a word of it does not say who went on.
                raised = kind == "error" and bool(self._frames)
                if not _AVOIDED.search(line) and (kind in _NO_ADVICE or raised or not excuse.search(line)):
                    return kind
        return ""

    def _crash_frame(self, number: int, line: bytes) -> None:
        """Keep the innermost frames of what faulthandler prints below a crash in native code."""
        crash = self._hard.get("signalled")
        found = _CRASH_FRAME.match(line.decode(errors="replace")) if crash is not None else None
        if (
            crash is None
            or not self._of_the_crash
            or found is None
            or sum(".py:" in text for text in crash.more) >= _CRASH_FRAMES
            or number > max(crash.place.line, self._stack_at) + _NEAR
        ):
            return
        frame = f"{found[1].rsplit('/', 1)[-1]}:{found[2]} {found[3]}"
        self._hard["signalled"] = replace(crash, more=(*crash.more, frame))

    def add(self, kind: str, line: bytes, rank: str, place: Place, caught: Death | None = None) -> None:
        """Keep a line whose kind `kind_of` has named.

        Args:
            kind: of what it says.
            line: as it stands.
            rank: which scheduler wrote it.
            place: where it stands.
            caught: the exception that the last traceback of no process's end told of, which this line may end.
        """
        line = _GROUP.sub(b"", line, count=1)
        alarm = Alarm(kind, place, rank, line[:_LONGEST_LINE].decode(errors="replace").strip()[:_LONGEST_TEXT])
        if kind == "exception":
            self._of_a_request = -_LONGEST_ANSWER
        elif kind == "answered-500" and _OF_A_REQUEST.search(line):
            self._of_a_request = place.line
        raised = bool(self._frames) and _RAISED.match(line) is not None
        if kind in _SOFT or raised:
            # Below frames it is an exception, which says more with them, whatever else its words are a sign of.
            self._keep_soft(replace(alarm, kind="error") if raised else alarm, caught)
        if kind in _SOFT:
            return
        self._settle(kind)
        if (known := self._hard.get(kind)) is None:
            self._hard[kind] = alarm
        else:
            ranks = (
                known.ranks
                if rank in (known.rank, *known.ranks) or len(known.ranks) >= _MOST_KEPT
                else (*known.ranks, rank)
            )
            more = known.more if len(known.more) >= _MOST_KEPT else (*known.more, alarm.text)
            self._hard[kind] = replace(known, count=known.count + 1, last=place, ranks=ranks, more=more)

    def _keep_soft(self, alarm: Alarm, caught: Death | None) -> None:
        if self._soft is None or self._soft.place.line < self.last_work:
            self._soft, self._errors = alarm, []
        if alarm.kind == "error" and len(self._errors) < _MOST_ERRORS:
            match = _LAST_LINE.fullmatch(_TRIED.sub("", alarm.text))
            if match is not None:
                tried = (
                    f" (one of those that were tried: {named[0].strip()})"
                    if (named := _TRIED.match(alarm.text))
                    else ""
                )
                error = death_of(alarm.place, alarm.rank, match[1], (match[2] or "") + tried, tuple(self._frames))
                if caught is not None and (caught.type_name, caught.message[:_NEAR]) == (
                    match[1],
                    error.message[:_NEAR],
                ):
                    error = replace(caught, place=alarm.place, rank=alarm.rank, chain=alarm.place.line)
                self._errors.append(error)
                self.caught = [*self.caught, self._errors[-1]][-_MOST_ERRORS:]
        if alarm.kind == "error" and alarm.place.line <= self._of_a_request + _LONGEST_ANSWER:
            # uvicorn answers first, and then writes down of what the request failed.
            self.last_work = max(self.last_work, alarm.place.line)
        self._frames.clear()

    def alarms(self) -> tuple[Alarm, ...]:
        """Return the alarms that stand: the hard ones as in the log, then the soft one that no work followed."""
        for kind in tuple(self._counts):
            self._settle(kind)
        hard = sorted(self._hard.values(), key=lambda alarm: alarm.place.line)
        soft = self._soft
        return (*hard, soft) if soft is not None and soft.place.line > self.last_work else tuple(hard)

    def errors(self) -> list[Death]:
        """Return the exceptions after which no work was seen, in the order of the log."""
        return [error for error in self._errors if error.place.line > self.last_work]
