"""The tests' Temporal server runs without privileges, survives its own death, and leaves nothing."""

from __future__ import annotations

import os
from datetime import timedelta

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from onefold.testing.servers._process import get
from tests.support.temporal_server import PrivateTemporal
from tests.testing.servers.missing import unless_missing
from tests.testing.servers.processes import AS_ROOT, NOBODY, family, is_alive, mentioning, users


@workflow.defn
class Nap:
    @workflow.run
    async def run(self, seconds: float) -> str:
        await workflow.sleep(timedelta(seconds=seconds))
        return "rested"


async def test_a_workflow_outlives_the_servers_death_and_the_end_leaves_nothing() -> None:
    with unless_missing(PrivateTemporal), PrivateTemporal() as server:
        directory, processes = server.directory, family(server.pid)
        assert users(processes[1:]) == {NOBODY if AS_ROOT else os.geteuid()}
        client = await Client.connect(server.address)
        nap = await client.start_workflow(Nap.run, 0.01, id="nap", task_queue="naps")
        server.kill()
        assert [pid for pid in processes if is_alive(pid)] == []
        server.restart()
        assert get(server.ports[1], "/api/v1/namespaces/no-such-namespace") == ""
        async with Worker(client, task_queue="naps", workflows=[Nap], workflow_runner=UnsandboxedWorkflowRunner()):
            assert await nap.result() == "rested"
    assert mentioning(directory) == []
    assert not directory.exists()
