#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# In the simulator the kernel side (npu-simd) makes the device nodes; nothing is left to do here.
exit 0
