#!/bin/sh
# absmax from files to files against cp of the same files: bytes read and written for a second of processor time, the best of three
# turns each. Processor time, because other work on the machine leaves it alone; both spread over cores alike.
# Usage: speed_files.sh NIBBLE GENERATE
set -eu
[ -x /usr/bin/time ] || { echo "skipped: /usr/bin/time is not here"; exit 77; }
base=${TMPDIR:-/tmp}
[ -d /dev/shm ] && [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -ge 4000000 ] && base=/dev/shm
free=$(df -Pk "$base" | awk 'NR == 2 { print $4 }')
[ "$free" -ge 4000000 ] || { echo "skipped: $free kB free in $base, wanted 4000000"; exit 77; }
dir=$(mktemp -d "$base/nibble-speed-XXXXXX")
trap 'rm -rf "$dir"' EXIT
export OMP_WAIT_POLICY=passive # a thread that waits by turning round uses time too
"$2" files "$dir/in"
bytes() { cat "$1"/*.safetensors | wc -c; }
for turn in 1 2 3; do
    rm -rf "$dir/copy" "$dir/out"
    ( /usr/bin/time -p cp -r "$dir/in" "$dir/copy" ) 2>>"$dir/copied"
    ( /usr/bin/time -p "$1" quantize --threads 2 --method absmax "$dir/in" "$dir/out" >/dev/null ) 2>>"$dir/converted"
done
in=$(bytes "$dir/in")
out=$(bytes "$dir/out")
# Prints the least user + sys, and the least real time, of the turns.
best() {
    awk '/^real/ { r = $2; s = 0 } /^user|^sys/ { s += $2 } /^sys/ { if (!n++ || s < b) b = s; if (n == 1 || r < w) w = r } END { print b, w }' "$1"
}
echo "$in $out $(best "$dir/copied") $(best "$dir/converted")" | awk '{
    copy = 2 * $1 / $3 / 1e9; share = ($1 + $2) / $5 / 1e9 / copy * 100
    printf "cp %.2f GB/s a core (%.1f s), absmax %.2f GB/s a core = %.0f %% of it, wanted 35 %% (2 threads: %.1f s)\n",
           copy, $4, share * copy / 100, share, $6
    exit !(share >= 35 && share < 1000)
}'
