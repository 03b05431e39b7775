#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

DOCUMENTATION = r"""
module: npu_package
short_description: Install one vendor package of an Ascend NPU node at a pinned version
version_added: 0.1.0
author:
  - npu.fleet contributors (@npu-fleet)
description:
  - Brings firmware, driver, a part of CANN or the Docker Runtime to exactly one version, from the vendor's C(.run) file.
  - Whether something has to be done, and whether it worked, is read from the node itself. The exit code of a package proves nothing.
  - A node that already has the version is left alone; the package is not fetched and not read then.
  - The package runs detached from the connection, as a transient systemd unit. A lost connection does not stop it; the next run of
    this module waits for it instead of starting another one.
  - Only one package runs at a time on a node. What was done is written to C(/var/lib/npu-fleet), the output of packages to
    C(/var/log/npu-fleet).
extends_documentation_fragment:
  - npu.fleet._attributes
  - npu.fleet._attributes.disruption
attributes:
  check_mode:
    support: full
    details:
      - Observes and decides as always and stops before anything is fetched or changed. RV(after) is then a prediction.
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    platforms: posix
    support: full
  disruptive:
    support: full
    details:
      - The packages of driver and firmware take the chips away from whoever uses them. A restart of the node may be needed
        (RV(reboot_required)); it is never done from here.
  resumable:
    support: full
options:
  component:
    description:
      - What to install.
    type: str
    required: true
    choices: [driver, firmware, cann_toolkit, cann_kernels, cann_nnrt, nnal, docker_runtime]
  version:
    description:
      - The version to have. Spelling does not matter (V(24.1.RC2) is V(24.1.rc2)).
      - Required with O(state=present).
    type: str
  state:
    description:
      - With V(absent) the component is removed by its own uninstaller.
    type: str
    choices: [present, absent]
    default: present
  src:
    description:
      - The package file, as an absolute path on the node or as an HTTP(S) URL. Keep the vendor's file name.
      - With O(remote_src=false) a file on the controller.
      - It is brought into O(cache_dir), where it stays, and is not needed again. A broken download is taken up where it broke.
      - User and password of a URL are neither printed nor logged.
      - Needed with O(state=present) where a package has to run. A node that is right, or has that version of CANN already, needs none.
    type: str
  mirrors:
    description:
      - More URLs of the same file, tried in this order when the one before fails.
    type: list
    elements: str
    default: []
  remote_src:
    description:
      - With V(false) O(src) is a file on the controller. It is transferred only to a node that needs it and has not got it.
    type: bool
    default: true
  sha256:
    description:
      - Checksum of the file. Nothing runs without it.
    type: str
  keep:
    description:
      - Checksums of more packages that stay in O(cache_dir). Once a set of versions has passed the gates, what is neither installed nor
        part of the last two such sets is removed from there.
    type: list
    elements: str
    default: []
  reason:
    description:
      - Why versions that are in no release are installed. It is kept in the node's record. An empty text takes an older one away.
    type: str
  family:
    description:
      - Family of chips that the caller planned for. It must be that of the chips found on the PCI bus.
    type: str
    choices: ['310', 310p, 310b, '910', a2, a3, a5]
  allow_downgrade:
    description:
      - Let an older version replace a newer one.
    type: bool
    default: false
  install_path:
    description:
      - Folder that the packages install into. A driver that is there stays where it is.
    type: path
    default: /usr/local/Ascend
  install_for_all:
    description:
      - Let all users of the node use it. Needed for other users than the owner, also in containers.
    type: bool
    default: true
  username:
    description:
      - User that owns the device nodes. It is created where it is missing. Without it, the recorded one or V(HwHiAiUser).
    type: str
  usergroup:
    description:
      - Group of that user. Without it, the recorded one or the group that is named as the user.
    type: str
  accept_licence:
    description:
      - Accept the vendor's licence where a silent installation accepts it. That is all of CANN, and the Docker Runtime from 26.1.0 on.
        Without it such a package is refused.
    type: bool
    default: false
  timeout:
    description:
      - Seconds to wait for the package. A driver alone may take 700 seconds when its device nodes do not appear.
      - After it a package is ended, with all of its processes. Firmware never is; the module returns RV(running) then.
      - Also the seconds to wait for another run of this module on the node before anything is done. It is an error when that does not
        end in time.
    type: int
    default: 1800
  poll:
    description:
      - Seconds after which the controller asks again whether the package has ended, so that no connection has to last longer; V(0) waits
        for its end in one go. A connection that breaks meanwhile is made anew.
    type: int
    default: 60
  attach:
    description:
      - Log of the run that is waited for. Filled in by the controller's half of this module.
    type: path
  staged:
    description:
      - Where the controller's half of this module has put the file; removed at the end.
    type: path
  predicted:
    description:
      - Check mode only. Components with the versions that earlier steps of the same run would have put there; the prediction takes them as
        present. Without it a firmware step is refused on a node that has no driver yet.
    type: dict
    default: {}
  cache_dir:
    description:
      - Folder for fetched packages, and for what packages unpack while they run. Must allow execution.
    type: path
    default: /var/cache/npu-fleet
  root:
    description:
      - Where the node's files are looked up. Packages install below V(/) only, so anything else serves check mode.
    type: path
    default: /
seealso:
  - module: npu.fleet.npu_info
  - module: npu.fleet.oci_runtime
"""

