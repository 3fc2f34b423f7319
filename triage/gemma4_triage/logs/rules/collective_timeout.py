"""Ranks of a group wait for each other: NCCL or gloo gave up, or ended with a rank that was gone."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import kernels_that_stand, native_crashes
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import COLLECT, of_death, of_failure, on_rank, over
from gemma4_triage.logs.rules import hang
from gemma4_triage.logs.switched_on import features

_TIMEOUT = pattern(
    r"Watchdog caught collective operation timeout|ran for \d+ milliseconds before timing out|"
    r"collective.{0,40}timed? ?out|Timed out waiting \d+ ?ms for (?:recv|send) operation|"
    r"Application timeout caused pair closure"
)
_GONE = pattern(
    r"(?i)connection (?:closed|reset) by peer|ncclRemoteError|remote process exited|\[gloo/|Broken pipe|"
    r"communicator was aborted"
)
_BEGIN = pattern(
    r"(?i)unhandled (?:cuda|system) error|ncclInternalError|ncclInvalidUsage|, invalid usage|"
    r"DistNetworkError|DistStoreError|clients? (?:has|have) (?:not )?joined|connectFullMesh|waiting for clients"
)
_ROUTE = pattern(
    r"(?i)connect to \[?([\w.:]+?)\]?<\d+> (?:returned|failed ?:) "
    r"(No route to host|Connection refused|Connection timed out|Network is unreachable|Software caused \w+ abort)"
)
_NCCL = pattern(r"(?i)\bnccl|gloo|Dist(?:Backend|Network|Store)Error|ProcessGroup|collective|pair closure")
_NCCL_SAYS = (
    (
        pattern(r"(?i)fabric handle|mnnvl|\bimex\b"),
        "NCCL could not share memory over the NVLink fabric of several hosts (MNNVL): its service (IMEX) is not up, or "
        "the container has not its channels.",
        (
            "NCCL_MNNVL_ENABLE=0 once: within one host, or over InfiniBand, it is not needed",
            "nvidia-imex-ctl -N on the hosts; /dev/nvidia-caps-imex-channels in the container (Kubernetes: a "
            "ComputeDomain); all hosts of one clique (nvidia-smi -q: Fabric)",
        ),
    ),
    (
        pattern(r"nvls|NVLS|Cuda failure 401"),
        "NCCL could not set up sums inside the NVSwitch (NVLS), as in a container that has not all of its fabric.",
        (
            "NCCL_NVLS_ENABLE=0 once; then Fabric Manager on the host (systemctl status nvidia-fabricmanager), of the "
            "driver's very release",
            "all GPUs of a fabric's partition in one container, and no --enable-nccl-nvls or --enable-symm-mem",
        ),
    ),
    (
        pattern(r"Duplicate GPU detected"),
        "Two ranks of one group were given the same GPU.",
        (
            "--tp (times --pp, and --dp without attention) must not exceed the GPUs that CUDA_VISIBLE_DEVICES leaves: "
            "nvidia-smi -L; each node and each server its own (--base-gpu-id, --node-rank)",
            "where Ray or a trainer places the workers: its resource groups, or a later release of it",
        ),
    ),
    (
        pattern(r"(?i)out of memory|Failed to CUDA (?:m|c)alloc"),
        "NCCL found no memory on a GPU for its buffers: another process holds it, or pools and weights took all.",
        ("nvidia-smi: end what else runs there", "a lower --mem-fraction-static leaves room for NCCL's buffers"),
    ),
    (
        pattern(r"(?i)driver version is insufficient|invalid device ordinal|initialization error|no CUDA-capable"),
        "NCCL could not use a GPU: the driver is older than this CUDA, or the GPU is not in this container.",
        ("nvidia-smi in the container: driver and GPUs; docker --gpus all", "a driver for the CUDA of the image"),
    ),
    (
        pattern(r"(?i)peer access|p2p(?!\.cc)|invalid argument"),
        "GPUs of this host cannot read each other's memory as NCCL tried to (P2P).",
        ("NCCL_P2P_DISABLE=1 once; nvidia-smi topo -m; IOMMU and ACS off on bare metal",),
    ),
    (
        pattern(r"(?i)ibv_|\bIB\b|net_ib|GID|local qp"),
        "NCCL could not use this host's InfiniBand or RoCE cards.",
        (
            "NCCL_IB_DISABLE=1 once; then NCCL_IB_HCA and NCCL_IB_GID_INDEX; ulimit -l unlimited, IPC_LOCK and "
            "/dev/infiniband in the container",
        ),
    ),
)
_MEETS = pattern(r".* \w*(?:mlp_sync|dp_attn)\w*$|dp_attn\w*\.py:")
_BEFORE_STEPS = (
    "it is the meeting of all ranks of attention data parallelism before each step: one that ended, compiles or waits "
    "for a transfer keeps all others; once without --enable-dp-attention"
)
_KEYS = pattern(r"wait timeout after \d+ ?ms, keys")
_JOINED = pattern(r"(\d+)/(\d+) clients joined")
_SILENT = (
    "if the other's output only stops: dmesg -T | grep -i oom, docker inspect or kubectl describe pod there: its "
    "host's memory ran out, on GPUs that share it (GB10, Jetson) the model's too; a lower --mem-fraction-static and "
    "--chunked-prefill-size"
)
_RANK = pattern(r"\[[Rr]ank ?(\d+)\]")
_WORK = pattern(r"SeqNum=(\d+), OpType=(\w+)")


def _explains(death: Death) -> bool:
    said = f"{death.type_name}: {death.message}"
    if "EADDRINUSE" in said:
        return False
    return bool(_NCCL.search(said)) and any(words.search(said) for words in (_TIMEOUT, _GONE, _BEGIN))


def _tell(facts: LogFacts, death: Death) -> Finding:
    said = f"{death.type_name}: {death.message}"
    if _TIMEOUT.search(said):
        return _timeout(facts, death)
    if (waited := _waited_before(facts, death)) is not None:
        return _timeout(facts, waited)
    warning = facts.remarks.get("nccl_warn")
    warned = f" {warning.text}" if warning else ""
    confidence = Confidence.LIKELY
    if (route := _ROUTE.search(said + warned)) is not None:
        cause = f"NCCL could not connect to {route[1]} ({route[2]}): that is the address of another rank's host by an "
        cause += "interface which this host does not reach, or a firewall stands between."
        advice = (
            "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, on every node, of the one interface that reaches the others "
            f"(ip -br addr; ping {route[1]} from here): NCCL else takes bridges of Docker and Kubernetes, too",
            "the ports between the nodes, all of them (NCCL picks free ones): nc -vz; containers: --network host",
            "if that host answers: the log of its ranks, of which one may have ended first",
        )
    elif _GONE.search(said):
        cause = "A rank reports that another one is gone; the one that ended first is the cause."
        others = [one for one in facts.deaths if not _explains(one)]
        native = next((alarm for alarm in facts.alarms if alarm.kind == "signalled"), None)
        if native is not None and native.place.line < death.place.line:
            confidence = Confidence.POSSIBLE
            advice = (
                f"line {native.place.line} says that a process ended in native code: begin there",
                *native_crashes.looks(facts, native),
            )
        elif others:
            # That end has a finding of its own, which leads.
            confidence = Confidence.POSSIBLE
            advice = (_OF_ANOTHER_KIND.format(_named(others[0])),)
        else:
            advice = (
                "find the first rank or node that ended, and its exception: this line only follows from it",
                _SILENT,
            )
    elif "connectFullMesh" in said:
        cause = (
            "Ranks could not connect to each other over Gloo: it took a network interface or host name that they do "
        )
        cause += "not share, or a firewall stands between."
        advice = (
            "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME of the interface that reaches the other nodes, on every node",
            "/etc/hosts must not map the node's own name to 127.0.0.1; containers: --network host",
        )
    elif _KEYS.search(said):
        cause = "A rank waited for what the first of its group writes down as ranks meet, and that did not come in "
        cause += "time: the first one died, still loads or compiles, or took another way through the code."
        advice = (
            "the log of rank 0 of that group, on the first node: its exception, or what it did meanwhile",
            "if it only was slow: --dist-timeout 3600; weights on a local disk, kernels compiled beforehand",
        )
    elif joined := _JOINED.search(said):
        cause = f"Only {joined[1]} of {joined[2]} nodes or ranks came to the first one's meeting point in time: the "
        cause += "others were not started, died, or cannot reach it."
        advice = (
            "the logs of the nodes that are missing; one --node-rank each, the same --nnodes and --dist-init-addr",
            "from them: nc -vz the address and port of --dist-init-addr; containers: --network host",
        )
    elif "trying to connect" in said and (unknown := facts.remarks.get("name_unknown")) is not None:
        cause = f"This node does not know the name of the first one (line {unknown.place.line}): it did not resolve "
        cause += "until the time was over, as where the first node was not started yet, or the name is another."
        advice = (
            "getent hosts NAME of --dist-init-addr from here, again and again: a name of Kubernetes resolves when the "
            "leader's pod runs (its image may still be pulled). Start workers when the leader is ready "
            "(LeaderWorkerSet: startupPolicy LeaderReady; else wait for the name before the command)",
            "or the first node's IP address in place of the name; a headless service with publishNotReadyAddresses; "
            "--dist-timeout waits longer",
        )
    elif "trying to connect" in said:
        cause = "This node could not reach the first one at --dist-init-addr in time: it is not started, died, or a "
        cause += "network stands between."
        advice = (
            "the first node's log; then nc -vz address port from here: the port of --dist-init-addr has to be open",
            "containers: --network host; GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME of the interface that reaches it",
        )
    elif (known := next((one for one in _NCCL_SAYS if one[0].search(said + warned)), None)) is not None:
        _, cause, advice = known
    else:
        cause = "The group of ranks could not be formed, or NCCL met an error of CUDA or of the system."
        advice = (
            "NCCL_DEBUG=INFO and look for the first NCCL WARN; every rank has to see a GPU of its own",
            "containers: --shm-size 32g or --ipc host; nodes: --dist-init-addr, NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME",
        )
    named = (f"once {one.without}: its code was exchanging data" for one in features(facts) if one.is_named(death))
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=confidence,
        evidence=tuple(of_failure(facts, death)),
        advice=(*advice, *(named if facts.served else ())),
    )


def _waited_before(facts: LogFacts, death: Death) -> Death | None:
    """Return NCCL's own timeout, where it stands before a rank's word that another is gone; None if there is none."""
    first = next((alarm for alarm in facts.alarms if alarm.kind == "nccl" and _TIMEOUT.search(alarm.text)), None)
    if first is None or first.place.line > death.place.line or not _GONE.search(death.message):
        return None
    return Death(first.place, first.rank, "", first.text)


_OF_ATTENTION = pattern(r"\((?:attention_tp|attn_tp|tp_attn)\b")


def _of_a_tower(facts: LogFacts) -> tuple[str, ...]:
    """Return what to do where ranks that share attention waited for each other, of which some alone had a request."""
    texts = (text for alarm in facts.alarms if alarm.kind == "nccl" for text in (alarm.text, *alarm.more))
    if facts.settings.get("enable_dp_attention") != "True" or not any(map(_OF_ATTENTION.search, texts)):
        return ()
    return (
        "the group is that of the ranks which share attention under --enable-dp-attention, where not all came: an "
        "encoder of images or sounds (or another layer) that sums over it is run by those alone that hold the request. "
        "Such requests at a server without --enable-dp-attention, or refused; if text alone is answered, it is the "
        "encoder: a later release (SGLang 37059, SGLang 34442). --dist-timeout only waits longer",
    )


_STATUS = pattern(r"last enqueued (?:NCCL )?work: (\d+), last completed (?:NCCL )?work: (\d+)")
_ALL = (
    "every rank that the log knows of is in the same one, so that none is behind: what carries it stands (a link, a "
    "card, a kernel of NCCL's), or a rank of another node is missing"
)
_SAME = "those that report are in the same one: another rank did not come, or what carries it stands"
_EARLY = (
    "it had not served yet: a rank that still loads weights, compiles (DeepGEMM) or captures graphs comes late. "
    "Weights on a local disk, python3 -m sglang.compile_deep_gemm beforehand, and --dist-timeout 3600 meanwhile"
)
_LINK = (
    "NCCL_DEBUG=INFO, and the first NCCL WARN of any node; dmesg -T | grep -i xid on each; over nodes once with "
    "NCCL_IB_DISABLE=1, within one with NCCL_P2P_DISABLE=1; another release of NCCL (pip show nvidia-nccl-cu12)"
)


def _waiting(facts: LogFacts) -> dict[int, tuple[int, str]]:
    """Return, by rank, the number and the kind of the collective that each rank waits in, by NCCL's watchdog."""
    works: dict[int, tuple[int, str]] = {}
    for text in (text for alarm in facts.alarms if alarm.kind == "nccl" for text in (alarm.text, *alarm.more)):
        if (rank := _RANK.search(text)) is None:
            continue
        if work := _WORK.search(text):
            works.setdefault(int(rank[1]), (int(work[1]), work[2]))
        elif status := _STATUS.search(text):
            works.setdefault(int(rank[1]), (int(status[2]) + 1, "a collective"))
    return works


