"""What `collect` takes for a secret, by its name or its shape, and what it leaves because a diagnosis needs it."""

import json

import pytest

from gemma4_triage.collect.secrets import clean_body, clean_line, clean_lines, clean_variables


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "a" * 34,
        "sk-proj-" + "b" * 30,
        "ghp_" + "c" * 36,
        "AKIA" + "D" * 16,
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    ],
)
def test_a_shape_is_enough(secret):
    assert secret not in clean_line(f"loading with {secret} from the hub")
    assert secret.encode() not in clean_body(json.dumps({"anything": [secret]}).encode())
    assert secret not in str(clean_variables({"SGLANG_X": f"a {secret} b"}))


@pytest.mark.parametrize(
    "line",
    [
        "ServerArgs(api_key='hunter2', port=1)",
        "--admin-api-key hunter2 --port 1",
        'x {"password": "hunter2"}',
        "MY_SECRET=hunter2",
        "Authorization: Bearer hunter2hunter2",
        "https://me:hunter2@host/x",
        "Process 1: python -m sglang.launch_server --api-key hunter2",
        "--trust-remote-code --api-key hunter2 --port 1",
        "command: --api-key=hunter2",
        "args='--model-path m --api-key=hunter2 --port 1'",
        "['--trust-remote-code', '--api-key', 'hunter2']",
        "_TOKEN=hunter2",
        r'{"password": "a\"hunter2", "port": 1}',
        f"api_key='{'a' * 500}hunter2'",
        f"api_key={'a' * 500}hunter2",
        "password='hunter2",
        "GET https://bucket/m?X-Amz-Expires=9&X-Amz-Signature=hunter2 200",
    ],
)
def test_a_name_is_enough(line):
    assert "hunter2" not in clean_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "Prefill batch, #new-token: 272, #cached-token: 0, full token usage: 0.11",
        "max_total_tokens=2560, chunked_prefill_size=None, api_key=None",
        "key-value cache is full",
        "max_total_num_tokens=2560",
        "--enable-key-cache --port 30000",
        "launch_server --skip-tokenizer-init --model-path m",
    ],
)
def test_what_a_diagnosis_needs_stays(line):
    assert clean_line(line) == line


def test_a_private_key_goes_with_its_lines():
    lines = [b"a\n", b"-----BEGIN RSA PRIVATE KEY-----\n", b"MIIE\n", b"-----END RSA PRIVATE KEY-----\n", b"b\n"]
    assert list(clean_lines(lines)) == [b"a\n", b"[redacted]\n", b"b\n"]
