#!/bin/bash
# The suite on each pair of Python and Django whose interpreter is on this machine, each in a
# virtual environment of its own (.venv-3.12, ...). Arguments go to pytest.
set -u
cd "$(dirname "$0")/.."
PAIRS=${PAIRS:-3.11:5.2 3.12:6.1 3.13:6.1}

find_python() {
    local candidate
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python \
        "$(command -v "python$1")"; do
        # Running it is the only proof: pyenv puts names on PATH that end in an error.
        if [ -n "$candidate" ] && "$candidate" -c "" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# The suite with one pair; a word on how it went is left in $result.
run_pair() {
    local python=$1 django=$2 interpreter venv=.venv-$1
    if ! interpreter=$(find_python "$python"); then
        result="not on this machine"
        return 0
    fi
    result=failed
    [ -x "$venv/bin/pip" ] || "$interpreter" -m venv "$venv" || return 1
    "$venv/bin/pip" install --quiet --editable ".[test]" "Django~=$django.0" || return 1
    "$venv/bin/python" -m pytest "${@:3}" || return 1
    result=passed
}

summary=""
failed=0
ran=0
for pair in $PAIRS; do
    echo "== Python ${pair%:*}, Django ${pair#*:}"
    run_pair "${pair%:*}" "${pair#*:}" "$@" || failed=1
    [ "$result" = "not on this machine" ] || ran=1
    summary+="Python ${pair%:*} with Django ${pair#*:}: $result"$'\n'
done
printf '\n%s' "$summary"
[ $ran = 1 ] && exit $failed
exit 1
