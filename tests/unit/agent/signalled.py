# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu-agent` that gets SIGTERM from itself at a certain moment: `signalled.py MOMENT COMMAND...`. The moments are functions here."""

import asyncio
import importlib.abc
import os
import signal
import sys

MARK = "SIGNALLED_ANEW"  # a variable of the image that it becomes when it executes itself anew


def kill():
    os.kill(os.getpid(), signal.SIGTERM)


class AtImport(importlib.abc.MetaPathFinder):
    """While this module is looked for."""

    def __init__(self, module):
        self.module = module

    def find_spec(self, name, *_unused):
        if name == self.module:
            kill()


def then(function):
    """The same function; and then the signal."""

    def called(*arguments):
        answer = function(*arguments)
        if MARK not in os.environ:
            kill()
        return answer

    return called


def service_ended():
    """Between the end of what serves and that of its loop."""
    import npu_agent.serve as module

    real = module.Service.run

    async def run(service):
        await real(service)
        if service.execute:
            kill()

    module.Service.run = run


def loop_ended():
    asyncio.run = then(asyncio.run)


def eyes_stopped():
    import npu_agent.eyes as module

    module.Eyes.stop = then(module.Eyes.stop)


def started_again():
    """Before there is a handler in the new image."""
    if MARK in os.environ:
        kill()
    real = os.execv

    def execv(*arguments):
        os.environ[MARK] = "1"
        real(*arguments)

    os.execv = execv


def loading():
    sys.meta_path.insert(0, AtImport("npu_agent.cli"))


def main():
    moment = sys.argv[1]
    sys.argv = ["npu-agent", *sys.argv[2:]]
    globals()[moment]()
    from npu_agent.__main__ import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
