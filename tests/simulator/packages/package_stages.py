# SPDX-License-Identifier: GPL-3.0-or-later
"""Content of the packages: one function per component fills the folder that makeself packs."""

import random
import shlex
import shutil
from functools import partial
from pathlib import Path

from package_tables import BASE_LISTS, CAPABILITIES, FAMILIES, INNER_VERSIONS, MODULES, at_least

HERE = Path(__file__).resolve().parent

OUTER_WORDS = {
    "--help": "show this text (also -h)",
    "--info": "describe the package",
    "--list": "list the files in the package",
    "--check": "check the integrity of the package",
    "--quiet": "ask nothing (also -q)",
    "--nox11": "do not start an xterm",
    "--noexec": "do not run the script of the package",
    "--extract=": "unpack to this folder",
    "--tar": "run tar over the content; all that follows goes to tar",
}
INNER_WORDS = {
    "driver": "--full --run --debug --devel --docker --upgrade --force --install-path= --install-for-all --install-username= "
    "--install-usergroup= --version --uninstall --vnpu_guest --repack --norebuild",
    "firmware": "--full --upgrade --uninstall --version --force",
    "cann_toolkit": "--install --upgrade --uninstall --devel --full --install-path= --install-for-all --whitelist= --version --force",
    "docker_runtime": "--install --upgrade --uninstall --install-path= --install-type= --install-scene= --config-file-path= --version",
}
INNER_WORDS["cann_kernels"] = INNER_WORDS["cann_nnrt"] = INNER_WORDS["cann_toolkit"]


def outer_help(component, options):
    """(known words, help text). The words of the help are the only ones that the outer layer lets through."""
    outer = dict(OUTER_WORDS)
    if component == "docker_runtime":
        # "Ascend packages" fact sheet, section 2.5: the options per version.
        gone = ["--nox11"] if at_least(options.runtime, "6.0.0") else []
        if at_least(options.runtime, "7.1.RC1"):
            gone += ["--noexec", "--extract="]
        if at_least(options.runtime, "26.1.0"):
            gone += ["--quiet", "--check", "--info", "--list", "--tar"]
        for word in gone:
            del outer[word]
    inner = INNER_WORDS[component].split()
    lines = ["Options of the package:"]
    lines += [f"  {word:<14} {text}" for word, text in outer.items()]
    lines += ["Options of the installation:", *(f"  {word}{'<value>' if word.endswith('=') else ''}" for word in inner)]
    words = [word.rstrip("=") for word in [*outer, *inner]] + ["-h"]
    if "--quiet" in outer:
        words.append("-q")
    return " ".join(words), "\n".join(lines)


def label(component, options):
    chip = FAMILIES[options.content_family]["ops"].upper()
    return {
        "driver": "ASCEND-HDK_DRIVER_RUN_PACKAGE",
        "firmware": f"ASCEND-HDK-{chip}-NPU FIRMWARE RUN PACKAGE",
        "docker_runtime": "ASCEND_DOCKER_RUNTIME_RUN_PACKAGE",
    }.get(component, "ASCEND_RUN_PACKAGE")


def driver_version_info(version):
    """Keys of the measured file in their order. Values nobody published are 1.0, and an inner version that is none."""
    if not at_least(version, "24.1.rc1"):
        window = "[7.0.0,7.1.99]"
    elif not at_least(version, "24.1.rc2"):
        window = "[7.0.0,7.2.99]"
    else:
        window = "[7.0.0,8.9.9]" if not at_least(version, "26.0.rc1") else "[7.0.0,9.9.9]"
    keys = {"Version": version}
    for name in ("ascendhal", "aicpu", "tdt", "log", "prof", "dvppkernels", "tsfw"):
        keys[f"{name}_version"] = "1.0"
    keys.update(
        package_version=version, Innerversion="V100R001C00SPC000B000", compatible_version_fw=window, compatible_version="[1.0,1.0]",
        required_firmware_firmware_version="1.0",
    )  # fmt: skip
    return text_of(keys)


def firmware_version_info(firmware, driver):
    """package_version is the HDK release, which is what a matched pair is known by."""
    keys = {"Version": firmware, "firmware_version": "1.0", "package_version": driver, "compatible_version_drv": f"[{driver},{driver}.]"}
    return text_of(keys)


def capability_map(options):
    lines = [f"{number},{version}\n" for number, version in CAPABILITIES.get(options.content_family, {}).items()]
    return "# capability,version\n" + "".join(lines)


def text_of(keys):
    return "".join(f"{key}={value}\n" for key, value in keys.items())


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def write_conf(stage, options, **keys):
    keys = {"mode": options.mode, "hang_at": options.hang_at, "arch": options.arch, **keys}
    write(stage / "package.conf", "".join(f"{key}={shlex.quote(str(value))}\n" for key, value in keys.items()))


