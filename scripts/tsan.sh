#!/bin/sh
# Data races and memory faults, by tools that are too slow for every day. Usage: tsan.sh [thread] [memory] [TEST...]
#   thread  the tests under ThreadSanitizer, in build-tsan/ (clang with libomp)
#   memory  the tests under valgrind, in build/ (gcc)
# Without either, both. Without tests, every unit test and short runs of those that drive whole models with several threads.
#
# GCC's OpenMP library is invisible to ThreadSanitizer, which then reports each of its barriers as missing. LLVM's comes with a tool,
# archer, that tells the sanitizer what they order; hence clang, and hence the variable below. Under valgrind OpenMP runs one thread:
# its threads take turns there anyway. Limits on time are off under both.
set -u
cd "$(dirname "$0")/.." || exit 1
jobs=$(nproc 2>/dev/null || echo 2)
parts=
while :; do
    case "${1:-}" in
    thread|memory) parts="$parts $1"; shift ;;
    *) break ;;
    esac
done
[ -n "$parts" ] || parts="thread memory"
passed=0
failed=0

# The test programs in a build folder, as "NAME ARGUMENT..." a line.
tests() {
    if [ $# -gt 1 ]; then
        shift
        printf '%s\n' "$@"
        return
    fi
    for source in tests/unit/test_*.c; do
        [ -x "$1/tests/$(basename "$source" .c)" ] && basename "$source" .c
    done
    echo "test_soak 1 60 3"
    echo "test_drafts taking*"
    echo "test_sessions empty"
    echo "test_observe trace"
}

# run WHAT FOLDER PREFIX TEST...
run() {
    what=$1; folder=$2; prefix=$3
    shift 3
    tests "$folder" "$@" >"$folder/tsan-list.txt"
    while read -r name arguments; do
        # Intended splitting: arguments hold no blanks; and no globbing, since some are patterns.
        set -f
        if $prefix "$folder/tests/$name" $arguments >"$folder/tsan.log" 2>&1 </dev/null; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            echo "FAILED under $what: $name $arguments"
            grep -n -E 'WARNING: ThreadSanitizer|ERROR SUMMARY|Invalid|uninitialised|definitely lost|FAILED|ERROR' "$folder/tsan.log" | head -n 12
            cp "$folder/tsan.log" "$folder/tsan-$name.log"
        fi
        set +f
    done <"$folder/tsan-list.txt"
}

for part in $parts; do
    case $part in
    thread)
        archer=$(clang -print-file-name=libarcher.so)
        [ -e "$archer" ] || archer=$(find /usr/lib/llvm-* -name libarcher.so 2>/dev/null | sort | tail -n 1)
        if [ ! -e "$archer" ]; then
            echo "skip: no libarcher.so beside clang's OpenMP library; without it every barrier is reported"
            continue
        fi
        cmake -S . -B build-tsan -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang \
            -DCMAKE_C_FLAGS="-fsanitize=thread -fno-omit-frame-pointer" >/dev/null &&
            cmake --build build-tsan -j "$jobs" >build-tsan/build.log 2>&1 || { echo "FAILED: the build, see build-tsan/build.log"; exit 1; }
        OMP_TOOL_LIBRARIES=$archer
        TSAN_OPTIONS="halt_on_error=0 exitcode=66 ignore_noninstrumented_modules=1"
        export OMP_TOOL_LIBRARIES TSAN_OPTIONS
        run ThreadSanitizer build-tsan env "$@"
        ;;
    memory)
        cmake --preset release >/dev/null && cmake --build build -j "$jobs" >build/build.log 2>&1 ||
            { echo "FAILED: the build, see build/build.log"; exit 1; }
        OMP_NUM_THREADS=1 NIB_TEST_UNTIMED=1
        export OMP_NUM_THREADS NIB_TEST_UNTIMED
        run valgrind build "valgrind --quiet --error-exitcode=66 --leak-check=full --errors-for-leak-kinds=definite" "$@"
        ;;
    esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
