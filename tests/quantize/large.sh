#!/bin/sh
# 20 GiB of BF16 in 256 MiB of memory: the peak resident size stays below that, whatever the source's size.
# Usage: large.sh NIBBLE GENERATE. Needs 7 GB for the result, and GNU time.
set -eu
[ -x /usr/bin/time ] || { echo "skipped: /usr/bin/time is not here"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
free=$(df -Pk "$dir" | awk 'NR == 2 { print $4 }')
[ "$free" -ge 8000000 ] || { echo "skipped: $free kB free, wanted 8000000"; exit 77; }
"$2" large "$dir/large"
/usr/bin/time -f '%M kB %e s' "$1" quantize --memory 0.25 --method absmax "$dir/large" "$dir/out" 2>"$dir/time"
cat "$dir/time"
kb=$(awk '/ kB / { print $1 }' "$dir/time")
[ "$kb" -le 262144 ] || { echo "FAILED: $kb kB resident, wanted at most 262144"; exit 1; }
