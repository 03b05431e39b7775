# SPDX-License-Identifier: GPL-3.0-or-later
"""Build modules as they go over the wire and print {"name": bytes}. A process of its own: it installs Ansible's collection loader."""

import json
import sys


def main(collections_path, names):
    from ansible.plugins.loader import init_plugin_loader, module_loader
    init_plugin_loader([collections_path])
    from ansible.executor.module_common import modify_module
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar

    sizes = {}
    for name in names:
        path = module_loader.find_plugin(name)
        if path is None:
            raise SystemExit(f"{name} is not found under {collections_path}")
        built = modify_module(module_name=name, module_path=path, module_args={}, templar=Templar(DataLoader()),
                              task_vars={"ansible_python_interpreter": "/usr/bin/python3"},
                              module_compression="ZIP_DEFLATED")
        sizes[name] = len(built.b_module_data)
    print(json.dumps(sizes))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
