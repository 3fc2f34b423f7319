"""`gemma4-triage pools`: output, document, picture, exit codes."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from gemma4_triage.cli import app

CONFIG = Path(__file__).parents[1] / "data" / "configs" / "26b-a4b.json"
E4B = CONFIG.with_name("e4b.json")
TOY = Path(__file__).parents[2] / "repro" / "toys" / "toy-e4b"
KV = ("--kv-mem", "109.47806GB")
WHOLE = ("--workload", "80x8000+1000")
LOAD = (*WHOLE, "--split-leaf")


@pytest.fixture
def cli(capsys):
    def run(*words):
        code = app.main(["pools", *(str(word) for word in words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_without_a_load_the_sizes_at_the_default(cli):
    code, out, err = cli("--config", CONFIG, *KV)
    assert (code, err) == (0, "")
    assert "109478060000 / (20480 + 0.8 x 204800) bytes, pages of 1" in out
    assert "= 593956 full and 475164 SWA tokens" in out


def test_a_load(cli):
    code, out, _ = cli("--config", CONFIG, *KV, *LOAD)
    assert code == 0
    lines = out.splitlines()
    (default,) = [line for line in lines if line.startswith("SGLang's default")]
    assert default.split()[2:] == ["0.8", "593956", "475164", "65", "153", "65", "of", "80", "full"]
    assert lines[-2:] == ["set --swa-full-tokens-ratio 0.349", "80 of 80 requests fit at once at ratio 0.349"]


def test_what_a_cut_last_node_would_hold_is_said_beside(cli):
    """And nothing where it is cut already, or where there is no prefix cache whose nodes could be cut."""
    code, out, _ = cli("--config", CONFIG, *KV, *WHOLE)
    assert code == 1
    assert "with SGLANG_OPT_SWA_SPLIT_LEAF_ON_INSERT=1: 80 of 80 at ratio 0.349" in out.splitlines()
    assert out.splitlines()[-1] == "53 of 80 requests fit at once at ratio 1; the others wait, or are retracted"
    load = json.loads(cli("--config", CONFIG, *KV, *WHOLE, "--json")[1])["load"]
    assert (
        load["with_split_leaf"] == json.loads(cli("--config", CONFIG, *KV, *LOAD, "--json")[1])["load"]["recommended"]
    )
    for more in (LOAD, (*WHOLE, "--disable-radix-cache")):
        assert json.loads(cli("--config", CONFIG, *KV, *more, "--json")[1])["load"]["with_split_leaf"] is None


@pytest.mark.parametrize(
    ("more", "remark"),
    [
        (("--release-leaf-lock",), "SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW: a prompt's last nodes"),
        (("--drop-page-margin",), "SGLANG_OPT_SWA_EVICT_DROP_PAGE_MARGIN: each request keeps a page less"),
        (("--evict-multiplier", "0", "--page-size", "1"), "an eviction interval of one step"),
    ],
)
def test_a_setting_that_the_counts_do_not_show_is_said(cli, more, remark):
    code, out, _ = cli("--config", CONFIG, *KV, *more)
    assert code == 0
    assert f"  {remark}" in out
    assert remark not in cli("--config", CONFIG, *KV)[1]
    document = json.loads(cli("--config", CONFIG, *KV, *more, "--json")[1])
    assert [found.startswith(remark) for found in document["remarks"]] == [True]


def test_a_ratio_that_holds_less_is_a_finding(cli):
    code, out, _ = cli("--config", CONFIG, *KV, *LOAD, "--ratio", "0.8")
    assert code == 1
    assert out.splitlines()[-1] == "65 of 80 requests fit at once at ratio 0.8; the others wait, or are retracted"
    code, out, _ = cli("--config", CONFIG, *KV, *LOAD, "--ratio", "0.02")
    assert code == 1
    assert next(line for line in out.splitlines() if line.startswith("asked")).split()[-1] == "SWA"


def test_apply_prints_the_flag_alone(cli):
    assert cli("--config", CONFIG, *KV, *LOAD, "--apply") == (0, "--swa-full-tokens-ratio 0.349\n", "")


def test_the_document(cli):
    code, out, err = cli("--config", CONFIG, *KV, *LOAD, "--workload", "16x100+100", "--page-size", "64", "--json")
    document = json.loads(out)
    assert (code, err, document["kind"], document["fits"]) == (0, "", "pools", True)
    assert document["bytes_per_token"] == {"full": 20480, "swa": 204800}
    assert (document["full_tokens"], document["swa_tokens"]) == (593920, 475136)
    load = document["load"]
    assert (load["workloads"], load["requests"]) == (["80x8000+1000", "16x100+100"], 96)
    assert load["server_flag"] == f"--swa-full-tokens-ratio {load['recommended']['ratio']:g}"
    assert load["recommended"]["requests"] >= 96 > load["at_sglang_default"]["requests"]
    assert len(document["curve"]) == 100
    assert all(one["requests"] == min(one["full_requests"], one["swa_requests"]) for one in document["curve"])
    assert {one["full_tokens"] % 64 for one in document["curve"]} == {0}


def test_owners_only(cli):
    every, owners = (
        json.loads(cli("--config", E4B, "--kv-mem", "40GiB", "--json", *more)[1]) for more in ((), ("--owner-only",))
    )
    assert owners["full_tokens"] / every["full_tokens"] == pytest.approx(1.75, rel=1e-4)
    assert owners["model"]["full_layers"] == 4
    assert "18 layers share their KV" in cli("--config", E4B, "--kv-mem", "40GiB", "--owner-only")[1]


def test_what_owners_only_would_hold_is_said_beside(cli):
    """2.33 and 1.75 times; of a model whose layers all own KV, nothing."""
    for config, times in ((E4B.with_name("e2b.json"), "2.33"), (E4B, "1.75")):
        out = cli("--config", config, "--kv-mem", "40GiB")[1]
        owners = json.loads(cli("--config", config, "--kv-mem", "40GiB", "--owner-only", "--json")[1])
        line = f"with owner-only-kv: {owners['full_tokens']} full and {owners['swa_tokens']} SWA tokens, {times} times"
        assert line in out
        every = json.loads(cli("--config", config, "--kv-mem", "40GiB", "--json")[1])
        assert every["with_owner_only_kv"] == owners["with_owner_only_kv"]
        assert every["with_owner_only_kv"]["full_tokens"] == owners["full_tokens"]
    assert "owner-only-kv" not in cli("--config", CONFIG, *KV)[1]
    assert json.loads(cli("--config", CONFIG, *KV, "--json")[1])["with_owner_only_kv"] is None


def test_what_the_policy_makes_of_a_start(cli):
    code, out, _ = cli("--config", CONFIG, *KV, "--context-length", 9000, "--split-leaf")
    assert code == 0
    (line,) = [line for line in out.splitlines() if "swa-ratio-policy" in line]
    assert line.startswith("  swa-ratio-policy at this start: 0.462 instead of 0.8: 105 of 2048 requests of 9000 tok")
    document = json.loads(cli("--config", CONFIG, *KV, "--max-running-requests", 16, "--json")[1])["policy"]
    assert document["ratio"] < 0.08
    assert document["swa_tokens"] >= 16 * (8192 + 3 * 1023) + 8192
    assert document["why"].endswith(f"SWA pool {document['swa_tokens']}")
    given = json.loads(cli("--config", CONFIG, *KV, "--context-length", 9000, "--ratio", 0.8, "--json")[1])["policy"]
    assert (given["ratio"], given["why"]) == (0.8, "0.8 kept: given by the user")
    unasked = json.loads(cli("--config", CONFIG, *KV, "--json")[1])
    assert (unasked["policy"], unasked["policy_with_owner_only_kv"], unasked["fits"]) == (None, None, None)


def test_what_it_makes_of_a_start_with_the_defaults_is_said_beside(cli):
    asked = ("--config", E4B, "--kv-mem", "6GiB", "--context-length", 9000, "--max-running-requests", 64)
    lines = cli(*asked)[1].splitlines()
    said = "  and with owner-only-kv, a default: "
    ours = json.loads(cli(*asked, "--owner-only", "--json")[1])
    assert [line for line in lines if line.startswith(said)] == [said + ours["policy"]["why"]]
    every = json.loads(cli(*asked, "--json")[1])
    assert every["policy_with_owner_only_kv"] == ours["policy"] != every["policy"]
    assert said not in cli(*asked, "--owner-only")[1]


def test_memory_of_a_gpu_and_the_weights_beside_the_config(cli, tmp_path):
    weights = sum(path.stat().st_size for path in TOY.glob("*.safetensors"))
    document = json.loads(cli("--config", TOY, "--gpu-mem", "1GiB", "--mem-fraction", "0.5", "--json")[1])
    assert document["pools_bytes"] == (1 << 29) - weights
    given = json.loads(cli("--config", TOY, "--gpu-mem", "1GiB", "--weights", "512MiB", "--json")[1])
    assert given["pools_bytes"] == int(0.85 * (1 << 30)) - (1 << 29)
    assert "x 0.85 - weights 0.500 GiB" in given["pools_bytes_from"]


def test_the_picture(cli, tmp_path):
    out = tmp_path / "x.svg"
    code, _, err = cli("--config", CONFIG, *KV, *LOAD, "--ratio", "0.5", "--out", out)
    assert (code, err) == (0, f"Wrote {out}\n")
    text = out.read_text()
    ElementTree.fromstring(text)
    assert "recommended 0.349: 132" in text
    assert "default 0.8: 65" in text
    assert re.findall(r"""(?:href|src)=["']|url\(""", text) == []
    code, _, err = cli("--config", CONFIG, *KV, *LOAD, "--out", out)
    assert (code, "--force" in err) == (2, True)
    assert out.read_text() == text
    assert cli("--config", CONFIG, *KV, *LOAD, "--out", out, "--force")[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--config", CONFIG), "--gpu-mem and --weights"),
        (("--config", CONFIG, "--gpu-mem", "80GiB"), "no safetensors beside"),
        (("--config", CONFIG, "--gpu-mem", "80"), "--weights"),
        (("--config", CONFIG, "--kv-mem", "80"), "GiB"),
        (("--config", CONFIG, *KV, "--gpu-mem", "80GiB"), "stands for"),
        (("--config", CONFIG, "--gpu-mem", "80GiB", "--weights", "70GiB"), "nothing is left for pools"),
        (("--config", CONFIG, "--gpu-mem", "80GiB", "--weights", "7GiB", "--mem-fraction", "1.5"), "at most 1"),
        (("--config", "missing.json", *KV), "cannot be read"),
        (("--config", CONFIG, *KV, "--ratio", "0"), "above 0"),
        (("--config", CONFIG, *KV, "--ratio", "nan"), "above 0"),
        (("--config", CONFIG, *KV, "--evict-multiplier", "nan"), "--evict-multiplier"),
        (("--config", CONFIG, *KV, "--kv-dtype", "int3"), "fp8_e4m3"),
        (("--config", CONFIG, *KV, "--workload", "many"), "80x8000+1000"),
        (("--config", CONFIG, *KV, "--workload", "1x300000+1"), "context is 262144"),
        (("--config", CONFIG, "--kv-mem", "1GB", *LOAD), "not one request fits"),
        (("--config", CONFIG, *KV, "--context-length", "262145"), "model's context, 262144"),
        (("--config", CONFIG, *KV, "--context-length", "0"), "--help"),
        (("--config", CONFIG, *KV, "--apply"), "needs a load"),
        (("--config", CONFIG, *KV, *LOAD, "--apply", "--json"), "both want stdout"),
        (("--config", CONFIG, *KV, *LOAD, "--out", "curve.png"), "name curve.svg"),
        (("--config", CONFIG, *KV, *LOAD, "--out", "curve"), "name curve.svg"),
        (("--config", CONFIG, *KV, "--page-size", "0"), "--help"),
        ((), "--config"),
    ],
)
def test_usage_mistakes(cli, words, said):
    code, out, err = cli(*words)
    assert code == 2
    assert said in err
    if "--json" not in words:
        assert out == ""


@pytest.mark.parametrize("gpus", [3, 5])
def test_gpus_that_the_kv_heads_do_not_divide_among(cli, gpus):
    code, _, err = cli("--config", E4B, *KV, *LOAD, "--tp", gpus)
    assert (code, f"2 KV heads do not divide among {gpus} GPUs" in err) == (2, True)
