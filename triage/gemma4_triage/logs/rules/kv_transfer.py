"""KV did not come from a prefill server to a decode server: what the transport said, and which side was waited for.

Sources: disaggregation/mooncake/conn.py and common/conn.py, whose messages name the state in which a request timed out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.kept_by_none import kept_by_none
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.no_rdma import without_rdma
from gemma4_triage.logs.not_registered import not_registered
from gemma4_triage.logs.rule import (
    COLLECT,
    Rule,
    at,
    exception_text,
    of_death,
    of_failure,
    of_settings,
    on_rank,
    over,
    remarked,
)
from gemma4_triage.logs.split_sides import made_alike, of_unlike_attention
from gemma4_triage.logs.transfers_noted import OTHER_SIDE, noted

_WORDS = pattern(
    r"(?:KVTransferError|[Tt]ransfer failed for request)(?!.*Aborted by AbortReq)|"
    r"[Uu]nexpected transfer worker error|[Tt]ransfer thread failed|"
    r"(?:bootstrap|handshake) (?:failed|timed out)|failed to register to bootstrap|"
    r"Failed to get prefill [\w ]*info: |Failed to get segment descriptor\b|"
    r"Los(?:t|ing) connection with (?:prefill|decode) instance|NIXL_ERR_|"
    r"Error (?:querying|fetching) [\w ]{1,40} from bootstrap|"
    r"local protection error|[Tt]ransport retry count(?:er)? exceeded|Too many errors found in local RNIC|"
    r"Request \S+ waiting_timeout|Failed to register memory\b|"
    r"(?i:mooncake (?:\w+ ){1,3}(?:registration|initialization) failed)"
)
_STATES = {
    "Bootstrapping": (
        "requests waited at the prefill server for the decode server to hand over its KV indices, until they timed out",
        (
            "look at the decode server at that time: it is full, hangs or died; more decode capacity or fewer requests",
            "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT only makes requests wait longer",
        ),
    ),
    "WaitingForInput": (
        "requests waited at the decode server for KV that the prefill server did not send in time",
        (
            "look at the prefill server at that time: its queue, a long prefill, or its end",
            "if it had sent all, transfers never count as done: once with the other of "
            "--disaggregation-transfer-backend mooncake and nixl, then another release on both servers",
            "SGLANG_DISAGGREGATION_WAITING_TIMEOUT only makes requests wait longer",
        ),
    ),
}
_LATE = {"Bootstrapping": "bootstrap_timeout", "WaitingForInput": "waiting_timeout"}
_NIXL = "transport_nixl"
_TRANSPORTS = (
    (
        "transport_outside",
        "a transfer went beyond the memory that is registered: addresses or lengths of one side's KV pool were used "
        "for the other's, whose pages, types or layout are not alike, or one side was started anew",
        (
            "hold both start lines against each other: kind of device, --page-size, --kv-cache-dtype, --tp, --pp, "
            "attention backend, quantisation and release; a pair of one kind of device with the same of each",
            "where they are alike: restart both sides together; a later SGLang on both, then a later transport",
        ),
    ),
    (
        "transport_protection",
        "the RDMA card refused the memory: the KV buffers are not registered with it in a way that it can use",
        (
            "lsmod | grep nvidia_peermem (GPUDirect), ulimit -l unlimited, IPC_LOCK and /dev/infiniband in the "
            "container",
            "check --disaggregation-ib-device, and that mooncake is the release that SGLang's image has",
            "once with --disaggregation-transfer-backend nixl: another transport over the same network",
        ),
    ),
    (
        "transport_retry",
        "RDMA between these two cards does not get through: they are not on one fabric, the other side's card or "
        "process is gone, or RoCE's settings (GID, MTU, PFC) do not fit",
        (
            "the same card on both sides (--disaggregation-ib-device, one for each GPU, on one subnet): ib_write_bw "
            "between the very cards of the line shows whether they reach each other",
            "MC_GID_INDEX (RoCE v2 mostly 3), MC_MTU=1024; the other server's log at that time",
            "once with --disaggregation-transfer-backend nixl, or MC_FORCE_TCP=1",
        ),
    ),
    (
        "transport_no_gpu",
        "Mooncake's TCP transport was given memory of a GPU, which the socket of this build cannot read (EFAULT)",
        (
            "give it RDMA: --disaggregation-ib-device, /dev/infiniband in the container",
            "or a mooncake that was built for CUDA, whose TCP transport copies by way of the host",
            "once with --disaggregation-transfer-backend nixl",
        ),
    ),
    (
        "transport_refused",
        "the other side refused the connection: its transport does not listen at the address and port that were tried",
        (
            "check that the ports of the transport are open between the hosts or containers, and that the other "
            "server runs",
            "give it RDMA: --disaggregation-ib-device, /dev/infiniband in the container; without a device it "
            "falls to TCP",
            "once with --disaggregation-transfer-backend nixl",
        ),
    ),
    (
        "transport_no_rdma",
        "no RDMA device was found, so that the transport fell back to TCP",
        (
            "give it RDMA: --disaggregation-ib-device, /dev/infiniband in the container",
            "or make every TCP port between the hosts reachable, and look whether the other server lives",
            "once with --disaggregation-transfer-backend nixl",
        ),
    ),
    (
        "transport_timed_out",
        "connections to the other side timed out: it is gone or so busy that it takes none, or a network is between",
        (
            "look whether the other server lives and what it did at that time; then the ports between the hosts",
            "once with --disaggregation-transfer-backend nixl",
        ),
    ),
    (
        "transport_slow",
        "one transfer did not end within Mooncake's own time: a large one, of a long prompt, or a slow network",
        (
            "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES bounds one transfer, in a release that has it; a smaller "
            "--chunked-prefill-size does too; MC_TRANSFER_TIMEOUT (seconds) waits longer",
            "RDMA in place of TCP: --disaggregation-ib-device, /dev/infiniband in the container",
            "once with --disaggregation-transfer-backend nixl",
        ),
    ),
    (
        _NIXL,
        "NIXL refused to prepare or to make a transfer",
        (
            "the same attention parallelism on both sides (--tp, and --dp with --enable-dp-attention)",
            "once with --disaggregation-transfer-backend mooncake, and --disaggregation-ib-device on both sides",
            "the first error of the side that prepares the transfer counts: the other side only waits",
        ),
    ),
)
_OF_DRAFTS = (
    "once without --speculative-algorithm {} on both sides: the draft's keys and values are sent beside the target's, "
    "in a layout of their own, and some releases send them as if they were the target's (MLA), or lay them out on one "
    "side alone; a low accept length on the decode side is a sign of that. Then a later release on both"
)
_REGISTERS = (
    "Mooncake could not start on this host's network cards, or not register the KV buffers with them, so that no "
    "transfer can begin"
)
_REGISTER = (
    "the first line of mooncake itself (E and a date) says why; ulimit -l unlimited, IPC_LOCK and /dev/infiniband in "
    "the container; lsmod | grep nvidia_peermem (GPUDirect)",
    "--disaggregation-ib-device with names of ibv_devices, on both servers",
    "once with --disaggregation-transfer-backend nixl",
)
_NO_UCX = (
    "NIXL could not set its backend (UCX) up as the server started, before there was any request",
    (
        "one UCX alone: the wheel of nixl brings its own, and another that is installed (ldconfig -p | grep libuc; "
        "apt list --installed | grep ucx; LD_LIBRARY_PATH) is loaded in its place: remove that, or build nixl against "
        "it; UCX_LOG_LEVEL=info says which it takes",
        "once with --disaggregation-transfer-backend mooncake on both sides; then the nixl of SGLang's image",
        "/dev/infiniband and IPC_LOCK in the container, ulimit -l unlimited: a UCX that may register no memory fails "
        "alike",
    ),
)
_OF_THE_SPLIT = pattern(r"disaggregation/")
_REFUSED = (
    "both servers have to be asked for the same: --tp, --dp and --pp, --page-size, --kv-cache-dtype, model and "
    "release; models with windows or states bear no differing --tp",
    "once with the other of --disaggregation-transfer-backend mooncake and nixl; then a later release",
    "a request whose transfer failed so may wait for ever: bound it in the client or router",
)
_NO_BOOTSTRAP = pattern(
    r"Failed to get prefill [\w ]*info: \d+|"
    r"(?:(?:[Cc]ould not|[Ff]ailed to) fetch prefill [\w ]*info from (?:bootstrap_addr: )?|"
    r"Error (?:querying|fetching) [\w ]{1,40} from bootstrap: (?:\w+\(host=')?)([\d.:\w-]+)?"
)
_NO_PORT = pattern(r"from bootstrap: .{0,300}Cannot assign requested address")
_NO_PORT_SO = (
    "the decode server has no port left to ask the prefill server's bootstrap service from: it opens connections "
)
_NO_PORT_SO += "faster than the host gives their ports free"
_NO_PORT_LOOK = (
    "a later release of SGLang on both servers: it is a defect to ask anew at each step",
    "ss -s on the decode server's host counts them; until then net.ipv4.tcp_tw_reuse=1 and a wider "
    "net.ipv4.ip_local_port_range",
)
_BOOTSTRAP = "the decode server could not ask the prefill server's bootstrap service ({}) how it is set up"
_REACH = (
    "that address from the decode server's host (curl http://ADDRESS/route): it has to be the prefill server's own "
    "--disaggregation-bootstrap-port, as the router names it too, open, and not through a proxy (no_proxy)",
    "of a prefill server over several nodes it is the first one's (--node-rank 0); the router has to name that",
    "that the prefill server runs, and of the same release: its log at that time",
)
_SAME_SPLIT = (
    "the same --tp on both servers: this log says that they differ, which models without MLA bear badly under load"
)
_GONE = pattern(r"Los(?:t|ing) connection with (prefill|decode) instance")
_MARKED = pattern(r"remote mooncake session \S+ is not alive")
_MARKED_SO = (
    "the prefill server holds the other's session for dead since one transfer failed, and refuses all that follow, "
    "whether or not the decode server lives"
)
_MARKED_LOOK = (
    "look whether the decode server lives; if it does, restart this prefill server: releases of that time never take "
    "the mark back (SGLang 13054); then a later release",
    "the first transfer that failed is the cause: its line, and the network at that time",
)
_NIXL_ONCE = "once with --disaggregation-transfer-backend nixl on both servers: if it then holds, Mooncake is at fault"


def _tell(facts: LogFacts, death: Death) -> Finding:
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "transfer"), None)
    mooncake = facts.settings.get("disaggregation_transfer_backend", "mooncake") == "mooncake"
    many = [over(facts, "such lines", alarm.count, "transfers that failed")] if alarm and alarm.count > 1 else []
    said = " ".join((f"{death.type_name}: {death.message}", *(alarm.more if alarm else ())))
    state = next((state for state in _STATES if f"KVPoll.{state}" in said or _LATE[state] in said), None)
    transport = next(
        (
            (name, what, advice)
            for name, what, advice in _TRANSPORTS
            if name in facts.remarks or (name == _NIXL and "NIXL_ERR_" in said)
        ),
        None,
    )
    why = "the log does not say which side failed"
    refused = next((error for error in facts.errors if _OF_THE_SPLIT.match(error.caller)), None)
    started = re.search(r"(?i)(?:registration|initialization) failed|to register memory", death.message) is not None
    advice, confidence, shown = (*OTHER_SIDE, *((_NIXL_ONCE,) if mooncake else ())), Confidence.POSSIBLE, []
    if started and transport is None:
        why, confidence, advice = _REGISTERS, Confidence.LIKELY, _REGISTER
    elif (unregistered := not_registered(facts, death)) is not None:
        why, advice = unregistered
        confidence = Confidence.LIKELY
    elif _NO_PORT.search(said) is not None:
        why, confidence, advice = _NO_PORT_SO, Confidence.LIKELY, _NO_PORT_LOOK
    elif (address := _NO_BOOTSTRAP.search(said)) is not None:
        why, confidence, advice = _BOOTSTRAP.format(address[1] or "its address"), Confidence.LIKELY, _REACH
    elif transport is not None:
        (name, why, advice), confidence = transport, Confidence.LIKELY
        if "NIXL_ERR_BACKEND" in said and not facts.served and "ready" not in facts.remarks:
            why, advice = _NO_UCX
        shown = remarked(facts, name, "what the transport said")
        drafts = facts.settings.get("speculative_algorithm", "None")
        advice = (*((_OF_DRAFTS.format(drafts),) if name == "transport_outside" and drafts != "None" else ()), *advice)
    elif _MARKED.search(said) is not None:
        why, advice = _MARKED_SO, (*_MARKED_LOOK, *advice)
    elif (gone := _GONE.search(said)) is not None:
        why, confidence = _peer_gone(facts, gone[1]), Confidence.LIKELY
        advice = (
            f"begin with the {gone[1]} server: its log says what it died of; if it serves on, what kept its health "
            "check from an answer: long prefills, scrapes of /metrics (fewer of them)",
            "this server's requests of it wait until they time out: SGLANG_DISAGGREGATION_WAITING_TIMEOUT bounds that",
            "until then /health instead of /health_generate, or a probe that allows more failures, on this server",
        )
    elif state is not None:
        (why, advice), confidence = _STATES[state], Confidence.LIKELY
    elif refused is not None:
        why, confidence, advice = (
            f"the code of the transfer refused it: {refused.message[:200].rstrip('.')}",
            Confidence.LIKELY,
            _REFUSED,
        )
        shown = [at(facts, refused.place, exception_text(refused), f"the exception, in {refused.frame}")]
    if state == "WaitingForInput" and (given_up := _given_up(facts, said)) is not None:
        why, advice = given_up
        shown = [*shown, *remarked(facts, "abort", "a request that was given up, which is one of those that timed out")]
    if state == "Bootstrapping" and (kept := kept_by_none(facts)) is not None:
        why, advice, of_pool = kept
        shown = [*shown, of_pool]
    if state == "WaitingForInput" and (idle := _idle_before(facts, death, said)) is not None:
        why += f"; the server had been idle for {idle / 60:.0f} minutes before, and connections may be cut meanwhile"
        advice = (_IDLE, *advice)
    several = facts.remarks.get("samples")
    if state == "WaitingForInput" and (shared := _shared_room(facts, said)):
        why = f"requests shared one bootstrap_room ({shared}), as a request for several answers (n above 1) makes them"
        advice = (_ONE_ROOM, *advice)
    elif state == "WaitingForInput" and several is not None and _SEVERAL.search(several.text):
        shown = [*shown, *remarked(facts, "samples", "a request for several answers")]
        advice = (_ONE_ROOM, *advice)
    if transport is not None and transport[0] == _NIXL and (unlike := of_unlike_attention(facts)):
        why = (
            f"{why}, and by their starts the sides spread a request's attention over other numbers of ranks ({unlike})"
        )
    if alike := made_alike(facts):
        advice = (alike, *advice)
    if "split_differs" in facts.remarks:
        shown = [*shown, *remarked(facts, "split_differs", "what both servers are")]
        advice = (_SAME_SPLIT, *advice)
    return Finding(
        rule=RULE.id,
        cause=f"KV did not get from the prefill to the decode server: {why}.",
        confidence=confidence,
        evidence=(
            *shown,
            *of_failure(facts, death, "the first transfer that failed"),
            *many,
            *of_settings(facts, "disaggregation_mode", "disaggregation_transfer_backend", "disaggregation_ib_device"),
        ),
        ruled_out_if=("the other server's log has an exception before it: then that is the beginning",),
        advice=advice,
        next_commands=(COLLECT,),
    )


_REQUEST = pattern(r"\brid='?([\w-]{8,})")


def _given_up(facts: LogFacts, said: str) -> tuple[str, tuple[str, ...]] | None:
    """Return that requests which timed out were aborted before, by their ids, and what to do; None elsewhere."""
    aborted = facts.remarks.get("abort")
    found = _REQUEST.search(aborted.text) if aborted is not None else None
    if found is None or found[1] not in said:
        return None
    waited = f" ({limit[1]} s)" if (limit := _WAITED.search(said)) else ""
    return (
        "requests whose clients had gone were aborted at the prefill server, and the decode server was not told: it "
        f"keeps their places until its own time-out{waited}, while others wait for them",
        (
            "a lower SGLANG_DISAGGREGATION_WAITING_TIMEOUT on the decode servers (30 to 60): only requests that nobody "
            "waits for are then given up sooner",
            "undo what makes clients give up: a time-out of the gateway or client that is shorter than the time to the "
            "first token, more load than prefill computes (#queue-req there): shed it before the router",
            "a later release on both sides, in which an abort at the prefill server reaches the decode server. Network "
            "and transfer backend are not at fault",
        ),
    )


_SEVERAL = pattern(r'"n": (?:[2-9]|\d{2,})\b')
_ONE_ROOM = (
    "requests with n above 1 as n requests of one answer each: a split pair gives all answers of a request one "
    "bootstrap_room, and the first that takes its KV leaves the others waiting; then a later release. The network and "
    "longer time-outs change nothing"
)
_OF_ROOM = pattern(r"\brid='?([\w-]{8,})'?\W.{0,60}?bootstrap_room=(\d+)")


def _shared_room(facts: LogFacts, said: str) -> str:
    """Return the bootstrap room of several requests that failed, or were given up with it; "" if none is."""
    given_up = facts.remarks.get("abort")
    said = f"{said} {'' if given_up is None else given_up.text}"
    rooms: dict[str, set[str]] = {}
    for request, room in _OF_ROOM.findall(said):
        rooms.setdefault(room, set()).add(request)
    return next((room for room, requests in rooms.items() if len(requests) > 1), "")


_WAITED = pattern(r"timed out after (\d+(?:\.\d+)?) ?s")
_PAUSE_S = 120.0
_IDLE = (
    "if requests fail after a pause alone: what stands between the hosts (firewall, NAT, RDMA) drops connections that "
    "are still; a request every minute keeps them, restarting router and servers brings them back (SGLang 9926); then "
    "a later release of the transfer backend"
)


def _idle_before(facts: LogFacts, death: Death, said: str) -> float | None:
    """Return for how many seconds no batch had run as the transfer that timed out began; None if not for long."""
    waited = _WAITED.search(said)
    times = [
        (line, time)
        for rank in facts.schedulers
        for line, time in zip(rank.series["line"], rank.series["time"], strict=True)
        if line < death.place.line
    ]
    if waited is None or not times:
        return None
    try:
        begin, end = (datetime.fromisoformat(time) for time in (max(times)[1], death.place.time))
    except (TypeError, ValueError):
        return None
    idle = (end - begin).total_seconds() - float(waited[1])
    return idle if idle >= _PAUSE_S else None


def _peer_gone(facts: LogFacts, role: str) -> str:
    why = f"the {role} server went away, or answered its health check no more, and requests that it began wait here"
    why += " for what never comes"
    failed = any(alarm.kind in ("health", "unhealthy") for alarm in facts.alarms)
    return why + ("; the health check of this server, which is sound, failed with them" if failed else "")


def _explains(death: Death) -> bool:
    return not death.type_name.endswith(("AttributeError", "TypeError")) and bool(
        _WORDS.search(f"{death.type_name}: {death.message}")
    )


_OF_DEATH = of_death(
    "kv-transfer",
    "KV did not get from a prefill to a decode server",
    _explains,
    _tell,
    alarms=("transfer", "health", "thread"),
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    found = [*_OF_DEATH.find(facts), *without_rdma(facts)]
    yield from found or [*_of_the_transport(facts), *noted(facts)]


_BY_ITSELF = ("transport_no_gpu", "transport_protection")


def _of_the_transport(facts: LogFacts) -> Iterator[Finding]:
    """Yield what lines of the transport alone say, where none of SGLang's own tells of a transfer."""
    said = next((facts.remarks[name] for name in _BY_ITSELF if name in facts.remarks), None)
    if said is not None and not facts.deaths and all(alarm.kind == "failed" for alarm in facts.alarms):
        yield _tell(facts, Death(said.place, said.rank, "", said.text))


