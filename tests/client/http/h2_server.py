"""A server that speaks HTTP/2 without TLS: it answers what its script says, or resets the stream."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

import h2.config
import h2.connection
import h2.errors
import h2.events


class H2Server:
    """Every request takes the next step of the script: a status, or None, which resets its stream."""

    def __init__(self, script: list[int | None]) -> None:
        self._script = list(script)
        self.keys: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def __enter__(self) -> Self:
        self._spawn(self._accept, self._listener)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _spawn(self, work: object, connection: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(connection,), daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            self._open.append(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        state.initiate_connection()
        with connection, suppress(OSError):
            connection.sendall(state.data_to_send())
            while received := connection.recv(65_536):
                for event in state.receive_data(received):
                    match event:
                        case h2.events.RequestReceived(headers=headers):
                            self.keys += [value.decode() for name, value in headers or () if name == b"idempotency-key"]
                        case h2.events.StreamEnded(stream_id=stream):
                            self._answer(state, stream)
                        case _:
                            pass
                connection.sendall(state.data_to_send())

    def _answer(self, state: h2.connection.H2Connection, stream: int) -> None:
        status = self._script.pop(0)
        if status is None:
            state.reset_stream(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)
        else:
            state.send_headers(stream, [(":status", str(status)), ("content-length", "2")])
            state.send_data(stream, b"ok", end_stream=True)
