#!/bin/sh
# The commands on a card: what `auto` is, the forms of `nibble bench`, and the refusal of a card whose memory is taken.
# Usage: commands_card.sh BIN, from the source folder.
set -u
nibble=$1/nibble
hold=$1/hold_memory
. "$(dirname "$0")/../cli/checks.sh"

has() {
    grep -q -e "$1" "$dir/out" || complain "$said: no '$1'"
}

quick="--shape tiny --repeat 1 --rows 8 --context 0,1K --batch 1,2"

# ---- The forms of a result: 4 decode steps and 2 prompts, with shares that can be ----
try 0 bench $quick --backend cuda --json --svg "$dir/plot.svg"
has '"backend": *"cuda"'
[ "$(grep -o '"tokens_per_s": *[1-9]' "$dir/out" | wc -l)" -eq 6 ] || complain "$said: not 6 speeds"
[ "$(grep -o '"part": *"all"' "$dir/out" | wc -l)" -eq 6 ] || complain "$said: not 6 whole steps"
grep -q '^<svg xmlns' "$dir/plot.svg" && grep -q '^</svg>$' "$dir/plot.svg" || complain "$said: no picture"
grep -q '>decode, batch 2<' "$dir/plot.svg" || complain "$said: the picture does not name its line"
for key in read_gb_s fp32_gflop_s fp8_gflop_s int8_gop_s; do
    grep -q "\"$key\": *[1-9]" "$dir/out" || complain "$said: no machine $key"
done
try 0 bench $quick --backend cuda --ops --csv
awk -F, 'NR == 1 {
        if ($0 != "phase,part,op,context,batch,tokens_per_s,bytes,ops,limit,share") print "names: " $0
        next
    }
    NF != 10 || !($6 > 0) { print "line: " $0 }
    !($10 > 0 && $10 <= 1) { print "share: " $0 }
    { step = ($1 == "prefill" || $3 ~ /^prefill\// ? "prefill" : "decode") " " $4 " " $5 }
    $1 == "op" { bytes[step] += $7; ops[step] += $8; next }
    $2 != "all" || !($7 > 0) { print "line: " $0 }
    { lines[$1]++; all[step] = $7; all_ops[step] = $8 }
    END {
        if (lines["decode"] != 4 || lines["prefill"] != 2)
            print "lines: " lines["decode"] " and " lines["prefill"]
        for (s in all)
            if (all[s] != bytes[s] || all_ops[s] != ops[s]) print "ops of " s ": " bytes[s] " of " all[s]
    }' \
    "$dir/out" >"$dir/wrong"
[ ! -s "$dir/wrong" ] || complain "$said: $(cat "$dir/wrong")"

# ---- auto is the card ----
try 0 bench $quick --json
has '"backend": *"cuda"'
try 0 bench $quick --backend cpu --threads 1 --json
has '"backend": *"cpu"'
try 2 bench $quick --part head
grep -q 'a step runs as a whole there' "$dir/err" || complain "$said: $(cat "$dir/err")"

# ---- Another process has the memory: a sentence before anything is loaded, and it works once the memory is back ----
try 0 run -m models/tiny-v4 --backend cuda -n 8 --temp 0 -p 'What is 2 + 2?'
for left in 700 560 8; do
    "$hold" $left "$nibble" run -m models/tiny-v4 --backend cuda -n 8 --temp 0 -p 'What is 2 + 2?' \
        >"$dir/out" 2>"$dir/err"
    code=$?
    echo "memory left $left MiB: exit code $code: $(tail -n 1 "$dir/err")"
    [ "$code" -le 1 ] || complain "memory left $left MiB: exit code $code"
    [ "$code" -eq 0 ] || grep -q -i -e 'GiB are free' -e memory "$dir/err" ||
        complain "memory left $left MiB: $(cat "$dir/err")"
done
[ "$code" -eq 1 ] || complain "8 MiB left and not refused"
try 0 run -m models/tiny-v4 --backend cuda -n 8 --temp 0 -p 'What is 2 + 2?'

conclude
