#!/bin/sh
# Build and test. Usage: check.sh [--full] [--jobs N] PART...
# Parts:
#   release  gcc build; every test but the long ones (--full: those too)
#   asan     the short tests in a build with sanitizers
#   clang    all sources through clang's front end, whose warnings are errors; counts as one check
#   opcheck  release build; only the tests in tests/opcheck
# Whatever happens, the last line is "N passed, N failed", and the exit status is 0 only if nothing failed. Numbers
# are ctest's own. Skips are neither; each is printed with its reason.
set -u
cd "$(dirname "$0")/.." || exit 1

full=0
jobs=2
while :; do
    case "${1:-}" in
    --full) full=1; shift ;;
    --jobs) jobs=$2; shift 2 ;;
    *) break ;;
    esac
done

passed=0
failed=0
summary=build/check-summary.txt
mkdir -p build

# With several test programs on few cores, OpenMP threads that wait by spinning would take the others' time.
export OMP_WAIT_POLICY=passive

finish() {
    status=$?
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
    echo "$passed passed, $failed failed" >"$summary"
    cat "$summary"
    trap - EXIT
    if [ "$failed" -gt 0 ]; then exit 1; fi
    exit 0
}
trap finish EXIT
trap 'echo "interrupted"; exit 130' INT TERM

# build PRESET FOLDER: false if it fails, which is counted as one failed check.
build() {
    log=$2/check-build.log
    mkdir -p "$2"
    echo "== building $1 into $2/"
    if { cmake --preset "$1" && cmake --build "$2" -j "$jobs"; } >"$log" 2>&1; then return 0; fi
    grep -n -i -E 'error|warning' "$log" | head -n 20
    echo "-- the end of $log:"
    tail -n 15 "$log"
    echo "FAILED: the $1 build"
    failed=$((failed + 1))
    return 1
}

# run_tests FOLDER CTEST-ARGUMENTS...
run_tests() {
    folder=$1
    shift
    log=$folder/check-tests.log
    { ctest --test-dir "$folder" --no-tests=error --output-on-failure --timeout 1500 -j "$jobs" "$@" 2>&1
        echo $? >"$log.status"; } | tee "$log"
    outcome=$(cat "$log.status")

    # "60% tests passed, 2 tests failed out of 5"; a skipped test is among the passed ones there, one that
    # could not be started among the failed ones.
    line=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests? failed out of [0-9]+$' "$log" | tail -n 1)
    if [ -z "$line" ]; then
        echo "FAILED: ctest ran nothing in $folder"
        failed=$((failed + 1))
        return
    fi
    tests=${line##* }
    failures=$(echo "$line" | sed 's/.*passed, \([0-9]*\) .*/\1/')
    not_run=$(grep -c -E '^[[:space:]]+[0-9]+ - .* \(Skipped\)$' "$log")
    passed=$((passed + tests - failures - not_run))
    failed=$((failed + failures))
    if [ "$outcome" -ne 0 ] && [ "$failures" -eq 0 ]; then
        echo "FAILED: ctest ended with status $outcome though no test failed"
        failed=$((failed + 1))
    fi
    print_skips "$folder"
}

# A test that cannot run says "skipped: <why>" and then skips, in cmocka or with exit status 77; one that leaves out
# single cases says "... skipped for <why>".
print_skips() {
    tests_log=$1/Testing/Temporary/LastTest.log
    [ -f "$tests_log" ] || return 0
    awk '/^[0-9]+\/[0-9]+ Test(ing)?: / { name = $NF }
         /(^| )skipped(:| for )/ || /^\[  SKIPPED \] [a-z_A-Z]/ {
             sub(/^\[  SKIPPED \] /, "skipped case ")
             if (!seen[name, $0]++) print name ": " $0
         }' \
        "$tests_log"
}

part_release() {
    build release build || return 0
    if [ "$full" -eq 1 ]; then run_tests build; else run_tests build -LE long; fi
}

part_asan() {
    build asan build-asan || return 0
    run_tests build-asan -L short -LE long
}

part_clang() {
    if ! command -v clang >/dev/null; then
        echo "skipped: the clang build: clang is not installed (scripts/install-packages.sh --clang installs it)"
        return 0
    fi
    if ! echo 'int main(void) { return 0; }' | clang -fopenmp -x c - -o /dev/null 2>/dev/null; then
        echo "skipped: the clang build: clang cannot link OpenMP here (Debian: libomp-dev)"
        return 0
    fi
    if build clang build-clang; then passed=$((passed + 1)); fi
}

part_opcheck() {
    build release build || return 0
    names=
    for source in tests/opcheck/test_*.c; do
        [ -e "$source" ] || continue
        names="$names${names:+|}$(basename "$source" .c)"
    done
    if [ -z "$names" ]; then
        echo "FAILED: tests/opcheck holds no tests"
        failed=$((failed + 1))
        return
    fi
    run_tests build -R "^($names)\$"
}

for part in "$@"; do
    case $part in
    release) part_release ;;
    asan) part_asan ;;
    clang) part_clang ;;
    opcheck) part_opcheck ;;
    *)
        echo "check.sh: '$part' is not a part; there are release, asan, clang, opcheck" >&2
        failed=$((failed + 1))
        ;;
    esac
done
