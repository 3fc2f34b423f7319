"""The explicit list of rules over a log, and what they make of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding, ranked
from gemma4_triage.logs import (
    failed_requests,
    given_already,
    images,
    just_installed,
    not_registered,
    noted_end,
    notes_in_prose,
    options_near,
    since_an_update,
)
from gemma4_triage.logs.alarm_words import FATAL, OF_REQUESTS, SURVIVABLE
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import Rule
from gemma4_triage.logs.rules import (
    accept_length_drop,
    answer_parser,
    attention_kernel,
    batch_of_nan,
    binding_pool,
    blocks_kept,
    bus_error,
    busy_session,
    chat_template,
    collective_timeout,
    device_fault,
    disk_full,
    draft_bookkeeping,
    draft_model,
    drafts_never_accepted,
    eager_decode,
    foreign_message,
    grammar_request,
    grammar_waits,
    graph_capture,
    hang,
    hybrid_draft_pool,
    idle_rank,
    illegal_access,
    image_tokens,
    index_outside_tensor,
    kernel_failed,
    kernel_too_large,
    killed_from_outside,
    known_issue,
    kv_transfer,
    library_kernel,
    like_incidents,
    media_unreadable,
    memory_grows,
    never_admitted,
    no_fp8,
    no_gpu,
    no_kernel_image,
    no_prefix_cache,
    no_slot,
    non_finite_logits,
    noted_silence,
    noted_trouble,
    one_waits,
    orphaned_requests,
    other_crash,
    out_of_memory,
    outgrown_pool,
    own_checks,
    pool_leak,
    prefill_graph,
    prefill_starves_decode,
    prefix_cache_loss,
    prefix_not_reused,
    probe_stopped,
    quantised_kernel,
    queue_stands,
    re_prefill_storm,
    refused_by_check,
    refused_for_room,
    request_values,
    requests_unserved,
    retraction_thrash,
    router,
    shared_memory,
    sizes_differ,
    stale_write_rows,
    start_stopped,
    starts_again,
    storage_tier,
    swa_not_evicted,
    throughput_collapse,
    token_outside_vocabulary,
    told_by_words,
    torch_compile,
    transfers_stand,
    triton_compile,
    types_differ,
    uneven_ranks,
    uneven_split,
    unexplained_line,
    unmergeable_batch,
    weight_names,
    wheels_do_not_fit,
    workers_stand,
)
from gemma4_triage.logs.told_for_devices import for_its_device
from gemma4_triage.logs.told_for_vllm import for_its_engine
from gemma4_triage.logs.tracebacks import OF_GROUPS, TORN

ENDINGS: tuple[Rule, ...] = (
    told_by_words.RULE,
    probe_stopped.RULE,
    stale_write_rows.RULE,
    hybrid_draft_pool.RULE,
    unmergeable_batch.RULE,
    pool_leak.RULE,
    own_checks.RULE,
    draft_model.RULE,
    draft_bookkeeping.RULE,
    non_finite_logits.RULE,
    illegal_access.RULE,
    index_outside_tensor.RULE,
    no_slot.RULE,
    no_prefix_cache.RULE,
    no_kernel_image.RULE,
    kernel_too_large.RULE,
    graph_capture.RULE,
    out_of_memory.RULE,
    attention_kernel.RULE,
    image_tokens.RULE,
    told_by_words.LORA_REFUSED,
    no_fp8.RULE,
    quantised_kernel.RULE,
    weight_names.RULE,
    told_by_words.WEIGHTS_MISSING,
    wheels_do_not_fit.RULE,
    uneven_split.RULE,
    no_gpu.RULE,
    told_by_words.START_REFUSED,
    token_outside_vocabulary.RULE,
    request_values.RULE,
    shared_memory.RULE,
    disk_full.RULE,
    collective_timeout.RULE,
    hang.RULE,
    killed_from_outside.RULE,
    device_fault.RULE,
    kernel_failed.RULE,
    answer_parser.RULE,
    kv_transfer.RULE,
    storage_tier.RULE,
    grammar_request.RULE,
    media_unreadable.RULE,
    bus_error.RULE,
    router.RULE,
    start_stopped.RULE,
    told_by_words.EXPERT_TRANSPORT,
    foreign_message.RULE,
    torch_compile.RULE,
    chat_template.RULE,
    told_by_words.HOST_LIMITS,
    workers_stand.RULE,
)
"""Of what a server died of, or would have."""

FALLBACKS: tuple[Rule, ...] = (
    idle_rank.RULE,
    prefill_graph.RULE,
    triton_compile.RULE,
    sizes_differ.RULE,
    types_differ.RULE,
    library_kernel.RULE,
)
"""Of ends that no other rule knows: families of failures, by where and of what kind they are."""

OF_A_REQUEST: tuple[Rule, ...] = (
    image_tokens.RULE,
    told_by_words.LORA_REFUSED,
    no_kernel_image.RULE,
    attention_kernel.RULE,
    out_of_memory.RULE,
    triton_compile.RULE,
    torch_compile.RULE,
    wheels_do_not_fit.RULE,
)
"""Of ends, and of what a request failed of that a server survived: they say the same of both."""

LOADS: tuple[Rule, ...] = (
    orphaned_requests.RULE,
    never_admitted.RULE,
    blocks_kept.RULE,
    queue_stands.RULE,
    queue_stands.HELD_BACK,
    requests_unserved.RULE,
    one_waits.RULE,
    busy_session.RULE,
    refused_for_room.RULE,
    memory_grows.RULE,
    grammar_waits.RULE,
    noted_silence.RULE,
    starts_again.RULE,
    batch_of_nan.RULE,
    uneven_ranks.RULE,
    transfers_stand.RULE,
    kv_transfer.WAITS,
    swa_not_evicted.RULE,
    retraction_thrash.RULE,
    outgrown_pool.RULE,
    binding_pool.RULE,
    re_prefill_storm.RULE,
    prefix_cache_loss.RULE,
    prefix_not_reused.RULE,
    accept_length_drop.RULE,
    drafts_never_accepted.RULE,
    throughput_collapse.RULE,
    eager_decode.RULE,
    prefill_starves_decode.RULE,
    noted_trouble.RULE,
)
"""Of how it served."""


_LOAD_IDS = frozenset(rule.id for rule in LOADS)


def is_load(finding: Finding) -> bool:
    """Say whether it is about how a server served, and not about what ended it."""
    return finding.rule in _LOAD_IDS


def findings(facts: LogFacts) -> tuple[Finding, ...]:
    """Return findings on what ended the server, then on how it served; the most certain first in each part."""
    endings = list(told_by_words.RULE.find(facts))
    # What one's words leave no doubt of, no rule of a whole kind guesses at.
    rest = replace(facts, deaths=tuple(_apart_from(told_by_words.RULE.explains, facts.deaths))) if endings else facts
    endings += [finding for rule in ENDINGS[1:] for finding in rule.find(rest)]
    # A rule that knows a death and says nothing of it has not explained it.
    told = {finding.rule for finding in endings}
    telling = [rule for rule in ENDINGS if rule.id in told]
    known = known_issue.explained(facts)
    explained = {
        _failure(death)
        for death in facts.deaths
        if any(rule.explains(death) for rule in telling) or (death.type_name, death.frame) in known
    }
    # An exception and what was raised while it was handled are one failure: one rule for one of them is enough.
    unexplained = [death for death in facts.deaths if _failure(death) not in explained]
    # Of two ranks that wrote into each other's tracebacks one is left without frames.
    said = {(death.type_name, death.message) for death in facts.deaths if death not in unexplained}
    unexplained = [death for death in unexplained if death.frames or (death.type_name, death.message) not in said]
    unexplained = [death for death in _without_groups(unexplained) if not hang.is_an_echo(facts, death)]
    endings += known_issue.beside(endings, facts)
    # What a client writes down of a refusal is no end of a server.
    of_clients = [death for death in unexplained if failed_requests.is_of_a_client(facts, death)]
    if of_clients:
        unexplained = [death for death in unexplained if death not in of_clients]
        endings += failed_requests.refusals(facts)
    for rule in FALLBACKS:
        endings += rule.find(replace(facts, deaths=tuple(unexplained), alarms=()))
        unexplained = _apart_from(rule.explains, unexplained)
    if endings:
        # A note that the server died adds nothing to what it died of.
        unexplained = [death for death in unexplained if not noted_end.is_told_by_a_note_alone(death)]
    endings += refused_by_check.find(facts, unexplained)
    endings += other_crash.find(facts, _apart_from(refused_by_check.explains, unexplained))
    loads = [finding for rule in LOADS[:-1] for finding in rule.find(facts)]
    accounted = _accounted_for([*endings, *loads], facts)
    if any(alarm.kind == "answered-500" for alarm in facts.alarms) and "answered-500" not in accounted:
        of_a_request = replace(facts, deaths=facts.errors, alarms=())
        refused = [finding for rule in OF_A_REQUEST for finding in rule.find(of_a_request)][:1]
        refused = refused or list(refused_by_check.survived(_of_requests_alone(facts)))
        refused = refused or ([] if endings else list(failed_requests.refused_beside(facts)))
        endings += refused
        ended = any(death.type_name in _ENGINE_ENDED for death in facts.deaths)
        accounted |= {"answered-500"} if refused or ended else set()
    if not endings and not facts.deaths:
        # What a pool refuses for its size is told with that size.
        for_room = {piece.field for one in loads if one.rule == refused_for_room.RULE.id for piece in one.evidence}
        endings += [one for one in failed_requests.refusals(facts) if one.evidence[0].field not in for_room]
        accounted |= SURVIVABLE if endings else set()
    if endings and failed_requests.accounted_for(facts):
        accounted |= {"answered-500"}
    floor = list(unexplained_line.find(facts, accounted))
    endings, behind = _what_ended_nothing(endings, facts)
    # A record fits one failure of one kind letter by letter; a rule of a whole kind says less.
    leads = kv_transfer.RULE.id if not_registered.told_before(facts) else known_issue.ID
    chosen = [options_near.beside(facts, one) if one.rule in _OF_A_PART else one for one in endings]
    ended = images.beside(facts, list(ranked([*chosen, *floor], leads=leads)))
    ended = since_an_update.beside(facts, ended)
    ended = given_already.told(facts, just_installed.before(facts, ended))
    # What only a note says is told where the log itself says nothing.
    loads = loads if ended or behind or loads else list(noted_trouble.RULE.find(facts))
    if refused_for_room.ended_right_behind(facts) and all(map(_repeats, ended)):
        # What a release of that time made of a prompt that it refuses says less than the refusal.
        behind = [*ended, *behind]
        ended, loads = _split_off(refused_for_room.RULE.id, loads)
    told = (*notes_in_prose.beside(facts, ended), *behind, *ranked(loads))
    return for_its_device(for_its_engine(told, facts), facts)


def _repeats(finding: Finding) -> bool:
    """Say whether a finding says less of an end than the refusal of the same request right above it."""
    of_the_request = finding.rule == request_values.RULE.id
    return (finding.rule in SAYING_LITTLE or of_the_request) and finding.confidence is Confidence.POSSIBLE


def _split_off(rule: str, found: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the findings of a rule, and the others."""
    listed = list(found)
    return [one for one in listed if one.rule == rule], [one for one in listed if one.rule != rule]


