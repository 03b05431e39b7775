# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one error type of this collection. Private to the collection.

Library code raises it; only ``main()`` of a module turns it into ``fail_json``.
"""


class FleetError(Exception):
    """What is wrong, where, and what mends it, as fields.

    ``code`` is a short lower-case word that callers may branch on, ``phase`` the step of the run, ``object`` the file,
    package or device, ``observed`` what was found there, ``hint`` the command or setting that mends it.
    """

    def __init__(self, message, code, phase=None, *, object=None, observed=None, hint=None):
        super(FleetError, self).__init__(message)
        self.message = message
        self.code = code
        self.phase = phase
        self.object = object
        self.observed = observed
        self.hint = hint

    def __str__(self):
        return "%s %s" % (self.message, self.hint) if self.hint else self.message

    def as_dict(self):
        """Return the fields as a dict of plain values."""
        return {
            "message": self.message,
            "code": self.code,
            "phase": self.phase,
            "object": self.object,
            "observed": self.observed,
            "hint": self.hint,
        }


def fail(module, error, **result):
    """End ``module`` (an AnsibleModule) with ``error``; ``result`` are more values to return."""
    module.fail_json(msg=str(error), error=error.as_dict(), **result)
