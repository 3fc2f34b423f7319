"""A small server of the OpenAI API for `quality`: it knows the answers, sees colours, and can be made to misbehave."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from PIL import Image

from gemma4_repro.quality.colours import SHADES

Reply = Callable[[str], str | tuple[int, str] | None]
"""(the prompt, or "image:COLOUR") to a reply, to an HTTP status and a body, or to None, which ends the server."""


def well_informed(prompt: str) -> str:
    """Reply with the word that stands in the prompt as `[answer LETTER]`, or with the image's colour."""
    if prompt.startswith("image:"):
        return f"It is {prompt.removeprefix('image:')}."
    return " " + re.findall(r"\[answer (.)\]", prompt)[-1]


@contextlib.contextmanager
def endpoint(reply: Reply, models: Any = ("toy",), server_info: Any = None) -> Iterator[str]:
    """Yield the address of a server whose replies come from `reply`; its thread ends with the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self._send(200, {"object": "list", "data": [{"id": id, "object": "model"} for id in models]})
            elif self.path == "/server_info" and server_info is not None:
                self._send(200, server_info() if callable(server_info) else server_info)
            else:
                self._send(404, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            chat = self.path.endswith("/chat/completions")
            said = reply(_seen(body["messages"][0]["content"]) if chat else body["prompt"])
            if said is None:
                self.server.shutdown()
                self.server.server_close()
                self.close_connection = True
            elif isinstance(said, tuple):
                self._send(said[0], said[1])
            elif chat:
                self._send(200, {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": said}}]})
            else:
                self._send(200, {"choices": [{"index": 0, "finish_reason": "length", "text": said}]})

        def _send(self, status: int, value: Any) -> None:
            data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def hanging_after(count: int, reply: Reply) -> Reply:
    """Reply so often, then never again: each later request hangs."""
    return _after(count, reply, lambda: time.sleep(60))


def gone_after(count: int, reply: Reply) -> Reply:
    """Reply so often; the next request takes the server away."""
    return _after(count, reply, lambda: None)


def _after(count: int, reply: Reply, then: Callable[[], None]) -> Reply:
    left = iter(range(count))

    def maybe(prompt: str) -> str | tuple[int, str] | None:
        return then() if next(left, None) is None else reply(prompt)

    return maybe


def _seen(content: Any) -> str:
    if isinstance(content, str):
        return content
    data = base64.b64decode(content[0]["image_url"]["url"].partition(",")[2])
    pixel = Image.open(io.BytesIO(data)).convert("RGB").getpixel((3, 3))
    return "image:" + next(colour for colour, shades in SHADES.items() if pixel in shades)
