# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and numbers of the simulated packages. Sources: "Ascend packages" fact sheet, sections 1 (file names), 5 (PCI ids), 6 (matrix)."""

COMPONENTS = ("driver", "firmware", "cann_toolkit", "cann_kernels", "docker_runtime")
#: Built only when they are named: nnrt has no package of its own from 8.5.0 on.
MORE_COMPONENTS = ("cann_nnrt",)

# family: prefix of driver and firmware files, chip word of the CANN ops package, folder of its kernels, PCI device ids
FAMILIES = {
    "310p": {"hdk": "Ascend-hdk-310p", "ops": "310p", "kernel": "310p", "pci": ("0xd500",)},
    "310b": {"hdk": "Ascend-hdk-310b", "ops": "310b", "kernel": "310b", "pci": ("0xd105", "0xd107")},
    "910": {"hdk": "Ascend-hdk-910", "ops": "910", "kernel": "910", "pci": ("0xd801",)},
    "a2": {"hdk": "Ascend-hdk-910b", "ops": "910b", "kernel": "910b", "pci": ("0xd802",)},
    "a3": {"hdk": "Atlas-A3-hdk", "ops": "A3", "kernel": "910_93", "pci": ("0xd803",)},
    "a5": {"hdk": "Atlas-A5-hdk", "ops": "950", "kernel": "950", "pci": ("0xd806",)},
}

# Rows of the matrix, as far as it knows driver AND firmware of a family: HDK release -> CANN and Docker Runtime of the same row (the
# newest it names), and {family: (driver, firmware)}. 25.2.0 for A2 and A3: the firmware is what the vendor's deployer asks for at least.
HDK = {
    "24.1.rc1": ("8.0.RC1", "6.0.RC1", dict.fromkeys(("310p", "910", "a2"), ("24.1.rc1", "7.1.0.6.220"))),
    "24.1.rc2": ("8.0.RC2", "6.0.RC2", dict.fromkeys(("310p", "910", "a2"), ("24.1.rc2", "7.3.0.1.231"))),
    "24.1.rc3": ("8.0.RC3", "6.0.RC3", dict.fromkeys(("310p", "910", "a2"), ("24.1.rc3", "7.5.0.1.129"))),
    "24.1.0": ("8.0.0", "6.0.0", dict.fromkeys(("310p", "910", "a2"), ("24.1.0", "7.5.0.2.220"))),
    "25.0.rc1": ("8.1.RC1", "7.0.RC1", {
        **dict.fromkeys(("310p", "310b", "910", "a2"), ("25.0.rc1.1", "7.7.0.1.231")), "a3": ("25.0.rc1.3", "7.7.0.3.228"),
    }),
    "25.2.0": ("8.2.RC1", "7.1.RC1", {
        "310p": ("25.2.0", "7.7.0.6.236"), "a2": ("25.2.0", "7.7.0.2.220"), "a3": ("25.2.0", "7.7.0.2.220"),
    }),
    "25.3.rc1": ("8.3.RC2", "7.2.RC1", {
        **dict.fromkeys(("310p", "910", "a2"), ("25.3.rc1", "7.8.0.2.212")), "a3": ("25.3.rc1.2", "7.8.0.2.212"),
    }),
    "25.5.0": ("8.5.0", "7.3.0", dict.fromkeys(("310p", "910", "a2", "a3"), ("25.5.0", "7.8.0.5.216"))),
    "25.5.1": ("8.5.1", "7.3.1", dict.fromkeys(("310p", "a2", "a3"), ("25.5.1", "7.8.0.6.201"))),
    "25.5.2": ("8.5.2", "7.3.2", dict.fromkeys(("310p", "a2"), ("25.5.2", "7.8.0.7.220"))),
    "26.0.rc1": ("9.0.0", "26.0.0", {"a3": ("26.0.rc1", "9.0.0.0.205")}),
}  # fmt: skip
RELEASES = {
    f"{family}-{hdk}": {"family": family, "driver": driver, "firmware": firmware, "cann": cann, "runtime": runtime}
    for hdk, (cann, runtime, families) in HDK.items()
    for family, (driver, firmware) in families.items()
}

# version_cap.map of a 910B package: what the flash of a board may ask for -> least driver. Lines are CAPABILITY,VERSION.
CAPABILITIES = {
    "a2": {234: "23.0.0", 235: "24.1.rc2", 236: "24.1.rc3", 237: "24.1.rc4", 238: "25.2.0", 239: "25.2.2", 240: "25.3.rc1"},
}

MODES = {
    "ok": "does what the vendor's package does",
    "nothing": "exit status 0 and a text of success, but installs nothing",
    "error-text": "exit status 0 and an ERROR line, installs nothing",
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
    "breaks": "CANN: rc 1 at the stage given by --hang-at; the package can not repair what after-payload leaves",
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
    if component in ("cann_toolkit", "cann_nnrt"):
        return f"Ascend-cann-{component.removeprefix('cann_')}_{options.cann}_linux-{arch}.run"
    if component == "docker_runtime":
        return f"Ascend-docker-runtime_{options.runtime}_linux-{arch}.run"
    if at_least(options.cann, "8.5.0"):
        return f"Ascend-cann-{family['ops']}-ops_{options.cann}_linux-{arch}.run"
    if options.family in ("a3", "a5"):
        return f"Atlas-{options.family.upper()}-cann-kernels_{options.cann}_linux-{arch}.run"
    suffix = f"-{arch}" if at_least(options.cann, "8.0.RC3") else ""
    return f"Ascend-cann-kernels-{family['ops']}_{options.cann}_linux{suffix}.run"
