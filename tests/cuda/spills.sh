#!/bin/sh
# spills.sh NVCC SOURCE_DIR WORK_DIR [JOBS]: assembles every kernel of the library for every card that `make cuda`
# builds for, and names those that keep values in memory for want of registers. Minutes.
nvcc=$1 source=$2 work=$3 jobs=${4:-2}
mkdir -p "$work" || exit 1
rm -f "$work"/*.txt

# Kernels of Hopper, and the most bytes each may store: what it was measured with.
known='sm_90a hc_pre_rows 12
sm_90a mix_many 16
sm_90a sample_slices 8
sm_90a attend_wide<2, 252
sm_90a attend_wide<3, 108
sm_90a attend_wide<1000, 108
sm_90a down<2, 44
sm_90a down<1, 24
sm_90a gate_up<2, 56
sm_90a tiled_products<1, 8
sm_90a tiled_products<2, 36
sm_90a wide_experts<2, false, true> 36
sm_90a wide_experts<3, true, true> 152
sm_90a wide_experts<4, true, true> 152'

cuda=$source/src/backend/cuda
for file in "$cuda"/any/*.cu "$cuda"/sm90a/*.cu "$cuda"/sm100a/*.cu "$cuda"/sm120a/*.cu; do
    case $file in
    */any/*) targets='90a 100f 120f' ;;
    */sm90a/*) targets=90a ;;
    */sm100a/*) targets=100f ;;
    *) targets=120f ;;
    esac
    for target in $targets; do echo "$file $target"; done
done | xargs -P "$jobs" -n 2 sh -c '
    name=$(basename "$4" .cu).$5
    "$1" -cubin -arch="sm_$5" -std=c++17 -O3 -fmad=false -lineinfo -DNIB_CUDA_SM90A -I"$2/src" -I"$2/include" \
        -Xptxas -v -o "$3/$name.cubin" "$4" >"$3/$name.txt" 2>&1 || { cat "$3/$name.txt" >&2; exit 255; }' \
    sh "$nvcc" "$source" "$work" || exit 1

cat "$work"/*.txt | c++filt | awk -v known="$known" '
    BEGIN {
        n = split(known, line, "\n")
        for (i = 1; i <= n; i++) {
            last = match(line[i], / [0-9]+$/)
            name[i] = substr(line[i], 1, last - 1)
            most[i] = substr(line[i], last + 1) + 0
        }
    }
    /Compiling entry function/ {
        split($0, part, "\047")
        target = part[4]
        kernel = part[2]
        sub(/^void /, "", kernel)
        kernels[target]++
    }
    /bytes spill stores/ && !/ 0 bytes spill stores, 0 bytes spill loads/ {
        match($0, /[0-9]+ bytes spill stores/)
        bytes = substr($0, RSTART, RLENGTH) + 0
        for (i = 1; i <= n; i++)
            if (index(target " " kernel, name[i]) == 1 && bytes <= most[i])
                break
        print target " " kernel ": " bytes " bytes of registers stored" (i <= n ? ", known" : "")
        if (i > n)
            bad++
    }
    END {
        for (t in kernels)
            print kernels[t] " kernels for " t
        if (kernels["sm_90a"] < 70 || kernels["sm_100f"] < 70 || kernels["sm_120f"] < 70) {
            print "spills.sh: kernels are missing"
            bad++
        }
        exit bad != 0
    }'
