# SPDX-License-Identifier: GPL-3.0-or-later
"""SIGTERM and SIGINT, from the first moment of a process to its last.

The kernel drops a signal that the first process of a container has no handler for. So there is one before anything is loaded, and it is not
the event loop's own, which is gone as soon as the loop is closed: a service that executes itself anew goes on after that.
"""

import os
import signal

NUMBERS = (signal.SIGTERM, signal.SIGINT)
SERVICES = ("serve", "access", "labels")


def handle(handler):
    for number in NUMBERS:
        signal.signal(number, handler)


def at_once(*_unused):
    """Where there is nothing yet, or nothing any more, that would have to be ended in order."""
    os._exit(0)


def first(argv):
    """To be called before anything else is loaded. The image before may have left the signals blocked, see last()."""
    if argv[1:2] and argv[1] in SERVICES:
        handle(at_once)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)


def last():
    """Right before this process executes itself anew: whether it is to end instead. From now on a signal waits for the new image's first()
    (blocked signals stay so), or ends this one, where another thread gets it; but the first process of a container loses that one, and
    whoever stops it kills it some seconds later."""
    signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    handle(signal.SIG_DFL)
    return not signal.sigpending().isdisjoint(NUMBERS)
