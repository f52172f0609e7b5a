#!/bin/sh
# The checks of the CUDA backend on a card.
#
#   cuda-check.sh --build JOBS     build the programs, and run every part if a card is here
#   cuda-check.sh BIN PART...      BIN holds the programs (build-card/bin), built here or carried from another machine
#
# Run from the source folder. Parts: card, opcheck, golden, identity, drafts, commands, calibrate, sm100a, sm120a,
# sanitizer, bench. Each prints what it did; the last line is "N passed, N failed".
set -u
if [ "$1" = --build ]; then
    if ! command -v nvcc >/dev/null; then
        echo "skipped: make check-cuda: nvcc 13 is not installed"
        echo "0 passed, 0 failed"
        exit 0
    fi
    cmake --preset card >build-card.log && cmake --build build-card -j "$2" --target card_programs >>build-card.log || {
        tail -n 20 build-card.log
        echo "0 passed, 1 failed"
        exit 1
    }
    mv build-card.log build-card/build.log
    if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
        echo "skipped: make check-cuda: no NVIDIA card here. The programs are built: carry this folder with build-card/bin to a machine"
        echo "with one and run scripts/cuda-check.sh build-card/bin card opcheck golden identity drafts commands calibrate sm100a sm120a sanitizer bench"
        echo "1 passed, 0 failed"
        exit 0
    fi
    set -- build-card/bin card opcheck golden identity drafts commands calibrate sm100a sm120a sanitizer bench
fi
bin=$1
shift
passed=0
failed=0
export LD_LIBRARY_PATH="$bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

check() {
    name=$1
    shift
    log=$bin/$(echo "$name" | tr ' /' '__').log
    start=$(date +%s)
    if "$@" >"$log" 2>&1; then passed=$((passed + 1)); word=ok; else failed=$((failed + 1)); word=FAILED; fi
    echo "== $name: $word, $(($(date +%s) - start)) s"
    tail -n "${LINES_SHOWN:-4}" "$log"
}

for part in "$@"; do
    case $part in
    card) nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,memory.total --format=csv,noheader ;;
    opcheck)
        for op in embed norm linear q_rope kv_insert compress index_select attend o_a moe hc_pre hc_post hc_head head mtp_join \
            copy_rows sample; do
            check "opcheck $op" "$bin/test_opcheck" --seed "${SEED:-1}" --op $op
        done ;;
    golden) for variant in w4a16 official w4a4 release; do check "golden $variant" "$bin/golden" $variant cuda; done ;;
    identity) check identity "$bin/test_identity" cuda ;;
    drafts)
        check drafts "$bin/test_drafts" '*' cuda
        check sessions "$bin/test_sessions" '*' cuda
        check "NaN of one request" "$bin/test_nan_request" cuda
        check "lost device" "$bin/lost_device" ;;
    commands) check commands sh tests/cuda/commands_card.sh "$bin" ;;
    calibrate) # Hopper's products against what the PTX simulator is held to
        check calibrate "$bin/calibrate_sm90a" check tests/data/goldens/sm90a/calibrate_h200.bin ;;
    sm100a) # the products, experts and rows of B200's kind on this card, tensor memory and tcgen05 emulated; broken ones
        check "sm100a" "$bin/parts_sm100a"
        check "sm100a broken" "$bin/parts_sm100a" broken
        for tool in memcheck racecheck initcheck synccheck; do
            check "sm100a $tool" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/parts_sm100a"
        done ;;
    sm120a) # the products of RTX cards on this one, their instruction emulated, and their attention
        check "sm120a" "$bin/parts_sm120a"
        check "sm120a attention" "$bin/parts_attend_sm120a"
        for tool in memcheck racecheck initcheck synccheck; do
            check "sm120a $tool" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/parts_sm120a" small
            check "sm120a attention $tool" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/parts_attend_sm120a" small
        done ;;
    sanitizer)
        for tool in memcheck racecheck initcheck synccheck; do
            check "sanitizer $tool" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/golden" w4a16 cuda models/tiny-v4 132
        done ;;
    bench) LINES_SHOWN=200 check bench "$bin/bench_cuda" ;;
    *) echo "cuda-check.sh: no part '$part'" >&2; failed=$((failed + 1)) ;;
    esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
