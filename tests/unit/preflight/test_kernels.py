# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernels: what modules can be built for, and which one boots next."""

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _preflight_kernel as kernel

# Shapes as update-grub (Debian 12) and grub2-mkconfig (openEuler 22.03) write them, shortened.
DEBIAN = """
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
else
   set default="0"
fi
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-1' {
	linux	/boot/vmlinuz-5.15.0-101-generic root=UUID=1 ro
}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-1' {
	menuentry 'Debian GNU/Linux, with Linux 5.15.0-101-generic' $menuentry_id_option 'gnulinux-5.15.0-101-generic-advanced-1' {
		linux	/boot/vmlinuz-5.15.0-101-generic root=UUID=1 ro
	}
	menuentry 'Debian GNU/Linux, with Linux 5.15.0-25-generic' $menuentry_id_option 'gnulinux-5.15.0-25-generic-advanced-1' {
		linux	/boot/vmlinuz-5.15.0-25-generic root=UUID=1 ro
	}
}
"""
SAVED = DEBIAN.replace('set default="0"', 'set default="${saved_entry}"')
BLS = 'if [ -n "${saved_entry}" ]; then\n  set default="${saved_entry}"\nfi\nblscfg\n'
OLD, NEW = "5.15.0-25-generic", "5.15.0-101-generic"


@pytest.mark.parametrize(("config", "environment", "entries", "release"), [
    (DEBIAN, {}, {}, NEW),
    (DEBIAN.replace('"0"', '"1>1"'), {}, {}, OLD),
    (DEBIAN.replace('"0"', '"1"'), {}, {}, NEW),
    (DEBIAN.replace('"0"', '"2"'), {}, {}, NEW),
    (DEBIAN.replace('"0"', '"gnulinux-advanced-1>gnulinux-5.15.0-25-generic-advanced-1"'), {}, {}, OLD),
    (DEBIAN.replace('"0"', '"Advanced options>Debian GNU/Linux, with Linux 5.15.0-25-generic"'), {}, {}, OLD),
    (DEBIAN, {"next_entry": "gnulinux-advanced-1>gnulinux-5.15.0-25-generic-advanced-1"}, {}, OLD),
    (SAVED, {"saved_entry": "gnulinux-advanced-1>gnulinux-5.15.0-25-generic-advanced-1"}, {}, OLD),
    # An entry of a submenu without the way to it: grub takes the first one.
    (SAVED, {"saved_entry": "gnulinux-5.15.0-25-generic-advanced-1"}, {}, NEW),
    (SAVED, {}, {}, NEW),
    (BLS, {"saved_entry": "m-5.10.0-60"}, {"m-5.10.0-153": "5.10.0-153", "m-5.10.0-60": "5.10.0-60"}, "5.10.0-60"),
    (BLS, {}, {"m-5.10.0-153": "5.10.0-153", "m-5.10.0-60": "5.10.0-60"}, "5.10.0-153"),
    # grub2-set-default with a title that only /boot explains.
    (BLS, {"saved_entry": "openEuler (5.15.0-25-generic) 22.03"}, {}, OLD),
    (BLS, {"saved_entry": "what is this"}, {}, None),
    (BLS, {"saved_entry": "1"}, {"m-5.10.0-153": "5.10.0-153", "m-5.10.0-60": "5.10.0-60"}, "5.10.0-60"),
])
def test_default_of_grub(config, environment, entries, release):
    assert kernel.default_of_grub(config, environment, entries, [OLD, NEW]) == release


def test_boots_next_reads_grub(place):
    place.write("/boot/grub/grub.cfg", SAVED)
    chosen = "gnulinux-advanced-1>gnulinux-5.15.0-25-generic-advanced-1"
    place.write("/boot/grub/grubenv", f"# GRUB Environment Block\nsaved_entry={chosen}\n####\n")
    assert kernel.boots_next(str(place.root)) == {"release": OLD, "source": "/boot/grub/grub.cfg"}


