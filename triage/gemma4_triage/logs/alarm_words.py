"""Words by which a line says that something died, failed, hung or became NaN, and those that take them back."""

from __future__ import annotations

import re

from gemma4_triage.logs import shells_of_others

# The first that fits names the kind. Sources: SGLang's utils/watchdog.py, entrypoints/engine.py and http_server.py,
# managers/*.py, layers/sampler.py; torch's ProcessGroupNCCL and c10; bash, the kernel and container runtimes.
_HARD = {
    "killed": rb"^\W*Killed\W*$|\bline \d+: +\d+ Killed\b|\bOOMKilled\b|Killed process \d|"
    rb"[Oo]om[-_]kill|"
    rb"[Ee]xit(?:ed with)?[ -]?(?:[Cc]ode|status)?\W{0,12}(?:-9|137)\b|terminated with -9\b|signal 9\b|"
    rb"\bstatus=9/KILL\b|^srun: error: .{0,200}: Killed\b|\b[Ee]xited \(137\)|"
    rb"^(?:\w+: |\[\d+\][+-]? +(?:\d+ )?)[Kk]illed +\w|signal: killed\b|killed by the OOM killer|"
    rb"(?:terminated by |was sent |via signal \[|Negsignal\.|Stopped: )SIGKILL\b|" + shells_of_others.KILLED,
    "signalled": rb"Segmentation fault|\(core dumped\)|Fatal Python error|terminate called after throwing|\bBus error|"
    rb"^\W*Aborted\W*$|Aborted \(|Segfault encountered|\bSIG(?:SEGV|ABRT|BUS)\b|double free or corruption|"
    rb"[Ee]xit(?:ed with)?[ -]?(?:[Cc]ode|status)?\W{0,12}(?:-(?:4|6|7|8|11)|13[4569])\b|died due to signal \d|"
    rb"(?:exited (?:on|with)|unhandled) signal (?:4|6|7|8|11)\b|^\w+: (?:segmentation fault|abort|bus error)\b|"
    rb"signal: (?:aborted|segmentation fault|bus error)|general protection fault|terminate called without|"
    rb"libc\+\+abi: terminating|via signal \[SIG(?:ABRT|SEGV|BUS|ILL|FPE)|"
    rb"terminated with -(?:4|6|7|8|11)\b|\bstatus=(?:[45678]|11)/[A-Z]{3,4}\b|\bsegfault at [0-9a-f]+ ip\b|"
    rb"\b(?:free|malloc|realloc|munmap_chunk)\(\): |corrupted size vs\. prev_size|\*{3} stack smashing detected|"
    rb"(?:^|systemd-coredump\[\d+\]: )(?:\[\S{1,4}\] )?Process \d+ \((?:python|sglang|pt_main_)[^)]*\) of user \d+ "
    rb"dumped core|" + shells_of_others.CRASHED,
    "nccl": rb"NCCL WARN (?:\S+ ){0,3}?NET/\w+ ?: Got (?:completion .{0,200}\bstatus=(?!0\b)\d|"
    rb"async .{0,60}catastrophic error)|"
    rb"NCCL error|nccl\w*Error\b|Watchdog caught collective operation timeout|NCCL operations have failed|"
    rb"ProcessGroupNCCL.{0,80}(?:exception|[Tt]imeout|abort)|NCCL communicator was aborted|NCCL watchdog thread|"
    rb"\[gloo/|Gloo connectFullMesh failed|DistNetworkError|DistStoreError|DistBackendError",
    "nvshmem": rb"(?i:nvshmem\w*.{0,80}fail)|NVSHMEM (?:device|host) library version does not match|"
    rb"NVSHMEM API called before|\bibv_\w+ failed|connect EPS failed",
    "weights-update": rb"Failed to update (?:parameter online|weights)|are partially updated|"
    rb"Failed to initialize custom process group",
    "nan": rb"invalid eagle tree|"
    rb"contains either `inf`, `nan`|[Nn][Aa][Nn] in the (?:logits|prob)|[Dd]etected (?:NaN|nan|inf)\b|"
    rb"\b(?:NaN|nan|inf) (?:values? )?(?:was |were )?(?:detected|found|happened)|"
    rb"logits (?:are|is|became|contain) (?:all )?(?:NaN|nan|inf)",
    "device": rb"CUDA error: |CUDA error \(|CUresult error|no kernel image is available|NPU function error|"
    rb"CUDA_ERROR_\w|cudaError[A-Z]|(?:CUBLAS|CUDNN|CUSPARSE)_STATUS_(?!SUCCESS)|NVRM: Xid|"
    rb"Unable to determine the device handle|GPU \d+ has encountered an error|GPU is lost|"
    rb"^This kernel only supports sm_?\d|"
    rb"Memory access fault by GPU|HIP error: |HSA_STATUS_ERROR|fallen off the bus|[Uu]ncorrectable ECC",
    "no-memory": rb"\b[Oo]ut [Oo]f [Mm]emory\b|OutOfMemoryError|Cannot allocate memory|No space left on device|"
    rb"insufficient shared memory",
    "no-files": rb"Too many open files",
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
    "child": rb"\[sglang::\w+\] <defunct>|"
    rb"(?:crashed|exited|terminated|died|ended) \(?with (?:exit ?code |code |status )?(?!13[04-79]\b|143\b)"
    rb"[1-9]|died \(exitcode|[Ee]xit ?code[ :=]+(?!13[04-79]\b|143\b)[1-9]\d{0,2}\b|"
    rb"[Ee]xit [Cc]ode: +(?!13[04-79]\b|143\b)[1-9]\d{0,2}\b|non-zero exit code|exit status [1-9]\d*; not expected|"
    rb"(?:exited|terminated|died|ended|stopped|crashed) unexpectedly|worker died or was killed|"
    rb"\b(?:scheduler|detokenizer|tokenizer|worker|engine|server|process|rank)\w*(?: \d+)? is dead\b|"
    rb"(?:process|scheduler|worker|engine)\w*\b.{0,20} (?:not|no longer) alive\b|"
    rb"Failed with result '(?!success|timeout)|entered failed state|"
    rb"[Ll]ost connection to the (?:scheduler|engine|worker)|"
    rb"(?:JOB|STEP) [\w.+]+ ON \S+ CANCELLED AT \S+ DUE TO|"
    rb"Reason: +Evicted\s*$|[Pp]od evicted|node was low on resource|"
    rb"process (?:has )?(?:died|crashed)\b|Back-off restarting failed container|"
    rb"CrashLoopBackOff|\bExited \((?!0\)|137\)|143\))\d+\)|\bMain process exited, code=exited, status=(?!0/)\d|"
    rb"^srun: error: .{0,200}: (?:Exited with|Segmentation)",
    # Of uvicorn, which starts another one in its place.
    "http-worker": rb"Child process \[\d+\] died",
    "ray": rb"ActorDiedError|RayActorError|ActorUnavailableError|Worker exit detail",
    "sigquit": rb"[Rr]eceived sigquit from a child|SIGQUIT received",
    "exception": rb"hit an exception\b|^To work around this error, add ",
    "refused": rb"The request queue is full",
    # Of SGLang's scheduler, by limits of time that its environment sets.
    "waited-in-vain": rb"Request (?:waiting|running) timeout reached\b",
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
    rb"Failed to get prefill [\w ]{1,20}info: |Failed to get segment descriptor\b|"
    rb"Los(?:t|ing) connection with (?:prefill|decode) instance|"
    rb"local protection error|[Tt]ransport retry count(?:er)? exceeded|Too many errors found in local RNIC|"
    rb"Error (?:querying|fetching) [\w ]{1,40} from bootstrap|"
    rb"\bNIXL_ERR_\w+|Failed to register memory\b|[Mm]ooncake memory registration failed|"
    rb"[Mm]ooncake [Tt]ransfer [Ee]ngine initialization failed|Request \S+ waiting_timeout",
    # Of SGLang's router, which is another program.
    "router": rb"Error starting router: |[Ff]ailed to start router\b|"
    rb"[Ff]ailed to register worker\b|worker did not become healthy|[Nn]o healthy (?:prefill |decode )?workers\b|"
    rb"[Nn]o[ _]available[ _](?:\w+ )?(?:workers|servers)|all circuits open|server_selection_failed|"
    rb"[Ff]ailed to select (?:a |PD )?\w*(?:worker|pair)|request failed: hyper::Error|gRPC health RPC error|"
    rb"[Ss]tream error from (?:prefill|decode) server|"
    rb"without boo?t?strap room|[Rr]emoving failed worker|waiting for workers .{0,400}to become healthy|"
    rb'"is_healthy": ?false|'
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
    | {"waited-in-vain"}
)
"""Kinds that a server survives: each is told, whatever stands before it."""
_SOFT = {
    # SGLang tries optional libraries, and goes on without them.
    "library": rb"cannot open shared object file|^(?:ImportError: )?(?:/\S+: )?undefined symbol: \w",
    # Behind a dash in a list of what was tried.
    "error": rb"^(?:-? )?(?:[\w.]+\.)?(?!CancelledError)(?:\w*(?:Error|Exception|Violation|Failure|OutOfResources)|"
    rb"\w+(?:Timeout|Disconnected)|TimeoutExpired|IncompleteRead)(?:: |:?\s*$|\(\)?\s*$)|"
    # Of a list of what was tried, "backend=cudnn  cudnn.NotSupportedError: ...".
    rb"^\w[\w-]{0,30}=\S{1,60} +(?:\w+\.)+\w*(?:Error|Exception): |"
    rb"^(?:\[[^\]]{0,60}\] )?Unsupported [\w /-]{3,60}(?:[:.,(=]|$)",
    "unhealthy": rb'"GET /health\w* HTTP/\d(?:\.\d)?" 503\b',
    "answered-503": rb'"POST /(?:generate|v1/)\S* HTTP/\d(?:\.\d)?" 503\b',
    # Ranks that can be left out (DeepEP with a mask) and sockets of a rank that has ended go on, or do not.
    "peer-gone": rb"\bDeepEP (?:error: )?timeout\b|\bDeepEP (?:dispatch|combine)\b.{0,80}\btimeout\b|"
    rb"NCCL WARN .{0,80}Connection closed by remote peer",
    # Of the server's own first request: only a proxy is asked for a whole address.
    "proxied": rb'"(?:GET|POST|HEAD) https?://[^" ]+ HTTP/\d(?:\.\d)?" (?:40[37]|50[234])\b|'
    rb'HTTP Request: \w+ https?://(?:127\.0\.0\.1|localhost|0\.0\.0\.0)[:/]\S* "HTTP/\d(?:\.\d)? (?:40[37]|50[24])\b',
    "timeout": rb"\b(?:[Tt]imed out|Timeout!|[Tt]imeout \d+ ?s\b|"
    rb"[Tt]ime-?out (?:waiting|after|expired|exceeded|while|when))\b",
    "trouble": rb"oom_reaper: reaped|BAD TERMINATION|: command not found\b|[Pp]ermission denied|"
    rb": Operation not permitted|"
    rb"python[\w.]*: No module named \w|\b(?:rank|worker|node) \S+ (?:is )?(?:lost|unreachable)\b|FailedMount|"
    rb"watchdog got stuck|dump signal due to a collective timeout|"
    rb"\b[Ee]rror (?!in request)(?:in|while|when|during|on|processing|fetching|querying|reading|"
    rb"writing|converting|submitting|preparing|handling|loading)\b|\b[Uu]nexpected(?:ly)? (?:\w+ )?(?:error|not ready)|"
    rb"\b[Uu]nrecoverable\b|\b[Gg]iving up\b|\b[Nn]ot enough (?:host |GPU )?memory|[Mm]ismatch(?:ed)?\b",
    # What is missing and asked for, refused, or handed to a program that does not take it; notes are somebody's prose.
    "missing": rb"^(?!\s*#)(?!.{0,300}NCCL INFO).*?(?:"
    rb"\b(?:[Pp]lease|[Rr]un|[Tt]ry|[Yy]ou (?:need to|must|have to)) (?:first )?\W?(?:pip3? |(?:re)?install )|"
    rb"(?:^|\] )Invalid (?:object|type|message|command|request|state|value|argument|option|config\w*)\b|"
    rb"\b[Ee]ncountered an? (?:\w+ )?(?:error|exception|failure)\b|"
    rb"\b(?:[Uu]nable to|[Cc]annot|[Cc]ould not|[Cc]an't) (?:be )?(?:load|open|connect|start|find|found|create|reach|"
    rb"initiali[sz]e|launch|access|read|locate|bind|allocate)(?:ed)?\b|"
    rb": No such file or directory\s*$|\b[Cc]onnection refused\b|\b(?:was|were|been) (?:rejected|refused|denied)\b|"
    rb"\b(?:is|are|was|were) not (?:found|supported|installed|recogni[sz]ed|allowed)\b|"
    rb"\b(?:401 Unauthorized|403 Forbidden|407 Proxy|502 Bad Gateway|504 Gateway)|^No module named '\w|^panic: |"
    rb"\b[Hh]it invalid |\b[Rr]ejecting |\breturned error: [45]\d\d\b|"
    rb"^(?:docker: )?Error response from daemon|docker: invalid reference)",
    "failed": rb"^\W*(?:Router \(Rust\)\W+)?\d{4}-\d\d-\d\d[T ][\d:.Z]+ (?:- )? *(?:ERROR|CRITICAL)\b|"
    rb"^E\d{4} \d\d:\d\d|^ERROR! |"
    # The level, however a program writes it.
    rb"\[(?:ERROR|CRITICAL|FATAL|E|F)\]|^(?:ERROR|CRITICAL|FATAL)\b(?!: pip's)|"
    rb"[\s|](?:ERROR|CRITICAL|FATAL)[ \t]+(?:\||- |\[)|\blevel=(?:error|critical|fatal)\b|"
    rb"\] Error: \S|\bRayTaskError\(|\] (?:\w+\.)*[A-Z]\w+Error\s*$|"
    rb"^ERROR: (?:No matching distribution found|Could not find a version|Cannot install|ResolutionImpossible)|"
    rb"\bNo solution found when resolving|"
    # An exception with its module, behind words of somebody's own.
    rb"[\s(](?:[a-z_]\w{0,40}\.){1,6}[A-Z]\w{0,60}(?:Error|Exception): |"
    rb"(?:[\])>|-]|(?<!client):) ?(?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{1,60}(?:Error|Exception)(?:: \S|\([\"'])|"
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
    | {"adapter", "answered-503", "peer-gone"}
)
# What somebody typed at a shell, or a shell shows of what it is about to do, is no word of a program's.
TYPED = re.compile(rb"(?:[\w.-]+@[\w.-]+:\S*)?[$#] \w|\+{1,9} (?!exit\b)[\w./'\"(\[]|trap ['\"]")
# A test of a client's that fails has been answered: what it says of the answers is not the server's.
OF_A_TEST = re.compile(rb"FAILED \S{1,200}\.py::")
# Settings and requests: their words are a user's, not the server's.
_QUOTED = (b"server_args=", b"ServerArgs(", b"Namespace(", b"GenerateReqInput(", b"EmbeddingReqInput(", b'"text": ')
OF_AN_ANSWER = (b'"content": "', b'"reasoning_content": "', b'"delta":', b'"chat.completion.chunk"')
"""And a model's, as curl and jq print an answer or a stream."""
_QUOTED += OF_AN_ANSWER
# Of the kernel's words, a process that is none of a server's.
_OF_ANOTHER = re.compile(
    rb"(?i)Killed process \d+ \((?!python|sglang|pt_main|ray|uv|vllm|torch|scheduler|detoken|launch|node|[^)]*sgl)"
)
# Somebody stopped the server: what its processes say of their end is no failure.
STOPS = (b"SIGTERM received. ", b"Shutting down", b"Gracefully exiting", b"KeyboardInterrupt")
STARTS = (b"fired up and ready to roll", b"Load weight begin")
OF_A_STOP = frozenset({"killed", "child", "sigquit", "error", "failed", "timeout", "unhealthy"}) | {
    "answered-503",
    "peer-gone",
}
WORKS = (
    *(b"fired up and ready to roll", b"Application startup complete", b"Application shutdown complete"),
    *(b"Finished server process", b"Gracefully exiting", b"Load weight end", b"raph end. "),
)
# One of these is in every alarm's line in lower case: looked for first, since the expressions above are slow.
TRIGGERS = (
    *shells_of_others.TRIGGERS,
    *(b"dumped core", b"<defunct>", b"nccl warn", b"deepep"),
    *(b"undefined symbol", b"only supports sm", b"invalid ", b"install", b" pip", b"[e]", b"[f]"),
    *(b'"get http', b'"post http', b'"head http', b"no solution found"),
    *(b"unable to", b"cannot", b"could not", b"can't", b"no such file", b"refused", b"reject", b" not found"),
    *(b"not supported", b"not recogni", b"not allowed", b"invalid reference"),
    *(b"http request: ", b"unauthorized", b"forbidden", b"gateway", b"407 proxy", b"panic: "),
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
    *(b"mismatch", b"does not match", b"giving up", b"not enough", b"unexpected", b"unrecoverable"),
    *(
        b"available workers",
        b"available_workers",
        b"healthy",
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


def kind_by_words(line: bytes, below_frames: bool) -> str:
    """Return the kind of alarm that the words of a line are a sign of; "" if they are none.

    Args:
        line: As it stands.
        below_frames: Whether a traceback's frames stand above it.
    """
    for words, excuse in ((_HARD_LINE, _ONLY_ADVICE), (_SOFT_LINE, _SURVIVED)):
        found = words.search(line)
        if found and found.lastgroup and not (any(mark in line for mark in _QUOTED) or _OF_ANOTHER.search(line)):
            kind = found.lastgroup.replace("_", "-")
            # Below a traceback it is an exception, whatever words it has; a word of it does not say who went on.
            raised = kind == "error" and below_frames
            if not _AVOIDED.search(line) and (kind in _NO_ADVICE or raised or not excuse.search(line)):
                return kind
    return ""
