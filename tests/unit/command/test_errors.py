# SPDX-License-Identifier: GPL-3.0-or-later
"""FleetError keeps its fields; fail() hands them to the module."""

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail


class Module:
    def fail_json(self, **result):
        self.result = result


def test_fields():
    error = FleetError("No.", "no_such", phase="run", object="/x", observed="1", hint="Do it.")
    assert str(error) == "No. Do it."
    assert error.as_dict() == {"message": "No.", "code": "no_such", "phase": "run", "object": "/x", "observed": "1", "hint": "Do it."}
    assert str(FleetError("No.", "no_such")) == "No."


def test_fail():
    module = Module()
    fail(module, FleetError("No.", "no_such"), log="x")
    assert module.result["msg"] == "No."
    assert module.result["error"]["code"] == "no_such"
    assert module.result["log"] == "x"