_OF_A_PART = frozenset({"sizes-differ", "types-differ", "index-outside-tensor", "library-kernel", "triton-compile"})
"""Rules of families of failures, whose part may be one that the start chose by hand."""
_ENGINE_ENDED = frozenset({"EngineDeadError"})
"""What vLLM's server answers requests with once its engine has ended: no request failed of it alone."""


def _of_requests_alone(facts: LogFacts) -> LogFacts:
    """Return the facts without errors that a process is known to have died of: those no server outlived."""
    ended = {(death.type_name, death.message) for death in facts.deaths}
    errors = tuple(error for error in facts.errors if (error.type_name, error.message) not in ended)
    return replace(facts, errors=errors)


SAYING_LITTLE = frozenset({other_crash.ID, refused_by_check.ID, unexplained_line.ID})
"""Rules that repeat what was said, and where."""


def with_those_alike(facts: LogFacts) -> tuple[Finding, ...]:
    """Return the findings, and which public incidents the failure is like: ahead of what knows little more than it."""
    found = findings(facts)
    listed = like_incidents.listed_for(facts, found)
    share = listed[0].share if listed else 0.0
    at = next((place for place, one in enumerate(found) if _knows_less(one, share)), len(found))
    return (*found[:at], *like_incidents.find(facts, listed), *found[at:])


