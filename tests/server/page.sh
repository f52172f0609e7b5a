#!/bin/sh
# The chat page of nibble serve in headless Chromium; without a browser or Python the test is skipped. Usage: page.sh NIBBLE [FOLDER],
# where screenshots go into FOLDER.
set -u
nibble=$1
here=$(dirname "$0")

skip() {
    echo "skipped: $1"
    exit 77
}
command -v python3 >/dev/null || skip 'python3 is missing'
browser=
for name in chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v $name)
done
[ -n "$browser" ] || skip 'Chromium is not installed'

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$nibble" serve --port "$port" --ctx 2048 --threads 1 --log-level quiet --served-name tiny-v4 &
pid=$!
trap 'kill $pid 2>/dev/null' EXIT
until python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/health')" 2>/dev/null; do
    kill -0 $pid 2>/dev/null || { echo 'the server has ended'; exit 1; }
    sleep 0.3
done
python3 "$here/page.py" "http://127.0.0.1:$port" "$browser" ${2:+"$2"} || exit 1
trap - EXIT
kill $pid
wait $pid
