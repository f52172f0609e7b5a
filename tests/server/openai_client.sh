#!/bin/sh
# The public `openai` Python client against nibble serve. Usage: openai_client.sh NIBBLE FOLDER. The client goes into a virtual
# environment in FOLDER, from PyPI; without Python, venv or network the test is skipped.
set -u
nibble=$1
folder=$2
here=$(dirname "$0")
python=$folder/bin/python

skip() {
    echo "skip: $1"
    exit 77
}
if ! "$python" -c 'import openai' 2>/dev/null; then
    command -v python3 >/dev/null || skip "python3 is missing"
    python3 -m venv "$folder" >/dev/null 2>&1 || skip "python3 cannot make a virtual environment"
    "$python" -m pip install --quiet --disable-pip-version-check --timeout 20 openai >/dev/null 2>&1 ||
        skip "the openai client cannot be had from PyPI"
fi
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$nibble" serve --port "$port" --ctx 2048 --threads 1 --log-level quiet --api-key sesame &
pid=$!
trap 'kill $pid 2>/dev/null' EXIT
i=0
until "$python" -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/health')" 2>/dev/null; do
    i=$((i + 1))
    [ $i -lt 60 ] || { echo "the server was not ready after a minute"; exit 1; }
    sleep 1
done
"$python" "$here/openai_client.py" "http://127.0.0.1:$port/v1" sesame || exit 1
trap - EXIT
kill $pid
wait $pid
