# SPDX-License-Identifier: GPL-3.0-or-later
"""A real gRPC server that answers as a container engine does, from messages made by hand. It knows nothing of the product."""

import json
from concurrent import futures

V1 = "runtime.v1.RuntimeService"


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number, value):
    """One field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def version(text="1.6.20~ds1", name="containerd"):
    return field(1, "0.1.0") + field(2, name) + field(3, text) + field(4, "v1")


def condition(name, holds, reason="", message=""):
    return field(1, field(1, name) + (field(2, 1) if holds else b"") + field(3, reason) + field(4, message))


def info(key, value):
    return field(2, field(1, key) + field(2, value))


def pod(name, handler, *, ready=True, uid="a"):
    names = field(2, field(1, name) + field(3, "space"))
    return field(1, field(1, f"id-{name}-{uid}") + names + field(3, 0 if ready else 1) + field(7, handler))


def status(config=None, *, handlers=(), ready=True):
    """A StatusResponse; ``config``: what stands in the verbose answer."""
    answer = field(1, condition("RuntimeReady", ready, "" if ready else "Why", "" if ready else "not yet"))
    answer += info("config", json.dumps(config)) if config is not None else b""
    return answer + b"".join(field(3, field(1, name)) for name in handlers)


class Server:
    """``answers``: {method: bytes, or function(request, context) -> bytes}; ``seen``: [(service, method, request)]."""

    def __init__(self, path, answers, services=(V1,)):
        import grpc

        self.path = str(path)
        self.seen = []
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        for service in services:
            methods = {method: self._handler(service, method, answer) for method, answer in answers.items()}
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
        assert self._server.add_insecure_port("unix:" + self.path)
        self._server.start()

    def _handler(self, service, method, answer):
        import grpc

        def call(request, context):
            self.seen.append((service, method, request))
            return answer(request, context) if callable(answer) else answer

        return grpc.unary_unary_rpc_method_handler(call)

    def stop(self):
        self._server.stop(0).wait()
