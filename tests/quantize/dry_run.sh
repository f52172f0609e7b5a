#!/bin/sh
# A 1.6T-parameter checkpoint is planned from its headers alone: within 10 seconds of processor time, and without writing.
# Usage: dry_run.sh NIBBLE GENERATE
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$2" pro "$dir/pro"
# Processor time, since other tests may be running beside this one.
( time -p "$1" quantize --dry-run --json "$dir/pro" "$dir/out" >"$dir/plan" ) 2>"$dir/time"
cat "$dir/plan" "$dir/time"
awk '/^user|^sys/ { s += $2 } END { if (s > 10) { print "FAILED: " s " s of processor time, wanted at most 10"; exit 1 } }' "$dir/time"
[ ! -e "$dir/out" ] || { echo "FAILED: a dry run made the destination"; exit 1; }
grep -q '"matrices": 70272' "$dir/plan" || { echo "FAILED: wanted 61 layers of 384 experts of 3 matrices"; exit 1; }
grep -q '"weights": 1547' "$dir/plan" || { echo "FAILED: wanted 1547 G weights"; exit 1; }
