"""SGLang's router sends nobody any requests, or is ended before it does: it judges workers by more than their health.

Sources: the messages of sgl-router (smg) on circuit breakers, workers and tokenizers; SGLang 25811 and 29764.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_dumps.wording import number_of
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Alarm, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Rule, at, remarked
from gemma4_triage.logs.workers_of_a_router import of_its_own_check

_CIRCUIT = pattern(r"[Cc]ircuit ?[Bb]reaker")
_STARTING = "to become healthy"
_NOT_HEALTHY = pattern(r"ailed to register worker|worker did not become healthy")
_NONE_OF_A_KIND = pattern(r"(?i)no (?:prefill|decode) (?:workers|servers)|to select PD pair")
_LOST = pattern(r"[Ss]tream error from")
_ROOM = pattern(r"without boo?t?strap room")
_UNREACHABLE = pattern(r"(?i)timed out|error sending request|connection|resolve|retry|unreachable")


def _find(facts: LogFacts) -> Iterator[Finding]:
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "router"), None)
    if alarm is not None:
        yield _no_worker(facts, alarm)
    elif (ended := _ended_while_it_fetched(facts)) is not None:
        yield ended
    elif (checked := of_its_own_check(facts)) is not None:
        line, cause, confidence, advice = checked
        yield Finding(
            rule=RULE.id,
            cause=cause,
            confidence=confidence,
            evidence=(
                at(facts, line.place, line.text, "what the router said"),
                *remarked(facts, "router_hands_on", "what it handed on in vain"),
            ),
            ruled_out_if=("a router without that worker in its list fails alike",),
            advice=advice,
        )


_CONFIGURED = pattern(r"(?:Error starting router|ailed to start router)\W+(.{1,300})")
_OTHER_MODE = pattern(r"(?i)\b(?:regular|igw) mode\b")


def _of_its_configuration(facts: LogFacts, alarm: Alarm, said: str) -> Finding:
    """Return that the router refused what it was configured with, which is no worker's fault."""
    discovers = facts.arguments.get("service_discovery") == "True"
    split = facts.arguments.get("pd_disaggregation") == "True"
    other = split and _OTHER_MODE.search(said) is not None
    return Finding(
        rule=RULE.id,
        cause="The router refuses its own configuration and does not start; workers have no part in it. It says: "
        f"{said.strip().rstrip('.')}."
        + (
            " The command has --pd-disaggregation, and the router speaks of another mode: something else in it, or "
            "this release, has overridden the split."
            if other
            else ""
        ),
        confidence=Confidence.LIKELY,
        evidence=(at(facts, alarm.place, alarm.text, "what the router said"),),
        ruled_out_if=("the same command starts with another release of the router",),
        advice=(
            *(
                (
                    "another release of the router (smg, sglang-router), the one before or a later one: the arguments "
                    "are right"
                    + (", and service discovery switches to that mode in some" if discovers else "")
                    + "; no --enable-igw",
                    *(
                        ("until then without --service-discovery: --prefill and --decode with each server's address",)
                        if discovers
                        else ()
                    ),
                )
                if other
                else ("mend the argument that its words name; --help of the installed router lists them",)
            ),
            "Kubernetes: kubectl logs --previous; more replicas or a longer probe change nothing",
        ),
    )


_UNHEALTHY = '"is_healthy": '
_POLICIES = ("policy", "prefill_policy", "decode_policy")


def _hashes(facts: LogFacts) -> bool:
    """Say whether the router was started with a policy that sends each key to the same server."""
    return any("hash" in facts.arguments.get(name, "") for name in _POLICIES)