EXAMPLES = r"""
- name: Have this driver
  npu.fleet.npu_package:
    component: driver
    version: 25.5.0
    src: https://depot.example.com/ascend/Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run
    sha256: 3f0a377ba0a4a460ecb616f6507ce0d8cfa3e704025d4fda3ed0c5ca05468728
  register: driver

- name: Go back to an older firmware
  npu.fleet.npu_package:
    component: firmware
    version: 7.8.0.2.212
    src: /srv/packages/Ascend-hdk-910b-npu-firmware_7.8.0.2.212.run
    sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
    allow_downgrade: true

- name: Have CANN, from a file beside the playbook
  npu.fleet.npu_package:
    component: cann_toolkit
    version: 8.5.0
    src: packages/Ascend-cann-toolkit_8.5.0_linux-aarch64.run
    remote_src: false
    sha256: fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9
    accept_licence: true
"""

RETURN = r"""
before:
  description: The component before.
  returned: when the node could be observed
  type: dict
  contains: &component
    state:
      description:
        - One of V(absent), V(present), V(half_installed), V(reboot_pending), V(mismatched), V(foreign).
      type: str
      sample: present
    version:
      description: Version on disk, from the vendor's files only.
      type: str
      sample: 25.5.0
    running:
      description: Version that is loaded, or that the chips run, where it is known. Several differing ones are listed.
      type: str
      sample: 25.5.0
    path:
      description: Folder of the installation.
      type: str
      sample: /usr/local/Ascend/driver
    reason:
      description: Why it is not simply present or absent.
      type: str
      sample: Driver 25.5.0 is on disk, 25.3.rc1 is loaded.
after:
  description: The component after; a prediction in check mode.
  returned: when the node could be observed
  type: dict
  contains: *component
step:
  description: What was decided.
  returned: when the node could be observed
  type: dict
  contains:
    component:
      description: The component.
      type: str
      sample: driver
    action:
      description:
        - One of V(none), V(install), V(upgrade), V(downgrade), V(repair), V(remove), or V(attach) when an earlier run was still at work.
        - V(switch) where a version of CANN is there already and only links and environment change. It needs neither package nor licence.
      type: str
      sample: upgrade
    from:
      description: Version before.
      type: str
      sample: 25.3.rc1
    to:
      description: Version wanted.
      type: str
      sample: 25.5.0
    reason:
      description: Why.
      type: str
      sample: 25.3.rc1 is older than 25.5.0.
    reboot:
      description: Whether a restart of the node is expected to be needed.
      type: bool
      sample: false
    code:
      description: A word for the reason of a refusal. Empty for any other action.
      type: str
      sample: null
reboot_required:
  description:
    - Whether what is on disk and what runs differ, so that only a restart of the node brings them together.
    - False as long as RV(running) is true. The node must not be restarted while firmware is being written.
  returned: success
  type: bool
  sample: false
running:
  description: Whether the package is still at work. True only for firmware that did not end within O(timeout).
  returned: always
  type: bool
  sample: false
attached:
  description: Whether an earlier run was still at work and was waited for.
  returned: always
  type: bool
  sample: false
file_needed:
  description: Whether the package is needed and not on the node. True only between the two halves of this module.
  returned: always
  type: bool
  sample: false
progress:
  description: How far the package came, by its own output.
  returned: always
  type: list
  elements: dict
  contains:
    percent:
      description: What it printed.
      type: int
      sample: 40
    seconds:
      description: How long after its first line.
      type: int
      sample: 12
created:
  description: Users and groups that were made.
  returned: always
  type: list
  elements: str
  sample: [group HwHiAiUser, user HwHiAiUser]
log:
  description: Output of the package. Empty when none ran.
  returned: always
  type: dict
  contains:
    path:
      description: File on the node with all of it.
      type: str
      sample: /var/log/npu-fleet/driver-20261129T145501.log
    lines:
      description: The last lines.
      type: list
      elements: str
      sample: ["[Driver] [2026-11-29 14:55:19] [INFO]Driver package installed successfully!"]
error:
  description: What failed.
  returned: failure
  type: dict
  contains:
    message:
      description: What is wrong.
      type: str
      sample: driver 25.5.0 was not installed
    code:
      description: A word to branch on.
      type: str
      sample: nothing_installed
    phase:
      description: Where in the run, such as V(decide), V(fetch), V(verify), V(prepare), V(apply).
      type: str
      sample: apply
    object:
      description: The file or component.
      type: str
      sample: driver 25.5.0
    observed:
      description: What was found there.
      type: raw
      sample: {"state": "absent", "version": null, "rc": 0, "run": "exited", "reason": null}
    hint:
      description: What mends it.
      type: str
      sample: Read /var/log/npu-fleet/driver-20261129T145501.log on the node.
"""

