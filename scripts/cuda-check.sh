#!/bin/sh
# The checks of the CUDA backend on a card. Usage: cuda-check.sh BIN PART...
# BIN holds the programs (golden, test_opcheck, bench_cuda and so on) built elsewhere; run from the source folder.
# Parts: card, opcheck, golden, sanitizer, bench. Each prints what it did; the last line is "N passed, N failed".
set -u
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
