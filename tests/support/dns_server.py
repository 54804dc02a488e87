"""A server of DNS with a few names, in a network of its own; and what a look-up of each of them gives there."""

import fcntl
import json
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence

from sluice.gateway.cluster.dns import look_up

PORT = 53
_A, _NO_SUCH_NAME = 1, 3
_HEADER = struct.Struct(">6H")
_IS_ANSWER = 0x8580
"""Flags: an answer with authority, to a recursive question."""
_SIOCSIFFLAGS, _UP = 0x8914, 1


class DnsServer:
    """Answers on the loopback with the IPv4 addresses of `names`; an empty list is a name without any."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._names = names
        self._is_closed = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", PORT))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._socket.sendto(b"", self._socket.getsockname())  # which wakes the thread
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            question, sender = self._socket.recvfrom(512)
            if self._is_closed:
                return
            self._socket.sendto(self._answer(question), sender)

    def _answer(self, message: bytes) -> bytes:
        number = _HEADER.unpack_from(message)[0]
        labels, position = [], _HEADER.size
        while length := message[position]:
            labels.append(message[position + 1 : position + 1 + length].decode())
            position += 1 + length
        question = message[_HEADER.size : position + 5]
        (kind,) = struct.unpack_from(">H", message, position + 1)
        addresses = self._names.get(".".join(labels))
        found = [] if addresses is None or kind != _A else addresses
        # Each record has the name of the question, the type A, the class IN and no time to live.
        records = [struct.pack(">3HIH4s", 0xC00C, _A, 1, 0, 4, socket.inet_aton(each)) for each in found]
        flags = _IS_ANSWER | (_NO_SUCH_NAME if addresses is None else 0)
        return _HEADER.pack(number, flags, 1, len(records), 0, 0) + question + b"".join(records)


def _bring_loopback_up() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _UP))


def main() -> None:
    """Print what a look-up of each name in the arguments gives, as JSON: of a server that answers, then without one."""
    names = json.loads(sys.argv[1])
    _bring_loopback_up()
    server = DnsServer({name: addresses for name, addresses in names.items() if addresses is not None})
    answered = {name: look_up(name, 9001) for name in names}
    server.close()
    try:
        unanswered = str(look_up(next(iter(names)), 9001))
    except OSError as error:
        unanswered = type(error).__name__
    print(json.dumps({"answered": answered, "unanswered": unanswered}))


if __name__ == "__main__":
    main()
