"""What must not leave the machine is taken out of a dump."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_dumps.redaction import REDACTED, names_a_secret, redact_command, redact_fields, redact_launch_args

SECRET_FLAGS = ["--api-key", "--admin-api-key", "--hf-token", "--ssl-keyfile-password", "--my_secret", "--dbPassword"]
READABLE_FLAGS = [
    "--tokenizer-path",
    "--max-total-tokens",
    "--swa-full-tokens-ratio",
    "--skip-tokenizer-init",
    "--ssl-keyfile",
    "--speculative-num-draft-tokens",
    "--speculative-token-map",
]
SECRET = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=8, max_size=20).map("S3cr3t{}".format)


@pytest.mark.parametrize("flag", SECRET_FLAGS)
def test_secret_values_go_in_both_forms(flag):
    assert redact_launch_args(["serve", flag, "hunter2", "--port", "1"]) == ["serve", flag, REDACTED, "--port", "1"]
    assert redact_launch_args([f"{flag}=hunter2", "--port=1"]) == [f"{flag}={REDACTED}", "--port=1"]


@pytest.mark.parametrize("flag", READABLE_FLAGS)
def test_serving_arguments_about_tokens_stay(flag):
    assert redact_launch_args([flag, "0.4", f"{flag}=0.4"]) == [flag, "0.4", f"{flag}=0.4"]


def test_secrets_inside_values():
    given_args = [
        "--json-model-override-args",
        '{"hub": {"api_key": "hunter2"}, "depth": 3}',
        '--loader={"password": "hunter2"}',
        "--proxy",
        "http://user:hunter2@proxy:80/x",
        "HF_TOKEN=hunter2",
        "http://x/?access_token=hunter2",
    ]
    redacted = redact_launch_args(given_args)
    assert "hunter2" not in " ".join(redacted)
    assert json.loads(redacted[1])["depth"] == 3


def test_commands_keep_their_own_words():
    assert redact_command("serve --port '1'") == "serve --port '1'"
    assert "hunter2" not in redact_command("API_KEY=hunter2 serve --api-key hunter2 --port 1")
    assert "hunter2" not in redact_command("serve 'unbalanced --api-key hunter2")


def test_nested_fields():
    fields = {"command": ["--api-key", "x"], "auth": {"token": "x"}, "max_total_tokens": 4096, "probes": ["a", "b"]}
    assert redact_fields(fields) == {
        "command": ["--api-key", REDACTED],
        "auth": {"token": REDACTED},
        "max_total_tokens": 4096,
        "probes": ["a", "b"],
    }


@given(st.sampled_from(SECRET_FLAGS), SECRET, st.lists(st.sampled_from([*READABLE_FLAGS, "value", "--tp=2"])))
def test_no_secret_survives_anywhere(flag, secret, others):
    for args in ([*others, flag, secret, *others], [*others, f"{flag}={secret}", *others]):
        redacted = redact_launch_args(args)
        assert len(redacted) == len(args)
        assert secret not in " ".join(redacted)
        assert secret not in redact_command(" ".join(args))


@given(st.lists(st.text()))
def test_any_arguments_are_survived(args):
    assert len(redact_launch_args(args)) == len(args)
    redact_command(" ".join(args))
    assert not any(names_a_secret(flag) for flag in READABLE_FLAGS)
