#!/bin/sh
# A full quantisation by mse still answers: exact match of at least 0.99 on the evaluation prompts.
# Usage: score.sh NIBBLE SOURCE EVALUATION
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$1" quantize --preset full --method mse "$2" "$dir/full"
"$1" score -m "$dir/full" --act-quant none --teacher --json "$3" >"$dir/score"
awk -F'"exact": ' 'NR == 1 || !done { if (NF > 1) { split($2, v, ","); done = 1; print "exact " v[1]; if (v[1] < 0.99) exit 1 } }' "$dir/score"
