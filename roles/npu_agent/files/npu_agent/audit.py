# SPDX-License-Identifier: GPL-3.0-or-later
"""A line of JSON for each container that asked for chips: which, for whom, how long it took; of a refusal, what is known of its cause.

Nothing of it is on the way of a call: that leaves a note here and goes on. The line waits for the name of the pod, at most NAME_SECONDS:
kubelet tells it by PodResources some 40 ms after the call (measured). Meanwhile it stands in a file, some milliseconds after the call, or
all of them together where many come at once, and whatever kubelet and the kernel's log take (keep()), so that a process that is killed
leaves it to the next one. Files and the kernel's log are read and written in a thread.
"""

import asyncio
import collections
import itertools
import json
import threading
import time

from . import faults
from .audit_file import AuditFile, AuditLog, Kept
from .audit_match import AGAIN, NAME_SECONDS, Entry, Found, match
from .durations import Durations
from .holders import NoAnswer
from .log import Once
from .plugin import until

SHOWN_SECONDS = 0.1  # after an allocation PodResources shows it
GAP_SECONDS = 0.3  # between two questions; kubelet allows 100 a second for all who ask
SLOWEST = 2.0
# A turn of the thread holds up a call that comes meanwhile for some tenths of a millisecond (measured), so it waits for a moment without
# one, but not for ever.
QUIET_SECONDS, BURST_SECONDS = 0.005, 0.2
AGAIN_SECONDS = 5.0  # between two tries whether lines could be written again
KERNEL_GAP = 1.0  # between two readings of the kernel's log
LATEST_SECONDS = 300.0  # an allocation that a process before has left is not named by what kubelet shows so much later
ANEW_SECONDS = 0.5  # between two times that the file of what waits is made anew
MOST = 256  # that wait for a name; a node has some hundred pods
INBOX = 4096  # calls and lines that wait for the thread: a disk that hangs must not fill the memory
IDS, ID_LENGTH, CODES = 256, 80, 16  # of a line: a call may carry any number
LAST_WORDS = 1.0  # seconds for a last question, and for the kernel's log, when the service ends
SERIAL = itertools.count()

# Why a line has no pod.
NOT_ASKED = "pod_resources is empty, so kubelet is not asked"
NOTHING = "no chips were asked for"
REFUSED = "kubelet shows no pod for an allocation that was refused; its events name it"
NOT_SHOWN = f"kubelet showed no pod with these ids within {NAME_SECONDS:g} s: it ended before, or only an init container had them"
TOO_MANY = "too many allocations waited for their pods"
ENDED = "the agent ended before kubelet showed the pod"
TOO_LATE = "the agent was killed, and started too late to ask kubelet"
GATE = "a gate of npu.fleet"  # which asks as kubelet would, for no pod
NO_PLACE = "kernel_log is empty, so the kernel's messages are not read"
NOT_READ = "the agent ended, or too many were refused, before the kernel's messages were read"

FAULT = Found(None, None, None, "a fault of npu-agent, see its log")

Call = collections.namedtuple("Call", "resource ids chips answer reason seconds preferred at when gate", defaults=(False,))