def _knows_less(finding: Finding, share: float) -> bool:
    """Return whether a finding says less of a failure than an incident that is so much like it."""
    is_possible, says_little = finding.confidence is Confidence.POSSIBLE, finding.rule in SAYING_LITTLE
    if share >= like_incidents.VERY_NEAR and not finding.next_commands:
        return finding.confidence is not Confidence.CERTAIN or is_load(finding)
    is_near = share >= like_incidents.NEAR
    return is_load(finding) or (is_possible and says_little) or (is_near and (is_possible or says_little))


_RIGHT_BELOW = 3  # lines


def _what_ended_nothing(found: list[Finding], facts: LogFacts) -> tuple[list[Finding], list[Finding]]:
    """Return the findings, and apart transfers that failed, which end requests alone, where a process died."""
    of_requests = [finding for finding in found if finding.rule == kv_transfer.RULE.id]
    if len(of_requests) == len(found) or not facts.deaths or any(map(kv_transfer.RULE.explains, facts.deaths)):
        return found, []
    # A log that ends inside the traceback right below tells of no other cause.
    failed = [alarm.place.line for alarm in facts.alarms if alarm.kind == "transfer"]
    if failed and all(one.message == TORN and 0 < one.place.line - failed[0] <= _RIGHT_BELOW for one in facts.deaths):
        return [*of_requests, *(finding for finding in found if finding not in of_requests)], []
    if not_registered.told_before(facts):
        # Nobody knows of a rank that could not register, and what asks for it dies of that.
        return found, []
    apart = [finding.model_copy(update={"confidence": Confidence.POSSIBLE}) for finding in of_requests]
    return [finding for finding in found if finding not in of_requests], apart


