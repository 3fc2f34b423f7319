"""Which dumps are one incident."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Host, Manifest
from gemma4_triage.diagnose.grouping import START_WINDOW_S, group
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident

BEGIN = datetime(2026, 11, 21, 12, tzinfo=UTC)


def dump(pid=1, rank=0, started_s=0.0, after_s=60.0, host="a", command=("server",), **changes) -> Dump:
    """Return a dump written `after_s` after its process wrote its guard manifest at `started_s`."""
    started = BEGIN + timedelta(seconds=started_s)
    created = started + timedelta(seconds=after_s)
    fields = {
        "dump_id": f"{host}-{pid}-{rank}-{created.timestamp()}",
        "created_utc": created,
        "rule": "page-table-bounds",
        "verdict": "wrong_space",
        "summary": "",
        "mode": "log",
        "action": "logged",
        "site": "here",
        "host": Host(hostname=host, pid=pid, rank=rank),
        "launch_args": command,
        "guards": {"created_utc": started.isoformat(), "pid": pid, "hostname": host, "settings": {"mode": "log"}},
    }
    return Dump(Path(fields["dump_id"]), Manifest(**(fields | changes)))


def guards(pid, started_s, command=("server",), host="a") -> Guards:
    started = BEGIN + timedelta(seconds=started_s)
    fields = {"created_utc": started.isoformat(), "pid": pid, "hostname": host, "settings": {"mode": "log"}}
    return Guards(f"{pid}.json", "", fields | {"command": list(command)})


def ids(incidents: list[Incident]) -> list[set[tuple[int, int]]]:
    return [{(one.manifest.host.pid, one.manifest.host.rank) for one in incident.dumps} for incident in incidents]


def test_target_draft_and_repetitions_of_one_process_are_one_incident_however_late():
    (incident,) = group([dump(role="draft"), dump(role="target", after_s=61), dump(role="draft", after_s=90_000)])
    assert [one.manifest.role for one in incident.dumps] == ["draft", "target", "draft"]


def test_ranks_of_one_launch_are_one_incident():
    assert ids(group([dump(pid=1), dump(pid=2, rank=1, started_s=3)])) == [{(1, 0), (2, 1)}]


def test_a_restart_is_another_incident_and_takes_its_ranks_along():
    first = [dump(pid=1), dump(pid=2, rank=1)]
    again = [dump(pid=3, started_s=40), dump(pid=4, rank=1, started_s=41)]
    assert ids(group([*first, *again])) == [{(3, 0), (4, 1)}, {(1, 0), (2, 1)}]


def test_a_pid_that_comes_again_after_a_restart_is_another_process():
    assert len(group([dump(pid=7), dump(pid=7, started_s=600)])) == 2


def test_other_hosts_commands_and_late_starters_are_others():
    assert len(group([dump(), dump(pid=2, rank=1, host="b")])) == 2
    assert len(group([dump(), dump(pid=2, rank=1, command=("another",))])) == 2
    assert len(group([dump(), dump(pid=2, rank=1, started_s=START_WINDOW_S + 1)])) == 2


def test_manifests_of_processes_without_dumps_join_the_nearest_launch():
    incidents = group([dump(pid=1), dump(pid=2, started_s=50)], [guards(8, -2), guards(9, 49), guards(1, 0)])
    assert [{record.pid for record in incident.guards} for incident in incidents] == [{2, 9}, {1, 8}]


def test_a_run_without_dumps_is_an_incident_of_its_own():
    (incident,) = group((), [guards(8, 0), guards(9, 1)])
    assert incident.dumps == ()
    assert len(incident.guards) == 2


def test_a_guard_manifest_that_is_no_such_thing_is_left_out():
    assert group((), [Guards("x.json", "", {"pid": "1", "created_utc": "today"})]) == []


def test_dumps_without_guards_go_by_host_and_pid():
    assert len(group([dump(guards={}), dump(guards={}, after_s=70), dump(pid=2, guards={})])) == 2


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(0, 300), st.integers(0, 9)),
        max_size=12,
        unique=True,
    )
)
def test_every_dump_is_in_one_incident_whatever_their_order(places):
    dumps = [dump(pid, rank, started, after) for pid, rank, started, after in places]
    forwards, backwards = group(dumps), group(reversed(dumps))
    assert ids(forwards) == ids(backwards)
    found = [one.manifest.dump_id for incident in forwards for one in incident.dumps]
    assert sorted(found) == sorted(one.manifest.dump_id for one in dumps)
    for incident in forwards:
        times = [one.manifest.created_utc for one in incident.dumps]
        assert times == sorted(times)