RULE = replace(_OF_DEATH, find=_find)

_LINES, _SHARE = 8, 0.5  # decode lines, and of those the ones where more wait for KV than run


def _waits(facts: LogFacts) -> Iterator[Finding]:
    for rank in facts.schedulers:
        if rank.moving_lines < max(_LINES, _SHARE * rank.decode_lines):
            continue
        yield Finding(
            rule=WAITS.id,
            cause=f"Most requests of this decode server wait for their KV from a prefill server{on_rank(rank.rank)}, "
            f"up to {rank.moving_most} at once, while fewer decode: prefill or the transfer is what makes it slow.",
            confidence=Confidence.LIKELY,
            evidence=(
                over(
                    facts, "decode lines", rank.moving_lines, f"of {rank.decode_lines}: #transfer-req at #running-req"
                ),
                *of_settings(facts, "disaggregation_transfer_backend", "disaggregation_ib_device", "tp_size"),
            ),
            ruled_out_if=("the load had only just begun, or prompts are long and answers of a few tokens",),
            advice=(
                "the prefill servers' logs at that time: a high #queue-req says that they compute (more of them, a "
                "larger --chunked-prefill-size, fewer decode servers), a high #inflight-req that the network is slow",
                "the network: --disaggregation-ib-device of each GPU's own card, MC_TE_METRIC=1 (its throughput in the "
                "log), RDMA and not TCP, the same --tp on both sides, more SGLANG_DISAGGREGATION_THREAD_POOL_SIZE",
                "a later release of SGLang and of the transfer backend",
            ),
            upstream=("SGLang 5450",),
        )
        return


WAITS = Rule("kv-transfer-waits", "most requests wait for their KV from a prefill server", _waits)
