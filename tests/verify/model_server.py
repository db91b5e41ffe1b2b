"""The API in memory, behind a socket. How often it has run stands in a file, for a command to read."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path

from onefold._verify.http_port import ProbeRequest
from tests.support.patience import PATIENCE_S
from tests.verify.model_api import Begun, ModelApi


@contextmanager
def serving(api: ModelApi, counter: Path | None = None, *, groups: Sequence[int] = ()) -> Iterator[str]:
    """The address, while the block lasts. `groups`: so many requests, in the order in which they come, meet: none of
    them is finished before all have begun."""
    begun = threading.Condition()
    ends = [end for size, end in zip(groups, accumulate(groups), strict=True) for _ in range(size)]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            lines = tuple((name, value.encode("latin-1")) for name, value in self.headers.raw_items())
            own = tuple(line for line in lines if line[0].lower() not in ("host", "connection", "content-length"))
            with begun:
                answer = api.begin(ProbeRequest(method="POST", url=self.path, headers=own, body=body))
                begun.notify_all()
                if isinstance(answer, Begun):
                    end = ends[len(api.requests) - 1] if len(api.requests) <= len(ends) else 0
                    begun.wait_for(lambda: len(api.requests) >= end, PATIENCE_S)
                    answer = api.finish(answer)
                    if counter is not None:
                        counter.write_text(f"{api.count()}\n")
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value.decode("latin-1"))
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None: ...

    if counter is not None:
        counter.write_text("0\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
