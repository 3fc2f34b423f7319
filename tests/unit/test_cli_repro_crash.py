"""`gemma4-triage repro crash` up to where a process would start: what it refuses and in which words, what it shows."""

import json
import shutil
import socket

import pytest

import small_server
from gemma4_dumps.errors import ExitCode
from gemma4_repro.crash.cells import CELLS
from gemma4_repro.crash.machine import BLACKWELL, HOPPER, Gpu
from gemma4_repro.toys.locate import toy_path
from gemma4_triage.cli import crash_plan

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

TARGET, ASSISTANT = toy_path("toy-e4b"), toy_path("toy-e4b-assistant")
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def machine(monkeypatch):
    """Return a function that has the driver show these devices."""

    def show(*gpus):
        monkeypatch.setattr(crash_plan, "cuda_devices", lambda: gpus)

    show()
    return show


@pytest.fixture
def refused(cli, machine, tmp_path):
    """Return a function of (code, *words) to the error's line; nothing may be written, and stdout stays empty."""

    def run(code, *words):
        found, out, err = cli("repro", "crash", *words, "--output", tmp_path / "run")
        lines = err.strip().splitlines()
        assert (found, out) == (code, ""), err
        assert not (tmp_path / "run").exists()
        assert lines[0].startswith("error: ")
        assert len(lines) <= 2
        return lines[0]

    return run


@pytest.fixture
def target(tmp_path):
    return shutil.copytree(TARGET, tmp_path / "target")


@pytest.fixture
def assistant(tmp_path):
    return shutil.copytree(ASSISTANT, tmp_path / "assistant")


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_an_unknown_cell(refused):
    assert "there is no cell 'e4b_cuda_v1'" in refused(ExitCode.USAGE, "e4b_cuda_v1")


def test_no_cell(refused):
    assert "no cell was named" in refused(ExitCode.USAGE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--load", "sharegpt"], "there is no load 'sharegpt'"),
        (["--fault", "yoco-stale-cache-loc", "--toy"], "does not know what to expect of the fault"),
        (["--toy", "--model", "x"], "--toy brings its own checkpoints"),
        (["--device-model", "sm90", "--model", "x"], "the CPU engine has sm100 and sm90"),
        (["--toy", "--device-model", "sm80"], "the CPU engine has sm100 and sm90"),
        (["--matrix"], "--matrix lists all cells"),
        (["--toy", "--patches", "default,+yocoo"], "yocoo"),
        ([], "needs --model"),
        (["--model", TARGET], "needs --draft-model"),
        (["--model", "/nowhere"], "needs --draft-model"),
        (["--model", "/nowhere", "--draft-model", ASSISTANT], "/nowhere is no folder"),
        (["--model", TARGET, "--draft-model", "/nowhere"], "/nowhere is no folder"),
        (["--model", TARGET, "--draft-model", TARGET], "is no Gemma-4 assistant: its model_type is 'gemma4'"),
        (["--model", ASSISTANT, "--draft-model", ASSISTANT], "is a draft (gemma4_assistant)"),
    ],
)
def test_usage(refused, words, said):
    assert said in refused(ExitCode.USAGE, "e4b_trtllm_v1", *words)


def break_config(target):
    (target / "config.json").unlink()


def break_json(target):
    (target / "config.json").write_text("{")


def other_model(target):
    edit(target / "config.json", model_type="llama")


def no_tokenizer(target):
    (target / "tokenizer.json").unlink()


def no_weights(target):
    (target / "model.safetensors").unlink()


def torn_weights(target):
    path = target / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def empty_weights(target):
    (target / "model.safetensors").write_bytes(b"")


def missing_shard(target):
    index = {"weight_map": {"a": SHARD, "b": "model-00002-of-00002.safetensors"}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    (target / "model.safetensors").rename(target / SHARD)


def missing_shard_without_index(target):
    (target / "model.safetensors").rename(target / SHARD)


def index_of_a_part(target):
    missing_shard_without_index(target)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": SHARD}}))


def index_of_another_folder(target):
    (target.parent / "whole").mkdir()
    (target / "model.safetensors").rename(target.parent / "whole" / "model.safetensors")
    index = {"weight_map": {"a": "../whole/model.safetensors"}}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))


def index_of_nothing(target):
    (target / "model.safetensors.index.json").write_text('{"weight_map": [1]}')


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (break_config, "config.json cannot be read: No such file"),
        (break_json, "config.json is no JSON"),
        (other_model, "is not of a Gemma-4: model_type is 'llama'"),
        (no_tokenizer, "has no tokenizer: neither tokenizer.json nor tokenizer.model is there"),
        (no_weights, "has no weights"),
        (torn_weights, "is not a whole safetensors file"),
        (empty_weights, "is not a whole safetensors file"),
        (missing_shard, "lacks model-00002-of-00002.safetensors, one of 1 missing of 2 shards"),
        (missing_shard_without_index, "lacks model-00002-of-00002.safetensors, one of 1 missing of 2 shards"),
        (index_of_a_part, "lacks model-00002-of-00002.safetensors, one of 1 missing of 2 shards"),
        (index_of_another_folder, "names '../whole/model.safetensors', which is no file of its folder"),
        (index_of_nothing, "has no weight_map of file names"),
    ],
)
def test_a_checkpoint_that_is_not_whole(refused, machine, target, spoil, said):
    machine(BLACKWELL)
    spoil(target)
    assert said in refused(ExitCode.USAGE, "e4b_triton_off", "--model", target)


