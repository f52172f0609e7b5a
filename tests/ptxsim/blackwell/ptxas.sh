# ptxas.sh FAMILY NVCC SOURCE_DIR WORK_DIR TARGET...: assembles the kernels of a folder (sm100a, sm120a) for the targets
# and holds what ptxas reports to the plan: no spills, no stack, registers and static shared memory within bounds, each
# kernel there.
# ptxas.sh FAMILY PTXAS PTX_DIR WORK_DIR TARGET...: the same from the PTX that the build has emitted.
family=$1 nvcc=$2 source=$3 work=$4
shift 4
targets=$*
mkdir -p "$work" || exit 1

# kernel file, kernel behind nib_FAMILY_, most registers, most bytes of static shared memory
case $family in
sm100a)
    emitted=100a plan='linear linear_one 96 256
linear linear_pair 96 256
linear fp8_one 96 256
linear fp8_pair 96 256
linear mxfp4_one 96 256
linear mxfp4_pair 96 256
plain plain_few_bf16 64 128
plain plain_few_f32 64 128
plain plain_many_bf16 168 128
plain plain_many_f32 128 128
plain plain_fp8_few_bf16 128 128
plain plain_fp8_few_f32 128 128
plain plain_fp8_many_bf16 248 128
plain plain_fp8_many_f32 184 128
experts experts_in_16 80 1024
experts experts_in_96 80 5120
experts experts_out_16 64 1024
experts experts_out_96 64 5120
experts mx_in_16 80 1024
experts mx_in_96 80 5120
experts mx_out_16 64 1024
experts mx_out_96 64 5120
norm norm 64 512
swiglu swiglu 64 256
pack pack_scales 32 0
swiglu swiglu_act 64 256
place place 40 0
groups groups 40 4096
combine combine 40 0
attend attend_bf16 168 0
attend attend_fp8 168 0
attend attend_nvfp4 168 0
attend attend_f32_bf16 168 0
attend attend_f32_fp8 168 0
attend attend_f32_nvfp4 168 0
index index_fp4 104 640
index index_bf16 104 640
index index_f32_bf16 104 640'
    ;;
sm120a)
    emitted=120a plan='linear linear_128 232 2048
linear linear_32 128 512
decode decode_8 112 4480
decode decode_16 104 8960
pack pack 40 0
rows norm 48 384
rows swiglu 48 128
rows swiglu_act 48 128
experts groups 56 4096
experts combine 48 0
attend attend_bf16 255 0
attend attend_fp8 255 0
attend attend_nvfp4 255 0
attend attend_f32_bf16 255 0
attend attend_f32_fp8 255 0
attend attend_f32_nvfp4 255 0
attend attend_f32_span_bf16 136 0
attend attend_f32_span_fp8 136 0
attend attend_f32_span_nvfp4 144 0
attend attend_span_bf16 136 0
attend attend_span_fp8 136 0
attend attend_span_nvfp4 144 0
attend attend_fold 64 0
mx fp8_8 112 4480
mx fp8_16 128 8960
mx fp8_64 176 0
mx mxfp4_8 128 4480
mx mxfp4_16 112 8960
mx mxfp4_64 176 0
mx pack_fp8 40 0
mx pack_mxfp4 40 0
index index_fp4 96 9216'
    ;;
esac

for file in $(echo "$plan" | sed 's/ .*//' | sort -u); do
    case $nvcc in
    *ptxas)
        : >"$work/$file.txt"
        for target in $targets; do
            # The kernels ask for no target in their source, so the text differs in its target alone.
            sed "s/^\.target sm_$emitted/.target sm_$target/" "$source/${file}_$family.ptx" >"$work/$file.ptx"
            "$nvcc" -arch="sm_$target" -v -o "$work/$file.cubin" "$work/$file.ptx" >>"$work/$file.txt" 2>&1 ||
                { cat "$work/$file.txt"; exit 1; }
        done
        ;;
    *)
        set --
        for target in $targets; do
            set -- "$@" -gencode "arch=compute_$target,code=sm_$target"
        done
        "$nvcc" "$@" -std=c++17 -O3 -fmad=false -I"$source/src" -I"$source/include" -Xptxas -v --threads 2 -c \
            -o "$work/$file.o" "$source/src/backend/cuda/$family/${file}_$family.cu" >"$work/$file.txt" 2>&1 ||
            { cat "$work/$file.txt"; exit 1; }
        ;;
    esac
done

echo "$plan" | while read -r file kernel registers shared; do
    for target in $targets; do
        awk -v kernel="nib_${family}_$kernel" -v target="sm_$target" -v registers="$registers" -v shared="$shared" '
            /Compiling entry function/ { now = index($0, "\047" kernel "\047") && index($0, "\047" target "\047") }
            now && /bytes stack frame/ {
                if ($0 !~ / 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/)
                    bad = bad " spills or a stack:" $0
            }
            now && /Used [0-9]+ registers/ {
                found = 1
                match($0, /Used [0-9]+/); r = substr($0, RSTART + 5, RLENGTH - 5) + 0
                s = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART, RLENGTH) + 0 : 0
                if (r > registers || s > shared)
                    bad = bad " " r " registers, " s " bytes of shared memory, planned " registers " and " shared
                now = 0
            }
            END {
                if (!found) bad = " is missing"
                print kernel " " target ": " (bad ? bad : r " registers, " s " bytes static shared")
                exit bad != ""
            }' "$work/$file.txt" || exit 1
    done
done || exit 1
