#!/bin/sh
# The op checker on the CUDA backend in the simulator: opcheck.sh PROGRAM [long [OP [many|wide]]|sm100a|sm120a [long]]. Lines: op, seed, cases.
# The seeds are fixed because cases differ a hundredfold in cost; long takes fresh seeds, schedules in random order and more cases: of all
# ops; or one op's kernels on a card of 10.3, with `many` rows on one of 12.0, `wide`: on Hopper many rows of many columns, whose
# rings of stages come round, and many FP8 rows, or prompts of attention. sm100a, sm120a: quantised rows and weights on a card of 10.0, or 12.0, where every
# kernel for them must have been launched; one kernel, with a second `long` each, is left out once, which the self-test must see.
set -e
program=$1
if [ "$2" = sm100a ] || [ "$2" = sm120a ]; then
    family=$2
    case $family in
    sm100a)
        card=100
        plain=
        nvfp4='norm linear_one linear_pair place groups experts_in_16 experts_in_96 experts_out_16 experts_out_96 swiglu_act pack_scales
            attend_bf16 attend_fp8 attend_nvfp4 attend_f32_bf16 attend_f32_fp8 attend_f32_nvfp4 index_fp4 index_bf16 index_f32_bf16
            plain_few_bf16 plain_few_f32 plain_many_bf16 plain_many_f32
            plain_fp8_few_bf16 plain_fp8_few_f32 plain_fp8_many_bf16 plain_fp8_many_f32'
        fp8='fp8_one fp8_pair mxfp4_one mxfp4_pair mx_in_16 mx_in_96 mx_out_16 mx_out_96 place groups swiglu_act combine pack_scales'
        ;;
    sm120a)
        card=120
        nvfp4='norm decode_8 decode_16 linear_32 linear_128 groups swiglu swiglu_act combine pack
            attend_f32_bf16 attend_span_fp8 attend_fold index_fp4'
        fp8='fp8_8 fp8_16 fp8_64 mxfp4_8 mxfp4_16 mxfp4_64 groups swiglu_act combine pack_fp8 pack_mxfp4'
        plain='attend_bf16 attend_fp8 attend_nvfp4 attend_f32_bf16 attend_f32_fp8 attend_f32_nvfp4 attend_span_bf16 attend_span_fp8
            attend_span_nvfp4 attend_f32_span_bf16 attend_f32_span_fp8 attend_f32_span_nvfp4 attend_fold index_fp4'
        ;;
    esac
    trace=$(mktemp)
    trap 'rm -f "$trace" "$trace.skip"' EXIT
    check() { # FORMAT SEED OP CASES, with what the environment says
        case $1 in plain) as= ;; *) as="--format $1" ;; esac
        # shellcheck disable=SC2086 # two words, or none
        NIB_PTXSIM_CARD=$card "$program" --backend cuda $as --seed "$2" --op "$3" --n "$4"
    }
    # The self-test, which comes before the first weight, must see that a kernel does nothing. The generic ones then do the work, and do it
    # right; where there are none that fit the card (whole ops of 12.0), the engine is refused.
    leave_out() { # FORMAT KERNEL OP
        code=0
        NIB_PTXSIM_SKIP="nib_${family}_$2" check "$1" 1 "$3" 1 >"$trace.skip" 2>&1 || code=$?
        [ $code = 0 ] && said=right || said=refused
        case $family/$2/$1 in sm120a/attend*/* | sm120a/index*/* | sm120a/*/plain) wanted=refused ;; *) wanted=right ;; esac
        if [ $said != $wanted ] || ! grep -q "fails its self-test on this card: $family " "$trace.skip"; then
            cat "$trace.skip" >&2
            echo "opcheck.sh: without nib_${family}_$2 the engine is $said, wanted $wanted, with the kernel's name" >&2
            exit 1
        fi
        sed -n "s/.*fails its self-test on this card: \([^;]*\).*/$1 without $2: \1/p" "$trace.skip" | head -n 1
    }
    for format in nvfp4 fp8; do
        eval "kernels=\$$format"
        [ "$kernels" ] || continue
        : >"$trace"
        while read -r op seed cases; do
            case $format/$op in fp8/attend | fp8/index_select | fp8/o_a) continue ;; esac # the same whichever
            NIB_PTXSIM_TRACE=1 NIB_PTXSIM_SEED=$seed check $format "$seed" "$op" "$cases" 2>>"$trace" ||
                { grep -v '<<<' "$trace" >&2; exit 1; }
        done <<LIST
norm 11 3
linear 7 5
moe 4 2
o_a 3 4
attend 5 1
index_select 7 2
LIST
        for kernel in $kernels; do
            grep -q "nib_${family}_$kernel <<<" "$trace" || { echo "opcheck.sh: nib_${family}_$kernel was not launched" >&2; exit 1; }
            [ "$3" != long ] || leave_out $format "$kernel" linear
        done
    done
    if [ "$3" != long ]; then
        leave_out nvfp4 norm linear # one of them always: the generic kernels take over
        exit 0
    fi
    for kernel in $plain; do # of engines whose rows are not quantised
        leave_out plain "$kernel" o_a
    done
    exit 0
fi
if [ "$2" = long ]; then
    seed=$(date +%s)
    echo "opcheck.sh: seed $seed"
    case $4/$3 in
    /)
        for op in embed norm linear q_rope kv_insert compress index_select attend o_a moe hc_pre hc_post hc_head head mtp_join copy_rows sample; do
            NIB_PTXSIM_SEED=$seed "$program" --backend cuda --seed "$seed" --op $op --n 4
        done
        ;;
    many/*) # within the memory of a card of 12.x
        NIB_PTXSIM_CARD=120 NIB_PTXSIM_SEED=$seed "$program" --backend cuda --seed "$seed" --op "$3" --n 15 --rows many
        ;;
    wide/attend) # prompts whose rows are decoded ahead
        NIB_PTXSIM_SEED=$seed "$program" --backend cuda --seed "$seed" --op attend --n 2 --rows many --format fp8
        ;;
    wide/*)
        NIB_PTXSIM_SEED=$seed "$program" --backend cuda --seed "$seed" --op "$3" --n 2 --rows many --columns many
        NIB_PTXSIM_SEED=$seed "$program" --backend cuda --seed "$seed" --op "$3" --n 3 --rows many --format fp8
        ;;
    *)
        for format in nvfp4 fp8; do
            NIB_PTXSIM_CARD=103 NIB_PTXSIM_SEED=$seed "$program" --backend cuda --format $format --seed "$seed" --op "$3" --n 12
        done
        ;;
    esac
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
linear 5 5 --format fp8
q_rope 11 2
kv_insert 11 2
compress 3 2
index_select 3 1
attend 3 1
attend 3 1 --format nvfp4 --rows many
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
