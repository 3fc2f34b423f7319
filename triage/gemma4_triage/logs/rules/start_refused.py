"""The server refused its arguments or its port, before it loaded anything."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings, pattern

_ANOTHER_ANSWERED = (
    "The server's own first request was answered by something else than the server, such as an HTTP proxy."
)
_WORDINGS = (
    Wording(
        pattern(r"(?:DistNetworkError|TCPStore|server socket has failed to listen).*(?:EADDRINUSE|already in use)"),
        "A port for communication between the server's own processes was taken between choosing and using it.",
        "start again; several replicas: one server each behind the router, or --nccl-port outside "
        "net.ipv4.ip_local_port_range",
    ),
    Wording(
        pattern(r"(?i)cannot assign requested address"),
        "The address that the server was told to listen at is none of this host's: mostly --dist-init-addr on a node "
        "that is not the first one, or a --host of another machine.",
        "the same --dist-init-addr on every node, with the first node's own address (ip addr there), --node-rank 0 on "
        "it; --host 0.0.0.0",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(
            r"(?i)address already in use|Port (?:\d+ )?is (?:already )?(?:in use|allocated)|"
            r"port (?:at \d+ )?is not available in|"
            r"\w*port\w* at \d+ is not available"
        ),
        "The port is taken: another server, or the rest of an earlier one, still runs.",
        "ss -ltnp names the process; another --port, or end what is left of the earlier server",
    ),
    Wording(
        pattern(r"error: ambiguous option: (?P<short>\S+) could match (?P<those>.+)"),
        "The start has no argument {short} of that name any more: it takes it for the beginning of {those}.",
        "name the one that is meant in full ({those}), or in full again what the launcher or recipe shortens; "
        "launch_server --help of the installed release",
    ),
    Wording(
        pattern(r'exec: "(?P<what>-[^"]*)": executable file not found'),
        "The container was told to run {what}, which is an argument and no program: arguments took the place of the "
        "image's command.",
        "put python3 -m sglang.launch_server before the arguments, behind the image's name (Kubernetes: command, then "
        "args)",
    ),
    Wording(
        pattern(r'exec: "(?P<what>[^"]*)": executable file not found'),
        "The container was told to run {what}, which its image does not have.",
        "python3 -m sglang.launch_server as the command, and --entrypoint '' if the image brings another one; see that "
        "the image is SGLang's",
    ),
    Wording(
        pattern(r"exec format error|no matching manifest for"),
        "The image is for another kind of processor than this host's (amd64 against arm64).",
        "an image with this platform (docker pull --platform linux/arm64 or linux/amd64; uname -m says which; GH200, "
        "GB200 and DGX Spark are arm64)",
    ),
    Wording(
        pattern(r"manifest unknown|pull access denied|manifest for \S+ not found"),
        "There is no image of that name and tag, or it may not be read.",
        "the list of tags at the registry (lmsysorg/sglang on Docker Hub), with its suffix for this CUDA or ROCm",
    ),
    Wording(
        pattern(
            r"error: unrecognized arguments: .*|error: argument --.*|"
            r"error: the following arguments are required.*"
        ),
        "The start knows no such argument, or not that value.",
        "python -m sglang.launch_server --help of the installed release; names of arguments change between releases",
    ),
    Wording(
        pattern(r"trust_remote_code=True|contains custom code which must be executed|trust_remote_code` to True"),
        "The checkpoint brings code of its own, which runs only where the start allows it.",
        "--trust-remote-code, after a look at that code (the .py files beside config.json); not needed where SGLang's "
        "release has the model built in",
    ),
    Wording(
        pattern(r"Gemma4AssistantForCausalLM draft requires"),
        "Gemma-4's assistant was given to a kind of speculation that it is not made for.",
        "--speculative-algorithm NEXTN: SGLang makes FROZEN_KV_MTP of it where the draft is Gemma-4's assistant",
    ),
    Wording(
        pattern(r"^RuntimeError"),
        "The script that starts the engine has no main guard: each process that it starts runs it anew.",
        'put what starts the engine below if __name__ == "__main__":',
        frames=pattern(r".* _check_not_importing_main$"),
    ),
    Wording(
        pattern(r"Cannot re-initialize CUDA in forked subprocess"),
        "The program had used CUDA before it started processes by fork, which cannot use it then.",
        "start the engine before anything touches the GPU, or set multiprocessing's start method to spawn",
    ),
    Wording(
        pattern(r"attempt has been made to start a new process before"),
        "The script that starts the engine has no main guard: each process that it starts runs it anew.",
        'put what starts the engine below if __name__ == "__main__":',
    ),
    Wording(
        pattern(r"daemonic processes are not allowed to have children"),
        "The engine was started inside a daemon process, such as a worker of a pool, which may start none of its own.",
        "start the engine in the main process, or in one that is no daemon (concurrent.futures, daemon=False)",
    ),
    Wording(
        pattern(
            r"(?i)event loop is already running|cannot be called from a running event loop|"
            r"There is no current event loop|another loop is running|Can't patch loop of type"
        ),
        "The engine was called where an event loop runs already, or in a thread that has none: a notebook, or an "
        "application that is asynchronous itself.",
        "await engine.async_generate there; in a notebook nest_asyncio.apply() first; or serve over HTTP",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"signal only works in main thread"),
        "The engine was started in a thread, and it sets handlers of signals, which only the main thread may.",
        "start the engine in the main thread, or in a process of its own",
    ),
    Wording(
        pattern(r"^PermissionError: .{0,40}'(?P<path>[^']+)'"),
        "The server may not read or write {path}.",
        "the user that the server runs as needs rights there (docker: -v with the right owner, --user); HF_HOME, "
        "TRITON_CACHE_DIR and FLASHINFER_WORKSPACE_BASE name other folders",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"Can't pickle|cannot pickle"),
        "An object that cannot be sent to another process was handed to the engine or its processes.",
        "pass paths and plain values, and classes and functions of a module's top level",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"HTTPConnectionPool\(host='(?:127\.0\.0\.1|localhost|0\.0\.0\.0|::1?)'.{0,200}Read timed out"),
        "The server's own first request had no answer in time: a first step compiles for long, or a rank of it hangs.",
        "py-spy dump --pid of every scheduler while it waits; the last lines of each rank before it. If it compiles: "
        "python3 -m sglang.compile_deep_gemm beforehand, or --skip-server-warmup",
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"TorchMemorySaver observes invalid LD_PRELOAD"),
        "The memory saver works in a process only that was started with its library preloaded, and this one was not.",
        "set LD_PRELOAD to the library that the line names where the process is started, or start it through "
        "torch_memory_saver's configure_subprocess; or without --enable-memory-saver",
    ),
    Wording(
        pattern(r"^JSONDecodeError"),
        _ANOTHER_ANSWERED,
        "unset http_proxy and https_proxy, or no_proxy=localhost,127.0.0.1,0.0.0.0; see that no other program has the "
        "port",
        frames=pattern(r".* (?:_wait_and_warmup|_execute_server_warmup|json)$"),
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"^TypeError: .*NoneType"),
        "Drafts were asked for with only some of the arguments that belong together.",
        "give --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens all, or none of "
        "them: SGLang then chooses",
        frames=pattern(r".* \w*speculative\w*$"),
        confidence=Confidence.LIKELY,
    ),
    Wording(
        pattern(r"res=<Response \[(?:403|404|407|50[234])\]>"),
        _ANOTHER_ANSWERED,
        "unset http_proxy and https_proxy, or no_proxy=localhost,127.0.0.1,0.0.0.0; --skip-server-warmup passes it by",
    ),
    Wording(
        pattern(r"other ranks that didn't finish loading"),
        "Another rank did not finish loading its weights in time, and this one only waited for it.",
        "read the log of the ranks and nodes that are silent: slow storage, or an end there; --dist-timeout "
        "waits longer",
    ),
    Wording(
        pattern(r"[Cc]ontext_length .{0,40}is greater than the derived context_length"),
        "The context length that was asked for is longer than the model's own.",
        "a --context-length that config.json allows; SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 overrides it",
    ),
)

RULE = of_wordings(
    "start-refused",
    "the server refused its arguments or its port",
    _WORDINGS,
    Confidence.CERTAIN,
    what="what the start said",
    alarms=("no-start",),
)
