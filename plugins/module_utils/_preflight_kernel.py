# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernels of a host: what modules can be built for, and which one it boots next. Private to the collection."""

import os
import re

from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import listed, read, under

# Names of the driver's modules (driver package, measured: drv_*, ascend_*, ts_agent; asdrv_* in newer ones).
_MODULE = re.compile(r"(?:drv_|asdrv_|ascend_|ts_agent|davinci)\w*\.ko")
_MODULE_FOLDERS = ("updates", "updates/dkms", "extra", "weak-updates", "npu_driver")
_IMAGE = re.compile(r"vmlinu[xz]-(.+)\Z")


def sources(root, release):
    """What a module for this kernel would be built with: ``makefile`` is there, for the kernel ``release``; others lie around, too."""
    folder = "/lib/modules/%s/build" % release
    uts = re.search(r'UTS_RELEASE\s+"([^"]+)"', read(under(root, folder + "/include/generated/utsrelease.h")) or "")
    told = uts.group(1) if uts else (read(under(root, folder + "/include/config/kernel.release")) or "").strip()
    others = [name[len("linux-headers-"):] for name in listed(under(root, "/usr/src")) if name.startswith("linux-headers-")]
    return {
        "makefile": os.path.isfile(under(root, folder + "/Makefile")),
        "release": told or None,
        "others": sorted(set(others + listed(under(root, "/usr/src/kernels"))) - {release})[-5:],
    }


def modules_for(root, release):
    """Are modules of an NPU driver there for this kernel?"""
    folder = under(root, "/lib/modules/%s" % release)
    return any(_MODULE.match(name) for part in _MODULE_FOLDERS for name in listed(os.path.join(folder, part)))


def boots_next(root):
    """The kernel that the next boot takes: ``release`` (None when nothing tells) and ``source``."""
    images = [found.group(1) for found in map(_IMAGE.match, listed(under(root, "/boot"))) if found]
    images = sorted((name for name in images if not name.startswith("0-rescue")), key=version_key)
    # openEuler and EulerOS with UEFI keep the only one in the EFI partition; elsewhere that one has no menu and just leads to the others.
    efi = ["/boot/efi/EFI/" + name for name in listed(under(root, "/boot/efi/EFI"))]
    for folder in ["/boot/grub2", "/boot/grub"] + efi:
        config = read(under(root, folder + "/grub.cfg"))
        if config is not None:
            environment = dict(re.findall(r"^(\w+)=(.*)$", read(under(root, folder + "/grubenv")) or "", re.MULTILINE))
            release = default_of_grub(config, environment, _loader_entries(root), images)
            if release:
                return {"release": release, "source": folder + "/grub.cfg"}
    if images:
        # Distributions make the newest kernel the default one.
        return {"release": images[-1], "source": "/boot"}
    return {"release": None, "source": None}


def _loader_entries(root):
    """{id: kernel release} of the boot loader specification's entries, in its order: the newest first."""
    folder = under(root, "/boot/loader/entries")
    found = {}
    for name in listed(folder):
        image = re.search(r"^linux\s+\S*vmlinu[xz]-(\S+)", read(os.path.join(folder, name)) or "", re.MULTILINE)
        if name.endswith(".conf") and image and "-rescue" not in name:
            found[name[:-len(".conf")]] = image.group(1)
    return dict(sorted(found.items(), key=lambda pair: version_key(pair[1]), reverse=True))


def default_of_grub(config, environment, entries, images):
    """Kernel release of grub's default entry, or None.

    ``config`` is grub.cfg, ``environment`` grubenv, ``entries`` those of /boot/loader, ``images`` the kernels in /boot. The default is
    a number, a title or an id; ``saved`` means the one in grubenv, and next_entry counts for one boot.
    """
    menu = _menu(config)
    wanted = environment.get("next_entry") or ""
    if not wanted:
        fixed = re.search(r'^\s*set default="([^"$]*)"', config, re.MULTILINE)
        uses_saved = re.search(r'set default="\$\{?saved_entry', config)
        wanted = (environment.get("saved_entry") or "") if uses_saved or not fixed else fixed.group(1)
    if wanted in entries:
        return entries[wanted]
    if menu:
        # As grub's own menu.c: what it does not find in the menu is the first entry.
        return _chosen(menu, wanted or "0") or _chosen(menu, "0")
    releases = list(entries.values())
    named = [release for release in releases + images if wanted and release in wanted]
    if named:
        return named[-1]
    return releases[int(wanted) if wanted.isdigit() and int(wanted) < len(releases) else 0] if releases else None


def _chosen(menu, path):
    """Kernel release of the entry that a path like ``1>Title`` leads to; each part is a number, a title or an id."""
    for part in path.split(">"):
        matching = [item for number, item in enumerate(menu) if part in (str(number), item["title"], item["id"])]
        if not matching:
            return None
        release, menu = matching[0]["release"], matching[0]["inner"]
    return release or (_chosen(menu, "0") if menu else None)


def _menu(config):
    """The entries of grub.cfg in their order: title, id, release, and for a submenu the entries in it, which grub-mkconfig indents."""
    menu = []
    for block in re.split(r"^(?=[ \t]*(?:menuentry|submenu) )", config, flags=re.MULTILINE)[1:]:
        head = re.match(r"([ \t]*)(menuentry|submenu) +(?:'([^']*)'|\"([^\"]*)\")?(.*)", block)
        if head is None:
            continue
        identity = re.search(r"menuentry_id_option\s+'([^']*)'", head.group(5))
        image = re.search(r"^\s*linux(?:16|efi)?\s+\S*vmlinu[xz]-(\S+)", block, re.MULTILINE)
        item = {
            "title": head.group(3) or head.group(4) or "", "id": identity.group(1) if identity else None,
            "release": image.group(1) if image else None, "inner": [],
        }
        (menu[-1]["inner"] if head.group(1) and menu else menu).append(item)
    return menu


def version_key(release):
    """Order of kernel releases: numbers count as numbers."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|[a-zA-Z]+", release)]
