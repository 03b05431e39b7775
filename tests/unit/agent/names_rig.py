# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables of names for tests: the fixture `names`, and what chips tell."""

import pytest


@pytest.fixture
def names(package, tmp_path):
    """A function that makes a table of names; each one is an agent that starts anew, after the one before or `beside` it. Its log is in
    `events`."""
    import npu_agent.backends
    import npu_agent.identity

    made = []

    def make(folder=tmp_path / "state", *, beside=False, **more):
        if made and not beside:
            made[-1].close()
        events = []
        log = lambda event, level="info", **fields: events.append((event, level, fields))  # noqa: E731
        made.append(npu_agent.identity.Names(str(folder) if folder else "", log, backend=npu_agent.backends.by_name("ascend"), **more))
        made[-1].events = events
        return made[-1]

    yield make
    for one in made:
        one.close()


def chip(phy_id, vdie=None, family="a2", **changes):
    values = {"phy_id": phy_id, "family": family, "vdie": vdie, "serial": None, "device_id": 0, "pci_address": f"0000:{phy_id:02x}:00.0"}
    return {**values, **changes}


def given(table, *records, complete=True):
    """The numbers of the names, in the order of the records."""
    found = [entry.name for entry in table.assign(list(records), complete)]
    table.save()
    if table.file is not None and table.file.writer is not None:
        table.file.writer.join(60)
    assert len(set(found)) == len(found)
    return [int(name.rpartition("-")[2]) for name in found]