class Audit:
    """containers(): coroutine, what PodResources shows (holders.py). codes_of(chip): fault codes as codes_of() below gives them."""

    def __init__(self, settings, log, containers, codes_of):
        self.settings, self.log, self.containers, self.codes_of = settings, log, containers, codes_of
        self.say = Once(log)
        self.inbox: collections.deque = collections.deque()
        self.pending: list = []  # Entries
        self.refused: list = []  # (line, PCI addresses)
        self.fresh: list = []  # lines that do not stand in the file of what waits yet
        self.ready: list = []  # lines that are whole
        self.counts: collections.Counter = collections.Counter()  # written and lost: of put(), so of one thread at a time
        self.durations = Durations()
        self.open(settings.audit_file)
        self.given_at: dict = {}  # {(resource, id): when it was allocated last}
        # (when, {(resource, id): "namespace/pod"}) as PodResources showed it last, and the time before
        self.held: tuple = (float("-inf"), {})
        self.older = self.held
        self.refused_at = self.asked = self.read = self.tried = float("-inf")
        self.silence = ""  # why PodResources does not tell
        self.come, self.wake, self.sorting = asyncio.Event(), asyncio.Event(), False
        self.saving, self.lock = asyncio.Lock(), threading.Lock()
        self.at_work = None  # what the thread does
        self.restored = False  # whether what a process before has left was looked at

    def open(self, path):
        self.file = AuditFile(path, self.log) if path else AuditLog(self.log)
        self.kept, self.kept_at = Kept(path), float("-inf")

    # --- what calls leave

    def leave(self, resource, ids, chips, *, answer, reason, seconds, preferred=None, gate=False):
        """A container has asked for these ids. answer: of allocate.py; reason: why it was refused, else None. preferred: the ids that
        kubelet said were free before, and those of them that this pod had already. gate: it was a gate of ours, and nothing is a pod's."""
        self.durations.take(seconds)
        if len(self.inbox) + len(self.fresh) + len(self.ready) >= INBOX:
            self.counts["dropped"] += 1
            return
        loop = asyncio.get_running_loop()
        self.inbox.append(Call(resource, ids, chips, answer, reason, seconds, preferred, loop.time(), time.time(), gate))
        if not self.sorting:
            self.sorting = True
            loop.call_soon(self.sort)  # when the answer is on its way

    def saw(self, held):
        """What PodResources shows now: {(resource, id): "namespace/pod"}, whoever asked; None where there is nobody to ask."""
        self.older, self.held = self.held, (asyncio.get_running_loop().time(), held or {})

    # --- the work

    async def run(self):
        self.restore(await self.in_thread(self.kept.load) if self.file.path else ())
        self.restored = True
        keeper = asyncio.ensure_future(self.keep())
        try:
            while True:
                self.wake.clear()
                try:
                    await self.step()
                    await asyncio.sleep(QUIET_SECONDS)
                except Exception as error:  # a fault of ours must not end the audit
                    self.fault(error)
                    for entry in list(self.pending):
                        self.name(entry, FAULT)
                    await asyncio.sleep(1)
                await until(self.wake, self.left(asyncio.get_running_loop().time()))
        finally:
            keeper.cancel()

    async def keep(self):
        """What calls leave stands in a file as soon as no more of them come."""
        clock = asyncio.get_running_loop().time
        while True:
            await self.come.wait()
            end = clock() + BURST_SECONDS
            while self.come.is_set() and clock() < end:
                self.come.clear()
                await asyncio.sleep(QUIET_SECONDS)
            self.wake.set()
            try:
                await self.save()
            except Exception as error:
                self.fault(error)

    def fault(self, error):
        self.say("a fault of npu-agent", "error", cause=f"audit: {error!r}")

    async def step(self):
        now = asyncio.get_running_loop().time
        if self.refused and now() >= self.read + KERNEL_GAP:
            await self.kernel()
        if self.pending and now() >= self.question_due():
            await self.question()
        for entry in [entry for entry in self.pending if entry.deadline <= now()]:
            self.name(entry, entry.second or Found(None, None, None, self.silence or NOT_SHOWN))
        await self.save()
        if self.file.trouble and (now() >= self.tried + AGAIN_SECONDS or self.settings.audit_file != self.file.path):
            self.tried = now()
            await self.in_thread(self.again)

    def question_due(self):
        return max(self.asked + GAP_SECONDS, min(entry.due for entry in self.pending))

    def left(self, now):
        """Seconds until something is due, None: nothing by time alone."""
        dues = [self.read + KERNEL_GAP] if self.refused else []
        dues += [self.tried + AGAIN_SECONDS] if self.file.trouble else []
        if self.pending:
            dues += [self.question_due(), min(entry.deadline for entry in self.pending)]
        return max(0.0, min(dues) - now) if dues else None

    async def in_thread(self, function, *arguments):
        # A task that is cancelled while its work waits for the thread would take the work, and with it lines, off the queue.
        self.at_work = asyncio.get_running_loop().run_in_executor(None, function, *arguments)
        return await asyncio.shield(self.at_work)

    def sort(self):
        """Take in what calls have left."""
        self.sorting = False
        while self.inbox:
            call = self.inbox.popleft()
            take = self.take_given if call.reason is None else self.take_refused
            try:
                take(call)
            except Exception as error:
                self.counts["dropped"] += 1
                self.fault(error)
        for entry in self.pending[:max(0, len(self.pending) - MOST)]:
            self.name(entry, Found(None, None, None, TOO_MANY))
        while len(self.refused) > MOST:
            self.without_kernel(self.refused.pop(0)[0], NOT_READ)
        self.come.set()

    def take_refused(self, call):
        from .redact import redact  # noqa: PLC0415  a refusal is seldom, and a start is to be quick

        if not call.gate:
            self.refused_at = max(self.refused_at, call.at)
        line = {**line_of(call), **pod_of(Found(None, None, None, GATE if call.gate else REFUSED)), "reason": redact(call.reason),
                "faults": [code for chip in call.chips for code in self.codes_of(chip)]}
        data = encoded(line)
        self.refused.append((data, [chip.pci_address for chip in call.chips]))
        self.fresh.append(data)

    def take_given(self, call):
        data, keys = encoded(line_of(call)), {(call.resource, name) for name in call.ids}
        if call.gate:
            self.whole(data, pod_of(Found(None, None, None, GATE)))
            return
        self.freed(call)
        self.given_at.update(dict.fromkeys(keys, call.at))
        if not keys or not self.settings.pod_resources:
            self.named(data, Found(None, None, None, NOT_ASKED if keys else NOTHING))
            return
        held = (self.held if self.held[0] <= call.at else self.older)[1]  # the newest may have this very pod
        entry = Entry(data, keys, call.at, {held[key] for key in keys if key in held})
        # Where a pod had these ids, a question before the new one is shown may tell that the old one is gone.
        entry.due = call.at + (0.0 if entry.before else SHOWN_SECONDS)
        self.pending.append(entry)
        self.fresh.append(data)

    def freed(self, call):
        """Ids that were free right before this call are no pod's that got them earlier: it has ended, or kubelet did not take it. Those
        that the pod has already are of the one of its containers that got them last."""
        if call.preferred is None:
            return
        mine = {(call.resource, name) for name in call.preferred[1]}.intersection(self.given_at)
        for entry in self.pending:
            entry.handed_on |= any(self.given_at[key] == entry.at for key in entry.keys & mine)
        free = set(call.preferred[0]).difference(call.preferred[1]).intersection(call.ids)
        for entry in [entry for entry in self.pending if not entry.keys.isdisjoint((call.resource, name) for name in free)]:
            self.name(entry, AGAIN)

    async def question(self):
        asked = self.asked = asyncio.get_running_loop().time()
        for entry in self.pending:
            if entry.at < asked:
                entry.tries += 1
                entry.due = asked + min(SLOWEST, GAP_SECONDS * 2 ** min(entry.tries - 1, 8))
        try:
            rows = await self.containers()
        except NoAnswer as error:
            self.silence = f"kubelet does not tell which pods have chips: {error}"
            return
        if rows is None:
            self.silence = f"there is no PodResources v1 on {self.settings.pod_resources}"
            return
        self.silence = ""
        for entry, found in match(self.pending, rows, asked, self.given_at, self.refused_at).items():
            self.name(entry, found)
        self.saw({(row.resource, unit): f"{row.namespace}/{row.pod}" for row in rows for unit in row.ids})

    async def kernel(self):
        from . import kmsg  # noqa: PLC0415  as above

        self.read = asyncio.get_running_loop().time()
        path, waiting, found, why = self.settings.kernel_log, list(self.refused), [], ""
        try:
            if path:
                found = await self.in_thread(kmsg.lines, path, [addresses for _data, addresses in waiting])
        except kmsg.Unread as unread:
            why = str(unread)
        mine = set(map(id, waiting)).intersection(map(id, self.refused))  # some may have gone meanwhile for want of room, others come
        self.refused = [one for one in self.refused if id(one) not in mine]
        for number, one in enumerate(waiting):
            if id(one) in mine and (why or not path):
                self.without_kernel(one[0], why or NO_PLACE)
            elif id(one) in mine:
                self.whole(one[0], {"kernel_log": found[number]})

    def without_kernel(self, data, why):
        self.whole(data, {"kernel_log": None, "kernel_log_note": why})

    def name(self, entry, found):
        self.pending.remove(entry)
        self.named(entry.data, found)

    def named(self, data, found):
        self.counts["without_pod"] += found.pod is None
        self.whole(data, pod_of(found))

    def whole(self, data, more):
        """A line gets what was not known when it came."""
        self.ready.append(data[:-1] + b", " + encoded(more)[1:])

    # --- where lines go

    async def save(self):
        async with self.saving:  # in the order in which things came
            ready, self.ready, fresh, self.fresh = self.ready, [], self.fresh, []
            some = bool(self.pending or self.refused)
            anew = not some or self.settings.audit_file != self.file.path or time.monotonic() >= self.kept_at + ANEW_SECONDS
            anew = anew and self.restored
            if ready or fresh or (anew and (some or self.kept.said != [])):
                waiting = [entry.data for entry in self.pending] + [data for data, _addresses in self.refused]
                if ready:
                    self.tried = asyncio.get_running_loop().time()
                try:
                    await self.in_thread(self.put, ready, fresh, waiting, anew)
                except Exception:
                    self.counts["dropped"] += len(ready)
                    raise

    def put(self, ready, fresh, waiting, anew=True):
        """Keep what has come, write the lines that are ready, and keep no longer what has its line now: a kill in between leaves no line
        twice (Kept.load). waiting: what is kept then; anew: whether it is time for that."""
        with self.lock:
            anew = self.follow() or anew
            self.kept.add(fresh)
            lost = self.file.write(ready)
            self.counts["written"] += len(ready) - lost
            self.counts["lost"] += lost
            if anew:
                self.kept.save(waiting)
                self.kept_at = time.monotonic() if waiting else self.kept_at

    def follow(self):
        """Go on where the setting says. Whether that is another place."""
        path = self.settings.audit_file
        if path == self.file.path:
            return False
        self.kept.save([])
        self.open(path)
        return True

    def again(self):
        """What was in the way may have gone, or another file is set."""
        with self.lock:
            self.follow()
            self.file.again()

    def restore(self, lines):
        """What a process before was killed with."""
        now = asyncio.get_running_loop().time()
        for line in lines:
            data = encoded(line)
            age = time.time() - int(line["allocation"].partition("-")[0], 16) / 1e6
            if line["outcome"] == "refused":
                self.without_kernel(data, NOT_READ)
            elif 0 <= age <= LATEST_SECONDS and self.settings.pod_resources and line["ids"]:
                self.pending.append(Entry(data, {(line["resource"], name) for name in line["ids"]}, now))
            else:
                self.named(data, Found(None, None, None, TOO_LATE))

    # --- the end

    async def finish(self):
        """Before the service ends: a last question, then whatever waits gets its line."""
        try:
            await asyncio.wait_for(self.last_look(), LAST_WORDS)
        except asyncio.TimeoutError:
            pass
        if self.at_work is not None:
            await asyncio.wait([self.at_work])
        await self.in_thread(self.put, self.last(), [], [], self.restored)

    async def last_look(self):
        now = asyncio.get_running_loop().time()
        self.sort()
        await self.save()
        if self.refused:
            await self.kernel()
        if self.pending:
            await asyncio.sleep(max(0.0, self.pending[-1].at + SHOWN_SECONDS - now))
            await self.question()

    def close(self):
        """At the very end: of calls that came meanwhile."""
        self.sort()
        lines = self.last()
        if lines:
            self.put(lines, [], [], self.restored)

    def last(self):
        for entry in list(self.pending):
            self.name(entry, entry.second or Found(None, None, None, self.silence or ENDED))
        for data, _addresses in self.refused:
            self.without_kernel(data, NOT_READ)
        self.refused, self.fresh, ready, self.ready = [], [], self.ready, []
        return ready


