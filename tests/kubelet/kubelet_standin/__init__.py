# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for the part of kubelet that device plugins meet."""
