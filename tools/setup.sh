#!/bin/sh
# Makes sure that the packages sheng needs are installed. As root on Debian or Ubuntu it installs what is missing; otherwise it prints the one line to run.
#   tools/setup.sh         what building and `make run` need
#   tools/setup.sh test    also what the tests need
#   tools/setup.sh check   installs nothing, whoever runs it: prints the line
set -eu

build="gcc make pkg-config libevent-dev libpcre2-dev libutf8proc-dev zlib1g-dev python3 python3-pip"
test_only="libcmocka-dev python3-venv"
want=$build
[ "${1:-}" = test ] && want="$build $test_only"

if ! command -v dpkg-query >/dev/null 2>&1; then
  # Not a Debian system: check what can be checked and name the packages in words.
  missing=""
  for tool in cc make pkg-config python3; do command -v $tool >/dev/null 2>&1 || missing="$missing $tool"; done
  if command -v pkg-config >/dev/null 2>&1; then
    for lib in libevent libpcre2-8 libutf8proc zlib; do pkg-config --exists $lib || missing="$missing $lib"; done
  fi
  [ -z "$missing" ] && exit 0
  echo "sheng needs:$missing" >&2
  echo "openEuler, Fedora:  sudo dnf install gcc make pkgconf libevent-devel pcre2-devel utf8proc-devel zlib-devel python3 python3-pip" >&2
  exit 1
fi

missing=""
for p in $want; do
  # A tool that is there without its package (a compiler of one's own, pyenv's python) is as good.
  case $p in
    gcc) command -v "${CC:-cc}" >/dev/null 2>&1 && continue ;;
    make | pkg-config | python3) command -v $p >/dev/null 2>&1 && continue ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 && continue ;;
    python3-venv) python3 -c 'import venv, ensurepip' >/dev/null 2>&1 && continue ;;
  esac
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] || missing="$missing $p"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" = 0 ] && [ "${1:-}" != check ]; then
  echo "installing:$missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null || echo "apt-get update failed; trying the lists at hand" >&2
  # shellcheck disable=SC2086
  apt-get install -y -q $missing >/dev/null || { echo "could not install:$missing" >&2; exit 1; }
else
  echo "sheng needs some packages. Run this once, then the same make command again:" >&2
  echo "  sudo apt-get update && sudo apt-get install -y$missing" >&2
  exit 1
fi