def _without_groups(deaths: list[Death]) -> list[Death]:
    """Return the deaths without groups of exceptions of which one is among them."""
    of_parts = {_failure(death) for death in deaths if death.type_name not in OF_GROUPS}
    return [death for death in deaths if death.type_name not in OF_GROUPS or _failure(death) not in of_parts]


def _failure(death: Death) -> int:
    """Return the line where the failure begins that a death is of."""
    return death.chain or death.place.line


def _apart_from(explains: Callable[[Death], bool], deaths: Iterable[Death]) -> list[Death]:
    """Return the deaths that a rule does not know, and that were not raised while one was handled that it knows."""
    listed = list(deaths)
    failures = {_failure(death) for death in listed if explains(death)}
    return [death for death in listed if _failure(death) not in failures]


def _accounted_for(found: Iterable[Finding], facts: LogFacts) -> set[str]:
    """Return the kinds of alarms that the findings on ends account for, or that follow an end that is reported."""
    named = {finding.rule for finding in found}
    rules = [rule for rule in (*ENDINGS, *FALLBACKS, *LOADS) if rule.id in named]
    kinds = {kind for rule in rules for kind in rule.alarms}
    for alarm in facts.alarms:
        told = Death(alarm.place, alarm.rank, "", alarm.text)
        kinds |= {alarm.kind} if any(rule.explains(told) for rule in rules) else set()
    if named:
        # What no work followed is of interest only where nothing else is told.
        kinds |= SURVIVABLE
    # A probe ends what does not answer it.
    if "health" in kinds and "killed" not in kinds:
        asked = [alarm.place.line for alarm in facts.alarms if alarm.kind == "health"]
        killed = [alarm.place.line for alarm in facts.alarms if alarm.kind == "killed"]
        kinds |= {"killed"} if asked and killed and min(asked) < min(killed) else set()
    ends = [death.place.line for death in facts.deaths]
    ends += [alarm.place.line for alarm in facts.alarms if alarm.kind in kinds & FATAL]
    if not ends:
        return kinds
    follow = {alarm.kind for alarm in facts.alarms if alarm.place.line >= min(ends) and facts.starts <= 1}
    return kinds | (follow - OF_REQUESTS) | {"sigquit", "child", "exception"}
