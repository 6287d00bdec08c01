#!/bin/bash
# The suites that depend on the server (conformance, faults, field reports) on each server that is
# here: those on PATH, or SERVERS="/path/to/redis-server …". Arguments go to pytest.
set -u
cd "$(dirname "$0")/.."
SERVERS=${SERVERS:-$(command -v valkey-server redis-server)}

if [ -z "$SERVERS" ]; then
    echo "There is no valkey-server or redis-server on PATH. Install one, or name a program:" \
        "make test-servers SERVERS=/path/to/redis-server" >&2
    exit 1
fi
summary=""
failed=0
for server in $SERVERS; do
    name=$("$server" --version | sed -E 's/^(Redis|Valkey) server v=([0-9.]+).*/\1 \2/') || exit 1
    echo "== $name: $server"
    result=passed
    EMQ_SERVER=$server .venv/bin/pytest -q -n 2 --dist loadfile \
        tests/conformance tests/faults tests/field "$@" || { result=failed && failed=1; }
    summary+="$name: $result"$'\n'
done
printf '\n%s' "$summary"
exit $failed
