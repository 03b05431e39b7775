# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One gRPC call with one answer, over a unix socket, in the standard library. Private to the collection.

A node has no grpcio. What is needed of HTTP/2 (RFC 9113), HPACK (RFC 7541) and gRPC's mapping onto them is little: one connection, one
stream, one small request. The peer is told that we keep no HPACK table, so each header block stands for itself.
"""

import contextlib
import os
import socket
import struct
import time

from ansible_collections.npu.fleet.plugins.module_utils._hpack import HpackError, decode, encode

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE = 1, 2, 4

STREAM = 1
WINDOW = 1 << 20  # bytes that the peer may send ahead
MAX_FRAME = 1 << 14  # the largest frame that a peer may send unless told otherwise
MAX_ANSWER = 16 << 20  # containerd's own limit (max_send_message_size)
MAX_PATH = 107  # bytes of a unix socket's path
OK, UNKNOWN, DEADLINE_EXCEEDED, FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 0, 2, 4, 9, 12, 13, 14


class GrpcError(Exception):
    """A call that did not succeed: ``status`` (gRPC's number), ``message`` (the server's words, or ours about the connection)."""

    def __init__(self, status, message):
        super(GrpcError, self).__init__(message)
        self.status = status
        self.message = message


def unary(path, method, request, timeout, *, metadata=()):
    """Send ``request`` (bytes of a message) to ``method`` (``/package.Service/Method``) at the socket ``path``; return the answer's bytes.

    ``metadata``: further headers, ``(name, value)``. Raises GrpcError; UNAVAILABLE for a socket that is gone or closes, DEADLINE_EXCEEDED
    after ``timeout`` seconds, INTERNAL for an answer that is no gRPC.
    """
    deadline = time.monotonic() + timeout
    try:
        with contextlib.closing(connect(path, timeout)) as connection:
            return _Call(connection, deadline).run(method, request, timeout, metadata)
    except socket.timeout as error:
        raise GrpcError(DEADLINE_EXCEEDED, "no answer within %g s" % timeout) from error
    except OSError as error:
        raise GrpcError(UNAVAILABLE, error.strerror or str(error)) from error
    except (HpackError, struct.error) as error:
        raise GrpcError(INTERNAL, "the answer is no gRPC: %s" % error) from error


def connect(path, timeout):
    """Return a connected unix socket; OSError when that fails."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        if len(os.fsencode(path)) <= MAX_PATH:
            connection.connect(path)
            return connection
        # A long path is reached through its folder.
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
        try:
            connection.connect("/proc/self/fd/%d/%s" % (folder, os.path.basename(path)))
        finally:
            os.close(folder)
        return connection
    except BaseException:
        connection.close()
        raise


