#!/bin/sh
# score.sh NIBBLE JSON_GET SHARE FILE OPTIONS...: `nibble score` must answer at least that share of the rows exactly.
set -eu
nibble=$1 json_get=$2 share=$3 file=$4
shift 4
out=$(mktemp)
trap 'rm -f "$out"' EXIT
"$nibble" score "$file" --json "$@" >"$out"
exact=$("$json_get" exact <"$out")
rows=$("$json_get" rows <"$out")
nll=$("$json_get" nll <"$out")
echo "$rows rows, exact $exact, nll $nll; wanted at least $share"
awk "BEGIN { exit !($exact >= $share && $rows > 0) }"