import os

from ansible_collections.npu.fleet.plugins.module_utils._depot_module import DepotModule
from ansible_collections.npu.fleet.plugins.module_utils._detached import STATE_DIR as RUN_DIR
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail
from ansible_collections.npu.fleet.plugins.module_utils._packages import _fetch, _node
from ansible_collections.npu.fleet.plugins.module_utils._packages._good import CACHE_DIR
from ansible_collections.npu.fleet.plugins.module_utils._packages._install import Installer, Places, Wish
from ansible_collections.npu.fleet.plugins.module_utils._packages._journal import STATE_DIR

LOG_DIR = "/var/log/npu-fleet"


def argument_spec():
    return {
        "component": {
            "type": "str", "required": True,
            "choices": ["driver", "firmware", "cann_toolkit", "cann_kernels", "cann_nnrt", "nnal", "docker_runtime"],
        },
        "version": {"type": "str"},
        "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        "src": {"type": "str"},
        "mirrors": {"type": "list", "elements": "str", "default": []},
        "remote_src": {"type": "bool", "default": True},
        "sha256": {"type": "str"},
        "keep": {"type": "list", "elements": "str", "default": []},
        "reason": {"type": "str"},
        "family": {"type": "str", "choices": ["310", "310p", "310b", "910", "a2", "a3", "a5"]},
        "allow_downgrade": {"type": "bool", "default": False},
        "install_path": {"type": "path", "default": "/usr/local/Ascend"},
        "install_for_all": {"type": "bool", "default": True},
        "username": {"type": "str"},
        "usergroup": {"type": "str"},
        "accept_licence": {"type": "bool", "default": False},
        "timeout": {"type": "int", "default": 1800},
        "poll": {"type": "int", "default": 60},
        "attach": {"type": "path"},
        "staged": {"type": "path"},
        "predicted": {"type": "dict", "default": {}},
        "cache_dir": {"type": "path", "default": CACHE_DIR},
        "root": {"type": "path", "default": "/"},
    }


def wish_of(params, check_mode):
    """The wish in one piece; raises FleetError for values that no package can be run with."""
    src = params["src"]
    if src and params["remote_src"] and not _fetch.is_url(src) and not src.startswith("/"):
        message = "src must be an absolute path on the node or an http(s) URL, not %s." % src
        raise FleetError(message, "src_invalid", "prepare", object=src)
    if src and not params["sha256"]:
        raise FleetError("A package is not run without its sha256.", "checksum_missing", "prepare", object=_fetch.public(src))
    if os.path.realpath(params["root"]) != "/" and not check_mode:
        message = "Packages install below / only, root is %s." % params["root"]
        raise FleetError(message, "root_unsupported", "prepare", object=params["root"], hint="Use check mode with another root.")
    return Wish(**{name: params[name] for name in Wish._fields})


def diff_of(component, result):
    """Versions and states in the form that ansible --diff shows."""
    texts = ["%s: %s %s\n" % (component, result[when]["version"] or "-", result[when]["state"]) for when in ("before", "after")]
    return {"before_header": component, "after_header": component, "before": texts[0], "after": texts[1]}


def main():
    module = DepotModule(
        argument_spec=argument_spec(),
        supports_check_mode=True,
        required_if=[("state", "present", ("version",))],
    )
    result: dict = {"changed": False}
    try:
        wish = wish_of(module.params, module.check_mode)
        places = Places(module.params["cache_dir"], STATE_DIR, LOG_DIR, RUN_DIR, "/")
        predicted = module.params["predicted"] if module.check_mode else {}
        installer = Installer(wish, lambda: _node.predict(_node.observe(wish.component, module.params["root"]), predicted), places)
        result = installer.result
        installer.ensure(module.check_mode)
    except FleetError as error:
        result.pop("warnings", None)
        if error.code != "busy":
            _fetch.discard(module.params["staged"])
        fail(module, error, **result)
    except OSError as error:
        result.pop("warnings", None)
        fail(module, FleetError("%s: %s" % (error.filename or "The node", error.strerror), "node_error", observed=str(error)), **result)
    _fetch.discard(module.params["staged"])
    for text in result.pop("warnings"):
        module.warn(text)
    if module._diff:
        result["diff"] = diff_of(wish.component, result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