def _no_worker(facts: LogFacts, alarm: Alarm) -> Finding:
    refused = remarked(facts, "router_refused", "a worker's answer to a client's mistake (4xx)")
    circuit = any(map(_CIRCUIT.search, (alarm.text, *alarm.more)))
    if (asked := _CONFIGURED.search(alarm.text)) is not None:
        return _of_its_configuration(facts, alarm, asked[1])
    if refused and circuit:
        cause = (
            "The router took a worker out of service for its answers to clients' mistakes (4xx), which it counts as "
        )
        cause += "failures: the worker itself is sound."
        confidence = Confidence.LIKELY
        advice = (
            "mend the requests that are refused: the worker's log says why, such as a prompt longer than the context",
            "a later router, which does not count 4xx; until then --cb-failure-threshold higher, or "
            "--disable-circuit-breaker",
        )
    elif "gRPC health RPC error" in alarm.text:
        refused = []
        plain = "FRAME_SIZE_ERROR" in alarm.text or "http2 error" in alarm.text
        cause = (
            "The router speaks gRPC to a worker that answers in another protocol: it serves HTTP, or a proxy does."
            if plain
            else "The router's gRPC health check of a worker failed: it is not there, not ready, or of another release."
        )
        confidence = Confidence.LIKELY if plain else Confidence.POSSIBLE
        advice = (
            "start workers with --grpc-mode (and --model-path or --tokenizer-path for the router), or name them to the "
            "router as http:// addresses",
            "router and workers of one release: their messages (proto) change; the worker's own log at that time",
        )
    elif _LOST.search(alarm.text):
        refused = []
        cause = (
            "The router lost an answer of a prefill or decode server in the middle, and gave its request up: what is "
        )
        cause += "aborted on the servers follows from that."
        confidence = Confidence.POSSIBLE
        advice = (
            "the log of the server that the line names: its end, a time-out of its transfers, or a connection that "
            "went stale while nothing was asked",
            "restart both servers; a later release of router and servers; a keep-alive, or a request now and then",
        )
    elif _ROOM.search(alarm.text):
        refused = []
        cause = "A request reached one half of a split server without its bootstrap room: what sends the requests does "
        cause += "not know of the split."
        confidence = Confidence.LIKELY
        advice = (
            "SGLang's router in its PD mode (--pd-disaggregation, --prefill, --decode) gives each request its room",
            "another gateway has to add bootstrap_host, bootstrap_port and bootstrap_room to each request",
        )
    elif _STARTING in alarm.text or _NOT_HEALTHY.search(alarm.text):
        refused = []
        cause = "The router gave up waiting for its workers' first answer to a health check, and does not serve."
        if _NOT_HEALTHY.search(alarm.text):
            cause = "The router did not take in a worker, whose first health check was not answered in time."
        confidence = Confidence.LIKELY
        advice = (
            "if the workers' logs say that they are ready: the router does not reach that address. An HTTP proxy "
            "(no_proxy of the workers' hosts, 127.0.0.1 too), another host name or a closed port are the usual ones",
            "if they still load or compile: a larger --worker-startup-timeout-secs "
            "(--router-worker-startup-timeout-secs of launch_server)",
        )
    elif panic := next((text for text in (alarm.text, *alarm.more) if "panicked" in text), ""):
        gone = any("failed worker" in text for text in (alarm.text, *alarm.more))
        refused = [at(facts, alarm.place, panic, "where it stood")]
        cause = "The router itself met a defect in its code and ended a thread"
        cause += ", after a worker had failed" if gone else ", as releases of it do when workers go away under load"
        cause += ": workers that still answer get no requests from it."
        confidence = Confidence.LIKELY
        advice = (
            "restart the router; a later release of it (sglang-router) goes on without such a worker",
            "the log of the worker that failed first says why; its own end is not in this log",
        )
    elif _UNHEALTHY in alarm.text:
        refused = []
        cause = (
            "The router's own list has a worker that it takes for unhealthy, to which it sends nothing: its health "
            "check of that worker (GET /health, unless another path is given) is not answered with 200, which some "
            "releases write nowhere."
        )
        confidence = Confidence.LIKELY
        advice = (
            "curl -i of that worker's /health from the router's host: where it says 404, as of a backend that is not "
            "SGLang's (the API of OpenAI, say), --health-check-endpoint with a path that it has, or "
            "--disable-health-check",
            "where nothing answers: address, port, a proxy (no_proxy); where it says 401 or 403, the key; where 503, "
            "the worker's own log",
        )
    elif _NONE_OF_A_KIND.search(alarm.text) and _hashes(facts):
        refused = []
        cause = (
            "The router selects no server for some requests, though it has others: under a policy that hashes, those "
            "of one session always go to the same server, and a ring that is not built anew still names one that was "
            "removed. Or no server of that kind is left."
        )
        confidence = Confidence.LIKELY if "worker_removed" in facts.remarks else Confidence.POSSIBLE
        advice = (
            "another --policy (cache_aware, round_robin, power_of_two; --prefill-policy and --decode-policy too), or "
            "restart the router after a server was removed; then a later release of it, which builds the ring anew",
            "GET /workers of the router; /health of each server from its host: if all of a kind are gone, that is it",
        )
    elif _NONE_OF_A_KIND.search(alarm.text) and "consistent_hash" not in alarm.text:
        refused = []
        cause = (
            "The router has no prefill or no decode server to send requests to: none was registered, or none of them "
        )
        cause += "is healthy."
        # By its policy's tree, which servers that discovery found are not put into by some releases.
        unlisted = "discovery" in facts.remarks and "cache_aware" in facts.remarks
        cause += " Or its policy cache_aware does not know those that service discovery found." * unlisted
        confidence = Confidence.POSSIBLE if unlisted else Confidence.LIKELY
        advice = (
            *(
                (
                    "once with --policy random (or round_robin), --prefill-policy and --decode-policy too; then a "
                    "later release of the router",
                )
                if unlisted
                else ()
            ),
            "its start line shows prefill_urls and decode_urls: give --prefill and --decode, or with service discovery "
            "labels that --prefill-selector and --decode-selector match, and rights to list pods",
            "GET /workers of the router; /health of each server from its host",
        )
    elif "failed worker" in alarm.text:
        refused = []
        cause = "A worker answered the router no more, and the router took it out: that worker died, hung, or cannot "
        cause += "be reached."
        confidence = Confidence.LIKELY
        advice = (
            "that worker's own log at this time: what it died of is not here; GET /health of it from the router's host",
            "the other workers get its requests: hold their queues against --max-running-requests",
        )
    elif "hyper::Error" in alarm.text:
        refused = []
        cause = "A worker had closed the connection that the router sent a request on: SGLang's server ends idle ones "
        cause += "after 5 s, and the router keeps them for longer and uses them again; or the worker ended."
        confidence = Confidence.POSSIBLE
        advice = (
            "SGLANG_TIMEOUT_KEEP_ALIVE=60 (or more than the router keeps idle connections) on every worker",
            "the workers' logs at that time: one that ended or was restarted says so",
        )
    elif circuit:
        cause = "The router took workers out of service (circuit breaker), by failures that it counted itself: slow or "
        cause += "refused answers under load count, too, so that the workers may be sound."
        confidence = Confidence.LIKELY
        advice = (
            "GET /health of each worker from the router's host: if they answer, --cb-failure-threshold higher, "
            "--cb-timeout-duration-secs shorter, or --disable-circuit-breaker",
            "fewer requests at once, more workers, or --max-concurrent-requests and --queue-size of the router",
            "one that answers and stays out (half_open): restart the router, or a later release of it (SGLang 31206)",
        )
    elif "consistent_hash" in alarm.text:
        cause = "The router's policy still names a worker that has gone, and selects nobody for its share of requests."
        confidence = Confidence.LIKELY
        advice = (
            "restart that router: its ring is stale; another one with the same workers may select well",
            "another --policy (cache_aware, round_robin, power_of_two), or a later router",
        )
    else:
        cause = "The router has no worker left that it would send a request to. That is its own judgement, by answers "
        cause += "and health checks; it says nothing of why a worker failed."
        confidence = Confidence.POSSIBLE
        advice = (
            "GET /workers of the router, and /health of each worker from the router's host",
            "the log of the worker that went first says why; one that is gone for good has to leave the router's list",
        )
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=confidence,
        evidence=(
            at(facts, alarm.place, alarm.text, f"what the router said; {number_of(alarm.count, 'such line')}"),
            *refused,
        ),
        ruled_out_if=("the worker's own log has an exception or a start at that time",),
        advice=advice,
    )


def _ended_while_it_fetched(facts: LogFacts) -> Finding | None:
    hub = facts.remarks.get("hub")
    alarm = next((alarm for alarm in facts.alarms if alarm.kind in ("health", "child", "killed")), None)
    if hub is None or alarm is None or not _UNREACHABLE.search(hub.text):
        return None
    if facts.deaths or any(max(rank.series["line"], default=0) > hub.place.line for rank in facts.ranks):
        return None
    return Finding(
        rule=RULE.id,
        cause="The process waits for files of Hugging Face that it cannot reach, answers no health check meanwhile, "
        "and is ended for that.",
        confidence=Confidence.LIKELY,
        evidence=(
            *remarked(facts, "hub", "the last time that it asked"),
            at(facts, alarm.place, alarm.text, "how it was ended"),
        ),
        ruled_out_if=("the files arrive before the probe fails",),
        advice=(
            "files on a local path: --tokenizer-path or --model-path and HF_HUB_OFFLINE=1; or a way out to the network",
            "a startup probe that waits for it",
        ),
    )


RULE = Rule(
    "router",
    "a router sends requests to nobody",
    _find,
    alarms=frozenset({"router", "health", "child", "panic", "timeout", "failed"}),
)
