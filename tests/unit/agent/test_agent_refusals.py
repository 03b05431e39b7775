# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pod's owner reads when an allocation is refused: kubelet makes it the pod's message and does not try again."""

import re
from types import SimpleNamespace

import pytest

RESOURCE = "huawei.com/Ascend910"
LONG = "x" * 700
# What to do: one of these stands in each text.
ADVICE = re.compile(r"a new pod gets another chip|see `npu-agent (discover|cdi --check)`|restart(ing)? (it|kubelet)")


@pytest.fixture
def plugin(package):
    import npu_agent.plugin

    return npu_agent.plugin


@pytest.fixture
def board(package):
    from npu_agent.chip import Chip

    base = Chip("Ascend910-0", 0, "a2", "0000:c1:00.0", 0, 0, "/dev/davinci0", None, True, "", 0, (), logic_id=0)
    made = {
        "ok": base,
        "gone": base._replace(id="Ascend910-1", gone=True, reason="the driver lists it no more"),
        "gone long": base._replace(id="Ascend910-2", gone=True, reason=LONG),
        "barred": base._replace(id="Ascend910-3", barred=f"pod {LONG} still has Ascend910-3-0: delete it"),
        "no node": base._replace(id="Ascend910-4", phy_id=77),
    }
    units = {chip.id: chip for chip in made.values()}
    units.update((f"Ascend910-{number}", base) for number in range(5, 16))
    return SimpleNamespace(resource=RESOURCE, units=units, forms={"Ascend910-99": [f"Ascend910-99-{n}" for n in range(100)]}, log=None)


@pytest.fixture
def settings(tmp_path, config, monkeypatch):
    for name in ("davinci_manager", "davinci0"):
        (tmp_path / name).touch()  # no devices: the driver is not as it should be
    return config.load(None, {"NPU_AGENT_DEV_ROOT": str(tmp_path), "NPU_AGENT_BACKEND": "ascend"})


@pytest.fixture
def config(package):
    import npu_agent.config

    return npu_agent.config


@pytest.mark.parametrize(("ids", "words"), [
    (["Ascend910-1"], ("Ascend910-1 (PCI 0000:c1:00.0) is gone", "the driver lists it no more")),
    (["Ascend910-2"], ("Ascend910-2 (PCI 0000:c1:00.0) is gone", "…")),
    (["Ascend910-3"], ("Ascend910-3 (PCI 0000:c1:00.0) is given to nobody now", "…")),
    (["Ascend910-4"], ("davinci77 of Ascend910-4 (PCI 0000:c1:00.0) does not exist", "")),
    (["Ascend910-0"], ("davinci0", "")),
    (["Ascend910-99"], (f"Ascend910-99 is no id of {RESOURCE} any more", "100 others")),
    (["Ascend910-50"], (f"Ascend910-50 is no id of {RESOURCE} on this node", "")),
    ([LONG], ("x" * 80 + f" is no id of {RESOURCE}", "")),
])
def test_a_refusal_says_what_is_wrong_with_which_chip_and_what_to_do(plugin, board, settings, ids, words):
    from npu_agent import allocate

    with pytest.raises(allocate.Refused) as refused:
        allocate.answer(ids, board, settings)
    told = plugin.short(str(refused.value))
    assert len(told) <= 300 and ADVICE.search(told), told
    assert all(word in told for word in words), told


def test_a_fault_of_ours_says_what_to_do(plugin):
    told = plugin.short(plugin.fault_text(ValueError(LONG)))
    assert len(told) == 300 and told.startswith("a fault of npu-agent: ValueError('xxx") and told.endswith("restarting it there may help")


@pytest.mark.parametrize(("text", "told"), [
    ("a; b", "a; b"), ("x" * 300, "x" * 300), ("x" * 301, "x" * 299 + "…"), ("x" * 400 + "; do this", "x" * 290 + "…; do this"),
    ("a; " + "y" * 400, "a; " + "y" * 134 + "…; " + "y" * 160),
])
def test_a_text_that_is_too_long_loses_its_middle(plugin, text, told):
    assert plugin.short(text) == told and len(told) <= 300
