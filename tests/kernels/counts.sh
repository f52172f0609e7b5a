#!/bin/sh
# Instructions of the hot AVX2 kernels under callgrind, held to the recorded ones: a regression shows on a noisy machine.
# Usage: counts.sh RUN_KERNEL COUNTS [record]. Counts are of one run: 11 runs less one, over 10. Another compiler may differ a
# little, so a count fails from 8 % above; "record" writes the file anew.
set -u
program=$1
file=$2
command -v valgrind >/dev/null || { echo "skipped: instruction counts need valgrind"; exit 77; }
names=$(valgrind -q --tool=none "$program") || { echo "skipped: valgrind runs no avx2 here: $names"; exit 77; }

collected() { # NAME TIMES
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
failures=0
[ "${3:-}" = record ] && : >"$file"
for name in $names; do
    count=$((($(collected "$name" 11) - $(collected "$name" 1)) / 10))
    if [ "${3:-}" = record ]; then
        echo "$name $count" >>"$file"
        continue
    fi
    wanted=$(sed -n "s/^$name //p" "$file")
    echo "$name: $count instructions, recorded $wanted"
    if [ -z "$wanted" ] || [ "$count" -le 0 ] || [ $((count * 100)) -gt $((wanted * 108)) ]; then
        echo "FAILED: $name"
        failures=$((failures + 1))
    fi
done
exit $((failures > 0))
