# SPDX-License-Identifier: GPL-3.0-or-later
import sys

from . import stop


def main():
    stop.first(sys.argv)  # the rest takes a while to load
    from .cli import main as command  # noqa: PLC0415

    return command()


if __name__ == "__main__":
    sys.exit(main())
