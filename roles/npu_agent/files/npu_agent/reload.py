# SPDX-License-Identifier: GPL-3.0-or-later
"""What a new configuration means for a service that runs: SIGHUP has it read again.

Settings that are looked at whenever they are needed change in place; kubelet notices nothing. With any other the process executes itself
anew, as the same process for whoever supervises it, and registers again a moment later; running pods do not notice that either.
"""

import os
import signal
import sys

from . import backends, config, faults, stop

LIVE = (
    "allocate_mode", "allocate_mounts", "on_stop", "unhealthy_from", "fault_file", "recovery_seconds", "flap_count", "flap_window",
    "flap_hold", "degraded_temperature", "degraded_memory", "degraded_seconds", "keep_last_state", "log_level",
    "poll_seconds", "query_timeout", "stuck_retry", "rockchip_extra", "audit_file", "kernel_log",
)


class Source:
    """Where the configuration comes from. `asked`: it was to be read again before there was a service to do so. `inherited`: process ids
    of the image before that nobody else will take when they end.

    Made first of all: before there are processes of our own, and to undo what execute() did to the signal. The signal has this handler
    for as long as the process lives: an event loop would let it end the process once the loop is closed.
    `why`: how the backend was chosen.
    """

    def __init__(self, file):
        self.file, self.asked = file, False
        self.said = False  # there was something in the file when it was read last
        self.why = ""
        self.notify = None  # called for the first of several signals
        self.inherited = inherited()
        signal.signal(signal.SIGHUP, self.ask)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def ask(self, *_unused):
        before, self.asked = self.asked, True
        if self.notify is not None and not before:
            self.notify()

    def load(self):
        """(settings, fault levels); config.ConfigError has every fault."""
        settings = config.load(self.file, lost=self.said)
        settings.backend, self.why = backends.choose(settings)
        if settings.allocate_by == "cdi" and not backends.of(settings).cdi:
            raise config.ConfigError([f"allocate_by is 'cdi', but {self.why}, and the backend {settings.backend} has no CDI specification: "
                                      "leave it out, or set `backend: ascend`"])
        levels = faults.load(settings.fault_file)
        self.said = says_something(config.chosen_file(self.file) or config.PATH)
        return settings, levels


def says_something(path):
    try:
        with open(path, "rb") as stream:
            return bool(stream.read().strip())
    except OSError:
        return False


def changes(old, new):
    """{key: (old value, new value)} of two settings, for the log: what may have secrets in it is only counted."""
    pairs = {key: (value, vars(new)[key]) for key, value in vars(old).items() if vars(new)[key] != value}
    return {key: tuple(map(shown, pair)) for key, pair in pairs.items()}


def shown(value):
    return f"{len(value)} entries" if isinstance(value, list) else value


def in_place(changed):
    return set(changed) <= set(LIVE)


def execute():
    """Become a new image of this program with the same arguments. Returns where this process is to end instead; OSError where it cannot."""
    with open("/proc/self/cmdline", "rb") as stream:
        words = stream.read().split(b"\0")[:-1]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # it waits until the new image has a handler
    if stop.last():
        return
    os.execv(sys.executable, words)  # noqa: S606  no shell is wanted


def inherited():
    """{process id} of the children that this process has: those of the image before."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as stream:
                found.update(int(word) for word in stream.read().split())
        except OSError:
            pass  # a kernel without CONFIG_PROC_CHILDREN
    return found


def reap(children):
    """Take those that have ended off the set, so that they are no zombies."""
    for child in list(children):
        try:
            ended = os.waitpid(child, os.WNOHANG)[0]
        except ChildProcessError:
            ended = child
        if ended:
            children.discard(child)