def _group(facts: LogFacts) -> set[int]:
    """Return the ranks that there are: by --tp, which counts them all, else those that the log names themselves."""
    size = facts.settings.get("tp_size", "0")
    if size.isdecimal() and int(size) > 1 and facts.settings.get("pp_size", "1") in ("1", "None"):
        return set(range(int(size)))
    named = (match for rank in facts.ranks if (match := _OF_TENSORS.search(rank.rank)))
    return {int(match[1]) for match in named}


_OF_TENSORS = pattern(r"\bTP(\d+)")


_OF_ANOTHER_KIND = "{} is of another kind: begin there"


def _named(death: Death) -> str:
    return f"{death.type_name or 'a failure'} in line {death.place.line}{on_rank(death.rank)}"


def _timeout(facts: LogFacts, death: Death) -> Finding:
    works, group = _waiting(facts), _group(facts)
    waits = ", ".join(f"rank {rank} in {kind} {number}" for rank, (number, kind) in sorted(works.items()))
    silent = sorted(group - set(works)) if works else []
    behind = min(works, key=lambda rank: works[rank][0]) if len({number for number, _ in works.values()}) > 1 else None
    kinds = {kind for number, kind in works.values() if number == min(one for one, _ in works.values())}
    together = behind is None and len(works) > 1 and not silent and len(kinds) == 1
    if behind is not None:
        suspect = f"rank {behind} is behind the others"
    elif silent:
        suspect = (
            f"rank{'s' * (len(silent) > 1)} {', '.join(map(str, silent[:_SHOWN]))}"
            f"{' and more' * (len(silent) > _SHOWN)} did not report and may never have got there"
        )
    elif len(kinds) > 1:
        suspect = f"they wait in different ones at one place ({', '.join(sorted(kinds))}), which never meet"
    else:
        suspect = _ALL if group else _SAME
        suspect = suspect if together else "which rank did not come the log does not say"
    named = [one for one in features(facts) if one.is_named(death)]
    first = next((one for one in facts.deaths if one.place.line < death.place.line and not _explains(one)), None)
    return Finding(
        rule=RULE.id,
        cause=f"Ranks waited in a collective until its timeout; {suspect}.",
        confidence=Confidence.LIKELY if first is None else Confidence.POSSIBLE,
        evidence=(
            *of_failure(facts, death),
            *([over(facts, "who waits", waits, "by NCCL's watchdog")] if waits else []),
        ),
        ruled_out_if=("an exception of some rank stands before the first timeout: that is the cause",),
        advice=(
            *(() if first is None else (_OF_ANOTHER_KIND.format(_named(first)),)),
            *((_RAY,) if _over_ray(facts, death) else ()),
            *kernels_that_stand.of_tensorrt(facts),
            *(tower := _of_a_tower(facts)),
            *hang.of_encoders(facts),
            *((_LINK,) if together else ()),
            *((_EARLY,) if not facts.served and facts.settings.keys() | facts.remarks.keys() else ()),
            *(f"once {one.without}: its code was exchanging data" for one in named),
            "collect, before the timeout, has every process's stack: the rank that is not in a collective is the one",
            "several nodes: the first error of the silent ones, and their network (NCCL_DEBUG=INFO)"
            f"{'' if tower else '; --dist-timeout waits longer'}",
            *((_BEFORE_STEPS,) if any(map(_MEETS.match, death.frames)) else ()),
            "once with --disable-custom-all-reduce, once without overlap (--disable-overlap-schedule): one at a time",
            *hang.switches(facts),
        ),
        next_commands=(COLLECT,),
    )


_SHOWN = 8
_RAY = (
    "vLLM's ranks were started by Ray over several nodes, and what they share within one (shm_broadcast) was looked "
    "for across: the other executor once (VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0, or --distributed-executor-backend mp "
    "with --nnodes, --node-rank and --master-addr), then another release, such as the one that worked (vLLM 43420, "
    "vLLM 52907); if one node alone serves, and nc and all_reduce_perf between them do, the network is not at fault"
)
_RAY_ACTOR = pattern(r"Ray\w*(?:Proc|Actor|Executor)|ActorInstance|DPMoEEngineCoreActor")


def _over_ray(facts: LogFacts, death: Death) -> bool:
    """Say whether gloo gave up between processes that Ray had started for vLLM."""
    asked = (facts.arguments.get(name) for name in ("distributed_executor_backend", "data_parallel_backend"))
    named = any(_RAY_ACTOR.search(alarm.text) for alarm in facts.alarms)
    return ("ray" in asked or named) and ("gloo" in death.message or "pair closure" in death.message)


RULE = of_death(
    "collective-timeout", "ranks wait for each other", _explains, _tell, alarms=("nccl", "signalled", "watchdog")
)
