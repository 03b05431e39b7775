# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator's own program that is asked for each chip whether it may take work, beside the driver (setting `probe`).

It is run as `PROGRAM --phy-id N --pci-address 0000:c1:00.0 --family a2` (what is not known is empty), without a shell, with
nothing on its input and nothing in its environment but PATH and LC_ALL=C. It ends with
  0 - the chip is well;
  1 - it is not: the first line that it writes is the reason;
anything else, or not in time, or it cannot be started: it has said nothing. That is logged, once for as long as it lasts, and a chip that
it called unhealthy before stays so: a chip does not get well because the program breaks down on it.

One run at a time, in a thread of its own, so that it holds up neither the driver nor kubelet. A run that is not over in time is killed
with all that it started. Where that does not help (a process that sleeps in the driver cannot die) it is left behind, and its chip is
not asked again until it is gone.
"""

import os
import select
import signal
import stat
import subprocess
import threading
import time

from ._hardware._dcmi_client import library_faults
from .log import Once
from .oom import expendable

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
LINE_LENGTH = 200  # characters of the reason
KEPT_BYTES = 4096  # of the output; the rest is read and forgotten
LOOK_SECONDS = 0.2  # between two looks at a run that writes nothing
FAILED_SECONDS = 1.0  # until the next try after a fault of ours
DIE_SECONDS = 1.0  # for a run that was killed


class Failed(Exception):
    """The program has said nothing; why."""


class Prober:
    """attach() puts what the program said of each chip into the records of a sight, and has the chips of that sight asked.

    The thread that looks calls it with every sight, before it tells of it. `news` is set and `changed` called, from the prober's thread,
    whenever an answer is another one than before: then the newest sight has to go through attach() once more (without its events).
    results: {(phy_id, pci_address): {"healthy": bool, "text": reason}}, replaced as a whole.
    """

    def __init__(self, settings, log, changed=lambda: None, clock=time.monotonic):
        self.path, self.period, self.timeout = settings.probe, settings.probe_period, settings.probe_timeout
        self.log, self.changed, self.clock = log, changed, clock
        self.results, self.lock, self.news = {}, threading.Lock(), False
        self.chips = {}  # key: record, of those to be asked
        self.ran = {}  # key: when its newest run began
        self.stuck = {}  # key: process that does not die
        self.said, self.say_thread = {}, Once(log)  # key: Once
        self.wake, self.over, self.thread = threading.Event(), False, None

    def start(self):
        """Have the thread run, with each sight: one that could not be started, or has ended, is started anew."""
        if not self.path or self.over or (self.thread is not None and self.thread.is_alive()):
            return
        if self.thread is not None:
            self.say_thread("the probe's thread has ended and is started anew", "error")
        thread = threading.Thread(target=self.run, name="probe", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread more for this user or unit; the chips are served without the program's word
            self.say_thread("the probe cannot be run", "error", cause=str(error))
        else:
            self.thread = thread

    def stop(self):
        self.over = True
        self.wake.set()
        if self.thread is not None:
            self.thread.join(0.3)  # a run under way ends within LOOK_SECONDS

    def attach(self, sight):
        if not self.path:
            return sight
        self.start()
        self.news = False  # before the answers are read: one that comes now is told of once more
        chips = {key_of(record): record for record in sight.chips if askable(record)}
        seen = {key_of(record) for record in sight.chips}
        if sight.complete:
            with self.lock:
                self.results = {key: result for key, result in self.results.items() if key in seen}
        news, self.chips = chips.keys() - self.chips.keys(), chips
        for key in news:
            self.ran.pop(key, None)  # one that is back is asked at once
        if news:
            self.wake.set()
        return sight._replace(chips=[dict(record, probe=self.results.get(key_of(record))) for record in sight.chips])

    # --- in its own thread

    def run(self):
        while not self.over:
            try:
                self.turn()
            except Exception as error:  # a fault of ours; whatever it is, it must not come a thousand times in a second
                self.say_thread("probing failed", "error", cause=repr(error))
                self.wake.wait(FAILED_SECONDS)

    def turn(self):
        self.wake.clear()
        key, seconds = pick(self.chips, self.ran, self.clock(), self.period)
        if key is None:
            self.wake.wait(seconds)
        else:
            self.ran[key] = self.clock()
            self.settle(key, self.chips.get(key))

    def settle(self, key, record):
        """Ask for one chip and keep what it is said to be."""
        if record is None:
            return  # gone since it was picked
        say = self.said.setdefault(key, Once(self.log))
        before = self.results.get(key)
        try:
            result = self.ask(key, record)
            say.over()
        except Exception as failed:  # also a fault of ours: this thread goes on
            if self.over:
                return
            problem = str(failed) if isinstance(failed, Failed) else repr(failed)
            say("probe failed", "warning", phy_id=record["phy_id"], pci_address=record.get("pci_address"), problem=problem)
            result = before if before and not before["healthy"] else None
        if result != before:
            with self.lock:
                others = {one: old for one, old in self.results.items() if one != key}
                self.results = {**others, key: result} if result else others
            self.news = True
            self.changed()

    def ask(self, key, record):
        faults = library_faults(self.path)  # the same rule as for a library: it runs with our rights
        if not faults and not (stat.S_ISREG(os.stat(self.path).st_mode) and os.access(self.path, os.X_OK)):
            faults = [f"{self.path} is no program: `chmod +x {self.path}`"]
        if faults:
            raise Failed(f"it is not run: {'; '.join(faults)}")
        left = self.stuck.get(key)
        if left is not None:
            if left.poll() is None:
                raise Failed(f"process {left.pid} of an earlier run cannot be killed")
            del self.stuck[key]
        code, output = self.execute(key, [
            self.path, "--phy-id", "" if record["phy_id"] is None else str(record["phy_id"]),
            "--pci-address", record.get("pci_address") or "", "--family", record["family"],
        ])
        if code not in (0, 1):
            raise Failed(f"it ended with {code}{': ' if output else ''}{output}")
        return {"healthy": code == 0, "text": output if code else ""}

    def execute(self, key, argv):
        """(exit code, first line of the output); a signal is negative."""
        output, writer = os.pipe()
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer, env=ENVIRONMENT, cwd="/",
                                       start_new_session=True)
        except OSError as error:
            os.close(output)
            raise Failed(f"it cannot be started: {error.strerror}") from None
        finally:
            os.close(writer)
        expendable(process.pid)
        try:
            code, text = self.follow(process.pid, output)
        finally:
            # Before it is reaped, so that its number still is its own group's; what it started and left behind goes with it.
            try:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(DIE_SECONDS)
            except PermissionError:
                self.stuck[key] = process  # it has taken another user's rights
            except subprocess.TimeoutExpired:
                self.stuck[key] = process
            os.close(output)
        return code, first_line(text)

    def follow(self, pid, output):
        """(exit code, what it wrote) at its end."""
        text, deadline = b"", self.clock() + self.timeout
        while (code := exit_code(pid)) is None:
            left = deadline - self.clock()
            if left <= 0 or self.over:
                raise Failed(f"it took longer than {self.timeout:g} s")
            text = drain(output, text, min(left, LOOK_SECONDS))
        return code, drain(output, text, 0)


def key_of(record):
    number = record["phy_id"]
    return record.get("vdie") if number is None else number, record.get("pci_address")


def askable(record):
    """Whether the program could get an answer: on others it would only hang or say what is known."""
    gone = record.get("driver_bound") is False or record.get("device_node_present") is False or record.get("dropped")
    return not gone and record.get("hung") is None


def pick(chips, ran, now, period):
    """(key of the chip that is due longest, 0), or (None, seconds until one is due; None: when there are other chips)."""
    due = {key: ran.get(key, float("-inf")) + period for key in chips}  # the other thread may take keys of `ran` away meanwhile
    if not due:
        return None, None
    first = min(due, key=lambda key: due[key])
    return (first, 0) if due[first] <= now else (None, due[first] - now)


def exit_code(pid):
    """Of our child, a signal negative; None while it runs. The child stays there to be reaped."""
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def drain(descriptor, text, seconds):
    """The text with what is there or comes within so many seconds; no more than is kept."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if poll.poll(seconds * 1000):
        data = os.read(descriptor, 65536)
        if not data:
            time.sleep(seconds / 10)  # it has closed its output and goes on
        return (text + data)[:KEPT_BYTES]
    return text


def first_line(text):
    lines = text.decode("utf-8", "replace").strip().splitlines() or [""]
    return "".join(letter if letter.isprintable() else "?" for letter in lines[0])[:LINE_LENGTH]
