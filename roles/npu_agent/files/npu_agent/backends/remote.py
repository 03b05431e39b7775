# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices behind the network: `endpoints` declares them, each is one id, and a container gets the address in its environment.

    backend: remote
    endpoints:
      - {resource: example.com/npu-server, name: rack7-0, address: "10.0.0.7:8500", envs: {NPU_URL: "grpc://{address}"}}

Health is a TCP connection that comes about within `query_timeout`, made anew each `poll_seconds` and closed at once: nothing is sent, and
no proxy is asked. Each endpoint has a thread of its own, so that one that hangs (or whose name cannot be resolved) holds up no other.
Values of variables may be tokens: they are in no log, in no record and in no error.
"""

import contextlib
import errno
import os
import re
import select
import socket
import threading
import time

from .. import nodes
from .base import Backend, Looker, Refused, Sight, merged, on_host, pattern, record
from .declared import NUMBERED, canonical, endpoint_id

WHERE = "NPU_FLEET_ENDPOINTS"  # NAME=HOST:PORT of each, with commas between
ADDRESSES = 8  # of one name, that are tried
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # our own want, which says nothing of the endpoint


class Remote(Backend):
    name = "remote"

    def looker(self, settings, watch=None, **more):
        return Observer(settings, watch, **more)

    def places(self, settings):
        return [(settings.dev_root, re.compile("|".join({re.escape(path.split("/")[2]) + r"\Z" for entry in settings.endpoints
                                                         for path in entry["nodes"]}) or r"(?!)"))]

    def ids(self, settings):
        return pattern(sorted({re.escape(prefix_of(entry)) for entry in settings.endpoints}, key=len, reverse=True))

    def give(self, chips, settings):
        devices, variables, places = {}, [], []
        for chip in chips:
            entry = next((one for one in settings.endpoints if one["address"] == chip.pci_address), None)
            why = lacking(entry, settings) if entry else "`endpoints` does not name it any more"
            if entry is None or why:
                raise Refused(f"{chip.id} cannot be given: {why}; see `npu-agent discover` on this node")
            devices.update((on_host(path, settings), path) for path in entry["nodes"])
            variables += [(name, filled(value, entry)) for name, value in entry["envs"].items()]
            places.append(f"{entry['name']}={entry['address']}")
        return {"envs": {WHERE: ",".join(places), **merged(variables)}, "devices": list(devices.items()), "mounts": [], "cdi": []}


def prefix_of(entry):
    match = NUMBERED.match(endpoint_id(entry["name"]))
    return f"{match.group(1)}-" if match else ""


def host_and_port(entry):
    host, _colon, port = entry["address"].rpartition(":")
    return host.strip("[]"), int(port)


def filled(value, entry):
    """A variable's value, with the endpoint's own words in it."""
    host, port = host_and_port(entry)
    words = {"{address}": entry["address"], "{host}": host, "{port}": str(port), "{name}": entry["name"]}
    return re.sub("|".join(map(re.escape, words)), lambda match: words[match.group()], value)


def lacking(entry, settings):
    """Which of its nodes is none on this host, "" where all are."""
    paths = [on_host(path, settings) for path in entry["nodes"]]
    bad = [path for path in paths if nodes.number_of(path) is None]
    return f"there is no device node {bad[0]}, which its `nodes` names" if bad else ""


class Knocker:
    """Tries one endpoint again and again, in a thread of its own. `began`: when the try that runs now did, None between two.

    told: (when that try began, why there was no connection or ""), of the last one that is over; None before. changed: called when it
    says something else.
    """

    def __init__(self, entry, settings, changed, clock):
        self.entry, self.settings, self.changed, self.clock = entry, settings, changed, clock
        self.told = self.began = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, name="endpoint", daemon=True)

    def run(self):
        while not self.over.is_set():
            self.turn()
            self.over.wait(self.settings.poll_seconds)

    def turn(self):
        began = self.began = self.clock()
        seconds = self.settings.query_timeout
        try:
            host, port = host_and_port(self.entry)
            why = knock(host, port, seconds)
            if why == "" and self.clock() - began > seconds:
                why = too_late(seconds)  # it may have been told as such meanwhile, and shall not change its mind with each try
        except Exception as error:  # a fault of ours must not end the thread: the endpoint would keep its state for ever
            why = repr(error)
        before, self.told, self.began = self.told, self.told if why is None else (began, why), None
        if why is not None and (before is None or before[1] != why):
            self.changed()


def too_late(seconds):
    return f"no connection within {seconds:g} s"


def knock(host, port, seconds, clock=time.monotonic):
    """"" when a connection came about, else why not; None: that is not known. A name may have several addresses: all are tried at once,
    and the time is for all of them together, with what the name takes."""
    end = clock() + seconds
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return f"the name {host} cannot be resolved: {error.strerror}"
    with contextlib.ExitStack() as opened:
        tries, codes = {}, []
        for family, kind, protocol, _name, place in found[:ADDRESSES]:
            try:
                one = opened.enter_context(socket.socket(family, kind, protocol))
                one.setblocking(False)
                code = one.connect_ex(place)
            except OSError as error:
                codes.append(error.errno)
                continue
            if code == errno.EINPROGRESS:
                tries[one.fileno()] = one
            else:
                codes.append(code)
        return answered(tries, codes, lambda: end - clock(), seconds) if 0 not in codes else ""


def answered(tries, codes, left, seconds):
    """The same of connections that are under way. codes: of those that came to an end at once."""
    poll = select.poll()
    for number in tries:
        poll.register(number, select.POLLOUT)
    while tries:
        if left() <= 0:
            return None if set(codes) & set(FULL) else too_late(seconds)
        for number, _events in poll.poll(max(0.0, left()) * 1000):
            codes.append(tries.pop(number).getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            poll.unregister(number)
        if 0 in codes:
            return ""
    if not codes or set(codes) & set(FULL):
        return None
    return f"no connection: {os.strerror(codes[0] or errno.EIO)}"


class Observer(Looker):
    def __init__(self, settings, watch=None, *, clock=time.monotonic, **more):
        super().__init__(self.sight, settings, watch, clock=clock, **more)
        self.rang = False
        self.bell = None
        if watch is not None:
            from ..signals import Bell  # noqa: PLC0415

            self.bell = Bell(watch)
        self.knockers = [Knocker(entry, settings, self.ring, clock) for entry in settings.endpoints]
        for one in self.knockers:
            one.thread.start()
        if watch is None:  # `npu-agent discover`: one answer of each
            end = clock() + settings.query_timeout
            while any(one.told is None for one in self.knockers) and clock() < end:
                time.sleep(0.01)

    def ring(self):
        self.rang = True
        if self.bell is not None:
            self.bell.ring()

    def look(self):
        self.rang = False
        return super().look()

    def wait(self, seconds):
        super().wait(seconds)
        self.news = self.news or self.rang

    def sight(self, clock):
        return Sight(True, [self.record(one, clock()) for one in self.knockers], [], True)

    def record(self, one, now):
        entry, settings, told, began = one.entry, self.settings, one.told, one.began
        late = began is not None and now - began > settings.query_timeout
        why = too_late(settings.query_timeout) if late else told[1] if told else ""
        known = {"health_code": None, "error": "it has not been tried yet"} if told is None and not late else {}
        return record(
            family=entry["resource"].partition("/")[2], name=entry["name"], vdie=entry["name"], pci_address=entry["address"],
            unfit=f"{entry['address']}: {why}" if why else None, node_trouble=lacking(entry, settings), asked_at=told[0] if told else now,
            natural=endpoint_id(entry["name"]), prefix=prefix_of(entry), resource=entry["resource"],
            places=[canonical(entry["address"]), *entry["nodes"]], **known,
        )

    def close(self):
        """Threads that wait for an endpoint end with the process."""
        for one in self.knockers:
            one.over.set()


BACKEND = Remote()