def copy_scripts(stage, folder, names=("*.sh",)):
    for pattern in names:
        for path in sorted((HERE / folder).glob(pattern)):
            shutil.copy(path, stage / path.name)
            (stage / path.name).chmod(0o755)


def padding(path, kib):
    """Bytes that gzip can not make smaller, the same in every build."""
    block = random.Random(0).randbytes(1024 * 64)
    with path.open("wb") as stream:
        for number in range(0, kib, 64):
            stream.write(block[: min(64, kib - number) * 1024])


def payload_file(options, name, placeholder, target, mode):
    source = options.payload / "driver" / name if options.payload else None
    if source and not source.is_file():
        raise SystemExit(f"{source} is missing: build it with tests/simulator/build.py, or leave --payload out for a placeholder")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source:
        shutil.copyfile(source, target)
    else:
        target.write_text(placeholder)
    target.chmod(mode)


def stage_driver(stage, options):
    family = FAMILIES[options.content_family]
    version = options.driver
    copy_scripts(stage, "driver", ("install.sh", "steps.sh", "options.sh", "remove.sh", "check_tools.conf"))
    shutil.copytree(HERE / "driver" / "host", stage / "host")
    for path in (stage / "host").iterdir():
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)
    write_conf(
        stage, options, component="driver", version=version, pci_ids=" ".join(family["pci"]), busy=options.busy,
        driver_rc="" if options.driver_rc is None else options.driver_rc, dkms="y" if options.dkms else "n",
        all_pci_ids=" ".join(number for row in FAMILIES.values() for number in row["pci"]),
        space_mib=300 if options.space_mib is None else options.space_mib,
    )  # fmt: skip
    tree = stage / "driver"
    dead = "#!/bin/sh\necho 'dcmi module initialize failed. ret is -8005'\nexit 1\n"
    for folder in ("lib64", "lib64/driver"):
        payload_file(options, "libdcmi.so", "placeholder of libdcmi.so\n", tree / folder / "libdcmi.so", 0o440)
    payload_file(options, "npu-smi", dead, tree / "tools" / "npu-smi", 0o550)
    smi = tree / "tools" / "npu-smi"
    # The tool has a version of its own: after an upgrade without reset it differs from the driver that runs.
    smi.write_text(smi.read_text().replace("@NPU_SMI_VERSION@", version))
    write(tree / "lib64" / "common" / "libc_sec.so", "placeholder\n", 0o440)
    write(tree / "version.info", driver_version_info(version), 0o444)
    write(tree / "build.info", f"version={version}\n", 0o440)
    write(tree / "scene.info", f"os=linux\nos_version=any\narch={options.arch}\n", 0o440)
    write(tree / "bin" / "setenv.bash", "# The libraries are found through ld.so.conf.d; nothing to set.\n", 0o550)
    write(tree / "include" / "dcmi_interface_api.h", "/* simulated driver: no interface is published here */\n", 0o440)
    for folder in ("cert", "device", "vnpu_guest", "vnpu_host"):
        write(tree / folder / "README", "Empty in the simulator.\n", 0o440)
    shutil.copy(HERE / "driver" / "upgrade-tool", tree / "tools" / "upgrade-tool")
    (tree / "tools" / "upgrade-tool").chmod(0o550)
    for name in ("hccn_tool", "msnpureport", "npu-healthcheck.sh"):
        write(tree / "tools" / name, f"#!/bin/sh\necho '{name}: not simulated' >&2\nexit 1\n", 0o550)
    for name in ("uninstall.sh", "remove.sh"):
        write(tree / "script" / name, (HERE / "driver" / name).read_text(), 0o550)
    for name in ("common.sh", "package.conf"):
        shutil.copy(stage / name, tree / "script" / name)
    write(tree / "script" / "version_cap.map", capability_map(options), 0o550)
    for name in MODULES:
        fate = " dead-after-boot" if options.mode == "dead-after-boot" else ""
        write(tree / "host" / f"{name}.ko", f"npu-sim module {name} {version}{fate}\n")
    write(tree / "host" / "order", "".join(f"{name}\n" for name in MODULES))
    for name in ("hccn_weak_dict.conf", "hdcBasic.cfg", "dms_events_conf.lst", "d-pcivnic.conf", "custom_process.cfg"):
        write(stage / "etc" / name, "")
    write(stage / "etc" / "ascend_driver.conf", "kmsagent=disable\n")


def stage_firmware(stage, options):
    family = FAMILIES[options.content_family]
    copy_scripts(stage, "firmware", ("install.sh",))
    write_conf(
        stage, options, component="firmware", version=options.firmware, pci_ids=" ".join(family["pci"]), good_rc=options.firmware_rc,
        all_pci_ids=" ".join(number for row in FAMILIES.values() for number in row["pci"]),
        space_mib=32 if options.space_mib is None else options.space_mib,
    )  # fmt: skip
    tree = stage / "firmware"
    write(tree / "version.info", firmware_version_info(options.firmware, options.driver), 0o444)
    write(tree / "script" / "uninstall.sh", (HERE / "firmware" / "uninstall.sh").read_text(), 0o550)
    for name in ("common.sh", "package.conf"):
        shutil.copy(stage / name, tree / "script" / name)
    write(tree / "script" / "version_cap.map", capability_map(options), 0o550)
    write(tree / "image" / "firmware.bin", f"npu-sim firmware {options.firmware}\n", 0o440)


