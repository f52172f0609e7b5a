#!/bin/sh
# What the AVX2 kernels read from memory for 1, 3 and 16 rows, by cachegrind: the weights once. Usage: reads.sh
# RUN_KERNEL. The cache has 1 MiB, which keeps the rows and not the weights: 32 tiles of 32 outputs of 4096 channels are
# 2.2 MiB with 4 bits, 4 with FP8 and 8 with BF16. Lines that are missed are those of two runs over all tiles less one's;
# 3 % more than the weights have are allowed for rows and scratch that fall out meanwhile, where a second pass over the
# weights would double them.
set -u
program=$1
command -v valgrind >/dev/null || { echo "skipped: counting reads needs valgrind"; exit 77; }
names=$(valgrind -q --tool=none "$program") || { echo "skipped: valgrind runs no avx2 here: $names"; exit 77; }
tiles=32

missed() { # NAME TIMES ROWS: reads that the last cache had not
    valgrind --tool=cachegrind --cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=1048576,16,64 \
        --cachegrind-out-file=/dev/null "$program" "$1" "$2" $tiles "$3" 2>&1 |
        sed -n 's/.*LLd misses:[^(]*( *\([0-9,]*\) rd.*/\1/p' | tr -d ,
}
failures=0
check() { # NAME BYTES: codes and scales of 4096 channels of one output
    lines=$(($2 * 32 * tiles / 64))
    for rows in 1 3 16; do
        found=$(($(missed "$1" 2 $rows) - $(missed "$1" 1 $rows)))
        echo "$1, $rows rows: $found lines of $lines"
        if [ $((found * 100)) -lt $((lines * 99)) ] || [ $((found * 100)) -gt $((lines * 103)) ]; then
            echo "FAILED: $1, $rows rows"
            failures=$((failures + 1))
        fi
    done
}
check nvfp4-plain-1 $((2048 + 256))
check nvfp4-codes-1 $((2048 + 256))
check mxfp4-plain-1 $((2048 + 128))
check fp8-plain-1 4096
check bf16-plain-1 8192
exit $((failures > 0))
