# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubelet's connection to one plugin socket."""

import grpc

from . import api, wire

VERSION = "v1beta1"
PRE_START_SECONDS = 30.0  # the only call to a plugin that has a deadline (measured)


class Failure(Exception):
    """A plugin did not do what it was asked, in kubelet's words."""


def encoder(schema):
    return lambda message: wire.encode(schema, message)


def decoder(schema):
    return lambda data: wire.decode(schema, data)


def words(error):
    """A gRPC error as Go prints it: `rpc error: code = Internal desc = …`."""
    code = error.code().name
    spelled = "Canceled" if code == "CANCELLED" else "".join(part.capitalize() for part in code.split("_"))
    return f"rpc error: code = {spelled} desc = {error.details()}"


class Client:
    """`note(method)` is told of each call."""

    def __init__(self, path, note):
        self.path, self.note = path, note
        # gRPC's own limit of 4 MiB for one message is kubelet's too.
        self.channel = grpc.insecure_channel(f"unix://{path}", options=[
            ("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1),
        ])
        self.connected, self.options = False, None
        self.stream = None  # open ListAndWatch call

    def method(self, name, request, response, stream=False):
        make = self.channel.unary_stream if stream else self.channel.unary_unary
        return make(f"/{VERSION}.DevicePlugin/{name}", encoder(request), decoder(response))

    def call(self, name, request_schema, response_schema, request, timeout=None):
        self.note(name)
        try:
            return self.method(name, request_schema, response_schema)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise Failure(words(error)) from error
        except ValueError as error:  # the connection was closed meanwhile
            raise Failure("rpc error: code = Canceled desc = grpc: the client connection is closing") from error

    def dial(self, seconds):
        """Wait until somebody listens, and ask for the options; no deadline for that answer (measured: 12 s are fine)."""
        try:
            grpc.channel_ready_future(self.channel).result(timeout=seconds)
        except grpc.FutureTimeoutError as error:
            raise Failure("failed to dial device plugin: context deadline exceeded") from error
        self.connected = True
        try:
            self.options = self.call("GetDevicePluginOptions", api.EMPTY, api.OPTIONS, {})
        except Failure as error:
            raise Failure(f"failed to get device plugin options: {error}") from error

    def preferred(self, available, must_include, size):
        request = {"available_deviceIDs": available, "must_include_deviceIDs": must_include, "allocation_size": size}
        try:
            answer = self.call("GetPreferredAllocation", api.PREFERRED_REQUEST, api.PREFERRED_RESPONSE, {"container_requests": [request]})
        except Failure as error:
            raise Failure(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        return answer["container_responses"][0]["deviceIDs"] if answer["container_responses"] else []

    def allocate(self, ids):
        request = {"container_requests": [{"devices_ids": ids}]}
        answer = self.call("Allocate", api.ALLOCATE_REQUEST, api.ALLOCATE_RESPONSE, request)
        if not answer["container_responses"]:
            raise Failure("no containers return in allocation response")
        return answer["container_responses"][0]

    def pre_start(self, ids):
        try:
            self.call("PreStartContainer", api.PRE_START, api.EMPTY, {"devices_ids": ids}, PRE_START_SECONDS)
        except Failure as error:
            raise Failure(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    def lists(self):
        """Each list that the plugin sends, until the stream ends. Failure when it does not end well."""
        self.note("ListAndWatch")
        try:
            self.stream = self.method("ListAndWatch", api.EMPTY, api.DEVICES, stream=True)({})
            for message in self.stream:
                yield message["devices"]
        except grpc.RpcError as error:
            raise Failure(words(error)) from error
        except ValueError as error:
            raise Failure("the client connection is closing") from error
        finally:
            self.stream = None

    def end(self):
        """Give the stream up, as a kubelet does that has lost its mind."""
        stream = self.stream
        if stream is not None:
            stream.cancel()

    def disconnect(self):
        """Close the connection, if there is one: a client that is being dialled knows of none yet, and goes on (source)."""
        if self.connected:
            self.channel.close()

    def close(self):
        self.channel.close()
