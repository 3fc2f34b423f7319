"""The serving bench's client beside a small HTTP server: what is timed, counted and refused."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from gemma4_repro.bench.server import ServerLost, ServerProcess
from gemma4_repro.serving_bench import client
from gemma4_repro.serving_bench.agree import Told
from gemma4_repro.serving_bench.client import bodies_of, median_tpot_s, median_ttft_s, run_burst, told_of
from gemma4_repro.serving_bench.loads import Shape
from gemma4_repro.serving_bench.plan import ENCODER_LINES
from small_server import closing_port

SHORT = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda"
"""An answer that breaks off in its first piece."""
SHAPE = Shape("x 5/3", requests=2, prompt_tokens=5, new_tokens=3)


class Server(ServerProcess):
    """A server that is up already: no process of its own."""

    def __init__(self, url, folder):
        self.name, self.url, self.folder, self.log_path = "default", url, folder, folder / "server.log"
        self.arm = SimpleNamespace(id="default")
        self.log_path.write_text("the last line of its log\n")


@pytest.fixture
def serve(tmp_path):
    """Return what starts a server whose /generate answers with what `reply` makes of the request's body."""
    started = []

    def start(reply):
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append((self.path, body))
                self.send_response(200)
                self.end_headers()
                if self.path.startswith("/generate"):
                    for line in reply(body):
                        self.wfile.write(line.encode() + b"\n")

        asked: list[tuple[str, dict]] = []
        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        started.append(http)
        return Server(f"http://127.0.0.1:{http.server_address[1]}", tmp_path), asked

    yield start
    for http in started:
        http.shutdown()
        http.server_close()


def event(tokens, **more):
    return "data: " + json.dumps({"meta_info": {"prompt_tokens": 5, "completion_tokens": tokens} | more})


def burst_of(server, shape=SHAPE):
    return run_burst(server, "e4b", shape, 1, bodies_of(shape, 1, server.folder), 20)


class TestBurst:
    def test_tokens_and_times_are_those_of_the_stream(self, serve):
        gap_s = 0.2

        def reply(body):
            yield event(1)
            yield ""
            threading.Event().wait(gap_s)
            yield event(3)
            yield "data: [DONE]"

        server, asked = serve(reply)
        burst = burst_of(server)
        assert (burst.tokens, burst.accepted, burst.round) == (2 * (5 + 3), None, 1)
        assert len(burst.ttft_s) == 2
        # Two tokens after the first, in a fifth of a second.
        assert median_tpot_s(burst) >= 0.8 * gap_s / 2
        assert median_ttft_s(burst) <= burst.wall_s - 0.8 * gap_s
        assert asked[0][0].startswith("/flush_cache"), "no request finds the prompt of another round in the cache"
        prompts = [body["input_ids"] for path, body in asked if path == "/generate"]
        assert [len(prompt) for prompt in prompts] == [5, 5]
        assert prompts[0] != prompts[1]

    def test_accepted_tokens_are_per_verification(self, serve):
        server, _ = serve(lambda body: [event(1), event(3, spec_verify_ct=1)])
        assert burst_of(server).accepted == 2.0

    @pytest.mark.parametrize(
        ("lines", "why"),
        [
            ([event(2)], r"answered with \[2, 2\] tokens"),
            ([], "the answer has no token"),
            (['data: {"error": {"message": "too long"}}'], "too long"),
            (["data: {cut off"], "/generate: "),
        ],
        ids=["too short", "no token", "refused", "cut off"],
    )
    def test_an_answer_that_is_none_loses_the_server(self, serve, lines, why):
        server, _ = serve(lambda body: lines)
        with pytest.raises(ServerLost, match=why) as lost:
            burst_of(server)
        assert "the last line of its log" in str(lost.value)

    def test_a_server_that_is_gone_is_lost(self, tmp_path):
        with pytest.raises(ServerLost, match="refused"):
            burst_of(Server("http://127.0.0.1:9", tmp_path), Shape("x", 1, 5, 3))