def test_an_assistant_without_weights_or_of_another_target(refused, machine, assistant):
    machine(BLACKWELL)
    words = ["e4b_triton_v1", "--model", TARGET, "--draft-model", assistant]
    edit(assistant / "config.json", backbone_hidden_size=2560)
    assert "drafts for a hidden size of 2560" in refused(ExitCode.USAGE, *words)
    edit(assistant / "config.json", backbone_hidden_size=64)
    (assistant / "model.safetensors").unlink()
    assert "has no weights" in refused(ExitCode.USAGE, *words)


@pytest.mark.parametrize(
    ("cell", "gpus", "said"),
    [
        ("e4b_triton_off", (), "no CUDA device is visible"),
        ("e4b_trtllm_off", (HOPPER,), "prefills on sm100"),
        # The toys' full layers have head dims of 32.
        ("e4b_hybrid_off", (HOPPER,), "this model has 16 and 32"),
        ("e4b_triton_off", (Gpu("a tiny one", 9, 0, 1000),), "a tiny one has 0.0 GiB"),
    ],
)
def test_a_machine_that_cannot(refused, machine, cell, gpus, said):
    machine(*gpus)
    line = refused(ExitCode.ENVIRONMENT, cell, "--model", TARGET)
    assert line.startswith(f"error: {cell} cannot run here: ")
    assert said in line


def test_a_toy_that_is_not_there_is_named(refused, monkeypatch):
    monkeypatch.setattr(crash_plan, "toy_path", lambda name: toy_path(f"no-{name}"))
    assert "no toy checkpoint named 'no-toy-26b'" in refused(ExitCode.ENVIRONMENT, "26b_triton_off", "--toy")


