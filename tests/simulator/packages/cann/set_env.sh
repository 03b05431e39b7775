# SPDX-License-Identifier: GPL-3.0-or-later
# Like the vendor's file: bash only, reads unset variables, puts its folders in front again each time it is sourced.
export ASCEND_TOOLKIT_HOME=@HOME@
export ASCEND_HOME_PATH=@HOME@
export ASCEND_OPP_PATH=@HOME@/opp
export LD_LIBRARY_PATH=@HOME@/lib64:$LD_LIBRARY_PATH
export PYTHONPATH=@HOME@/python/site-packages:$PYTHONPATH
export PATH=@HOME@/bin:$PATH
