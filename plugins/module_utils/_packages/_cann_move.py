# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moving the links that say which version of CANN is in force, and back. Private to the collection."""

import os

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import file_error, sync_folder
from ansible_collections.npu.fleet.plugins.module_utils._packages import _cann_links


def point(files, links):
    """Move ``links``, each in one step (a new link renamed over the old one); return those that were moved, for ``back``.

    When one can not be moved, the others are moved back and the error goes on.
    """
    moved = []
    try:
        for link in links:
            former = _cann_links.link_text(files, link.path)
            if former is None and files.exists(link.path) and link.text is not None:
                message = "%s is no link, so it can not be moved to %s." % (link.path, link.leads_to)
                hint = "Look at it (`ls -l %s`) and move it away by hand." % link.path
                raise FleetError(message, "link_in_the_way", "apply", object=link.path, hint=hint)
            if _cann_links.leads(files, link.path) != link.leads_to:
                _place(files.real(link.path), link.text)
                moved.append(_cann_links.Link(link.path, former, None))
    except (FleetError, OSError):
        back(files, moved)
        raise
    return moved


def back(files, moved):
    """Move links back to what they said before ``point``."""
    for link in reversed(moved):
        _place(files.real(link.path), link.text)


def drop_dangling(files, paths):
    """Remove those links that lead to nothing."""
    for path in paths:
        if _cann_links.link_text(files, path) is not None and not files.exists(_cann_links.resolve(files, path)):
            _place(files.real(path), None)


def _place(path, text):
    temporary = "%s/.%s.npu-fleet" % os.path.split(path)
    try:
        if text is None:
            os.unlink(path)
        else:
            if os.path.lexists(temporary):
                os.unlink(temporary)
            os.symlink(text, temporary)
            os.rename(temporary, path)
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise file_error("move the link", path, error) from error
