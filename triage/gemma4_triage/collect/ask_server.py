"""Asks a server what it says of itself, by GET requests that end in time whatever the server does.

`/server_info` waits for the scheduler and `/health` has it generate a token if it is idle (entrypoints/http_server.py),
so both stay without an answer while the scheduler hangs; the others are answered by the HTTP process alone.
"""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

API_KEY_VARIABLE = "GEMMA4_TRIAGE_API_KEY"
MAX_BODY_BYTES = 16 * 1024**2
PATHS: tuple[tuple[str, str], ...] = (
    ("http/model_info.json", "/model_info"),
    ("http/models.json", "/v1/models"),
    ("http/metrics.txt", "/metrics"),
    ("http/server_info.json", "/server_info"),
    ("http/health.txt", "/health"),
)
"""What is asked, and under which name the reply lies in the bundle."""


@dataclass(frozen=True)
class Answer:
    """What came of one request.

    Attributes:
        name: in the bundle.
        path: of the URL.
        status: of HTTP; None if there was no answer.
        body: what was answered, at most MAX_BODY_BYTES.
        took_s: until the answer, or until nobody waited any longer.
        problem: why there is no answer; "" if there is one.
    """

    name: str
    path: str
    status: int | None
    body: bytes
    took_s: float
    problem: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect as it is: a key goes to the server that was named and to no other."""

    def redirect_request(self, *_: object) -> None:
        return None


def ask(url: str, key: str, timeout_s: float) -> list[Answer]:
    """Return an answer for each of PATHS; all are asked at once and none is waited for beyond timeout_s."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    answers: dict[str, Answer] = {}
    begin = time.monotonic()

    def fetch(name: str, path: str) -> None:
        answers[name] = _fetch(opener, url, name, path, key, timeout_s)

    # Not a pool: its threads are waited for when the interpreter ends, and a server may trickle for ever.
    threads = [threading.Thread(target=fetch, args=pair, daemon=True) for pair in PATHS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, timeout_s + 0.5 - (time.monotonic() - begin)))
    none = f"no answer within {timeout_s:g} s"
    return [answers.get(name, Answer(name, path, None, b"", time.monotonic() - begin, none)) for name, path in PATHS]


def _fetch(opener: urllib.request.OpenerDirector, url: str, name: str, path: str, key: str, timeout_s: float) -> Answer:
    begin = time.monotonic()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    status, body, problem = None, b"", ""
    try:
        with opener.open(urllib.request.Request(url + path, headers=headers), timeout=timeout_s) as reply:
            status, body = reply.status, reply.read(MAX_BODY_BYTES)
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read(MAX_BODY_BYTES)
    except TimeoutError:
        problem = f"no answer within {timeout_s:g} s"
    except urllib.error.URLError as error:
        timed_out = isinstance(error.reason, TimeoutError)
        problem = f"no answer within {timeout_s:g} s" if timed_out else f"cannot be reached: {error.reason}"
    except (OSError, ValueError) as error:
        problem = f"ended without an answer: {error}"
    except http.client.HTTPException as error:
        problem = f"is no answer of HTTP: {type(error).__name__}"
    return Answer(name, path, status, body, time.monotonic() - begin, problem)
