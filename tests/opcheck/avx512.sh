#!/bin/sh
# Every op on the AVX-512 rungs (avx512, vnni, bf16) against ref where the processor has none: the kernels' sources, compiled with
# their intrinsics in plain C (avx512_emulated.h). Shows what they compute, not that the compiler's AVX-512 code does.
#   avx512.sh [N] [MORE ARGUMENTS OF test_opcheck]
set -eu
grep -q avx2 /proc/cpuinfo 2>/dev/null || { echo "skipped: the emulated AVX-512 needs AVX2 and FMA"; exit 77; }
here=$(cd "$(dirname "$0")/../.." && pwd)
n=${1:-20}
[ $# -eq 0 ] || shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$here"
# The flags that results depend on are those of CMakeLists.txt.
flags="-std=c11 -O2 -ffp-contract=off -fno-math-errno -fopenmp -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -Iinclude -Isrc -Itests"

others=
for source in src/backend/cpu/*.c; do
    case $source in
    */kernels_avx512.c | */kernels_vnni.c | */kernels_bf16.c)
        sed -e "s|<immintrin.h>|\"$here/tests/opcheck/avx512_emulated.h\"|" -e 's/,avx512[a-z0-9]*//g' "$source" >"$dir/${source##*/}"
        # Their loops in place of instructions take an optimising compiler minutes.
        cc $flags -O0 -mavx2 -mfma -mf16c -Wno-psabi -c "$dir/${source##*/}" -o "$dir/$(basename "$source" .c).o" ;;
    */kernels_init.c) cc $flags -Dnib_cpu_flags_detect=flags_of_this_machine -c "$source" -o "$dir/init.o" ;;
    *) others="$others $source" ;;
    esac
done
printf '%s\n' '#include "backend/cpu/kernels.h"' \
    'unsigned nib_cpu_flags_detect(void) { return NIB_CPU_AVX2 | NIB_CPU_AVX512 | NIB_CPU_VNNI | NIB_CPU_BF16; }' >"$dir/flags.c"
cc $flags src/base/*.c src/number/*.c src/backend/ref/*.c $others src/backend/*.c tests/support/opcheck_*.c \
    tests/opcheck/test_opcheck.c "$dir/flags.c" "$dir"/*.o -o "$dir/opcheck" -lm
cc $flags src/base/status.c src/backend/cpu/kernels_c.c src/backend/cpu/kernels_avx2.c src/backend/cpu/kernels_neon.c \
    src/backend/cpu/kernels_dotprod.c tests/unit/test_cpu_bf16.c "$dir/flags.c" "$dir"/*.o -o "$dir/test_cpu_bf16" -lm -lcmocka
"$dir/test_cpu_bf16"
for level in avx512 vnni bf16; do
    OMP_NUM_THREADS=2 "$dir/opcheck" --backend cpu --cpu $level --n "$n" "$@"
done
