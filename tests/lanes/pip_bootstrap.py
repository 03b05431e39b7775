# SPDX-License-Identifier: GPL-3.0-or-later
"""In the place of get-pip.py in ansible-test's cache: pip from the interpreter's own ensurepip, at the version that was asked for.

ansible-test downloads get-pip.py from a host of its own (ansible/ansible#77304), which a machine with only a package index cannot reach.
Must run on every Python that ansible-test manages.
"""

import os
import re
import subprocess
import sys

environment = {name: value for name, value in os.environ.items() if name != "GET_PIP"}
wanted = [word for word in sys.argv[1:] if re.match(r"(pip|setuptools|wheel)==", word)]
subprocess.check_call([sys.executable, "-m", "ensurepip"], env=environment)
if wanted:
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--disable-pip-version-check"] + wanted, env=environment)
