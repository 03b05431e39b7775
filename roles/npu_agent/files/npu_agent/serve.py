# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu-agent serve`: takes what is seen of the chips, tells kubelet, answers its calls. One loop, no locks."""

import asyncio
import collections
import gc
import os
import sys
import threading
import time
import traceback

from . import __version__, config, reload, status, stop
from .audit import Audit, codes_of
from .holders import Holders
from .log import Once, Seldom
from .node import Node
from .plugin import encode, numa_nodes
from .session import STANDBY, Session
from .watch import GONE, Folder
from .watchdog import Watchdog, limit, pause

END_SECONDS = 1.4  # for the streams: `drain` and the grace of calls fit in
LIMIT_SECONDS = 1.9  # then the process ends whatever else does not
SOONEST_REVIEW = 0.02
FAULT_SECONDS = 60.0  # between two lines about the same fault
TRACE_LINES = 6  # the end of a traceback: where the fault is


class Service:
    """sessions: {resource: Session}, one for each that this node has had since the start."""

    def __init__(self, settings, levels, eyes, log, source):
        self.settings, self.eyes, self.log, self.source = settings, eyes, log, source
        self.counters = collections.Counter()
        self.node = Node(settings, log, encode(numa_nodes(settings.sysfs_root)), levels)
        self.folder = Folder(settings.kubelet_dir, log)
        self.sessions, self.tasks = {}, []
        self.holders = Holders(settings.pod_resources, self.hold, self.unheld, log)
        self.audit = Audit(settings, log, self.holders.containers, lambda chip: codes_of(self.node, chip))
        self.endpoint = status.Endpoint(self)
        self.say, self.say_problems, self.say_silent = Once(log), Once(log), Once(log)
        self.say_fault = Seldom(log, FAULT_SECONDS)
        self.stopping, self.execute, self.status = asyncio.Event(), False, 0
        self.timer = None
        self.watchdog = Watchdog(asyncio.get_running_loop().time())
        self.looked_at = None  # monotonic time of the last look at which the driver told of all chips
        self.faults = []  # of a configuration that was refused
        self.began = self.configured = time.time()  # the service; when its configuration was read

    # --- the chips

    def take(self):
        """What the eyes have seen since the last time; may come after the end of the service."""
        while not self.eyes.inbox.empty():
            sight, when = self.eyes.inbox.get()
            if sight.complete:
                self.looked_at = when
            else:
                self.counters["looks_failed"] += 1
            self.counters["fault_events"] += len(sight.events)
            self.watchdog.heard()
            self.guarded(lambda sight=sight, when=when: self.node.update(sight, when))
        reload.reap(self.source.inherited)
        self.log.flush()
        self.judged()

    def notifier(self, loop, method):
        def notify():
            try:
                loop.call_soon_threadsafe(method)
            except RuntimeError:
                pass  # the loop is closed: the service has ended meanwhile

        return notify

    def review(self):
        self.guarded(lambda: self.node.review(asyncio.get_running_loop().time()))
        self.judged()

    def standing_by(self, idle):
        """Another agent serves, or this one does again: it goes by the names that the other one has left."""
        standby = any(session.state == STANDBY for session in self.sessions.values())
        self.guarded(lambda: self.node.stand_by(standby, asyncio.get_running_loop().time()))
        if not idle:
            self.judged()

    def hold(self, held, asked, sure):
        """Kubelet has told which pods have chips."""
        self.audit.saw(held)
        self.guarded(lambda: self.node.hold(held, asyncio.get_running_loop().time(), asked=asked, sure=sure))
        self.judged()

    def unheld(self, trouble):
        """It has not ("": now it has)."""
        self.node.claims.trouble = trouble

    def guarded(self, judge):
        """A fault of ours must not leave the boards as they were, for ever."""
        try:
            judge()
        except Exception as error:
            self.silence(f"a fault of npu-agent: {error!r}", trace(error))
        else:
            if not self.node.silent:
                self.say_silent.over()

    def silence(self, reason, lines=()):
        self.say_silent("no chip may take work", "error", cause=reason, **({"trace": lines} if lines else {}))
        try:
            self.node.silence(reason, asyncio.get_running_loop().time())
        except Exception as error:
            self.fail(f"{reason}; then: {error!r}")

    def fault(self, _loop, context):
        """What nobody caught: the loop tells, of a socket that accepts nothing for want of descriptors ten times a second."""
        error, what = context.get("exception"), context["message"]
        self.say_fault((what[:32], type(error)), "a fault of npu-agent", "error", cause=f"{what}: {error!r}" if error else what,
                       trace=trace(error) if error else [])

    def start(self, part):
        """Have a part of the service run until its end. It has to catch what it can go on after; of anything else it is gone."""
        task = asyncio.ensure_future(part)
        task.add_done_callback(self.ended)
        self.tasks.append(task)

    def ended(self, task):
        if not task.cancelled() and task.exception() is not None:
            self.fault(None, {"message": f"{task.get_coro().__qualname__} has ended for good", "exception": task.exception()})

    def watch(self):
        """Whether the eyes still see."""
        loop, allowed = asyncio.get_running_loop(), limit(self.settings, self.node.present)
        loop.call_later(pause(allowed), self.watch)
        over = self.watchdog.tick(loop.time(), self.eyes.is_alive(), time.monotonic() - self.eyes.beat, allowed)
        if self.watchdog.trouble not in ("", self.node.silent):
            self.silence(self.watchdog.trouble)
            self.judged()
        if over:
            self.fail(self.watchdog.trouble)
        elif self.folder.gone():
            self.fail(GONE)

    def judged(self):
        """After each judgement: new resources get a session, and time is kept for the next one."""
        self.holders.need(self.node.claims.waiting)
        for resource, board in self.node.boards.items():
            if resource not in self.sessions and not self.stopping.is_set():
                self.sessions[resource] = session = Session(
                    self.settings, board, self.folder, self.log, self.counters, holders=self.holders, standing_by=self.standing_by,
                    drain=self.draining, audit=self.audit)
                self.start(session.run())
        self.tell()
        if self.timer is not None:
            self.timer.cancel()
        self.timer, due = None, self.node.next_review
        if due is not None and not self.stopping.is_set():
            loop = asyncio.get_running_loop()
            self.timer = loop.call_at(max(due, loop.time() + SOONEST_REVIEW), self.review)

    def tell(self):
        """Say what is wrong with the node once, not with each look."""
        if self.sessions:
            self.say.over()
            if self.node.problems:
                self.say_problems("chips", "warning", problems=self.node.problems)
            else:
                self.say_problems.over()
        elif self.node.present is False:
            self.say("no NPU on this node; looking again from time to time")
        elif self.node.sight is not None:
            self.say("the NPUs cannot be used, nothing is registered", "error", cause=status.no_chips(self.node))

    # --- life

    def asked(self, *_unused):
        """By a signal, at any moment: also when the loop does not get to stop() any more."""
        self.execute = False
        self.end()

    def stop(self):
        self.execute = False
        if not self.stopping.is_set():
            self.stopping.set()
            guard = threading.Timer(LIMIT_SECONDS, self.give_up)
            guard.daemon = True
            try:
                guard.start()
            except RuntimeError:
                pass  # there is no room for another thread; systemd has a limit too

    def draining(self):
        """To be asked when a stream is to end: a stop may come while this process is on its way to execute itself anew."""
        return self.settings.on_stop == "drain" and not self.execute

    def give_up(self):
        self.log("stopped", "warning", cause="something did not end in time")
        os._exit(self.status)

    def fail(self, cause):
        """End, for whoever supervises this process to start it anew."""
        if not self.stopping.is_set():
            self.log("cannot go on, ending", "error", cause=cause)
            self.status = 1
            self.stop()

    def reload(self):
        """Read the configuration again. A faulty one changes nothing."""
        if self.stopping.is_set():
            return
        self.counters["reloads"] += 1
        self.source.asked = False
        try:
            settings, levels = self.source.load()
        except config.ConfigError as error:
            self.refuse(error.faults)
            return
        except Exception as error:  # files of ours that are being replaced, for one
            self.refuse([f"a fault of npu-agent: {error!r}"])
            return
        self.faults, self.configured = [], time.time()
        changed = reload.changes(self.settings, settings)
        told = {key: list(values) for key, values in changed.items()}
        if not reload.in_place(changed):
            self.log("configuration changed, starting anew", changed=told)
            self.stop()
            self.execute = True
            return
        vars(self.settings).update(vars(settings))  # in place: everybody holds the same object
        self.log.set_level(settings.log_level)
        self.log("configuration read again", changed=told, notes=levels.notes)
        self.node.reload(self.settings, levels)
        self.audit.wake.set()
        self.eyes.reconsider()
        self.watchdog.heard()
        self.review()

    def refuse(self, faults):
        self.counters["reloads_refused"] += 1
        self.faults = faults
        self.log("the new configuration is refused, the old one stays", "error", faults=faults)

    async def run(self):
        loop = asyncio.get_running_loop()
        self.end = self.notifier(loop, self.stop)
        stop.handle(self.asked)
        loop.set_exception_handler(self.fault)
        self.source.notify = self.notifier(loop, self.reload)
        if self.source.asked:
            self.reload()
        self.folder.look()
        self.eyes.notify = self.notifier(loop, self.take)
        self.take()
        self.watch()
        for part in (self.endpoint.start(), self.holders.run(), self.audit.run()):
            self.start(part)
        # What the imports made stays: to look through it again and again would cost an Allocate call some milliseconds now and then.
        gc.freeze()
        gc.enable()
        sys.setswitchinterval(0.0005)  # the thread that looks at the chips must not hold up a call for Python's usual 5 ms
        await self.stopping.wait()
        self.eyes.notify = None
        for task in self.tasks:
            task.cancel()
        await asyncio.wait([*self.tasks, asyncio.ensure_future(self.audit.finish())], timeout=END_SECONDS)
        self.audit.close()
        self.node.names.close()
        self.node.kept.close()
        self.folder.close()
        self.endpoint.close()
        if not self.execute:
            self.log("stopped")


def trace(error):
    """The last lines of an exception's traceback, as a list."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()[-TRACE_LINES:]


def serve(settings, levels, eyes, log, source):
    """Serve until a signal ends it. The exit status; None: this process is to be executed anew."""
    log("started", version=__version__, kubelet_dir=settings.kubelet_dir, allocate_mode=settings.allocate_mode,
        allocate_by=settings.allocate_by, cdi_folder=settings.cdi_folder or None)

    async def run():
        service = Service(settings, levels, eyes, log, source)  # made inside: Python 3.9 ties events to the loop that runs
        await service.run()
        return service

    service = asyncio.run(run())
    stop.handle(stop.at_once)
    eyes.stop()
    return None if service.execute else service.status
