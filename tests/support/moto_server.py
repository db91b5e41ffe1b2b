"""A private moto: one process that speaks SQS and DynamoDB. It proves plumbing, not atomicity: its conditional puts
take no lock, and it keeps nothing over a kill. It is a normal requirement of the tests: without it they fail."""

from __future__ import annotations

import functools
import sys
from typing import Any

import boto3

from onefold.testing.fault_proxy import HOST
from onefold.testing.servers import PrivateServer
from onefold.testing.servers._process import Launch, get

REGION = "eu-central-1"


class PrivateMoto(PrivateServer):
    """One moto: `with PrivateMoto() as server: server.session.client("sqs", endpoint_url=server.url)`."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @functools.cached_property
    def session(self) -> boto3.Session:
        """Credentials that open nothing. One session: each reads the descriptions of the services anew."""
        return boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing", region_name=REGION)

    def client(self, service: Any) -> Any:
        return self.session.client(service, endpoint_url=self.url)

    def _launch(self) -> Launch:
        return Launch(command=[sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)])

    def _answer(self) -> str | None:
        return None if get(self.port, "/moto-api/data.json") else "it has not answered"
