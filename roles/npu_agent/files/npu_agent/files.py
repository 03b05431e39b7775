# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are there as a whole or not at all."""

import os
import time

SCRATCH = ".new"


def replace(path, text, mode):
    """Have `path` say this text, in one step and for good: who reads it, also after a crash, sees the old text or the new one. OSError."""
    folder, name = os.path.split(path)
    # tempfile would do; it loads 0.7 MB of other modules.
    scratch = os.path.join(folder, f".{name}-{os.getpid()}-{time.monotonic_ns()}{SCRATCH}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), mode)  # whatever our umask is
            os.fsync(stream.fileno())
        os.rename(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise
    settle(folder)


def settle(folder):
    """Have the folder's names on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(path):
    """Remove what writers of this path have left that were killed. Only for who knows that no other one is writing."""
    folder, name = os.path.split(path)
    for found in os.listdir(folder):
        if found.startswith(f".{name}-") and found.endswith(SCRATCH):
            try:
                os.unlink(os.path.join(folder, found))
            except OSError:
                pass  # not worth a word
