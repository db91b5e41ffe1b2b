"""librdkafka's mock cluster as a process of its own, on the ports it is told: run as a program by `kafka`.

Invariant: it listens, and names its brokers, at those ports and no others, so that one started after a SIGKILL is
found where the last one was.

The mock can only be made on ports of its own choice. So each of its listening sockets is exchanged, under the same
file descriptor, for one of ours, and its brokers are told to go by that port. It is made through the C library that
is in the wheel confluent-kafka: the Python client can start a mock but not tell it anything.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from typing import Final

_PRODUCER: Final = 0
_REBALANCE_DELAY_MS: Final = 50  # The default, three seconds, is what a group's first member would wait for others.


def serve(library: str, host: str, ports: list[int]) -> None:
    """Make a cluster of one broker for each port, and hold it until a signal ends this process."""
    rdkafka = ctypes.CDLL(library)
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(rdkafka, function).restype = ctypes.c_void_p
    rdkafka.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    problem = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(rdkafka.rd_kafka_conf_new())
    client = ctypes.c_void_p(rdkafka.rd_kafka_new(_PRODUCER, settings, problem, ctypes.c_size_t(len(problem))))
    if client.value is None:
        sys.exit(f"librdkafka made no client: {problem.value.decode()}")
    cluster = ctypes.c_void_p(rdkafka.rd_kafka_mock_cluster_new(client, len(ports)))
    if cluster.value is None:
        sys.exit("librdkafka made no mock cluster")
    rdkafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, _REBALANCE_DELAY_MS)
    chosen = rdkafka.rd_kafka_mock_cluster_bootstraps(cluster).decode().split(",")
    descriptors = _listening()
    # First the names, then the sockets: a client that gets through to one broker is told where every other is.
    for broker, port in enumerate(ports, start=1):
        rdkafka.rd_kafka_mock_broker_set_host_port(cluster, broker, host.encode(), port)
    for theirs, port in zip(chosen, ports, strict=True):
        with socket.create_server((host, port)) as ours:  # With SO_REUSEADDR, as each taker of a reserved port must.
            ours.setblocking(False)
            os.dup2(ours.fileno(), descriptors[int(theirs.rpartition(":")[2])], inheritable=False)
    # No latency is what they have; but the order wakes the mock's thread, which still waits on the sockets of before.
    rdkafka.rd_kafka_mock_broker_set_rtt(cluster, 1, 0)
    signal.pause()


def _listening() -> dict[int, int]:
    """The file descriptors of this process that listen, by port."""
    found = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue  # Not a socket, or gone: the list's own descriptor.
        with copy:
            if copy.family == socket.AF_INET and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found[copy.getsockname()[1]] = descriptor
    return found


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], [int(port) for port in sys.argv[3:]])
