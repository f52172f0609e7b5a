#!/bin/sh
# How many lines of each parser the files of its fuzz corpus reach, by clang's coverage. Ends with status 1 below 85 percent.
#
#   scripts/fuzz-coverage.sh [--jobs N]
set -eu
cd "$(dirname "$0")/.."

jobs=2
[ "${1:-}" = --jobs ] && jobs=$2
wanted=85

# Debian calls them llvm-cov-14 and the like.
find_tool() {
    for name in "$1" "$1-19" "$1-18" "$1-17" "$1-16" "$1-15" "$1-14"; do
        if command -v "$name" >/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "fuzz-coverage.sh: $1 is not installed" >&2
    exit 1
}
cov=$(find_tool llvm-cov)
profdata=$(find_tool llvm-profdata)

sources_of() {
    case $1 in
    shard) echo src/checkpoint/shard.c src/checkpoint/st_dtype.c ;;
    index) echo src/checkpoint/shard_list.c src/checkpoint/checkpoint.c ;;
    config) echo src/model/config.c src/model/quant_config.c src/checkpoint/json_keys.c ;;
    tokenizer) echo src/text/tokenizer_read.c src/text/tokenizer_added.c src/text/tokenizer.c src/text/pretokenize.c src/text/bpe.c ;;
    chat) echo src/text/json_tree.c src/text/json_tree_write.c src/text/chat.c src/text/chat_message.c src/text/chat_normalise.c src/text/chat_render.c ;;
    reply) echo src/text/chat_parse.c src/text/chat_parse_calls.c src/text/chat_parse_tag.c src/text/marker_tail.c ;;
    serve) ls programs/server/serve_*.c | grep -v -E 'serve_(config|http|exchange)\.c$' ;;
    rows) echo programs/input.c programs/score_rows.c src/quantize/calibration_text.c ;;
    esac
}

build=build-coverage
cmake -S . -B $build -DCMAKE_C_COMPILER=clang -DCMAKE_C_FLAGS="-fprofile-instr-generate -fcoverage-mapping" \
    -DCMAKE_C_FLAGS_RELEASE="-O1 -g" >/dev/null
targets="shard index config tokenizer chat reply rows serve"
programs=
for target in $targets; do programs="$programs replay_$target"; done
# shellcheck disable=SC2086 # a list of names
cmake --build $build -j "$jobs" --target $programs >/dev/null

failed=0
for target in $targets; do
    program=$build/tests/fuzz/replay_$target
    LLVM_PROFILE_FILE=$build/$target.profraw "$program" "tests/fuzz/corpus/$target" --plain >/dev/null
    "$profdata" merge -o "$build/$target.profdata" "$build/$target.profraw"
    # shellcheck disable=SC2046 # a list of names
    "$cov" report "$program" -instr-profile="$build/$target.profdata" $(sources_of "$target") |
        awk -v target="$target" -v wanted="$wanted" '
            $1 == "TOTAL" { lines = $8; missed = $9 }
            $1 ~ /\.c$/ { printf "    %-28s %4d lines, %5.1f %% reached\n", $1, $8, 100 * ($8 - $9) / $8 }
            END {
                share = 100 * (lines - missed) / lines
                printf "%-10s %5.1f %% of %d lines\n", target, share, lines
                exit share < wanted
            }' || failed=1
done
exit $failed
