# ptxas.sh PTXAS PTX_DIR WORK_DIR TARGET...: assembles the emitted PTX of the sm_120a kernels for the targets (120a,
# 120f, 121a) and holds what ptxas reports to the plan: no spills, no stack, registers and static shared memory within
# bounds, each kernel there.
ptxas=$1 ptx=$2 work=$3
shift 3
mkdir -p "$work" || exit 1

# kernel file, kernel, most registers, most bytes of static shared memory
plan='linear nib_sm120a_linear_128 232 2048
linear nib_sm120a_linear_32 128 512
decode nib_sm120a_decode_8 112 4480
decode nib_sm120a_decode_16 104 8960
pack nib_sm120a_pack 40 0
rows nib_sm120a_norm 48 384
rows nib_sm120a_swiglu 48 128
experts nib_sm120a_groups 56 4096
experts nib_sm120a_combine 48 0'

for target in "$@"; do
    for file in linear decode pack rows experts; do
        # The kernels ask for no target in their source, so the text differs in its target alone.
        sed "s/^\.target sm_120a/.target sm_$target/" "$ptx/${file}_sm120a.ptx" >"$work/$file.ptx"
        if ! "$ptxas" -arch="sm_$target" -v -o "$work/$file.cubin" "$work/$file.ptx" >"$work/$file.txt" 2>&1; then
            cat "$work/$file.txt"
            exit 1
        fi
    done
    echo "$plan" | while read -r file kernel registers shared; do
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
    done || exit 1
done