def test_boots_next_reads_loader_entries(place):
    place.write("/boot/grub2/grub.cfg", BLS)
    place.write("/boot/grub2/grubenv", "saved_entry=\n")
    for name, release in (("m-0-rescue", "0-rescue-m"), ("m-60", "5.10.0-60"), ("m-153", "5.10.0-153")):
        place.write(f"/boot/loader/entries/{name}.conf", f"title x\nlinux /vmlinuz-{release}\n")
    assert kernel.boots_next(str(place.root))["release"] == "5.10.0-153"


@pytest.mark.parametrize(("images", "release"), [
    ([], None), (["vmlinux-6.1.0"], "6.1.0"),
    (["vmlinuz-5.15.0-25", "vmlinuz-5.15.0-101", "vmlinuz-0-rescue-x", "config-6.1"], "5.15.0-101"),
])
def test_without_grub_the_newest_kernel_counts(place, images, release):
    for name in images:
        place.write(f"/boot/{name}")
    assert kernel.boots_next(str(place.root))["release"] == release


RUNNING = "5.10.0-60.18.0.50.oe2203.aarch64"


def test_headers_of_the_running_kernel(place):
    build = f"/lib/modules/{RUNNING}/build"
    place.write(f"{build}/Makefile")
    assert kernel.sources(str(place.root), RUNNING) == {"makefile": True, "release": None, "others": []}
    place.write(f"{build}/include/config/kernel.release", RUNNING + "\n")
    assert kernel.sources(str(place.root), RUNNING)["release"] == RUNNING
    place.write(f"{build}/include/generated/utsrelease.h", '#define UTS_RELEASE "5.10.0-153.12.0.92.oe2203.aarch64"\n')
    assert kernel.sources(str(place.root), RUNNING)["release"] == "5.10.0-153.12.0.92.oe2203.aarch64"


def test_headers_of_other_kernels_are_named(place):
    (place.root / "usr/src/kernels/5.10.0-153.12.0.92.oe2203.aarch64").mkdir(parents=True)
    (place.root / "usr/src/linux-headers-6.1.0-21-amd64").mkdir(parents=True)
    (place.root / f"usr/src/kernels/{RUNNING}").mkdir(parents=True)
    others = kernel.sources(str(place.root), RUNNING)["others"]
    assert others == ["5.10.0-153.12.0.92.oe2203.aarch64", "6.1.0-21-amd64"]


@pytest.mark.parametrize(("path", "there"), [
    ("updates/drv_pcie_host.ko", True), ("updates/dkms/asdrv_pcie_host.ko.xz", True), ("extra/ascend_xsmem.ko", True),
    ("npu_driver/ts_agent.ko", True),
    ("updates/zfs.ko", False), ("kernel/drv_pcie_host.ko", False),
])
def test_modules_of_an_npu_driver(place, path, there):
    place.write(f"/lib/modules/{RUNNING}/{path}")
    assert kernel.modules_for(str(place.root), RUNNING) is there
    assert kernel.modules_for(str(place.root), "other") is False


def test_the_only_configuration_of_grub_is_in_the_efi_partition(place):
    """As on openEuler with UEFI, where the admin has pinned the older kernel."""
    for release in (OLD, NEW):
        place.write(f"/boot/vmlinuz-{release}")
    place.write("/boot/efi/EFI/BOOT/grub.cfg", "search.fs_uuid 1 root\nconfigfile $prefix/grub.cfg\n")
    place.write("/boot/efi/EFI/openEuler/grub.cfg", SAVED)
    place.write("/boot/efi/EFI/openEuler/grubenv", "saved_entry=gnulinux-advanced-1>gnulinux-5.15.0-25-generic-advanced-1\n")
    assert kernel.boots_next(str(place.root)) == {"release": OLD, "source": "/boot/efi/EFI/openEuler/grub.cfg"}
