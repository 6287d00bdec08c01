#!/bin/sh
# What Python packages cannot bring. As root on Debian, what is missing is installed; elsewhere it
# is only named.
#
#   setup.sh venv PYTHON   can PYTHON make a virtual environment? fails with a sentence when not
#   setup.sh test          prints the Debian packages that the suites still lack, one a line
set -eu

install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    echo "Installing Debian packages: $*" >&2
    {
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"
    } >/dev/null </dev/null
}

has_venv() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

lacking() {
    command -v redis-server >/dev/null || echo redis-server
    ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null ||
        echo postgresql
    command -v chromium >/dev/null || echo chromium
    unshare --pid --fork --mount-proc true 2>/dev/null || echo namespaces
    ls /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf >/dev/null 2>&1 || echo fonts-dejavu-core
}

case $1 in
venv)
    has_venv "$2" || install python3 python3-venv
    has_venv "$2" || {
        echo "'$2' is not a Python 3.11 or newer that has the module venv: install python3-venv" \
            "(Debian), or name another one with PYTHON=..." >&2
        exit 1
    }
    ;;
test)
    packages=$(lacking | grep -vx namespaces || true)  # those are the kernel's to give
    # shellcheck disable=SC2086 # one word a package
    [ -z "$packages" ] || install $packages
    lacking
    ;;
esac
