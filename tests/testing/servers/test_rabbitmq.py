"""A private RabbitMQ keeps what it has confirmed, and is installed only when somebody asks for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from onefold.testing.servers import PrivateRabbitmq, PrivateServer, ServerUnavailable, install_rabbitmq
from onefold.testing.servers import _rabbitmq as rabbitmq
from tests.support.patience import PATIENCE_S
from tests.testing.servers.processes import AS_ROOT, NOBODY, family, is_alive, mentioning, users


@asynccontextmanager
async def channel(server: PrivateRabbitmq) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(server.url) as connection:
        yield await connection.channel(on_return_raises=True)


async def test_what_was_confirmed_survives_a_kill_and_the_end_leaves_nothing(
    started: Callable[[PrivateServer], None],
) -> None:
    server = PrivateRabbitmq()
    started(server)
    async with channel(server) as first:
        await first.declare_queue("payments", durable=True)
        for number in range(100):
            message = aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await first.default_exchange.publish(message, "payments")
    directory, processes = server.directory, family(server.pid)
    assert users(processes[1:]) == {NOBODY if AS_ROOT else os.geteuid()}
    server.kill()
    assert [pid for pid in processes if is_alive(pid)] == []
    server.restart()
    async with channel(server) as second:
        queue = await second.declare_queue("payments", durable=True)
        # Not `get`: a server that has just started may say for a moment that there is nothing.
        async with queue.iterator(no_ack=True, timeout=PATIENCE_S) as messages:
            assert [(await anext(messages)).body for _ in range(100)] == [b"%d" % number for number in range(100)]
    server.stop()
    assert mentioning(directory) == []
    assert not directory.exists()


def test_where_it_is_not_installed_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "_PROGRAM", tmp_path / "rabbitmq-server")
    with pytest.raises(ServerUnavailable, match=r"rabbitmq-server is not there.*install_rabbitmq\(\)"):
        PrivateRabbitmq().start()


def test_where_there_is_no_apt_it_cannot_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq, "_PROGRAM", tmp_path / "rabbitmq-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="apt-get"):
        install_rabbitmq()


class TestWhileItIsInstalled:
    """Debian's policy file decides whether the service is started."""

    @pytest.fixture(autouse=True)
    def policy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "policy-rc.d"
        monkeypatch.setattr(rabbitmq, "_POLICY", path)
        return path

    def test_no_service_is_started(self, policy: Path) -> None:
        with rabbitmq._no_service_is_started():
            assert subprocess.run([policy, "rabbitmq-server", "start"], check=False).returncode == 101
        assert not policy.exists()

    def test_a_policy_that_says_no_is_left_alone(self, policy: Path) -> None:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        with rabbitmq._no_service_is_started():
            assert policy.read_text() == "#!/bin/sh\nexit 101\n"
        assert policy.exists()

    def test_a_policy_that_says_yes_is_not_overruled(self, policy: Path) -> None:
        policy.write_text("#!/bin/sh\nexit 0\n")
        policy.chmod(0o755)
        with pytest.raises(ServerUnavailable, match=str(policy)), rabbitmq._no_service_is_started():
            pass
