#!/bin/sh
# The curl lines of the documentation, as they stand there, against nibble serve. Behind each stands, after "    # ", what its answer
# must hold; a line without that is a mistake. Usage: curl_lines.sh NIBBLE FILE.md...
set -u
nibble=$1
shift
dir=$(mktemp -d)
pid=
trap 'kill $pid 2>/dev/null; rm -rf "$dir"' EXIT

command -v curl >/dev/null || { echo 'skipped: curl is missing'; exit 77; }

# From "    curl" on up to the line with "    # ": command-N and answer-N.
for file in "$@"; do
    awk -v dir="$dir" -v name="$(basename "$file")" '
        /^    curl / { if (open) { print name ": no answer behind: " first; bad = 1 } open = 1; first = $0; n++; out = dir "/" name "-" n }
        open && /^    # / { print substr($0, 7) > (out ".answer"); close(out ".answer"); open = 0; next }
        open && /^    / { print substr($0, 5) > (out ".sh"); next }
        open { print name ": no answer behind: " first; bad = 1; open = 0 }
        END { if (open) bad = 1; if (n == 0) { print name ": no curl lines"; bad = 1 } exit bad }' "$file" || exit 1
done

# A port that is free now; another try where it is taken before the server has it.
tries=0
while :; do
    port=$((20000 + ($$ + tries * 4099) % 20000))
    "$nibble" serve --port $port --ctx 2048 --threads 1 --log-level quiet 2>"$dir/log" &
    pid=$!
    until curl -sf -o "$dir/health" "http://127.0.0.1:$port/health"; do
        kill -0 $pid 2>/dev/null || break
        sleep 0.2
    done
    kill -0 $pid 2>/dev/null && break
    tries=$((tries + 1))
    [ $tries -lt 20 ] || { cat "$dir/log"; exit 1; }
done

failed=0
n=0
for script in "$dir"/*.sh; do
    n=$((n + 1))
    wanted=$(cat "${script%.sh}.answer")
    sed "s/127\.0\.0\.1:8000/127.0.0.1:$port/" "$script" >"$dir/now"
    grep -q "127.0.0.1:$port" "$dir/now" || { echo "not sent to 127.0.0.1:8000: $(cat "$script")"; failed=1; continue; }
    timeout 120 sh "$dir/now" >"$dir/answer" 2>"$dir/progress"
    if ! grep -q -F -e "$wanted" "$dir/answer"; then
        echo "$(basename "$script"): $(cat "$script")"
        echo "wanted: $wanted"
        echo "got: $(head -c 2000 "$dir/answer")"
        failed=1
    fi
done
kill $pid
wait $pid || failed=1
pid=
[ $failed -eq 0 ] && echo "$n curl lines answered as written"
exit $failed
