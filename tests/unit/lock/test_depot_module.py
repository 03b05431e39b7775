# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible writes into the system's log of a node when a module starts."""

import importlib

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._depot_module import DepotModule

CANARY = "pa55-w0rd-canary"


class Module(DepotModule):
    def __init__(self, **params):  # the real one reads its options from stdin
        self.params, self.argument_spec, self.aliases, self.no_log_values = params, {}, {}, set()

    def log(self, msg, log_args=None):
        self.said = msg


@pytest.mark.parametrize("address", [
    f"https://depot/x.run?token={CANARY}", f"https://user:{CANARY}@depot/x.run", f"https://{CANARY}@depot/x.run",
    f"https://{CANARY}:@depot/x.run", f"https://user:a/{CANARY}@depot/x.run",
])
def test_the_log_has_no_secret_of_an_address(address):
    module = Module(src=address, mirrors=["/srv/depot", address.replace("depot/", "mirror/")], version="25.5.0")
    module._log_invocation()
    assert "version=25.5.0" in module.said
    assert "/srv/depot" in module.said
    assert CANARY not in module.said
    # The same values are hidden in results.
    assert any(CANARY in value for value in module.no_log_values)


@pytest.mark.parametrize("name", ["npu_depot_scan", "npu_package"])
def test_modules_with_addresses_are_such_modules(name, monkeypatch):
    module = importlib.import_module(f"ansible_collections.npu.fleet.plugins.modules.{name}")

    def made(self, **options):
        raise InterruptedError

    monkeypatch.setattr(DepotModule, "__init__", made)
    with pytest.raises(InterruptedError):
        module.main()