def frame(kind, flags, stream, payload=b""):
    """Return the bytes of one HTTP/2 frame."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


class _Call(object):
    """One call on a connection of its own."""

    def __init__(self, connection, deadline):
        self._connection = connection
        self._deadline = deadline
        self._buffer = b""
        self._headers = {}
        self._body = bytearray()
        self._ended = False

    def run(self, method, request, timeout, metadata):
        self._send(PREFACE + self._opening() + self._request(method, request, timeout, metadata))
        while not self._ended:
            self._take(*self._frame())
        return self._answer()

    # --- sending ---

    def _opening(self):
        settings = [(HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, WINDOW)]
        payload = b"".join(struct.pack("!HI", name, value) for name, value in settings)
        return frame(SETTINGS, 0, 0, payload) + frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", WINDOW))

    def _request(self, method, request, timeout, metadata):
        headers = encode([
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "npu-fleet"),
            ("grpc-timeout", "%dm" % max(1, int(timeout * 1000))),
        ] + list(metadata))
        message = b"\0" + struct.pack("!I", len(request)) + request
        return frame(HEADERS, END_HEADERS, STREAM, headers) + frame(DATA, END_STREAM, STREAM, message)

    def _send(self, data):
        self._connection.settimeout(self._left())
        self._connection.sendall(data)

    def _left(self):
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("deadline")
        return left

    # --- receiving ---

    def _exactly(self, count):
        while len(self._buffer) < count:
            self._connection.settimeout(self._left())
            data = self._connection.recv(65536)
            if not data:
                raise GrpcError(UNAVAILABLE, "the server closed the connection before its answer was complete")
            self._buffer += data
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _frame(self):
        head = self._exactly(9)
        length = struct.unpack("!I", b"\0" + head[:3])[0]
        if length > MAX_FRAME:
            raise GrpcError(INTERNAL, "the answer is no gRPC: a frame of %d bytes" % length)
        kind, flags, stream = struct.unpack("!BBI", head[3:])
        return kind, flags, stream & 0x7FFFFFFF, self._exactly(length)

    def _take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            self._send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._send(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            last, code = struct.unpack("!II", payload[:8])
            if last & 0x7FFFFFFF < STREAM:
                raise GrpcError(UNAVAILABLE, "the server refused the connection (HTTP/2 error %d)" % code)
        elif stream == STREAM:
            self._take_stream(kind, flags, payload)

    def _take_stream(self, kind, flags, payload):
        if kind == HEADERS:
            self._take_headers(flags, payload)
        elif kind == DATA:
            self._body += _unpadded(flags, payload)
            if len(self._body) > MAX_ANSWER:
                raise GrpcError(INTERNAL, "the answer has more than %d bytes" % MAX_ANSWER)
            if payload:
                # What has been read makes room again, for the stream and for the connection.
                room = struct.pack("!I", len(payload))
                self._send(frame(WINDOW_UPDATE, 0, STREAM, room) + frame(WINDOW_UPDATE, 0, 0, room))
            self._ended = bool(flags & END_STREAM)
        elif kind == RST_STREAM:
            raise GrpcError(UNAVAILABLE, "the server broke off the call (HTTP/2 error %d)" % struct.unpack("!I", payload[:4])[0])

    def _take_headers(self, flags, payload):
        block = _unpadded(flags, payload)
        if flags & PRIORITY:
            block = block[5:]
        ended, whole = flags & END_STREAM, flags & END_HEADERS
        while not whole:
            kind, flags, _stream, payload = self._frame()
            if kind != CONTINUATION or len(block) > MAX_ANSWER:
                raise GrpcError(INTERNAL, "the answer is no gRPC: headers break off")
            block += payload
            whole = flags & END_HEADERS
        self._headers.update(decode(block))
        self._ended = bool(ended)

    # --- the answer ---

    def _answer(self):
        http = self._headers.get(":status")
        status = self._headers.get("grpc-status", "")
        if not status.isdigit():
            raise GrpcError(UNKNOWN, "the server answered HTTP %s without a gRPC status" % http)
        if int(status) != OK:
            raise GrpcError(int(status), _percent_decoded(self._headers.get("grpc-message", "")) or "status %s" % status)
        if len(self._body) < 5:
            raise GrpcError(INTERNAL, "the answer has no message")
        compressed, length = struct.unpack("!BI", bytes(self._body[:5]))
        if compressed or length != len(self._body) - 5:
            raise GrpcError(INTERNAL, "the answer's message is compressed or incomplete")
        return bytes(self._body[5:])


def _unpadded(flags, payload):
    if not flags & PADDED:
        return payload
    padding = struct.unpack("!B", payload[:1])[0]
    return payload[1:len(payload) - padding]


def _percent_decoded(text):
    parts = text.split("%")
    data = parts[0].encode("utf-8", "replace")
    for part in parts[1:]:
        try:
            data += bytes(bytearray([int(part[:2], 16)])) + part[2:].encode("utf-8", "replace")
        except ValueError:
            data += b"%" + part.encode("utf-8", "replace")
    return data.decode("utf-8", "replace")
