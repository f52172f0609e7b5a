#!/bin/sh
# The op checker on the CUDA backend in the simulator: opcheck.sh PROGRAM [long|sm100a|sm120a]. Lines: op, seed, cases. The seeds are
# fixed because cases differ a hundredfold in cost; long takes fresh seeds, schedules in random order and more cases. sm100a, sm120a:
# NVFP4 rows and weights on a card of compute capability 10.0, or 12.0, where every kernel of that folder must have been launched.
set -e
program=$1
if [ "$2" = sm100a ] || [ "$2" = sm120a ]; then
    family=$2
    case $family in
    sm100a) card=100 kernels='norm linear_one linear_pair place groups swiglu swiglu_act combine pack_scales
        attend_bf16 attend_fp8 attend_nvfp4 index_fp4 index_bf16' ;;
    sm120a) card=120 kernels='norm decode_8 decode_16 linear_32 linear_128 groups swiglu swiglu_act combine pack
        attend_f32_bf16 attend_span_fp8 attend_fold' ;;
    esac
    trace=$(mktemp)
    trap 'rm -f "$trace" "$trace.skip"' EXIT
    while read -r op seed cases; do
        NIB_PTXSIM_CARD=$card NIB_PTXSIM_TRACE=1 NIB_PTXSIM_SEED=$seed "$program" --backend cuda --format nvfp4 --seed "$seed" \
            --op "$op" --n "$cases" 2>>"$trace" || { grep -v '<<<' "$trace" >&2; exit 1; }
    done <<LIST
norm 11 3
linear 1 3
linear 7 3
moe 4 2
attend 5 1
index_select 7 2
LIST
    for kernel in $kernels; do
        grep -q "nib_${family}_$kernel <<<" "$trace" || { echo "opcheck.sh: nib_${family}_$kernel was not launched" >&2; exit 1; }
        # The self-test, which comes first, must see that it does nothing. Of the formats one here, all in the long run.
        case $kernel in attend_fp8 | attend_nvfp4 | index_bf16) [ "$3" = long ] || continue ;; esac
        if NIB_PTXSIM_CARD=$card NIB_PTXSIM_SKIP="nib_${family}_$kernel" "$program" --backend cuda --format nvfp4 --seed 1 --op norm \
            --n 1 >"$trace.skip" 2>&1 || ! grep -q "fails its self-test on this card: $family " "$trace.skip"; then
            cat "$trace.skip" >&2
            echo "opcheck.sh: the self-test passes without nib_${family}_$kernel" >&2
            exit 1
        fi
        sed -n "s/.*fails its self-test on this card: \(.*\); activations.*/without $kernel: \1/p" "$trace.skip" | head -n 1
    done
    exit 0
fi
if [ "$2" = long ]; then
    seed=$(date +%s)
    echo "opcheck.sh: seed $seed"
    for op in embed norm linear q_rope kv_insert compress index_select attend o_a moe hc_pre hc_post hc_head head mtp_join copy_rows sample; do
        NIB_PTXSIM_SEED=$seed "$program" --backend cuda --seed "$seed" --op $op --n 4
    done
    for op in linear index_select attend o_a moe; do # within the memory of a card of 12.x
        NIB_PTXSIM_CARD=120 NIB_PTXSIM_SEED=$seed "$program" --backend cuda --seed "$seed" --op $op --n 15 --rows many
    done
    for op in norm linear moe attend index_select; do
        NIB_PTXSIM_CARD=103 NIB_PTXSIM_SEED=$seed NIB_PTXSIM_RESIDENT=2 "$program" --backend cuda --format nvfp4 --seed "$seed" --op $op --n 12
    done
    exit 0
fi
while read -r op seed cases more; do
    # shellcheck disable=SC2086 # options, or nothing
    NIB_PTXSIM_SEED=$seed "$program" --backend cuda --seed "$seed" --op "$op" --n "$cases" $more
done <<LIST
embed 11 2
norm 11 3
linear 11 4
linear 2 4 --rows many
q_rope 11 2
kv_insert 11 2
compress 3 2
index_select 3 1
attend 3 1
o_a 11 2
moe 6 1
moe 3 1 --rows many
hc_pre 11 2
hc_post 11 2
hc_head 11 2
head 3 1
mtp_join 11 1
copy_rows 11 2
sample 3 1
LIST
