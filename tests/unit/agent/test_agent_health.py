# SPDX-License-Identifier: GPL-3.0-or-later
"""The health rule: what a chip's record says by itself, and what time adds to it. No process, no clock, no file but the levels."""

import pytest


@pytest.fixture(scope="module")
def agent(package):
    import npu_agent.degraded
    import npu_agent.faults
    import npu_agent.health

    return npu_agent


# --- one record by itself

@pytest.mark.parametrize(("record", "level", "healthy", "words"), [
    ({"health_code": 0}, "major", True, ""),
    ({"health_code": 1}, "major", True, "minor"),
    ({"health_code": 1}, "minor", False, "minor"),
    ({"health_code": 2}, "major", False, "major"),
    ({"health_code": 2}, "critical", True, "major"),
    ({"health_code": 3, "error_codes": ["80E01801"]}, "critical", False, "critical, error codes 80E01801"),
    ({"health_code": 7}, "critical", False, "0x7"),
    ({"health_code": 0xFFFFFFFF, "dropped": True}, "critical", False, "gone"),
    ({"health_code": None, "dropped": True, "error": "-8012"}, "critical", False, "gone"),
    ({"health_code": None, "error": "dcmi_get_device_health returned -8006"}, "major", None, "-8006"),
    ({"health_code": None}, "major", None, "no health"),
    ({"health_code": 0, "device_node_present": False, "device_node": "/dev/davinci3"}, "major", False, "/dev/davinci3 is missing"),
    ({"health_code": 0, "driver_bound": False}, "major", False, "no driver"),
])
def test_record_without_levels(agent, record, level, healthy, words):
    found, reason = agent.health.judge(record, level)
    assert found is healthy and words in reason
