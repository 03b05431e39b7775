#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Brings what `make demo` and `make test` need: Debian packages (named before they are installed) and .venv. Nothing else of the
# machine is touched. Usage: tests/prepare.sh all|python
set -eu
cd "$(dirname "$0")/.."

packages="docker.io containerd runc iptables iproute2 mmdebstrap makeself busybox-static gcc libc6-dev libcjson-dev openssh-client rsync xz-utils"
[ -x /usr/bin/python3 ] && case "$(command -v python3)" in /usr/bin/*) packages="$packages python3-venv";; esac

say() { printf '== %s\n' "$*"; }

need_packages() {
  missing=""
  for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q '^install ok installed' || missing="$missing $p"
  done
  [ -n "$missing" ] || return 0
  if ! command -v apt-get >/dev/null; then
    echo "These Debian packages are needed, and there is no apt-get here:$missing" >&2
    echo "The demo and the tests are made for Debian 12." >&2
    exit 1
  fi
  say "Debian packages that will be installed now:$missing"
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  $sudo apt-get update -q
  # shellcheck disable=SC2086  # a list of words by intention
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
}

# The real nginx for the tests of a depot's configuration; unpacked only, because the installed package starts a web server on port 80.
need_nginx() {
  [ -x .build/nginx/usr/sbin/nginx ] && return 0
  command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] && return 0
  say "nginx, unpacked into .build/nginx"
  mkdir -p .build/nginx.deb
  (cd .build/nginx.deb && { apt-get download -q -o APT::Sandbox::User=root nginx || { apt-get update -q && apt-get download -q -o APT::Sandbox::User=root nginx; }; }) &&
    dpkg -x .build/nginx.deb/nginx_*.deb .build/nginx ||
    echo "nginx could not be fetched: its tests are left out" >&2
  rm -rf .build/nginx.deb
}

# promtool for the test of the agent's metrics; of the package prometheus only that, because the installed one starts a server.
need_promtool() {
  [ -x .build/prometheus/usr/bin/promtool ] && return 0
  command -v promtool >/dev/null && return 0
  say "promtool, unpacked into .build/prometheus"
  mkdir -p .build/prometheus .build/prometheus.deb
  (cd .build/prometheus.deb && { apt-get download -q -o APT::Sandbox::User=root prometheus || { apt-get update -q && apt-get download -q -o APT::Sandbox::User=root prometheus; }; }) &&
    dpkg-deb --fsys-tarfile .build/prometheus.deb/prometheus_*.deb | tar -x -C .build/prometheus ./usr/bin/promtool ||
    { rm -rf .build/prometheus; mkdir -p .build/prometheus; touch .build/prometheus/unavailable; echo "promtool could not be fetched: what it tests is left out" >&2; }
  rm -rf .build/prometheus.deb
}

need_python() {
  wanted=$(cksum tests/requirements.txt | cut -d' ' -f1)
  [ "$(cat .venv/.wanted 2>/dev/null || true)" = "$wanted" ] && return 0
  python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || {
    echo "python3 is $(python3 -V 2>&1); ansible-core 2.19 needs Python 3.11 to 3.13." >&2
    exit 1
  }
  say "Python environment in .venv (ansible-core and the test tools, from PyPI)"
  rm -rf .venv
  python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --requirement tests/requirements.txt
  echo "$wanted" > .venv/.wanted
}

[ "$1" = python ] || need_packages
[ "$1" = python ] || need_nginx
[ "$1" = python ] || need_promtool
need_python