CANN_NAMES = {
    "cann_toolkit": ("Ascend-cann-toolkit", "Toolkit", "ascend_toolkit_install.log"),
    "cann_nnrt": ("Ascend-cann-nnrt", "Nnrt", "ascend_nnrt_install.log"),
}


def stage_cann(stage, options, component):
    family = FAMILIES[options.content_family]
    version, chip = options.cann, family["ops"]
    layout = "cann" if at_least(version, "8.5.0") else "ascend-toolkit"
    if component == "cann_nnrt" and layout == "cann":
        raise SystemExit(f"nnrt {version} has no package of its own: from 8.5.0 on it is the toolkit with --whitelist=nnrt")
    if component in CANN_NAMES:
        name, tag, log_name = CANN_NAMES[component]
    elif layout == "cann":
        name, tag, log_name = f"Ascend-cann-{chip}-ops", f"Ops_{chip}", f"ascend_ops_{chip}_install.log"
    else:
        name, tag, log_name = f"Ascend-cann-kernels-{chip}", f"Kernels_{chip}", "ascend_kernels_install.log"
    copy_scripts(stage, "cann", ("install.sh", "layout.sh", "set_env.sh", "remove.sh"))
    write_conf(
        stage, options, component=component, version=version, layout=layout, package_name=name, tag=tag, log_name=log_name,
        inner_version=INNER_VERSIONS.get(version, "V100R001C00SPC000B000"), compatible_version="[V100R001C00,V100R001C99]",
        space_mib=1024 if options.space_mib is None else options.space_mib,
    )  # fmt: skip
    # For whoever looks at the file without running it; where a bundle keeps it is not published.
    write(stage / "version.info", text_of({"Version": version, "package_name": name}))
    write(stage / "scene.info", f"os=linux\nos_version=any\narch={options.arch}\n")
    files = stage / "files"
    if component in CANN_NAMES:
        write(files / "lib64" / "libascendcl.so", "placeholder\n")
        write(files / "share" / "info" / "runtime" / "scene.info", f"os=linux\nos_version=any\narch={options.arch}\n")
        write(files / "share" / "info" / "runtime" / "script" / "run_runtime_uninstall.sh", "#!/bin/sh\nexit 0\n", 0o500)
    if component == "cann_toolkit":
        # What --whitelist=nnrt leaves out: everything that is for building only.
        write(files / "bin" / "npu-sim-cann", f"#!/bin/sh\necho {version}\n", 0o755)
        write(files / "compiler" / "README", "Empty in the simulator.\n")
    elif component == "cann_kernels" and layout == "cann":
        kernel = files / "opp" / "built-in" / "op_impl" / "ai_core" / "tbe" / "kernel"
        write(kernel / f"ascend{family['kernel']}" / "add.o", "placeholder\n")
        write(kernel / "config" / f"ascend{family['kernel']}" / "add.json", "{}\n")
    elif component == "cann_kernels":
        write(files / "opp_kernel" / "built-in" / f"ascend{family['kernel']}" / "add.o", "placeholder\n")


def stage_docker_runtime(stage, options):
    copy_scripts(stage, "docker_runtime", ("install.sh", "uninstall.sh", "engine.sh"))
    licence = "y" if at_least(options.runtime, "26.1.0") else "n"
    write_conf(stage, options, component="docker_runtime", version=options.runtime, licence_prompt=licence)
    binaries = HERE / "docker_runtime"
    for name in ("ascend-docker-runtime", "ascend-docker-plugin-install-helper"):
        write(stage / "bin" / name, (binaries / name).read_text(), 0o550)
    # The mounts are part of the wrapper's change to the container; these two have nothing to do in the simulator.
    for name in ("ascend-docker-hook", "ascend-docker-cli", "ascend-docker-destroy"):
        write(stage / "bin" / name, "#!/bin/sh\nexit 0\n", 0o550)
    write(stage / "README", f"Ascend Docker Runtime {options.runtime}, simulated.\n")
    write(stage / "version.info", text_of({"Version": options.runtime, "arch": options.arch}))
    for kind, lines in BASE_LISTS.items():
        write(stage / "lists" / f"base.list{kind and '_' + kind}", "\n".join(lines))


STAGES = {
    "driver": stage_driver,
    "firmware": stage_firmware,
    **{name: partial(stage_cann, component=name) for name in ("cann_toolkit", "cann_kernels", "cann_nnrt")},
    "docker_runtime": stage_docker_runtime,
}
