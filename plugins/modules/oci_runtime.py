# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the action plugin of the same name."""

DOCUMENTATION = r"""
module: oci_runtime
short_description: Register an OCI runtime in the container engine
version_added: 0.1.0
description:
  - Puts one runtime into the configuration of the host's container engine, or takes it out, and makes the engine take that over.
  - The file stays the admin's. Only the entry of this runtime changes (and C(default-runtime), where it is asked for). Foreign keys,
    order, indentation, mode, owner, extended attributes and a symbolic link stay as they are.
  - The new text is checked by the engine's own parser on a copy where the engine has one (C(dockerd --validate), docker 23 and newer; the
    result says how it was checked), written in one step, and put back byte for byte when the engine does not take it over.
  - No container is stopped. C(dockerd) takes over runtimes and the default runtime by a reload (SIGHUP), so a running C(dockerd) is never
    restarted, with or without C(live-restore); one that is down is started, except for O(state=absent).
  - What counts is what the engine says. Where the file is right and the engine does not know of it (a run was cut between writing and
    reloading), the engine is reloaded.
  - This release configures C(docker) only. V(containerd), V(crio), V(k3s) and V(rke2) are known values of O(engine), but end in the
    error C(engine_unsupported), "not supported in this release".
  - It takes one execution on the host when nothing is to be done and in check mode, otherwise two.
extends_documentation_fragment:
  - npu.fleet._attributes
  - npu.fleet._attributes.disruption
attributes:
  check_mode:
    support: full
    details: A runtime whose program is not there yet is a warning in check mode, and an error otherwise.
  diff_mode:
    support: full
    details: Credentials are masked.
  idempotent:
    support: full
  platform:
    support: full
    platforms: posix
  disruptive:
    support: none
    details: Running containers go on. A C(dockerd) that is down is started.
  resumable:
    support: full
options:
  engine:
    description:
      - The engine to configure. V(auto) takes C(docker) where C(dockerd) is installed.
      - Only V(docker) is supported in this release.
    type: str
    choices: [auto, docker, containerd, crio, k3s, rke2]
    default: auto
  name:
    description: Name of the runtime in the engine, as in C(docker run --runtime).
    type: str
    default: ascend
  path:
    description:
      - Absolute path of the runtime's program on the host. It must be there and executable.
      - Required with O(state=present).
    type: str
  args:
    description:
      - Arguments of the runtime.
      - Without this option an existing entry keeps its arguments, a new one gets none.
    type: list
    elements: str
  set_default:
    description:
      - Whether the runtime becomes the engine's default. The former default is noted on the host.
      - With V(false) the default is left alone, whatever it is.
      - As default runtime, V(ascend) lets every container take NPUs by an environment variable.
    type: bool
    default: false
  config_path:
    description:
      - The engine's file. By default the one its command line or unit names, else C(/etc/docker/daemon.json).
      - A path that the engine does not read is an error.
    type: path
  state:
    description:
      - V(present) registers the runtime.
      - V(absent) removes this runtime only. Where it is the default, the default noted on the host comes back, or the engine's own.
    type: str
    choices: [present, absent]
    default: present
  validate:
    description: Whether the engine's own parser checks the new text before it is put in place.
    type: bool
    default: true
  restart:
    description:
      - V(auto) makes the engine take over the file. For C(docker) that is a reload, or a start where it is down, and never a restart.
      - V(never) writes the file and does nothing to the engine. RV(reload_required) says what is left to do.
    type: str
    choices: [auto, never]
    default: auto
  backup:
    description:
      - Whether the old file is kept in C(/var/lib/npu-fleet/backups) (files 0600, folder 0700).
      - While a run is under way there always is a copy.
    type: bool
    default: true
  timeout:
    description: How long to wait for the engine to reload or start, in seconds.
    type: int
    default: 60
seealso:
  - module: npu.fleet.npu_package
  - module: npu.fleet.npu_info
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Register the runtime, leave the default alone
  npu.fleet.oci_runtime:
    path: /usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime

- name: Make it the default as well
  npu.fleet.oci_runtime:
    path: /usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime
    set_default: true

- name: Write the file now, reload the engine in a maintenance window
  npu.fleet.oci_runtime:
    path: /usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime
    restart: never

- name: Take it out again, and give back the former default
  npu.fleet.oci_runtime:
    state: absent
"""

RETURN = r"""
engine:
  description: The engine that was configured.
  returned: success
  type: str
  sample: docker
engine_version:
  description: Its version.
  returned: success
  type: str
  sample: 20.10.24+dfsg1
config_path:
  description: Its configuration file.
  returned: success
  type: str
  sample: /etc/docker/daemon.json
previous_default:
  description:
    - The default runtime of the file before this collection changed it. V(null) where there was none, or nothing was changed.
    - With O(state=absent), the one that came back.
  returned: success
  type: str
  sample: nvidia
effective:
  description: What the engine itself says, after the run.
  returned: success
  type: dict
  contains:
    runtimes:
      description: The engine's runtimes by name.
      type: dict
      sample: {"ascend": {"path": "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime", "args": []}}
    default_runtime:
      description: The engine's default runtime.
      type: str
      sample: runc
actions:
  description: What was done to the engine, in order. V(reload) or V(start).
  returned: success
  type: list
  elements: str
  sample: [reload]
reload_required:
  description: Whether the engine still has to take over the file, with O(restart=never).
  returned: success
  type: bool
  sample: false
validation:
  description: How the new text was checked. V(null) where none was written.
  returned: success
  type: str
  sample: by dockerd --validate
backup_file:
  description: The copy of the old file on the host. V(null) where none was made.
  returned: success
  type: str
  sample: /var/lib/npu-fleet/backups/daemon.json.20260101T120000Z.0123456789ab
containers_running:
  description: How many containers ran at the start of the task.
  returned: success
  type: int
  sample: 3
live_restore:
  description: Whether the engine keeps containers alive while it is down.
  returned: success
  type: bool
  sample: false
error:
  description: What went wrong, as fields.
  returned: failure
  type: dict
  contains:
    message:
      description: What is wrong, and where.
      type: str
      sample: "/etc/docker/daemon.json, line 3, column 5: a comma or a closing brace should stand here. The file was left as it is."
    code:
      description: A short word for the kind of error.
      type: str
      sample: config_invalid
    phase:
      description: The step in which it was seen.
      type: str
      sample: edit
    object:
      description: The file or program it is about.
      type: str
      sample: /etc/docker/daemon.json
    observed:
      description: What was found there.
      type: str
      sample: "line 3, column 5: a comma or a closing brace should stand here"
    hint:
      description: What mends it.
      type: str
      sample: Mend that place, then run again.
"""
