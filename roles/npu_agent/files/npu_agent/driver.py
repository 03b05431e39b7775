# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the NPU driver, which may hang or crash at any call, so that one bad chip costs no answer about the others.

One worker process asks all chips in turn and says which one it is at. A chip whose query is not over in time keeps the very process that
waits for it, as its captive, and nothing else is asked there; a new worker asks the rest. When the call comes back, the chip is asked with
the others again. The others do not wait the full time for it: a chip that takes much longer than chips have taken, or comes after one
that was late, counts as not answered yet, and as hanging after the full time. A captive that waits too long is killed; if it dies, one
new one tries, and if it does not (a process that sleeps in the kernel cannot die), it stays the only one. A chip whose query has ended the
worker several times is asked in a process of its own.
"""

import os
import time
from collections import Counter, deque, namedtuple
from typing import Any, Optional

from ._hardware._dcmi_child import Child, DcmiError
from ._hardware._dcmi_client import load_faults
from .oom import expendable
from .pace import Pace
from .worker import Died, Late, Worker, place_in

START_SECONDS = 20.0  # for a new process of ours to be there; the driver is not asked for that
SUBSCRIBE_SECONDS = 600.0  # until the next try to get fault events
EVENTS = 1000  # that are kept until a look takes them
GATHER_SECONDS = 0.01  # before what the worker says is read
EVENT_SECONDS = 0.05  # between two times at which events are told
SLOW = "the driver has not answered for this chip yet"
DIE_SECONDS = 0.5  # for a process that was killed
RETRY_SECONDS = 0.5  # until another process is tried
TWICE = 64  # events in which one that two workers tell is looked for
CRASHES = 3  # in a row, after which a chip is asked in a process of its own
WELL = 20  # answers in a row, after which it is asked with the others again: each process takes memory

# A place is (card id, device id), as the driver counts; with None for the device a card that does not tell how many chips it has.
# records: {place: what the driver said}. asked: {place: monotonic time}. hung: {place: seconds}. errors: {place: text}.
Answer = namedtuple("Answer", "records asked hung errors")


class Apart:
    """A chip that is not asked with the others: its query hangs, or has crashed too often.

    since: when the first query began that has not come back; None: none is under way. worker: its process, None when it has none.
    """

    def __init__(self, place, worker=None, since=None):
        self.place, self.worker, self.since = place, worker, since
        self.asked = since  # when the query that is under way now began
        self.sure = True  # whether it has had its full time
        self.killed = False
        self.crashes, self.well = False, 0  # apart for that; how often in a row it has answered since
        self.error, self.retry = "", float("-inf")  # when a new process may be tried


def ignore(_event):
    pass


def expendable_child(library, install_path):
    child = Child(library, install_path)
    expendable(child.pid)
    return child


class Driver:
    """`ask` all chips; between two looks `wait`. `meanwhile` is called whenever something may have happened during a query.

    events: fault events since they were taken away, the newest ones; lost: whether there were more. new_hang, back: a chip has just begun
    to hang, or answers again. These are set by us, and unset by who has seen it. unsubscribed: why there are no events; None: there are.
    """

    def __init__(self, library, settings, watch, *, clock=time.monotonic, pause=time.sleep, start=expendable_child, meanwhile=lambda: None):
        self.library, self.settings, self.watch, self.clock, self.pause = library, settings, watch, clock, pause
        self.start, self.meanwhile = start, meanwhile
        self.worker: Optional[Worker] = None
        self.stuck: Optional[Worker] = None  # hangs where no chip is named, and does not die
        self.apart: dict = {}
        self.workers: set = set()  # all that are not gone
        self.crashes: Any = Counter()  # (command, place): how often in a row
        self.events: Any = deque(maxlen=EVENTS)
        self.told: Any = deque(maxlen=TWICE)
        self.lost, self.back, self.new_hang = False, False, False
        self.subscribe, self.unsubscribed, self.subscribe_at = True, "not subscribed yet", float("inf")
        self.version: Any = None
        self.starts = 0
        self.pace = Pace(settings)

    def inherit(self, place, worker, since):
        """A captive of the image before: it was killed, and has not ended."""
        self.apart[place] = one = Apart(place, worker, since)
        one.killed, one.sure = True, self.clock() >= since + self.settings.query_timeout

    # --- all chips

    def ask(self, command):
        """Answer of all chips; DcmiError when the driver as a whole has none."""
        records, asked, errors = {}, {}, {}
        late, skipped = set(), set()
        while True:
            worker = self.another(late)
            worker.patience = self.pace.patience(command, late)
            skip = [*self.apart, *errors]
            skipped.update(skip)
            try:
                self.collect(worker, command, records, asked, skip=skip)
                break
            except Late:
                self.worker = None
                if worker.place is None or worker.place in skip:
                    self.give_up(worker, command)
                self.set_apart(worker)
                late.add(worker.place)
            except Died as died:
                self.worker = None
                self.drop(worker)
                if worker.place is None or worker.place in skip:
                    raise DcmiError(str(died), "dcmi_child_died", command=command) from None
                errors[worker.place] = str(died)
                self.crashed(command, worker.place)
        for one in list(self.apart.values()):
            if one.crashes and self.ask_apart(one, command, (records, asked, errors), late):
                late.add(one.place)
        # One whose query came back meanwhile has not answered this time; it is asked again soon.
        back = [place for place in skipped if place not in records and place not in errors and place not in self.hung()]
        errors.update((place, SLOW) for place in [*self.slow(), *back])
        return Answer(records, asked, self.hung(), errors)

    def hung(self):
        """{place: seconds since the query began that has not come back}"""
        now = self.clock()
        return {one.place: now - one.since for one in self.apart.values() if one.since is not None and one.sure}

    def slow(self):
        """The places that have not answered and do not count as hanging yet."""
        return [one.place for one in self.apart.values() if one.since is not None and not one.sure]

    def another(self, late):
        """A worker that can be asked. late: places of chips that were just set apart, perhaps for being slow: where there can be no second
        process at the moment, nobody is given up before it is known which of them hang."""
        while True:
            try:
                return self.ready()
            except DcmiError:
                if not late.intersection(self.slow()):
                    raise
                self.wait(RETRY_SECONDS)

    def ready(self):
        """A worker that can be asked."""
        if self.worker is not None and (self.worker.child.ended or self.worker.fault):
            self.drop(self.worker)
            self.worker = None
        if self.worker is None:
            if self.stuck is not None and not self.end(self.stuck):
                seconds = self.clock() - self.stuck.since
                raise DcmiError(f"process {self.stuck.child.pid} hangs in the driver for {seconds:.0f} s and cannot be killed; "
                                f"it was asked for {self.stuck.command!r}", "dcmi_timeout", command=self.stuck.command)
            self.stuck = None
            self.worker = self.begin()
        elif self.unsubscribed and self.clock() >= self.subscribe_at:
            self.resubscribe(self.worker)
        return self.worker

    def begin(self):
        worker = self.open()
        if self.subscribe and not self.subscribed(worker):
            return self.begin()
        return worker

    def subscribed(self, worker):
        """False when the worker was lost to trying."""
        try:
            self.unsubscribed, self.subscribe = self.talk(worker, "subscribe")["why"], True
            for one in self.workers - {worker}:  # until now those that wait for a call have told
                one.tell = ignore
        except (Late, Died) as error:
            # Not with the next one: without events there are still looks, and without a worker there is nothing.
            self.subscribe, self.unsubscribed = False, f"subscribing failed: {error}"
            if not self.end(worker):
                self.stuck = worker
        self.subscribe_at = self.clock() + SUBSCRIBE_SECONDS
        return self.subscribe

    def resubscribe(self, old):
        """Try again with a new worker, which takes the old one's place if it lives."""
        self.subscribe_at = self.clock() + SUBSCRIBE_SECONDS
        if self.stuck is not None and not self.end(self.stuck):
            return  # one that cannot be killed is enough
        self.stuck = None
        try:
            worker = self.open()
            if self.subscribed(worker):
                self.worker = worker
                self.drop(old)
        except DcmiError as error:
            self.unsubscribed = f"subscribing failed: {error}"

    def spawn(self, tell):
        unsafe = load_faults(self.library, self.settings.install_path)
        if unsafe and not os.path.exists(self.library):
            raise DcmiError(f"there is no {self.library}", "dcmi_library_missing")
        if unsafe:
            raise DcmiError(f"{self.library} is not loaded: {'; '.join(unsafe)}", "dcmi_library_unsafe")
        worker = Worker(self.start(self.library, self.settings.install_path), self.watch, self.clock, tell)
        self.workers.add(worker)
        return worker

    def use(self, library):
        """Go on with another library. Who hangs in the one before still does."""
        self.library = library
        if self.worker is not None:
            self.drop(self.worker)
            self.worker = None

    def end(self, worker, seconds=DIE_SECONDS):
        """True when it is gone."""
        if not worker.stop(seconds):
            return False
        self.workers.discard(worker)
        return True

    def drop(self, worker):
        """Let go of a worker that nobody waits for."""
        worker.dropped = True
        self.end(worker)

    def open(self):
        """A new worker whose library has started."""
        self.starts += 1
        worker = self.spawn(self.hear)
        try:
            if "ready" not in self.reply(worker, START_SECONDS):
                raise Died(str(worker.child.broken("did not say it is ready", "start")))
            self.version = self.talk(worker, "open")
        except Late:
            self.give_up(worker, worker.command)
        except Died as died:
            self.drop(worker)
            raise DcmiError(str(died), "dcmi_child_died", command=worker.command) from None
        return worker

    def give_up(self, worker, command):
        """It hangs where no chip is to blame: nothing can be asked."""
        heard = worker.child.heard()
        if not self.end(worker):
            self.stuck = worker
        raise DcmiError(f"DCMI did not answer {command!r} in time; its process was killed{heard}", "dcmi_timeout", command=command)

    def collect(self, worker, command, records, asked, **more):
        """Add what the worker says of its chips."""
        starts = {}
        for record in self.talk(worker, command, starts, **more):
            place = record["card_id"], record["device_id"]
            records[place], asked[place] = record, starts.get(place, worker.since)
            self.crashes.pop((command, place), None)
        self.pace.took(command, [*starts.values(), self.clock()])

    def talk(self, worker, command, starts=None, **more):
        """The result of one command. starts: {place: monotonic time} is filled with when the worker came to each chip."""
        starts = {} if starts is None else starts
        try:
            worker.ask(command, **more)
        except DcmiError as error:
            raise Died(str(error)) from None
        # What it says of each chip shall not wake this thread each time: on a host that is idle that is most of what a look costs.
        self.pause(GATHER_SECONDS)
        while True:
            message = self.reply(worker, self.settings.query_timeout)
            if isinstance(message.get("id"), int) and message["id"] < worker.number:
                continue  # of a query that was broken off here
            if message.get("id") != worker.number:
                raise Died(str(worker.child.broken(f"answered another request: {message!r}", command)))
            if "at" in message:
                worker.place, worker.since = place_in(message), message.get("time", self.clock())
                starts[worker.place] = worker.since
            elif "error" in message:
                # A library that refused to start does not recover inside the same process (dcmi_init is for once).
                self.worker = None if worker is self.worker else self.worker
                self.drop(worker)
                told = dict(message["error"])
                raise DcmiError(told.pop("message"), told.pop("code"), command=command, **told)
            else:
                return message["result"]

    def reply(self, worker, seconds):
        """The next message; Late when there is none so long after the last one."""
        if worker.place is not None:  # without the list of cards there is no answer at all
            seconds = min(seconds, worker.patience)
        last = False
        while not worker.messages:
            if worker.fault or worker.child.ended:
                raise Died(str(worker.fault or worker.child.broken("ended", worker.command)))
            left = worker.since + seconds - self.clock()
            if left <= 0:
                if last:
                    raise Late(f"no answer to {worker.command!r} within {seconds:g} s")
                last = True  # it may be there already: this process may have been the one that was held up
                worker.take()
                continue
            self.wait(left)
        return worker.messages.popleft()

    # --- chips apart

    def set_apart(self, worker):
        """This worker waits for its call from now on, and for nothing else."""
        one = self.apart[worker.place] = Apart(worker.place, worker, worker.since)
        one.sure = self.clock() >= worker.since + self.settings.query_timeout
        try:
            worker.child.send({"cmd": "end"})
        except DcmiError:
            pass  # it has just died: tend() sees that
        self.new_hang = self.new_hang or one.sure

    def crashed(self, command, place):
        self.crashes[command, place] += 1
        if self.crashes[command, place] >= CRASHES and place[1] is not None:
            one = self.apart[place] = Apart(place)
            one.crashes = True

    def ask_apart(self, one, command, answer, late):
        """Ask a chip in its own process. True when it was late."""
        records, asked, errors = answer
        if one.since is not None:
            return False
        if one.worker is None and self.clock() < one.retry:
            errors[one.place] = one.error
            return False
        try:
            if one.worker is None:
                one.worker = self.open()
            one.worker.patience = self.pace.patience(command, late)
            self.collect(one.worker, command, records, asked, only=[one.place])
        except Late:
            one.since = one.asked = one.worker.since
            one.sure = self.clock() >= one.since + self.settings.query_timeout
            one.killed, self.new_hang, one.well = False, self.new_hang or one.sure, 0
            return True
        except (Died, DcmiError) as error:
            if one.worker is not None:
                self.drop(one.worker)
            one.worker, one.retry, one.well = None, self.clock() + self.settings.stuck_retry, 0
            one.error = errors[one.place] = str(error)
        else:
            one.well += 1
            if one.well == WELL:
                self.drop(one.worker)
                del self.apart[one.place]
        return False

    def tend(self):
        """See to the captives. Seconds until that is due again, None: not by time alone."""
        for worker in [worker for worker in self.workers if worker.dropped]:
            self.end(worker, 0)
        now, due = self.clock(), []
        for one in list(self.apart.values()):
            if one.since is None:
                continue
            late = not one.sure and now >= one.since + self.settings.query_timeout
            if late:
                one.worker.take()  # as in reply()
            if one.worker.has_left(one.place):
                self.release(one)
            elif one.worker.fault or one.worker.child.ended:
                if not one.killed:
                    self.release(one)  # whoever asks it next sees whether it crashes again
                elif now >= one.retry:
                    self.try_anew(one, now)
            elif late:
                one.sure = self.new_hang = True
            elif not one.killed and now >= one.asked + self.settings.stuck_retry:
                one.worker.child.kill()
                one.killed = True  # when it has ended, see above
            if one.since is not None and not one.sure:
                due.append(one.since + self.settings.query_timeout)
            elif one.since is not None:
                due.append(one.retry if one.killed else one.asked + self.settings.stuck_retry)
        due = [time - now for time in due if time > now]
        return min(due) if due else None

    def release(self, one):
        """Its call has come back, or its process is gone: the chip is asked with the others again."""
        if not one.sure:
            self.pace.took(one.worker.command, [one.since, self.clock()])  # a driver that is slow
        self.drop(one.worker)
        one.since = one.worker = None
        if not one.crashes:
            del self.apart[one.place]
        self.back = True

    def try_anew(self, one, now):
        """A new captive in place of one that was killed. It opens the library and asks by itself: nobody waits for it."""
        others, worker = [place for place in self.apart if place != one.place], None
        try:
            worker = self.spawn(ignore)
            # A card that does not tell its chips is tried by a list of all.
            worker.ask("list", skip=others) if one.place[1] is None else worker.ask("health", only=[one.place])
        except Exception:  # whatever it is: the look that is under way has nothing to do with it
            one.retry = now + self.settings.stuck_retry
            if worker is not None:
                self.drop(worker)
            return
        self.drop(one.worker)
        one.worker, one.asked, one.killed = worker, now, False

    # --- time

    def wait(self, seconds):
        """Until something happens, at most so long."""
        due = self.tend()
        seconds = min(seconds, EVENT_SECONDS) if self.events else seconds
        self.watch.wait(seconds if due is None else min(seconds, max(0.0, due)))
        self.tend()
        self.meanwhile()

    def close(self):
        """End all processes. One that sleeps in the kernel ends when the driver lets go of it."""
        for worker in self.workers:
            worker.child.kill()
        for worker in list(self.workers):
            if not self.end(worker):
                self.watch.remove(worker.child.output)
                worker.child.close()
        self.worker, self.stuck, self.apart, self.workers = None, None, {}, set()

    def hear(self, event):
        key = tuple(event.get(name) for name in ("serial", "logic_id", "code", "assertion"))
        if event.get("serial") and key in self.told:
            return
        self.told.append(key)
        self.lost = self.lost or len(self.events) == EVENTS
        self.events.append(event)

    def take_events(self):
        taken = list(self.events)
        self.events.clear()
        return taken