def encoded(line):
    """As it stands in files, without its end; the queues here have lines like that."""
    return json.dumps(line).encode()


def line_of(call):
    """What is known of a call at once."""
    seconds = int(call.when)
    line = {
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int((call.when - seconds) * 1000):03d}Z",
        "allocation": f"{int(call.when * 1e6):x}-{next(SERIAL)}",
        "outcome": "given" if call.reason is None else "refused", "resource": call.resource,
        "ids": [name[:ID_LENGTH] for name in sorted(call.ids)[:IDS]],
    }
    if len(call.ids) > IDS:
        line["ids_left_out"] = len(call.ids) - IDS
    line["chips"] = [{"id": chip.id, "pci_address": chip.pci_address, "phy_id": chip.phy_id} for chip in call.chips]
    line["device_nodes"] = [host for host, _inside in call.answer.get("devices", ())]
    if call.answer.get("cdi"):
        line["cdi_devices"] = list(call.answer["cdi"])
    line["milliseconds"] = round(call.seconds * 1000, 3)
    return line


def pod_of(found):
    named = {"namespace": found.namespace, "pod": found.pod, "container": found.container}
    return named if found.note is None else {**named, "note": found.note}


def codes_of(node, chip):
    """[{"chip", "code", "level", "meaning"}] of the fault codes that a chip has now, the worst first; by node.py's records."""
    codes = set()
    for identity, record, _gone in node.seen.values():
        if (record["phy_id"], record["family"]) == (chip.phy_id, chip.family):
            past = node.health.memory.get(identity.key)
            codes.update(record.get("error_codes") or ())
            codes.update(code for code, stands in (past.standing.codes.items() if past else ()) if stands[0])
    levels = {code: node.health.levels.of(code) for code in codes}
    worst = sorted(codes, key=lambda code: (-faults.rank(levels[code]), code))[:CODES]
    return [{"chip": chip.id, "code": code, "level": levels[code], "meaning": faults.MEANING.get(levels[code], "not a known code")}
            for code in worst]
