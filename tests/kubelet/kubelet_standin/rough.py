# SPDX-License-Identifier: GPL-3.0-or-later
"""Rough handling of plugins. `--rough NAME=VALUE` holds across restarts of the stand-in, `kubelet-ctl rough NAME=VALUE` until the next."""

import time

from .plugin import Failure

DEFAULTS = {
    "list": 1.0,  # 0: a plugin is registered, but its ListAndWatch is never called
    "dial_delay": 0.0,  # seconds that Register waits before it dials the plugin
    "refuse": 0.0,  # 1: Register fails
}


class Rough:
    def __init__(self, words=()):
        self.values = dict(DEFAULTS)
        self.change(word.partition("=")[::2] for word in words)

    def change(self, pairs):
        for name, value in pairs:
            if name not in DEFAULTS:
                raise ValueError(f"there is no rough handling {name!r}, but {', '.join(DEFAULTS)}")
            self.values[name] = float(value)

    def before_dial(self):
        time.sleep(self.values["dial_delay"])
        if self.values["refuse"]:
            raise Failure("refused on purpose")
