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
  - The files stay the admin's. Only the entry of this runtime changes (and the default runtime, where it is asked for). Foreign keys,
    comments, order, quoting, indentation, mode, owner, extended attributes and a symbolic link stay as they are. Adding and removing a
    runtime leaves the same bytes.
  - The new text is checked by the engine's own parser on a copy where the engine has one (C(dockerd --validate), docker 23 and newer;
    C(containerd config dump); C(crio config); the result says how it was checked), written in one step, and put back byte for byte when
    the engine does not take it over.
  - C(dockerd) takes over runtimes and the default runtime by a reload (SIGHUP) and is never restarted. C(containerd), C(k3s), C(rke2) and
    C(isulad) need a restart; containers outlive it where the unit lets them (C(KillMode=process)). Where it would end some, the run
    stops before anything is written, unless O(disruption=allow). An engine that is down is started, except for O(state=absent).
  - What counts is what the engine says, by C(docker info) or over CRI. Where the files are right and the engine does not know of it (a run
    was cut between writing and taking over), it is made to take them over.
  - In C(containerd), C(k3s) and C(rke2) the entry is like that of C(runc) in effect, cgroup driver included, with O(path) as its
    C(BinaryName). C(runc) keeps its entry. C(containerd)'s table is that of the version of its configuration (1 to 4; none is 1); the file
    is the one that has the entry, else the last one whose CRI table counts. Without a configuration file one is made.
  - In C(k3s) and C(rke2) the entry is a drop-in where the generated configuration (from its version 3 on) reads a folder of them, else a
    block between markers in the template. The generated file is never written, a template never read as TOML.
  - In C(cri-o) the entry is a drop-in of its own, C(/etc/crio/crio.conf.d/99-npu-fleet-NAME.conf).
  - It takes one execution on the host when nothing is to be done and in check mode, otherwise two.
requirements:
  - On the controller, for engines other than C(docker) and C(isulad), Python 3.11 or later, or the Python library C(tomli).
extends_documentation_fragment:
  - npu.fleet._attributes
  - npu.fleet._attributes.disruption
attributes:
  check_mode:
    support: full
    details: A runtime whose program is not there yet, or containers that a restart would end, are a warning then and an error otherwise.
  diff_mode:
    support: full
    details: Credentials are masked.
  idempotent:
    support: full
  platform:
    support: full
    platforms: posix
  disruptive:
    support: partial
    details: Running containers end only with O(disruption=allow), and only where an engine has to be restarted that takes them with it.
  resumable:
    support: full
options:
  engine:
    description:
      - The engine to configure.
      - V(auto) takes the one that kubelet on this host uses; without kubelet, the only one that is installed (C(docker) where the
        C(containerd) beside it is there for C(docker)). Between two it does not guess, that is an error.
    type: str
    choices: [auto, docker, containerd, k3s, rke2, crio, isulad]
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
      - Only C(docker) and C(isulad) know arguments; with another engine they are an error.
    type: list
    elements: str
  set_default:
    description:
      - Whether the runtime becomes the engine's default. The former default is noted on the host.
      - With V(false) the default is left alone, whatever it is.
      - In a template of C(k3s) or C(rke2) it can not be set; there it is their own option C(default-runtime).
      - As default runtime, V(ascend) lets every container take NPUs by an environment variable.
    type: bool
    default: false
  config_path:
    description:
      - The engine's main file. By default the one its command line or unit names, else C(/etc/docker/daemon.json),
        C(/etc/containerd/config.toml), C(/etc/crio/crio.conf) or C(/etc/isulad/daemon.json).
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
      - V(auto) makes the engine take over the file, by a reload where it has one that does, else by a restart, or a start where it is down.
      - V(never) writes the file and does nothing to the engine. RV(reload_required) says what is left to do.
    type: str
    choices: [auto, never]
    default: auto
  disruption:
    description:
      - Whether taking over may end running containers or pods.
      - With V(refuse) the run stops with the error C(would_kill), which names them, before anything is written.
    type: str
    choices: [refuse, allow]
    default: refuse
  backup:
    description:
      - Whether the old file is kept in C(/var/lib/npu-fleet/backups) (files 0600, folder 0700).
      - While a run is under way there always is a copy.
    type: bool
    default: true
  timeout:
    description: How long to wait for the engine to reload, restart or start, in seconds.
    type: int
    default: 60
seealso:
  - module: npu.fleet.npu_package
  - module: npu.fleet.npu_info
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: Register the runtime in the engine that kubelet uses, leave the default alone
  npu.fleet.oci_runtime:
    path: /usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime

- name: Make it docker's default as well
  npu.fleet.oci_runtime:
    engine: docker
    path: /usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime
    set_default: true

- name: Write the file now, restart containerd in a maintenance window
  npu.fleet.oci_runtime:
    engine: containerd
    path: /usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime
    restart: never

- name: On a drained node, let the restart of k3s end what still runs
  npu.fleet.oci_runtime:
    engine: k3s
    path: /usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime
    disruption: allow

- name: Another vendor's runtime, in cri-o
  npu.fleet.oci_runtime:
    engine: crio
    name: kata-qemu
    path: /opt/kata/bin/kata-runtime

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
kubelet:
  description: Whether kubelet on this host uses this engine. V(null) where that is not known.
  returned: success
  type: bool
  sample: true
config_path:
  description: The file that holds the runtime's entry, or would hold it; main file, import, drop-in or template.
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
      sample: {"ascend": {"path": "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime", "args": [], "type": null}}
    default_runtime:
      description: The engine's default runtime.
      type: str
      sample: runc
    handlers:
      description: The runtime handlers that the engine tells kubelet of. V(null) where it tells none (containerd 1, C(docker)).
      type: list
      elements: str
      sample: null
actions:
  description: What was done, in order. V(reload), V(restart) or V(start); and how the file was written, where not by a rename.
  returned: success
  type: list
  elements: str
  sample: [reload]
users:
  description:
    - With O(state=absent), the containers or pods, running or not, that were made with the runtime. They cannot start again without it, and
      running ones do not end properly.
  returned: success
  type: list
  elements: str
  sample: ["web", "ml/train-0"]
takes_over_by:
  description: What this engine needs to take over a change now, V(reload), V(restart) or V(start).
  returned: success
  type: str
  sample: reload
killed:
  description: The containers or pods that a restart ended, with O(disruption=allow).
  returned: success
  type: list
  elements: str
  sample: []
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
not_checked:
  description: What could not be checked, and why. V(null) where everything was.
  returned: success
  type: str
  sample: null
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
