"""The server refused its arguments or its port, before it loaded anything."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings

_WORDINGS = (
    Wording(
        re.compile(r"(?:DistNetworkError|TCPStore|server socket has failed to listen).*(?:EADDRINUSE|already in use)"),
        "A port for communication between the server's own processes was taken between choosing and using it.",
        "start again; several replicas: one server each behind the router, or --nccl-port outside "
        "net.ipv4.ip_local_port_range",
    ),
    Wording(
        re.compile(
            r"(?i)address already in use|Port (?:\d+ )?is (?:already )?in use|port (?:at \d+ )?is not available in|"
            r"\w*port\w* at \d+ is not available"
        ),
        "The port is taken: another server, or the rest of an earlier one, still runs.",
        "ss -ltnp names the process; another --port, or end what is left of the earlier server",
    ),
    Wording(
        re.compile(
            r"error: unrecognized arguments: .*|error: argument --.*|"
            r"error: the following arguments are required.*|error: ambiguous option.*"
        ),
        "The start knows no such argument, or not that value.",
        "python -m sglang.launch_server --help of the installed release; names of arguments change between releases",
    ),
    Wording(
        re.compile(r"Gemma4AssistantForCausalLM draft requires"),
        "Gemma-4's assistant was given to a kind of speculation that it is not made for.",
        "--speculative-algorithm NEXTN: SGLang makes FROZEN_KV_MTP of it where the draft is Gemma-4's assistant",
    ),
    Wording(
        re.compile(r"res=<Response \[(?:502|504|407)\]>"),
        "The server's own first request was answered by something else than the server, such as an HTTP proxy.",
        "unset http_proxy and https_proxy, or no_proxy=localhost,127.0.0.1,0.0.0.0; --skip-server-warmup passes it by",
    ),
    Wording(
        re.compile(r"other ranks that didn't finish loading"),
        "Another rank did not finish loading its weights in time, and this one only waited for it.",
        "read the log of the ranks and nodes that are silent: slow storage, or an end there; --dist-timeout "
        "waits longer",
    ),
    Wording(
        re.compile(r"[Cc]ontext_length .{0,40}is greater than the derived context_length"),
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
