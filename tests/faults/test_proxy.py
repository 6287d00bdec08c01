"""The proxy itself: what it opens it closes, or some later test pays for it."""

import gc
import socket

from tests.proxy import Proxy


def test_a_proxy_leaves_nothing_open(server):
    """Clients come and go while it ends; a socket left open is an error at the collection."""
    assert server.socket is not None
    for _ in range(20):
        with Proxy(server.socket) as proxy:
            clients = [socket.socket(socket.AF_UNIX) for _ in range(6)]
            for client in clients:
                client.connect(proxy.url.removeprefix("unix://").partition("?")[0])
                client.sendall(b"PING\r\n")
            for client in clients[:3]:
                assert client.recv(100) == b"+PONG\r\n"
            for client in clients:
                client.close()
    gc.collect()
