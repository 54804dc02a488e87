"""Mutated requests against a real server: none is answered with a fault of the server, none hangs, memory stays flat.

Whole requests of many kinds are changed at random: bytes are replaced, removed, repeated and cut off, lines are
doubled, numbers get other sizes. Over HTTP each goes over a raw connection, which is used again as long as the server
keeps it open. Over gRPC half of them are frames of HTTP/2 on raw connections, and half are messages in calls of
grpcio. Each is followed by the end of what the client sends, so that the server answers or closes.
"""

import argparse
import asyncio
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import uvloop
from tritonclient.grpc import service_pb2

from benchmarks.support.closed_loop import grpc_request, http_request
from benchmarks.support.figures import Figure, show
from benchmarks.support.processes import ServerProcess, gateway
from sluice.models.tensors.spec import DataType
from tests.support.models.onnx_models import save_identity

CLIENTS = 32
"""Requests under way at a time."""
ANSWER_S = 20.0
"""An answer that takes longer hangs; the objective of a request is one second."""
FLAT_MB = 16.0
"""By how much the memory of the server's process may grow after the first tenth."""
METHODS = "ModelInfer", "ModelMetadata", "ModelConfig", "ModelStatistics", "RepositoryIndex", "ServerLive"
INFER = "/inference.GRPCInferenceService/"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INTERNAL = grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED

FAULTS_IN_FRAMES = b"internal error", b"Unexpected <class"
"""The reason for which a connection ends, and the beginning of a status, when the server has raised an error."""

EXPECTED = "501", "503"
"""The statuses for what Triton has and this server has not, and for more than it takes at a time."""

Mutate = Callable[[random.Random, bytes], bytes]
Send = Callable[[int, Iterator[int]], Coroutine[Any, Any, Counter[str]]]
"""Sends the requests of these seeds to a port, and counts what comes back; a fault of the server names its seed."""


def _with_body(path: str, body: bytes, *lines: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


JSON = b'{"id":"1","inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2.5,-3e3,4]}]}'
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(JSON), JSON)
HTTP_REQUESTS = [
    http_request("/v2/models/m/infer", "x", (1, 4)),
    http_request("/v2/models/m/versions/1/infer", "x", (3, 4)),
    _with_body("/v2/models/m/infer", JSON, "Content-Type: application/json", "Accept-Encoding: gzip"),
    _with_body("/v2/models/m/infer", JSON, "Expect: 100-continue"),
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    _with_body("/v2/repository/index", b'{"ready":true}', "Content-Type: application/json"),
    _with_body("/v2/logging", b'{"log_verbose_level":0}', "Content-Type: application/json"),
    b"GET /v2/models/m HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v2/models/m/stats HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"OPTIONS /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nOrigin: http://page.example\r\n\r\n",
]
NUMBERS = b"0", b"-1", b"1e400", b"NaN", b"18446744073709551616", b"2147483648", b"null", b'"\\ud800"', b"[]"


def _replace(source: random.Random, data: bytes) -> bytes:
    place = source.randrange(len(data))
    return data[:place] + source.randbytes(source.randint(1, 4)) + data[place + source.randint(0, 4) :]


def _remove(source: random.Random, data: bytes) -> bytes:
    place = source.randrange(len(data))
    return data[:place] + data[place + source.randint(1, 40) :]


def _repeat(source: random.Random, data: bytes) -> bytes:
    place = source.randrange(len(data))
    return data[:place] + data[place : place + source.randint(1, 60)] * source.randint(1, 40) + data[place:]


def _cut(source: random.Random, data: bytes) -> bytes:
    return data[: source.randrange(len(data))]


def _double_line(source: random.Random, data: bytes) -> bytes:
    head, separator, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    lines.insert(source.randrange(len(lines) + 1), source.choice(lines))
    return b"\r\n".join(lines) + separator + body


