# ptxas.sh NVCC SOURCE_DIR WORK_DIR TARGET...: assembles the sm_100a kernels for the targets (100a, 100f, 103a) and holds what
# ptxas reports to the plan: no spills, no stack, registers and static shared memory within bounds, each kernel present.
# ptxas.sh PTXAS PTX_DIR WORK_DIR TARGET: the same from PTX that the build has emitted for that target.
nvcc=$1 source=$2 work=$3
shift 3
targets=$*
mkdir -p "$work" || exit 1

# kernel file, kernel, most registers, most bytes of static shared memory
plan='linear nib_sm100a_linear_one 96 256
linear nib_sm100a_linear_pair 96 256
linear nib_sm100a_fp8_one 96 256
linear nib_sm100a_fp8_pair 96 256
linear nib_sm100a_mxfp4_one 96 256
linear nib_sm100a_mxfp4_pair 96 256
norm nib_sm100a_norm 64 512
swiglu nib_sm100a_swiglu 64 256
pack nib_sm100a_pack_scales 32 0
swiglu nib_sm100a_swiglu_act 64 256
place nib_sm100a_place 40 0
groups nib_sm100a_groups 40 4096
combine nib_sm100a_combine 40 0'

for file in linear norm swiglu pack place groups combine; do
    set --
    case $nvcc in
    *ptxas)
        set -- -arch="sm_$targets" -v -o "$work/$file.cubin" "$source/${file}_sm100a.ptx"
        ;;
    *)
        for target in $targets; do
            set -- "$@" -gencode "arch=compute_$target,code=sm_$target"
        done
        set -- "$@" -std=c++17 -O3 -fmad=false -I"$source/src" -I"$source/include" -Xptxas -v --threads 2 -c \
            -o "$work/$file.o" "$source/src/backend/cuda/sm100a/${file}_sm100a.cu"
        ;;
    esac
    if ! "$nvcc" "$@" >"$work/$file.txt" 2>&1; then
        cat "$work/$file.txt"
        exit 1
    fi
done

echo "$plan" | while read -r file kernel registers shared; do
    for target in $targets; do
        awk -v kernel="$kernel" -v target="sm_$target" -v registers="$registers" -v shared="$shared" '
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
