"""A small server and small clients in the place of SGLang's, for tests of what runs around them."""

import contextlib
import socket
import struct
import sys
import threading
from pathlib import Path

from gemma4_repro.bench.server import free_ports
from gemma4_repro.crash.loads import choose_loads
from gemma4_repro.crash.runner import Client, Limits, Plan

# Answers /health and /flush_cache as SGLang does, and dies of what it is told once a request comes.
SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
    def do_POST(self):
        if self.path.startswith("/die"):
            print("Scheduler hit an exception: Traceback (most recent call last):\\nIllegalAddress: page 70 of 65")
            sys.stdout.flush(); os._exit(1)
        self.do_GET()
port = int(sys.argv[1])
print("up", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
DONE = "import json, sys; open(sys.argv[1], 'w').write(json.dumps({'completed': %d}) + '\\n')"
PATIENT = Limits(20, 20, 20)
LOAD = choose_loads(())[0]


def small_plan(folder: Path, client: str, server: str = SERVER, limits: Limits = PATIENT) -> Plan:
    """Return a plan of two Python sources; the client gets its result file and the server's URL as arguments."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    result = folder / "bench.jsonl"
    (folder / "dumps").mkdir(exist_ok=True)
    return Plan(
        cell_id="e4b_trtllm_v1",
        folder=folder,
        url=url,
        server_command=(sys.executable, "-c", server, str(port), str(folder)),
        server_environment={},
        clients=(Client(LOAD, LOAD.toy, (sys.executable, "-c", client, str(result), url), result),),
        client_environment={},
        limits=limits,
    )


@contextlib.contextmanager
def closing_port(answer: bytes, resets: bool, reads_first: bool = True):
    """Listen on a port whose every connection gets `answer` and is closed, or reset; yields its URL."""

    def serve_all():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                if resets:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with connection:
                    if reads_first:
                        connection.recv(4096)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve_all, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
