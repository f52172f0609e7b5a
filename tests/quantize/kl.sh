#!/bin/sh
# The table of docs/quantize.md: `full` from SOURCE by every method, and how far each is from it. By hand; minutes.
# Calibration texts are 3 draws of about 3000 tokens from the rows that kl does not look at.
# Usage: kl.sh NIBBLE KL SOURCE EVALUATION
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for seed in 1 2 3; do
    awk -v seed="$seed" 'BEGIN { srand(seed) }
        NR % 34 != 1 && length($0) < 4000 { print rand() "\t" $0 }' "$4" | sort -n | cut -f 2- |
        awk '{ n += split($0, ids, ",") - 3; print; if (n > 3000) exit }' >"$dir/text$seed"
done
for method in absmax 4over6 mse; do
    "$1" quantize --preset full --method $method "$3" "$dir/$method" >/dev/null
done
for seed in 1 2 3; do
    for method in mse gptq; do
        "$1" quantize --preset full --method $method --calibrate "$dir/text$seed" "$3" "$dir/$method-calibrated-$seed" >/dev/null
    done
done
cd "$dir"
"$2" "$3" "$4" absmax 4over6 mse mse-calibrated-* gptq-calibrated-*
