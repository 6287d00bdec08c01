#!/bin/sh
# The suite on the server that private_server finds (a Valkey), with coverage; then the conformance
# suite on Redis. With arguments: pytest with these, and nothing else.
set -eu
cd "$(dirname "$0")/.."
pytest=.venv/bin/pytest

if [ $# -gt 0 ]; then
    exec $pytest "$@"
fi

lacking=$(tests/setup.sh test)
lacks() { echo "$lacking" | grep -qx "$1"; }
left_out=""

# Two tests at a time: most of them wait for processes. Each half has a server and a database of
# its own, and a file's tests stay together, in the order that conftest.py gives the files.
set -- -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term --cov-fail-under=95
without=""
for marker in postgresql browser namespaces; do
    package=$marker
    [ $marker = browser ] && package=chromium
    if lacks $package; then
        without="${without:+$without and }not $marker"
        left_out="${left_out:+$left_out, }the tests marked $marker ($package)"
    fi
done
[ -z "$without" ] || set -- "$@" -m "$without"
$pytest "$@"

if lacks redis-server; then
    left_out="${left_out:+$left_out, }the conformance suite on Redis (redis-server)"
else
    redis=$(command -v redis-server)
    echo "The conformance suite again, on $("$redis" --version | cut -d' ' -f1-3):"
    EMQ_SERVER=$redis $pytest tests/conformance
fi

if [ -n "$left_out" ]; then
    echo "Left out for want of a Debian package: $left_out. As root, make test installs it."
    [ "${CI:-}" != true ]
fi
