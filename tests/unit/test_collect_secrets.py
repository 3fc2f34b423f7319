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
        *(f"{name}_{'e' * 36}" for name in ("r8", "gsk", "npm", "whsec", "sk_live", "rk_live", "dop_v1")),
        f"glsa_{'f' * 32}_{'0' * 8}",
        *(f"{name}{'g' * 40}" for name in ("pypi-AgEI", "pplx-", "xapp-1-", "hvs.")),
        f"SG.{'h' * 22}.{'i' * 43}",
        "dapi" + "0" * 32,
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
        "passphrase: hunter2",
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
        r'{"log":"GET https://bucket/m?X-Amz-Expires=9\u0026X-Amz-Signature=hunter2 200\n","stream":"stdout"}',
        r'{"log":"{\"api_key\": \"hunter2\"}\n","stream":"stdout"}',
        r'{"log":"x \"admin_api_key\": \"a b\\\"hunter2\", \"port\": 1\n","stream":"stdout"}',
        r'{"log":"x {\"s\": \"{\\\"hf_token\\\": \\\"hunter2\\\"}\"}\n","stream":"stdout"}',
        r'{"log":"--api-key \"hunter2\" --port 1\n","stream":"stdout"}',
        r'{"log":"[\"--api-key\", \"hunter2\"]\n","stream":"stdout"}',
        r'{"log":"\tapi_key=hunter2\n","stream":"stdout"}',
        r'{"log":"api_key=\u001b[32mhunter2\u001b[0m\n","stream":"stdout"}',
        r"'m\n--api-key hunter2'",
        "api_key=b'hunter2'",
        "api_key=SecretStr('hunter2')",
        "'api_keys_and_passwords': ['a', 'hunter2']",
        "\x1b[36mapi_key\x1b[0m=\x1b[35mhunter2\x1b[0m",
        "--api-key \x1b[1m'hunter2'",
        "--api-key      hunter2",
        "Cookie: session=hunter2",
        'Cookie: lang=en; name="a b"; session=hunter2',
        "< Set-Cookie: session=hunter2; Path=/",
        "{'cookie': 'session=hunter2', 'host': 'x'}",
        "(b'cookie', b'session=hunter2')",
        r'{"log":"{\"Cookie\": \"session=hunter2\"}\n","stream":"stdout"}',
        "curl -H 'Cookie: session=hunter2' http://x",
        "curl -u me:hunter2 http://x/health",
        "curl -su 'me:hunter2' http://x/health",
        "curl --user=me:hunter2 http://x/health",
        "['curl', '-u', 'me:hunter2']",
        "curl -b session=hunter2 http://x",
        "https://me:a@hunter2@host/x",
        "https://me:a/hunter2@host/x",
        r"https:\/\/me:hunter2@host\/x",
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
        r'{"log":"api_key=None, hf_token=None\n","stream":"stdout","time":"2026-01-01T00:00:00Z"}',
        "\x1b[36mINFO\x1b[0m key-value cache is full",
        "GET http://host:30000/v1?mail=a@b and http://host/a@b",
        "docker run -u 1000:1000 image",
        "curl -s http://127.0.0.1:30000/health",
        "no cookie was sent",
        "KeyError: 'lm_head.weight'",
    ],
)
def test_what_a_diagnosis_needs_stays(line):
    assert clean_line(line) == line


def test_a_name_keeps_what_is_around_its_value():
    line = r'{"log":"{\"api_key\": \"hunter2\", \"port\": 1} --api-key \"hunter2\" -x\n","stream":"stdout"}'
    assert clean_line(line) == line.replace("hunter2", "[redacted]")
    assert json.loads(clean_line(line))["log"].startswith('{"api_key": "[redacted]", "port": 1}')


@pytest.mark.parametrize(
    "lines",
    [
        ["--model m --api-key", "hunter2 --port 1"],
        ["  --api-key \\", "  hunter2 \\", "  --port 1"],
        ['  "api_key":', '    "hunter2",', '  "port": 1'],
        ["api_key: |", "  hunter2", "port: 1"],
        ["  '--api-key',", "  'hunter2',", "  '--port'"],
        ["--api-key", "", "hunter2"],
        ["api_key=\x1b[0m", "\x1b[32mhunter2\x1b[0m"],
        [r'{"log":"--api-key\n","stream":"stdout"}', r'{"log":"hunter2\n","stream":"stdout"}'],
        [r'{"log":"\"api_key\":\n","stream":"stdout"}', r'{"log":"  \"hunter2\",\n","stream":"stdout"}'],
        ["2026-01-01T00:00:00Z stdout F --api-key", "2026-01-01T00:00:00Z stdout F hunter2"],
        ["sglang-1  | --api-key", "sglang-1  | hunter2"],
    ],
)
def test_a_value_on_the_next_line(lines):
    cleaned = b"".join(clean_lines([f"{line}\n".encode() for line in lines])).decode().splitlines()
    assert "hunter2" not in "".join(cleaned)
    assert len(cleaned) == len(lines)
    assert cleaned[0] == lines[0]
    assert "port" not in lines[-1] or cleaned[-1].endswith(lines[-1][-6:])


@pytest.mark.parametrize(
    "lines",
    [
        ["the server wants --api-key", "[2026-01-01 00:00:00] Prefill batch, #new-seq: 1"],
        ["no such key:", "Traceback (most recent call last):"],
        ["--api-key", "--port 1"],
        ['  "api_key":', "    null,"],
        ["secrets:", "  api:", "    port: 1"],
        ["max_total_tokens:", "2560"],
    ],
)
def test_a_next_line_that_is_no_value_stays(lines):
    given = [f"{line}\n".encode() for line in lines]
    assert list(clean_lines(given)) == given


def test_a_private_key_goes_with_its_lines():
    lines = [b"a\n", b"-----BEGIN RSA PRIVATE KEY-----\n", b"MIIE\n", b"-----END RSA PRIVATE KEY-----\n", b"b\n"]
    assert list(clean_lines(lines)) == [b"a\n", b"[redacted]\n", b"b\n"]
