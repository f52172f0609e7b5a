#!/bin/sh
# Fuzzing of every parser under address and undefined-behaviour sanitizers, one after the other. Needs clang.
#
#   scripts/fuzz.sh [--jobs N] [--seconds N] [TARGET...]     (600 seconds each, all targets)
#
# Found inputs grow build-fuzz/corpus/TARGET; an input that fails is kept as build-fuzz/TARGET-crash-... and the run ends with status 1.
set -eu
cd "$(dirname "$0")/.."

jobs=2
seconds=600
while [ $# -gt 0 ]; do
    case $1 in
    --jobs) jobs=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || set -- shard index config tokenizer chat reply rows serve

if ! command -v clang >/dev/null; then
    echo "fuzz.sh: clang is not installed (scripts/install-packages.sh --clang installs it)" >&2
    exit 1
fi
cmake -S . -B build-fuzz -DNIB_FUZZ=ON -DCMAKE_C_COMPILER=clang >/dev/null
programs=
for target in "$@"; do programs="$programs fuzz_$target"; done
# shellcheck disable=SC2086 # a list of names
cmake --build build-fuzz -j "$jobs" --target $programs

failed=0
for target in "$@"; do
    mkdir -p "build-fuzz/corpus/$target"
    echo "fuzz_$target: $seconds seconds"
    nice -n 19 "build-fuzz/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 -max_len=8192 \
        -dict=tests/fuzz/json.dict -artifact_prefix="build-fuzz/$target-" -print_final_stats=1 "build-fuzz/corpus/$target" \
        "tests/fuzz/corpus/$target" >"build-fuzz/$target.log" 2>&1 || {
        failed=1
        echo "fuzz_$target FAILED; the end of build-fuzz/$target.log:"
        tail -n 20 "build-fuzz/$target.log"
    }
    grep -E 'number_of_executed_units|new_units_added' "build-fuzz/$target.log" || true
done
exit $failed