def _other_number(source: random.Random, data: bytes) -> bytes:
    digits = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
    if not digits:
        return data
    place = source.choice(digits)
    return data[:place] + source.choice(NUMBERS) + data[place + 1 :]


def _swap(source: random.Random, data: bytes) -> bytes:
    other, place = source.choice(HTTP_REQUESTS), source.randrange(len(data))
    return data[:place] + other[source.randrange(len(other)) :]


MUTATIONS: tuple[Mutate, ...] = (_replace, _remove, _repeat, _cut, _double_line, _other_number, _swap)


def mutated(source: random.Random, data: bytes) -> bytes:
    """A request with a few changes; one in sixteen is as it was."""
    for _ in range(source.choice((0, *range(1, 4), *range(1, 4), *range(1, 4), *range(1, 4), 1, 1, 1))):
        data = source.choice(MUTATIONS)(source, data) or data
    return data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def http2_session(source: random.Random) -> bytes:
    """The frames of a session with a few calls, as a client sends them."""
    parts = [PREFACE, _frame(4, 0, 0, struct.pack(">HI", 3, 100))]
    for stream in range(1, 2 * source.randint(1, 4), 2):
        message = grpc_request("m", "x", (1, 4))
        block = b"\x83\x86" + _literal(b":path", (INFER + source.choice(METHODS)).encode())
        block += _literal(b":authority", b"h") + _literal(b"content-type", b"application/grpc")
        block += _literal(b"te", b"trailers")
        parts.append(_frame(1, 4, stream, block))
        parts.append(_frame(0, 1, stream, b"\0" + len(message).to_bytes(4, "big") + message))
        if source.random() < 0.3:
            others = _frame(3, 0, stream, bytes(4)), _frame(6, 0, 0, bytes(8)), _frame(8, 0, 0, bytes(4))
            parts.append(source.choice(others))
    return b"".join(parts)


class _Connection:
    """A raw connection; `ask` sends bytes and returns what comes until the server is silent or closes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, data: bytes, whole: Callable[[bytes], bool]) -> bytes:
        """The answer. The connection is used again if that is `whole`; else the client ends what it sends."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        answer = b""
        try:
            writer.write(data)
            async with asyncio.timeout(0.05):
                while not whole(answer):
                    if not (part := await reader.read(65536)):
                        break
                    answer += part
            if whole(answer) and not reader.at_eof():
                return answer
        except TimeoutError:
            pass
        except ConnectionError:
            self._abort()
            return answer
        try:
            writer.write_eof()
            async with asyncio.timeout(ANSWER_S):
                while part := await reader.read(65536):
                    answer += part
        except (ConnectionError, OSError):
            pass
        self._abort()
        return answer

    def _abort(self) -> None:
        assert self._streams is not None
        _, writer = self._streams
        # Without the state TIME_WAIT, in which ports would run out.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        self._streams = None


