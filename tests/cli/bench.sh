#!/bin/sh
# nibble bench with random weights of the bundled model's sizes: the forms of its result, shares that can be, parts that add up, and
# mistakes that are named. Usage: bench.sh NIBBLE JSON_GET
set -u
nibble=$1
json_get=$2
. "$(dirname "$0")/checks.sh"

quick="--threads 2 --repeat 1 --rows 8"

# ---- Lines as comma-separated values ----
try 0 bench --shape tiny $quick --context 0,1K --batch 1,2 --ops --csv
awk -F, '
    NR == 1 { if ($0 != "phase,part,op,context,batch,tokens_per_s,bytes,ops,limit,share") print "names: " $0; next }
    NF != 10 { print "fields: " $0 }
    !($10 > 0 && $10 <= 1) { print "share: " $0 }
    !($6 > 0) { print "speed: " $0 }
    $9 != "bytes" && $9 != "ops" { print "limit: " $0 }
    $1 != "op" && $3 != "" { print "not an op: " $0 }
    $1 == "op" && $3 !~ /^[a-z]/ { print "op: " $0 }
    { step = ($1 == "prefill" || $3 ~ /^prefill\// ? "prefill" : "decode") " " $4 " " $5 }
    $1 == "op" { bytes[step] += $7; ops[step] += $8; next }
    $2 == "all" { steps++; all[step] = $7; all_ops[step] = $8; next }
    { parts[step] += $7; parts_ops[step] += $8 }
    END {
        if (steps != 6) print "steps: " steps
        for (s in all) {
            if (all[s] != parts[s] || all_ops[s] != parts_ops[s]) print "parts of " s ": " parts[s] " of " all[s]
            if (all[s] != bytes[s] || all_ops[s] != ops[s]) print "ops of " s ": " bytes[s] " of " all[s]
        }
    }' "$dir/out" >"$dir/wrong"
[ ! -s "$dir/wrong" ] || complain "$said: $(cat "$dir/wrong")"

# ---- JSON ----
try 0 bench --shape tiny,layers=2,experts=8,format=official $quick --phase decode --context 300 --batch 1 --json --svg "$dir/plot.svg"
json "random tiny, 2 layers, 8 experts, official" model
json cpu backend
json 2 threads
json '#4' machine
for key in read_gb_s fp32_gflop_s fp8_gflop_s int8_gop_s; do
    "$json_get" machine $key <"$dir/out" | grep -q '^[1-9]' || complain "$said: no machine $key"
done
json '#3' rows
json '#10' rows 0
json decode rows 0 phase
json layers rows 0 part
json null rows 0 op
json 300 rows 0 context
json 1 rows 0 batch
json head rows 1 part
json all rows 2 part
for key in tokens_per_s bytes ops limit share; do
    "$json_get" rows 2 $key <"$dir/out" >/dev/null || complain "$said: no $key"
done
json '#1' outside_of_ops
json '#0' left_out
grep -q '^<svg xmlns' "$dir/plot.svg" && grep -q '^</svg>$' "$dir/plot.svg" || complain "$said: no picture"
grep -q '>decode, batch 1<' "$dir/plot.svg" || complain "$said: the picture does not name its line"

# ---- A checkpoint; contexts that the model does not reach ----
try 0 bench $quick --phase decode --batch 1 --context 16K --part layers
grep -q '^decode  layers *16K' "$dir/out" || complain "$said: no line for 16K"
[ "$(grep -c '^decode' "$dir/out")" -eq 1 ] || complain "$said: more than the wanted part"
refuses 2 "made for up to 16384" bench $quick --context 64K

# ---- Mistakes ----
refuses 2 "shape 'huge' is not known" bench --shape huge
refuses 2 "format 'q4'" bench --shape tiny,format=q4
refuses 2 "'layers' is not known" bench --shape tiny,layers
refuses 2 "'layers=x' is not a whole number" bench --shape tiny,layers=x
refuses 2 "'layers=0' is not a whole number from 1" bench --shape tiny,layers=0
refuses 2 "'experts=99999999999999999999' is not a whole number from 1 to 1048576" bench --shape tiny,experts=99999999999999999999
refuses 2 "7 layers, wanted 1 to 6" bench --shape tiny,layers=7
refuses 2 "3 experts, wanted 4 to 16" bench --shape tiny,experts=3
refuses 2 "leave out -m" bench --shape tiny -m /nowhere
refuses 2 "--context: '1,,2'" bench --context 1,,2
refuses 2 "--context: '4G'" bench --context 4G
refuses 2 "--batch: '0'" bench --batch 0
refuses 2 "exclude each other" bench --csv --json
refuses 2 "--phase: 'all' is not known" bench --phase all
refuses 2 "--rows: 2000 is out of range" bench --rows 2000
refuses 2 "unknown option '--trace'" bench --trace x
refuses 2 "a step runs as a whole there" bench --shape tiny $quick --backend cuda --part head
refuses 2 "--svg draws whole steps" bench --shape tiny $quick --phase decode --context 0 --batch 1 --part head --csv --svg "$dir/none.svg"
refuses 1 "--svg: $dir/none/plot.svg: " bench --shape tiny $quick --svg "$dir/none/plot.svg"
refuses 1 "layers=N and experts=N make a shape smaller" bench --shape pro $quick --context 0 --batch 1

# ---- Predictions: figures worked out by hand are in test_measure_predict ----
try 0 bench --predict all --context 0,4K --batch 1,8
[ "$(grep -c '^  decode' "$dir/out")" -eq 48 ] || complain "$said: not 2 models x 6 cards x 2 contexts x 2 batches"
[ "$(grep -c '^  prefill' "$dir/out")" -eq 24 ] || complain "$said: not a prompt for each card and context"
grep -q '^Predicted from published rates.*not measured' "$dir/out" || complain "$said: does not say what it is"
try 0 bench --predict spark --shape pro --gpus 1 --context 4K --batch 1 --phase decode --ops
grep -q 'DOES NOT FIT' "$dir/out" || complain "$said: 900 GB on one card"
grep -q '^    moe .* 61 .* bytes ' "$dir/out" || complain "$said: no line for 61 layers of experts bound by bytes"
try 0 bench --predict b200 --shape flash --gpus 1 --context 4095 --batch 1 --phase decode --json
json 2885681152 steps 0 ops 14 bytes
refuses 2 "card 'b100' is not known" bench --predict b200,b100
refuses 2 "7 layers, wanted 1 to 6" bench --predict b200 --shape tiny,layers=7
refuses 2 "n_context is 1048576" bench --predict b200 --context 1M --phase decode
refuses 2 "unknown option '--repeat'" bench --predict b200 --repeat 3

conclude
