#!/bin/sh
# kill -9 at 20 random moments, each followed by --resume: the folder is the same, byte for byte, as without.
# Usage: kill.sh NIBBLE SOURCE
set -u
nibble=$1
source=$2
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
convert="$nibble quantize --preset full --threads 1 --shard-size 0.0008"
begin=$(date +%s%N)
$convert "$source" "$dir/whole" >/dev/null || exit 1
ms=$(( ($(date +%s%N) - begin) / 1000000 ))
seed=${NIBBLE_SEED:-$$}
echo "an undisturbed run takes $ms ms; seed $seed"
moments=$(awk -v seed="$seed" -v ms="$ms" 'BEGIN { srand(seed); for (i = 0; i < 20; i++) printf "%.3f ", rand() * ms / 1000 }')
killed=0
for moment in $moments; do
    rm -rf "$dir/cut"
    $convert "$source" "$dir/cut" >/dev/null 2>&1 &
    pid=$!
    sleep "$moment"
    kill -9 "$pid" 2>/dev/null && killed=$((killed + 1))
    wait "$pid" 2>/dev/null
    $convert --resume "$source" "$dir/cut" >"$dir/said" 2>&1 || { echo "FAILED at $moment s:"; cat "$dir/said"; exit 1; }
    diff -r "$dir/whole" "$dir/cut" || { echo "FAILED: killed after $moment s, the result differs"; exit 1; }
done
echo "$killed of 20 runs were killed; all results are equal"
[ "$killed" -ge 10 ]