def _is_whole(answer: bytes) -> bool:
    head, separator, body = answer.partition(b"\r\n\r\n")
    length = next((line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
    closes = b"connection: close" in head.lower() or answer.startswith(b"HTTP/1.1 100")
    return bool(separator) and length is not None and not closes and len(body) == int(length)


async def over_http(port: int, seeds: Iterator[int]) -> Counter[str]:
    """Send mutated requests on one connection after the other; counts the statuses."""
    connection, counts = _Connection(port), Counter[str]()
    for seed in seeds:
        source = random.Random(seed)
        try:
            answer = await connection.ask(mutated(source, source.choice(HTTP_REQUESTS)), _is_whole)
        except TimeoutError:
            counts[f"hung, seed {seed}"] += 1
            connection = _Connection(port)
            continue
        status = answer[9:12].decode("ascii", "replace") if answer.startswith(b"HTTP/1.1 ") else "closed"
        counts[f"{status}, seed {seed}" if status.startswith("5") and status not in EXPECTED else status] += 1
    return counts


async def over_http2(port: int, seeds: Iterator[int]) -> Counter[str]:
    """Send mutated sessions of HTTP/2, each on a connection of its own."""
    counts = Counter[str]()
    for seed in seeds:
        source = random.Random(seed)
        session = http2_session(source)
        data = session[:24] + mutated(source, session[24:]) if source.random() < 0.95 else mutated(source, session)
        try:
            answer = await _Connection(port).ask(data, lambda answer: False)
        except TimeoutError:
            counts[f"hung, seed {seed}"] += 1
        else:
            fault = next((each.decode() for each in FAULTS_IN_FRAMES if each in answer), None)
            counts[f"{fault}, seed {seed}" if fault else "frames" if answer else "closed"] += 1
    return counts


async def over_grpc(port: int, seeds: Iterator[int]) -> Counter[str]:
    """Send calls with mutated messages; counts the statuses."""
    counts = Counter[str]()
    messages = [grpc_request("m", "x", (1, 4)), service_pb2.ModelMetadataRequest(name="m").SerializeToString()]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for seed in seeds:
            source = random.Random(seed)
            call = channel.unary_unary(INFER + source.choice(METHODS), None, None)
            try:
                await call(mutated(source, source.choice(messages)), timeout=ANSWER_S)
                counts["OK"] += 1
            except grpc.aio.AioRpcError as error:
                code = error.code()
                counts[f"{code.name}, seed {seed}" if code in INTERNAL else code.name] += 1
    return counts


def run(send: Send, port: int, seeds: range) -> Counter[str]:
    """Send the requests of these seeds from several clients."""

    async def all_clients() -> Counter[str]:
        numbers = iter(seeds)
        return sum(await asyncio.gather(*(send(port, numbers) for _ in range(CLIENTS))), Counter[str]())

    return uvloop.run(all_clients())


def figures(server: ServerProcess, send: Send, port: int, first: int, count: int) -> Iterator[Figure]:
    """The counts of answers, and the memory after a tenth and at the end."""
    began_s = time.monotonic()
    counts = run(send, port, range(first, first + count // 10))
    early_mb = server.rss_mb()
    counts += run(send, port, range(first + count // 10, first + count))
    grown_mb = server.rss_mb() - early_mb
    wrong = {what: number for what, number in counts.items() if "seed" in what}
    common = ", ".join(f"{what} {number}" for what, number in counts.most_common(8) if "seed" not in what)
    yield Figure("requests", f"{counts.total()} in {time.monotonic() - began_s:.0f} s")
    yield Figure("answers", common)
    yield Figure("faults of the server", f"{sum(wrong.values())} {list(wrong)[:5] if wrong else ''}", "0", not wrong)
    memory = f"{early_mb:.0f} MB; {grown_mb:+.1f} MB"
    yield Figure("memory after a tenth; growth", memory, f"<= {FLAT_MB:g} MB", grown_mb <= FLAT_MB)


def main() -> int:
    """Print the figures of each protocol; returns 2 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--http", type=int, default=1_000_000, metavar="COUNT")
    parser.add_argument("--grpc", type=int, default=100_000, metavar="COUNT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", default="", help="more lines of the server's configuration")
    chosen = parser.parse_args()
    met = True
    with TemporaryDirectory() as name:
        model = save_identity(Path(name) / "models" / "m" / "1" / "model.onnx", DataType.FP32, (4,))
        config = "partitions: 1\n" + chosen.config.replace("\\n", "\n") + "\n"
        repository = str(model.parents[2])
        with gateway(Path(name), config, None, "--repository", repository, "--log-level", "error") as server:
            for label, send, port, count in (
                ("HTTP", over_http, server.http_port, chosen.http),
                ("HTTP/2", over_http2, server.grpc_port, chosen.grpc // 2),
                ("gRPC", over_grpc, server.grpc_port, chosen.grpc // 2),
            ):
                met = show(label, figures(server, send, port, chosen.seed, count)) and met
    return 0 if met else 2


if __name__ == "__main__":
    raise SystemExit(main())
