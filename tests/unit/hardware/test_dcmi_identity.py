# SPDX-License-Identifier: GPL-3.0-or-later
"""Who a chip is by what DCMI answers, and by what it does not."""

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _dcmi


class Answers:
    """A library whose calls about one chip answer from a table: a code, or the fields of what they fill in."""

    second = False
    usual = {"get_device_elabel_info": {"serial_number": b"CHIP"}, "dcmi_get_card_elabel_v2": {"serial_number": b"CARD"},
             "get_device_pcie_info_v2": {"domain": 4, "bdf_busid": 0xc1}, "get_device_pcie_info": {"bdf_busid": 0xc1}}

    def __init__(self, **others):
        self.table = {**self.usual, **others}

    def of_chip(self, _chip, name, *arguments):
        answer = self.table.get(name, _dcmi.NOT_SUPPORTED)
        if isinstance(answer, int):
            raise _dcmi.DcmiFailed(name, answer)
        for field, value in answer.items():
            setattr(arguments[-1]._obj, field, value)

    def call(self, name, card_id, pointer):
        self.of_chip(card_id, name, pointer)


@pytest.mark.parametrize(("others", "serial", "address"), [
    ({}, "CHIP", "0004:c1:00.0"),
    (dict.fromkeys(("get_device_elabel_info", "get_device_pcie_info_v2"), -8255), "CARD", "0000:c1:00.0"),
    ({"get_device_elabel_info": {}}, "CARD", "0004:c1:00.0"),
    (dict.fromkeys(("get_device_elabel_info", "get_device_pcie_info_v2"), -8006), None, None),
])
def test_what_cannot_be_told_now_is_not_taken_from_another_call(others, serial, address):
    """The label of the card and the older call for the address say other values, and the chip would be another one."""
    record = {"card_id": 0, "device_id": 0, "error": None}
    _dcmi.fill_identity(_dcmi.Reader(Answers(**others), _dcmi.Chip(0, 0, (0, 0)), record), record)
    assert (record.get("serial"), record.get("pci_address")) == (serial, address)
    assert (record["error"] is not None) == (-8006 in others.values())
