"""Asks a server what it says of itself, by GET requests that end in time whatever the server does.

`/server_info` waits for the scheduler and `/health` has it generate a token if it is idle (entrypoints/http_server.py),
so both stay without an answer while the scheduler hangs; the others are answered by the HTTP process alone.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from gemma4_dumps.wording import number_of

API_KEY_VARIABLE = "GEMMA4_TRIAGE_API_KEY"
_NO_HTTP = "is no answer of HTTP"
_CLOSED = (
    "the connection was closed without a byte of an answer, as a proxy does whose server is gone, or a port that does "
    "not speak HTTP"
)
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
        location: where an answer that is none sends the request on to; "" for any other.
        accepted: something took the request, and no whole answer came: a server that hangs or dies, or another program.
        closed: the connection was closed, or reset, without a byte of an answer.
    """

    name: str
    path: str
    status: int | None
    body: bytes
    took_s: float
    problem: str
    location: str = ""
    accepted: bool = False
    closed: bool = False


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows a redirect within the server that was named, and to its https: a key goes to no other."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        asked, answered = _origin(req.full_url), _origin(newurl)
        to_https = asked[0] == answered[0] and (asked[1:], answered[1:]) == ((80, "http"), (443, "https"))
        followed = asked == answered or to_https
        return super().redirect_request(req, fp, code, msg, headers, newurl) if followed else None


def _origin(url: str) -> tuple[str, int, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), parts.scheme


def why_not_sglang(answers: Sequence[Answer]) -> str:
    """Return a clause that says why what answered is no server of SGLang; "" if it is one, or may be one.

    A server that wants a key, is starting or hangs answers less than SGLang's pages, so only a whole set of answers
    without an error of the server's own says so.
    """
    statuses = {one.status for one in answers}
    if statuses == {None} and any(one.problem.startswith(_NO_HTTP) for one in answers):
        return "its answers are no HTTP"
    if any(status is None or status in (401, 403) or status >= 500 for status in statuses):
        return ""
    if any(one.status == 200 and _is_sglangs(one) for one in answers):
        return ""
    leads = next((one.location for one in answers if one.location), "")
    if leads and all(300 <= (status or 0) < 400 for status in statuses):
        return f"it sends every request on to {leads}"
    return "none of its pages is one of SGLang's: " + ", ".join(f"{one.path} gave HTTP {one.status}" for one in answers)


_KEYS = frozenset({"model_path", "server_args", "internal_states", "weight_version", "max_total_num_tokens"})


def _is_sglangs(answer: Answer) -> bool:
    if answer.path == "/metrics":
        return b"sglang:" in answer.body
    try:
        value = from_json(answer.body)
    except ValueError:
        return False
    if answer.path == "/v1/models":
        return isinstance(value, dict) and value.get("object") == "list"
    return isinstance(value, dict) and not _KEYS.isdisjoint(value)


def ask(url: str, key: str, timeout_s: float) -> list[Answer]:
    """Return an answer for each of PATHS; all are asked at once and none is waited for beyond timeout_s."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameServer)
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
    status, body, problem, location, accepted, closed = None, b"", "", "", False, False
    try:
        with opener.open(urllib.request.Request(url + path, headers=headers), timeout=timeout_s) as reply:
            body = reply.read(MAX_BODY_BYTES)
            # What is missing of an answer whose length was said; a read up to a limit does not miss it.
            if reply.length and len(body) < MAX_BODY_BYTES:
                raise http.client.IncompleteRead(body, reply.length)
            status = reply.status
    except urllib.error.HTTPError as error:
        status = error.code
        # Its status says enough where the rest does not come.
        with contextlib.suppress(OSError, http.client.HTTPException):
            body = error.read(MAX_BODY_BYTES)
        location = error.headers.get("Location", "") if 300 <= status < 400 else ""
    except TimeoutError:
        # While it connects, this comes as a URLError.
        accepted = True
        problem = f"no answer within {timeout_s:g} s, though the connection was accepted"
    except http.client.IncompleteRead as error:
        accepted, problem = True, f"the answer broke off after {number_of(len(error.partial), 'byte')}"
    except urllib.error.URLError as error:
        closed = isinstance(error.reason, ConnectionResetError | BrokenPipeError)
        timed_out = isinstance(error.reason, TimeoutError)
        problem = f"no answer within {timeout_s:g} s" if timed_out else f"cannot be reached: {error.reason}"
        problem = _CLOSED if closed else problem
    except (ConnectionResetError, BrokenPipeError):
        # Also http.client.RemoteDisconnected.
        closed, problem = True, _CLOSED
    except (OSError, ValueError) as error:
        problem = f"ended without an answer: {error}"
    except http.client.HTTPException as error:
        problem = f"{_NO_HTTP}: {type(error).__name__}"
    return Answer(name, path, status, body, time.monotonic() - begin, problem, location, accepted, closed)
