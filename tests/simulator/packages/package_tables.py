# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and numbers of the simulated packages. Sources: "Ascend packages" fact sheet, sections 1 (file names), 5 (PCI ids), 6 (matrix)."""

COMPONENTS = ("driver", "firmware", "cann_toolkit", "cann_kernels", "docker_runtime")

# family: prefix of driver and firmware files, chip word of the CANN ops package, PCI device ids
FAMILIES = {
    "310p": {"hdk": "Ascend-hdk-310p", "ops": "310p", "pci": ("0xd500",)},
    "310b": {"hdk": "Ascend-hdk-310b", "ops": "310b", "pci": ("0xd105", "0xd107")},
    "910": {"hdk": "Ascend-hdk-910", "ops": "910", "pci": ("0xd801",)},
    "a2": {"hdk": "Ascend-hdk-910b", "ops": "910b", "pci": ("0xd802",)},
    "a3": {"hdk": "Atlas-A3-hdk", "ops": "A3", "pci": ("0xd803",)},
    "a5": {"hdk": "Atlas-A5-hdk", "ops": "950", "pci": ("0xd806",)},
}

# Rows of the matrix; CANN and Docker Runtime are those of the same row.
RELEASES = {
    "a2-24.1.0": {"family": "a2", "driver": "24.1.0", "firmware": "7.5.0.2.220", "cann": "8.0.0", "runtime": "6.0.0"},
    "a2-25.3.rc1": {"family": "a2", "driver": "25.3.rc1", "firmware": "7.8.0.2.212", "cann": "8.3.RC2", "runtime": "7.2.RC1"},
    "a2-25.5.0": {"family": "a2", "driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "8.5.0", "runtime": "7.3.0"},
    "a2-25.5.2": {"family": "a2", "driver": "25.5.2", "firmware": "7.8.0.7.220", "cann": "8.5.2", "runtime": "7.3.2"},
}

MODES = {
    "ok": "does what the vendor's package does",
    "nothing": "exit status 0 and a text of success, but installs nothing",
    "truncated": "the file ends too early: rc 2, 'Unexpected archive size'",
    "altered": "one byte differs: rc 2, 'Error in SHA256 checksums'",
    "wrong-family": "the file name says one family, the content is for another (310p)",
    "hang": "never ends, at the stage given by --hang-at",
    "reboot": "driver: installed, but rc 2 and 'Reboot needed' although the modules load",
    "dead-after-boot": "driver: complete on disk, rc as --driver-rc says (2); after the next boot the module loads and no device answers",
    "copy-fails": "driver: the copy of the files fails half-way, rc 1",
    "modprobe-fails": "driver: modules do not load, rc 1, no version.info",
    "modules-cut": "driver: disk full in /lib/modules: empty module files, rc 0",
    "flash-fails": "firmware: writing fails, rc 1, nothing recorded",
}

# The eight named in the fact sheet (section 3.3) and names of the same kind: the measured package brings 25.
MODULES = (
    "drv_seclib_host", "drv_pcie_host", "drv_pcie_hdc_host", "drv_pcie_vnic_host", "ascend_xsmem", "drv_dvpp_cmdlist", "drv_vascend",
    "asdrv_buff", "asdrv_devmm", "asdrv_devmng", "asdrv_dms", "asdrv_dpa", "asdrv_esched", "asdrv_event", "asdrv_fault", "asdrv_fms",
    "asdrv_hdc", "asdrv_log", "asdrv_pbl", "asdrv_queue", "asdrv_svm", "asdrv_trs", "asdrv_vmng", "asdrv_vpc", "ts_agent",
)  # fmt: skip

# Known from "Ascend packages" fact sheet, section 3.1.
INNER_VERSIONS = {"8.5.0": "V100R001C25SPC001B212", "9.1.0": "V100R001C11SPC001B243"}

# "Ascend Docker Runtime" fact sheet, section 7; the empty key is for servers and cards.
_DRIVER = "/usr/local/Ascend/driver"
_BOARD = [
    "/etc/sys_version.conf", "/etc/hdcBasic.cfg", "/usr/lib64/libaicpu_processer.so", "/usr/lib64/libaicpu_prof.so",
    "/usr/lib64/libaicpu_sharder.so", "/usr/lib64/libaicpu_scheduler.so", "/usr/lib64/libadump.so", "/usr/lib64/libtsd_eventclient.so",
    "/usr/lib64/libdcmi.so", "/usr/lib64/libmpi_dvpp_adapter.so", "/usr/lib64/libstackcore.so", "/usr/lib64/aicpu_kernels",
    "/usr/local/sbin/npu-smi", f"{_DRIVER}/lib64", "/var/slogd", "/var/dmp_daemon", "/var/queue_schedule",
]  # fmt: skip
BASE_LISTS = {
    "": [f"{_DRIVER}/lib64", f"{_DRIVER}/include", "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/var/queue_schedule"],
    "A200": [
        f"{_DRIVER}/lib64", "/usr/local/sbin/npu-smi", f"{_DRIVER}/tools", "/etc/hdcBasic.cfg", "/etc/sys_version.conf",
        "/var/queue_schedule",
    ],
    "A200ISoC": ["/usr/local/bin/npu-smi", "/etc/hdcBasic.cfg", "/etc/sys_version.conf", "/var/queue_schedule"],
    "A200IA2": _BOARD,
    "A500": ["/home/data/miniD/driver/lib64", "/usr/local/dcmi", "/usr/local/bin/npu-smi", "/var/queue_schedule"],
    "A500A2": [
        *_BOARD, "/etc/ld.so.conf.d/mind_so.conf", "/usr/lib64/libsemanage.so.2", "/usr/lib64/libmmpa.so", "/usr/lib64/libdrvdsmi.so",
    ],
}  # fmt: skip


def version_key(version):
    """Order good enough for the few comparisons here: numbers, with rc below the plain number."""
    fields = []
    for field in version.lower().split("."):
        digits = "".join(character for character in field if character.isdigit())
        fields.append((0 if field.startswith(("rc", "b", "alpha", "beta")) else 1, int(digits or 0)))
    return [*fields, (0.5, 0)]


def at_least(version, other):
    return version_key(version) >= version_key(other)


def file_name(component, options):
    family = FAMILIES[options.family]
    arch = options.arch
    if component == "driver":
        return f"{family['hdk']}-npu-driver_{options.driver}_linux-{arch.replace('_', '-')}.run"
    if component == "firmware":
        return f"{family['hdk']}-npu-firmware_{options.firmware}.run"
    if component == "cann_toolkit":
        return f"Ascend-cann-toolkit_{options.cann}_linux-{arch}.run"
    if component == "docker_runtime":
        return f"Ascend-docker-runtime_{options.runtime}_linux-{arch}.run"
    if at_least(options.cann, "8.5.0"):
        return f"Ascend-cann-{family['ops']}-ops_{options.cann}_linux-{arch}.run"
    if options.family in ("a3", "a5"):
        return f"Atlas-{options.family.upper()}-cann-kernels_{options.cann}_linux-{arch}.run"
    suffix = f"-{arch}" if at_least(options.cann, "8.0.RC3") else ""
    return f"Ascend-cann-kernels-{family['ops']}_{options.cann}_linux{suffix}.run"