@pytest.mark.parametrize("answer", [b"no HTTP\r\n\r\n", b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\n", SHORT])
def test_what_is_no_answer_of_http_loses_the_server(tmp_path, answer):
    with closing_port(answer, resets=False) as url:
        server = Server(url, tmp_path)
        with pytest.raises(ServerLost, match="/server_info: "):
            server.ask("/server_info")
        with pytest.raises(ServerLost, match="/generate: "):
            client._stream(server, {}, 0.0, 20)


def test_a_port_that_speaks_no_http_is_not_ready(tmp_path):
    with closing_port(b"no HTTP\r\n\r\n", resets=False) as url:
        server = Server(url, tmp_path)
        server._process = SimpleNamespace(poll=lambda: None)
        assert not server.is_ready()


class TestRequests:
    def test_a_round_has_the_same_for_every_arm_and_others_than_the_next(self, tmp_path):
        assert bodies_of(SHAPE, 1, tmp_path) == bodies_of(SHAPE, 1, tmp_path)
        assert bodies_of(SHAPE, 1, tmp_path) != bodies_of(SHAPE, 2, tmp_path)

    def test_pieces_of_several_tokens_are_asked_for(self, tmp_path):
        shape = Shape("x", 1, 5, 128, stream_every=64)
        assert bodies_of(shape, 1, tmp_path)[0]["sampling_params"]["stream_interval"] == 64
        assert "stream_interval" not in bodies_of(SHAPE, 1, tmp_path)[0]["sampling_params"]

    def test_pictures_lie_in_the_folder_and_stay_what_they_are(self, tmp_path):
        shape = Shape("x", requests=2, prompt_tokens=3, new_tokens=1, pictures=2)
        bodies = bodies_of(shape, 1, tmp_path)
        files = [path for body in bodies for path in body["image_data"]]
        assert len(set(files)) == 4
        assert all(body["text"].count("<|image|>") == 2 for body in bodies)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert len(set(before.values())) == 4
        assert bodies_of(shape, 1, tmp_path) == bodies
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


class TestAnswers:
    @pytest.mark.parametrize("compared", [1, 2])
    def test_what_is_compared(self, serve, compared):
        shape = Shape("x", 2, 5, 3, compared=compared)

        def reply(body):
            places = [[[-0.5, token, None] for token in body["token_ids_logprob"]]] * compared
            chosen = [[-0.1, 7 + place, None] for place in range(compared)]
            yield json.dumps({"meta_info": {"output_token_logprobs": chosen, "output_token_ids_logprobs": places}})

        server, asked = serve(reply)
        told = told_of(server, shape, bodies_of(shape, 0, server.folder), vocabulary=1024, limit_s=20)
        likely = tuple([-0.5] * client._LIKELY)
        wanted = Told(tuple(range(7, 7 + compared)), (likely,) * compared)
        assert told == [wanted, wanted]
        bodies = [body for path, body in asked if path == "/generate"]
        assert all(body["sampling_params"]["max_new_tokens"] == compared and not body["stream"] for body in bodies)
        assert bodies[0]["token_ids_logprob"] == list(range(0, 1024, 4))

    def test_of_the_encoder_its_last_line_counts(self, serve):
        server, asked = serve(lambda body: [])
        lines = [
            {"seconds": [9.0], "soft_tokens": 1, "values": [0.0]},
            {"seconds": [1.0, 3.0, 2.0], "soft_tokens": 280},
        ]
        lines[1]["values"] = [0.25, 0.5]
        (server.folder / ENCODER_LINES).write_text("".join(json.dumps(line) + "\n" for line in lines))
        shape = Shape("p", 1, 0, 0, pictures=1, encoder="gemma4_bench.encode")
        burst = burst_of(server, shape)
        assert (burst.wall_s, burst.ttft_s, burst.tokens, burst.tpot_s) == (2.0, (2.0,), 280, ())
        (told,) = told_of(server, shape, [], 1024, 20)
        assert told.logprobs == ((0.25, 0.5),)
        path, body = asked[0]
        assert (path, body["load_format"]) == ("/update_weights_from_tensor", "gemma4_bench.encode")
        assert body["disable_draft_model"]
