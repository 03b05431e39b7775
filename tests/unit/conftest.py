# SPDX-License-Identifier: GPL-3.0-or-later
"""How hypothesis chooses its examples."""

import hypothesis


def pytest_configure(config):
    """The short form looks at the same examples each time: it asks whether a change is right. Those that nobody has seen yet are for the
    long form, which looks for what was wrong all the time."""
    short = "not long" in config.getoption("markexpr")
    how = {"max_examples": 100, "derandomize": True} if short else {"max_examples": 3000}
    hypothesis.settings.register_profile("npu.fleet", deadline=None, database=None, **how)
    hypothesis.settings.load_profile("npu.fleet")
