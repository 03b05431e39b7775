# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The credential for the Kubernetes API in a form that can be sent. For controller and agent, as _labels.py."""


def keep_keys_tidy(configuration, refused):
    """Have the keys of a client's configuration as one line of a header each, now and whenever the client reads them again.

    A file of a token often ends with a newline, which the client takes along; the refusal of such a header quotes all of it. refused: makes
    the error for a key with other letters than printable ones; it gets none of them.
    """
    again = configuration.refresh_api_key_hook

    def tidy(made):
        if again is not None:
            again(made)
            made.refresh_api_key_hook = tidy  # the client's own has put itself there again
        for name, text in (made.api_key or {}).items():
            made.api_key[name] = text.strip()
            if not all(" " <= letter <= "~" for letter in text.strip()):
                raise refused()

    configuration.refresh_api_key_hook = tidy
    tidy(configuration)
