# SPDX-License-Identifier: GPL-3.0-or-later
"""One chip and what is said of it, for the tests of the health rule. No process, no clock, no file but the levels."""

import functools
from types import SimpleNamespace

import pytest

# Codes of the vendor's file, one for each level.
NOT_HANDLE, SUB_HEALTH, REQUEST, BUSINESS, FREE_RESET = "80E01805", "80DE0207", "80C98002", "A8028802", "8C044E00"
RESET, PRE_SEPARATE, SEPARATE, NOBODY_KNOWS = "8C1FA006", "8F180220", "A8028801", "12345678"
OFTEN, LINK = "80E18005", "81078603"  # by the vendor's rules: 3 times in a day, 5 times in a day and then away for two days
DAY = 86400
FAR = 1e9  # no answer gets too old, see test_agent_health_age.py

SETTINGS = {
    "unhealthy_from": "major", "recovery_seconds": 10.0, "flap_count": 3, "flap_window": 3600.0, "flap_hold": 1800.0,
    "keep_last_state": 30.0, "degraded_temperature": 85.0, "degraded_seconds": 3600.0,
}


def well(**changes):
    return {"health_code": 0, "error_codes": [], "driver_bound": True, "device_node_present": True, **changes}


def ill(*codes, number=2):
    return well(health_code=number, error_codes=list(codes))


def silent(cause="-8006"):
    return well(health_code=None, error_codes=None, error=cause)


def event(code, assertion="occur", severity=2):
    return {"phy_id": 0, "code": code, "assertion": assertion, "severity": severity}


def hot(degrees, limit=None):
    return well(telemetry={"temperature_c": degrees, "temperature_limit_c": limit, "ecc": None})


def ecc(single=0, double=0, isolated=0):
    counters = {"single": single, "double": double, "isolated": isolated}
    return well(telemetry={"temperature_c": 40, "temperature_limit_c": None, "ecc": counters})


@pytest.fixture(scope="session")
def agent(package):
    """The agent's package with what the health rule is made of."""
    import npu_agent.config
    import npu_agent.degraded
    import npu_agent.faults
    import npu_agent.health

    return npu_agent


@pytest.fixture(scope="session")
def levels(agent):
    return agent.faults.load()


@pytest.fixture(scope="session")
def life(agent, levels):
    """A function that begins the life of a chip, with settings that differ."""
    return functools.partial(Life, agent, levels)


class Life:
    """One chip and what is said of it; `told` has the newest verdict."""

    def __init__(self, agent, levels, **settings):
        values = {**SETTINGS, "poll_seconds": FAR, "query_timeout": 5.0, "state_dir": "", **settings}
        self.health = agent.health.Health(SimpleNamespace(**values), levels)
        self.told = self.record = None

    def see(self, now, record, *events, pressure=()):
        self.record = record
        self.told = self.health.judge("key", record, events, now, pressure)
        assert self.told.review is None or self.told.review >= now
        if self.told.healthy and self.told.review is not None and self.told.review >= FAR:
            self.told = self.told._replace(review=None)
        return self.told

    def wait(self, now):
        """Only time has passed."""
        return self.see(now, self.record)

    def state(self):
        return self.told.healthy, self.told.review