def test_a_port_that_is_taken(refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        if port > 55535:
            pytest.skip("no port for SGLang's gRPC above it")
        assert f"port {port} is in use" in refused(ExitCode.ENVIRONMENT, "e4b_triton_off", "--toy", "--port", port)


def test_a_folder_that_is_not_empty_loses_nothing(cli, tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    code, out, err = cli("repro", "crash", "e4b_triton_off", "--toy", "--output", tmp_path)
    assert (code, out) == (ExitCode.USAGE, "")
    assert "is not empty" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "words", [["e4b"], ["--toy"], ["--load", "all"], ["--model", "x"], ["--dry-run"], ["--port", "30000"], ["--force"]]
)
def test_the_matrix_takes_no_other_option(cli, machine, words):
    code, out, err = cli("repro", "crash", "--matrix", *words)
    assert (code, out) == (ExitCode.USAGE, "")
    assert f"takes only --json; {words[0]} was given" in err


def test_a_missing_assistant_comes_with_what_to_do(cli, machine):
    code, _, err = cli("repro", "crash", "e4b_trtllm_v1", "--model", TARGET)
    assert code == ExitCode.USAGE
    assert err.splitlines()[1] == "hint: name the assistant's folder; --toy runs the cell on this CPU"


def test_the_matrix_of_a_machine_without_a_gpu(cli, machine):
    code, out, _ = cli("repro", "crash", "--matrix")
    assert code == ExitCode.OK
    assert all(f"\n{cell.id} " in out for cell in CELLS)
    assert "GPU: none that the CUDA driver shows" in out
    assert "(an H200 (sm90, 141 GB by its data sheet), a B200 (sm100, 180 GB by its data sheet))" in " ".join(
        out.split()
    )
    assert "[1] no CUDA device is visible to this process" in out


def test_the_matrix_of_a_hopper_as_json(cli, machine):
    machine(HOPPER)
    code, out, _ = cli("repro", "crash", "--matrix", "--json")
    document = json.loads(out)
    assert (code, document["kind"], len(document["cells"])) == (ExitCode.OK, "crash-matrix", len(CELLS))
    assert document["gpus"][0]["architecture"] == "sm90"
    runs = {cell["id"] for cell in document["cells"] if cell["runs_here"]}
    assert runs == {cell.id for cell in CELLS if cell.backend.id == "triton"}
    assert all(cell["why_not"] for cell in document["cells"] if not cell["runs_here"])
    assert all(set(cell["expected"]) == {"sm90", "sm100"} for cell in document["cells"])


def test_an_error_with_json_is_one_document(cli, machine):
    code, out, _ = cli("repro", "crash", "nope", "--json")
    assert (code, json.loads(out)["exit_code"]) == (ExitCode.USAGE, ExitCode.USAGE)


def test_a_dry_run_needs_no_gpu_and_takes_arguments_for_the_server(cli, machine):
    code, out, _ = cli("repro", "crash", "e4b", "--model", "/a b", "--dry-run", "--load", "all", "--", "--tp", "2")
    server, *clients = out.splitlines()
    assert code == ExitCode.OK
    assert server.startswith("gemma4-triage serve --patches none --dir RUN/e4b_trtllm_v1/dumps -- ")
    assert "--model-path '/a b'" in server
    assert server.endswith(" --tp 2")
    assert len(clients) == 8
    assert all(line.startswith("python -m sglang.bench_serving ") for line in clients)


@pytest.mark.parametrize("toy", [(), ("--toy",)])
def test_a_dry_run_shows_no_server_that_would_not_start(refused, toy):
    words = ["e4b_trtllm_v1", *toy, "--dry-run", "--patches", "default,+yocoo"]
    assert "names yocoo, which this version does not have" in refused(ExitCode.USAGE, *words)


# Its cell is of mtp-v2, which 0.5.14 and later have themselves.
@pytest.mark.releases("0.5.13.post1")
def test_the_server_that_a_dry_run_shows_is_one_that_serve_takes(cli, machine):
    """`serve` reads the very words, and its own settings say what the cell is."""
    import shlex

    _, out, _ = cli("repro", "crash", "e4b_hybrid_v2_bounds", "--toy", "--dry-run")
    words = shlex.split(out.splitlines()[0])[1:]
    code, out, _ = cli("serve", "--dry-run", "--json", *words[1:])
    document = json.loads(out)
    assert code == ExitCode.OK
    assert document["settings"]["mode"] == "on"
    patches = {patch["id"] for patch in document["patches"]}
    assert {"mtp-v2", "swa-state-swap", "page-table", "host-sm100-check"} <= patches


def test_a_target_that_drafts_nothing_passes_over_the_assistant_aloud():
    from gemma4_repro.crash.cells import find_cell
    from gemma4_repro.crash.loads import choose_loads

    asked = crash_plan.Asked(find_cell("e4b_triton_off"), choose_loads(()), False, str(TARGET), str(ASSISTANT))
    found = crash_plan.real_checkpoints(asked, (BLACKWELL,))
    assert found.assistant is None
    assert found.remarks == (
        f"{TARGET} has 8 layers, and Gemma-4 E4B has 42: the cell is run anyway",
        "e4b_triton_off makes no drafts: --draft-model is not used",
    )


@pytest.fixture
def ran(cli, monkeypatch, tmp_path):
    """Return a function of (client source, ...) to what the command did with a small server and this client."""

    def run(client, *words, server=small_server.SERVER):
        def make_plan(asked, checkpoints, port, folder, time_limit_s):
            return small_server.small_plan(folder, client, server)

        monkeypatch.setattr(crash_plan, "make_plan", make_plan)
        return cli("repro", "crash", "e4b_trtllm_v1", "--toy", "--output", tmp_path / "run", *words)

    return run


def test_as_expected_it_exits_with_0_and_leaves_a_verdict_and_a_report(ran, cli, tmp_path):
    code, out, err = ran(small_server.DONE % small_server.LOAD.toy.requests)
    assert code == ExitCode.OK
    assert "e4b_trtllm_v1: as expected" in out
    assert "TOY: toy-e4b stands in" in err
    folder = tmp_path / "run"
    assert {path.name for path in folder.iterdir()} == {"TRIAGE_REPORT.md", "verdict.json", "e4b_trtllm_v1"}
    assert "crash e4b" in (folder / "TRIAGE_REPORT.md").read_text()
    # The report reads the verdict again, and a second run asks before it takes the folder.
    assert cli("report", folder)[0] == ExitCode.OK
    assert ran("")[0] == ExitCode.USAGE
    assert json.loads((folder / "verdict.json").read_text())["exit_code"] == 0


def test_a_surprise_is_exit_1_with_the_same_evidence(ran, tmp_path):
    code, out, _ = ran(small_server.DONE % 1, "--json")
    document = json.loads(out)
    assert (code, document["kind"], document["exit_code"]) == (ExitCode.VIOLATION, "repro", 1)
    assert document["loads"][0]["answered"] == 1
    assert (tmp_path / "run" / "TRIAGE_REPORT.md").is_file()


def test_a_server_that_dies_at_its_start_shows_the_end_of_its_log(ran):
    code, out, _ = ran("", server="import sys; print('no such device here'); sys.exit(3)")
    assert code == ExitCode.VIOLATION
    assert "stopped because the server ended before it was ready" in out
    assert "  no such device here" in out


@pytest.mark.slow
def test_forced_it_takes_only_its_own_files_away(ran, tmp_path):
    folder = tmp_path / "run"
    ran(small_server.DONE % small_server.LOAD.toy.requests)
    (folder / "mine.txt").write_text("kept")
    code, _, _ = ran(small_server.DONE % small_server.LOAD.toy.requests, "--force")
    assert (code, (folder / "mine.txt").read_text()) == (ExitCode.OK, "kept")
