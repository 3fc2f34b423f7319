"""`doctor` and `patches`, with what a user types and sets."""

import json
import os
import re
from types import SimpleNamespace

import pytest

from command_line import run_command
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.releases import installed_or_base
from gemma4_runtime.standing import State, standing
from gemma4_triage.inspection import environment


def run(*words, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GEMMA4_", "SGLANG_"))}
    return run_command(words, clean | environment)


class TestDoctor:
    def test_a_healthy_environment(self, tmp_path):
        done = run("doctor", "--json", XDG_STATE_HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["schema_version"] == "1.0"
        assert document["ok"] is True
        states = {check["name"]: check["state"] for check in document["checks"]}
        assert states["sglang"] == states["plugin"] == states["dump folder"] == "ok"

    def test_it_lists_what_each_patch_is_in_the_installed_release(self):
        release = installed_or_base()
        rows = json.loads(run("doctor", "--json").stdout)["patches"]
        assert {row["id"]: row["state"] for row in rows} == {p.id: standing(p, release).state.value for p in CATALOG}
        said = run("doctor").stdout
        assert f"in SGLang {release}; gemma4-triage patches list --sglang {release} says where and why:" in said
        for row in rows:
            pattern = rf"^{row['state']} +{row['kind']} +(.*, )?{row['id']}(,|$)"
            assert len(re.findall(pattern, said, re.MULTILINE)) == 1

    @pytest.fixture
    def unknown_release(self, monkeypatch):
        monkeypatch.setattr(environment, "_version", lambda name: "0.5.22")
        monkeypatch.setattr(environment, "installed_or_base", lambda: "0.5.22")

    def test_a_release_that_is_not_known_is_told_the_nearest_and_how_probes_attach(self, unknown_release):
        done = run("doctor", SGLANG_TRTLLM_MHA_DEBUG="1", GEMMA4_TRIAGE_PATCHES="default")
        assert done.returncode == 3
        assert "SGLang 0.5.22 is not known; the nearest that is known is 0.5.23" in done.stdout
        assert "--allow-untested --patches none" in done.stdout

    def test_beside_it_probes_that_may_attach_untested_are_nothing_to_fail_for(self, unknown_release):
        alone = {"SGLANG_TRTLLM_MHA_DEBUG": "1", "GEMMA4_TRIAGE_PATCHES": "none"}
        assert run("doctor", **alone).returncode == 3
        assert run("doctor", **alone, GEMMA4_TRIAGE_ALLOW_UNTESTED="1").returncode == 0

    def test_a_word_it_cannot_read(self):
        done = run("doctor", SGLANG_TRTLLM_MHA_DEBUG="banana")
        assert done.returncode == 2
        assert "SGLANG_TRTLLM_MHA_DEBUG='banana' cannot be read: allowed: 0, off, log, contain, trap, 1" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_patch_that_does_not_exist(self):
        done = run("doctor", GEMMA4_TRIAGE_PATCHES="default,+yoko")
        assert done.returncode == 2
        assert "yoko" in done.stderr

    def test_a_plugin_filter_that_shuts_us_out(self):
        done = run("doctor", SGLANG_TRTLLM_MHA_DEBUG="1", SGLANG_PLUGINS="other")
        assert done.returncode == 3
        assert "SGLANG_PLUGINS='other'" in done.stdout

    def test_a_dump_folder_that_is_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        done = run("doctor", SGLANG_TRTLLM_MHA_DEBUG_DIR=str(tmp_path / "file"))
        assert done.returncode == 3
        assert "is not a directory" in done.stdout

    def test_a_dump_folder_below_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        done = run("doctor", SGLANG_TRTLLM_MHA_DEBUG_DIR=str(tmp_path / "file" / "dumps"))
        assert done.returncode == 3
        assert "is not a directory" in done.stdout

    def test_no_room_for_a_dump_is_noted(self, tmp_path, monkeypatch):
        monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
        assert environment._store(tmp_path).state == "note"

    def test_the_last_guarded_process_with_its_self_tests(self, tmp_path):
        (tmp_path / "guards").mkdir()
        rows = [{"id": "page-table", "attached": True, "self_test": "fired"}, {"id": "a-fix", "attached": True}]
        manifest = {"pid": 7, "created_utc": "2026-11-21T10:00:00+00:00", "verified": True, "patches": rows}
        (tmp_path / "guards" / "20261121T100000_host_p7.json").write_text(json.dumps(manifest))
        done = run("doctor", SGLANG_TRTLLM_MHA_DEBUG_DIR=str(tmp_path))
        said = " ".join(done.stdout.split())
        assert "pid 7" in said
        assert "2 of 2 attached, self tests fired: page-table, verified" in said

    def test_which_path_the_ops_took(self, tmp_path):
        (tmp_path / "guards").mkdir()
        rows = [
            {"id": "routing", "attached": True, "paths": ["fused"]},
            {"id": "gelu-tanh-mul", "attached": True, "paths": ["hidden states on cpu"]},
            {"id": "vision-batching", "attached": True, "paths": ["batched"]},
            {"id": "rmsnorm-add", "attached": True},
        ]
        manifest = {"pid": 7, "created_utc": "2026-11-21T10:00:00+00:00", "verified": True, "patches": rows}
        (tmp_path / "guards" / "20261121T100000_host_p7.json").write_text(json.dumps(manifest))
        # The server's other processes write one too, and run no op; damage is passed over.
        (tmp_path / "guards" / "20261121T100001_host_p8.json").write_text(json.dumps(manifest | {"patches": rows[3:]}))
        (tmp_path / "guards" / "20261121T100002_host_p9.json").write_text('{"pid": 9, "patches": [1]}')
        done = run("doctor", "--json", SGLANG_TRTLLM_MHA_DEBUG_DIR=str(tmp_path))
        (check,) = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "ops of the last server"]
        assert check["state"] == "note"
        own = "SGLang's own lines at least once: gelu-tanh-mul (hidden states on cpu)"
        assert check["detail"] == f"pid 7; our kernel: routing; batched: vision-batching; {own}"

    def test_a_fault_that_never_acted_is_named(self, tmp_path):
        """One of a server's processes has what a fault acts on; a later server and an earlier one are others."""
        (tmp_path / "guards").mkdir()

        def write(minute, pid, faults, **injected):
            rows = [{"id": fault, "attached": True, "injected": injected.get(fault, False)} for fault in faults]
            made = f"2026-11-21T10:{minute:02}:00+00:00"
            manifest = {"pid": pid, "created_utc": made, "hostname": "host", "patches": rows, "verified": True}
            manifest["settings"] = {"faults": list(faults)}
            path = tmp_path / "guards" / f"20261121T10{minute:02}00_host_p{pid}.json"
            path.write_text(json.dumps(manifest))

        write(0, 1, ("a", "b"), b=True)
        write(30, 2, ("a", "b"))
        write(31, 3, ("a", "b"), a=True)
        write(50, 4, ())
        done = run("doctor", "--json", SGLANG_TRTLLM_MHA_DEBUG_DIR=str(tmp_path))
        (check,) = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "faults of the last server"]
        assert check["state"] == "note"
        assert check["detail"] == "a has acted; b has NEVER ACTED, so nothing follows from how it went"

    def test_what_the_pools_were_decided_to_be(self, tmp_path):
        (tmp_path / "guards").mkdir()
        rows = [
            {"id": "owner-only-kv", "attached": True, "decision": "in force: 6 of 8 layers have KV buffers"},
            {"id": "routing", "attached": True},
        ]
        manifest = {"pid": 7, "created_utc": "2026-11-21T10:00:00+00:00", "verified": True, "patches": rows}
        (tmp_path / "guards" / "20261121T100000_host_p7.json").write_text(json.dumps(manifest))
        damaged = {"pid": 9, "patches": [{"id": "owner-only-kv", "decision": 5}]}
        (tmp_path / "guards" / "20261121T100002_host_p9.json").write_text(json.dumps(damaged))
        done = run("doctor", "--json", SGLANG_TRTLLM_MHA_DEBUG_DIR=str(tmp_path))
        (check,) = [one for one in json.loads(done.stdout)["checks"] if one["name"] == "KV pools of the last server"]
        assert check["detail"] == "pid 7; owner-only-kv: in force: 6 of 8 layers have KV buffers"

    # Said where an optimisation is asked for, none of which is ported.
    @pytest.mark.releases("0.5.13.post1")
    @pytest.mark.parametrize(
        "row", [{"paths": 5}, {"id": "routing", "paths": 5}, {"id": "routing", "paths": [5]}, {"paths": ["fused"]}]
    )
    def test_paths_that_are_damaged_are_passed_over(self, tmp_path, row):
        (tmp_path / "guards").mkdir()
        text = json.dumps({"pid": 9, "patches": [row]})
        (tmp_path / "guards" / "20261121T100002_host_p9.json").write_text(text)
        done = run("doctor", SGLANG_TRTLLM_MHA_DEBUG_DIR=str(tmp_path), GEMMA4_TRIAGE_PATCHES="default")
        assert done.returncode == 0, done.stderr
        assert "none has run" in " ".join(done.stdout.split())

    # Said where an optimisation is asked for, none of which is ported.
    @pytest.mark.releases("0.5.13.post1")
    def test_ops_that_no_server_has_run(self, tmp_path):
        done = run("doctor", SGLANG_TRTLLM_MHA_DEBUG_DIR=str(tmp_path), GEMMA4_TRIAGE_PATCHES="default")
        assert "none has run" in " ".join(done.stdout.split())

    def test_a_host_engine_that_would_refuse_to_start(self):
        done = run("doctor", GEMMA4_TRIAGE_HOST_ENGINE="1")
        assert done.returncode == 3
        assert "SGLANG_USE_CPU_ENGINE=1" in done.stdout

    def test_it_shows_what_is_asked_for(self):
        done = run("doctor", SGLANG_TRTLLM_MHA_DEBUG="1", GEMMA4_TRIAGE_PATCHES="default")
        assert done.returncode == 0
        said = " ".join(done.stdout.split())
        assert "page-table (probe)" in said
        assert "swa-state-swap (fix)" in said


class TestPatches:
    def test_json_lists_the_whole_catalog(self):
        rows = json.loads(run("patches", "--json").stdout)["patches"]
        assert [row["id"] for row in rows] == [patch.id for patch in CATALOG]
        assert not any(row["selected"] for row in rows)

    def test_selection_follows_the_environment(self):
        rows = json.loads(run("patches", "--json", GEMMA4_TRIAGE_PATCHES="default").stdout)["patches"]
        attaching = {patch.id for patch in CATALOG if standing(patch, installed_or_base()).state is State.ATTACHES}
        default = [row["id"] for row in rows if row["default"] and row["id"] in attaching]
        assert [row["id"] for row in rows if row["selected"]] == default

    @pytest.mark.parametrize("kind", ["probe", "host leaf"])
    def test_one_kind(self, kind):
        done = run("patches", "--kind", kind)
        assert done.returncode == 0
        assert kind in done.stdout

    def test_an_unknown_kind(self):
        done = run("patches", "--kind", "plugin")
        assert done.returncode == 2
        assert "host leaf" in done.stderr
