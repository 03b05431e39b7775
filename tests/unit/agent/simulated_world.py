# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated node for the part of the agent that looks at it, in this process."""

import os

from agent_rig import make_node, npu_sim


class World:
    """One simulated node: its state, and what the driver shows of it below sys and dev."""

    def __init__(self, folder, library, product="a2", chips=None):
        import sysfs_tree

        import npu_agent.config
        import npu_agent.look
        import npu_agent.signals

        self.tree, self.agent = sysfs_tree, npu_agent
        self.sys, self.dev, self.state = folder / "sys", folder / "dev", folder / "state.json"
        (self.sys / "bus/pci").mkdir(parents=True)
        self.dev.mkdir()
        (folder / "config.yaml").write_text("")
        self.variables = {
            "NPU_AGENT_CONFIG": folder / "config.yaml", "NPU_AGENT_SYSFS_ROOT": self.sys, "NPU_AGENT_DEV_ROOT": self.dev,
            "NPU_AGENT_DCMI_LIBRARY": library, "NPU_AGENT_QUERY_TIMEOUT": 1,
        }
        self.lookers = []
        content = npu_sim.initial(product, chips)
        content["kernel"].update(driver_loaded=True, driver_version="25.5.0")
        npu_sim.personalise(content, "world")
        npu_sim.save(content, self.state)
        self.show()

    def show(self):
        state = npu_sim.load(self.state)
        tree = {"drivers/devdrv_device_driver": None}
        for chip in state["chips"]:
            if chip["present"]:
                tree.update({f"devices/{path}": value for path, value in self.tree.pci_function(state, chip).items()})
        self.tree.make_equal(self.sys / "bus/pci", tree)
        wanted = set(self.tree.node_numbers(state))
        for name in set(os.listdir(self.dev)) - wanted:
            (self.dev / name).unlink()
        for name in wanted - set(os.listdir(self.dev)):
            make_node(self.dev / name)

    def set(self, pairs, show=True):
        npu_sim.set_values(pairs, self.state)
        if show:
            self.show()

    def looker(self, **settings):
        variables = {**self.variables, **{"NPU_AGENT_" + key.upper(): value for key, value in settings.items()}}
        loaded = self.agent.config.load(None, {key: str(value) for key, value in variables.items()})
        self.watch = self.agent.signals.Watch()
        self.signals = self.agent.signals.Signals(self.watch, loaded.dev_root, lambda *_words, **_fields: None)
        self.told = []
        self.lookers.append(self.agent.look.Looker(loaded, self.watch, signals=self.signals, tell=self.told.append))
        return self.lookers[-1]

    def close(self):
        for looker in self.lookers:
            looker.close()
        if self.lookers:
            self.signals.close()


def column(sight, *keys):
    return [tuple(chip[key] for key in keys) if len(keys) > 1 else chip[keys[0]] for chip in sight.chips]


def driver_processes():
    """Process ids of the children of this process that have the library, and are alive."""
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as stream:
            found |= {int(word) for word in stream.read().split()}
    return {pid for pid in found if command_line(pid).endswith("libdcmi.so")}


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as stream:
            return stream.read().rstrip("\0")
    except OSError:
        return ""
