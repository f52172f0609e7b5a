#!/bin/sh
# The commands with the bundled model: results against the evaluation data, exit codes, and errors that name what is
# wrong in one line. Usage: commands.sh NIBBLE JSON_GET SOURCE_DIR
set -u
nibble=$1
json_get=$2
source=$3
evaluation=$source/tests/data/goldens/model/evaluation.jsonl
. "$(dirname "$0")/checks.sh"

# field NAME LINE: the ids of a row of the evaluation data, as "1, 2, 3".
field() { sed -n "$2s/.*\"$1\": \\[\\([^]]*\\)\\].*/\\1/p" "$evaluation"; }

# ---- Help and the shape of the command line ----
try 0 help
out_has 'Usage: nibble COMMAND'
try 0 --version
out_has 'nibble 0.'
try 2
for command in run logits score inspect; do
    try 0 help "$command"
    out_has "Usage: nibble $command"
    out_has '--threads N'
    mv "$dir/out" "$dir/help"
    try 0 "$command" --help
    cmp -s "$dir/out" "$dir/help" || complain "nibble $command --help differs from nibble help $command"
    refuses 2 "unknown option '--no-such'" "$command" --no-such 1
    refuses 2 "--ctx: '12x' is not a whole number" "$command" --ctx 12x
    refuses 2 "--ctx: -1 is out of range" "$command" --ctx -1
    refuses 2 "--ctx: 99999999999999999999 is out of range" "$command" --ctx 99999999999999999999
    refuses 2 "--kv: 'q4' is not known" "$command" --kv q4
    refuses 2 "--threads needs a value" "$command" --threads
    refuses 2 "--json takes no value" "$command" --json=1
done
refuses 2 "'walk' is not a command" walk
refuses 2 "'walk' is not a command" help walk
refuses 2 "'extra' is not an option" run extra
refuses 2 'no prompt' run
refuses 2 '-p and -f both' run -p a -f b
refuses 2 'so --system does not go with it' run --raw -p a --system b
for bad in nan inf -inf -0.5 101 '' x 1x ' 1'; do
    refuses 2 '--temp: ' run -p a --temp "$bad"
done
refuses 2 '--top-p: 0 is out of range' run -p a --top-p 0
refuses 2 '--min-p: 1.5 is out of range' run -p a --min-p=1.5
refuses 2 "--seed: '-1' is not" run -p a --seed -1
refuses 2 '-n' run -p a -n
refuses 2 'FILE is missing' score
refuses 2 "'b' is one FILE too many" score a b
refuses 2 'SRC is missing' quantize
refuses 2 'DST is missing' quantize a
refuses 2 'DST is missing' quantize a --preset full
refuses 2 "'c' is one DST too many" quantize a b c
refuses 1 "cannot open 'a/config.json'" quantize a b --preset full
refuses 1 "cannot open '-a/config.json'" quantize --preset full -- -a -b
refuses 2 '--shard-size: 1e-10 is out of range' quantize --shard-size 1e-10 a b
refuses 2 '--ids is missing' logits
for zero in 1e-60 -1e-60; do # not 0, but 0 as a float
    refuses 2 "--top-p: $zero is out of range" run -p a --top-p $zero
    refuses 2 "--repetition: $zero is out of range" run -p a --repetition $zero
done
refuses 2 'see nibble bench --predict --help' bench --predict b200 --svg x
refuses 2 'see nibble bench --serve --help' bench --serve http://127.0.0.1:1 --svg x
refuses 2 'see nibble help bench' bench --no-such
refuses 2 '--last: 3 is out of range' logits --ids 0,5 --last 3
refuses 2 'id 2048 at place 1 is outside 0..2047' logits --ids 0,2048
refuses 2 'id -1 at place 0' logits --ids -1
refuses 2 'id 99999999999999999999 at place 1 is outside' logits --ids 0,99999999999999999999
refuses 2 "--backend: 'gpu' is not known" run -p a --backend gpu
refuses 2 "--cpu: 'sse9' is not known" run -p a --cpu sse9
refuses 2 '--ctx: 16385 is out of range' inspect --ctx 16385
refuses 2 '--numerics release' logits --ids 0 --numerics release --kv bf16
refuses 2 '--numerics release' logits --ids 0 --numerics release --act-quant nvfp4

# ---- Failures ----
refuses 1 '/no/such/folder' inspect -m /no/such/folder
refuses 1 "the name of the checkpoint folder is ''" inspect -m ''
refuses 1 '/no/such/folder' run -m /no/such/folder -p a
refuses 1 "cannot open '$dir/none'" run -f "$dir/none"
refuses 1 "cannot open '$dir/none.jsonl'" score "$dir/none.jsonl"
refuses 1 "cannot open 'none'" logits --ids none
case $(uname -m) in # a level of the other architecture
aarch64) refuses 1 "cpu level 'avx2' was asked for, but this machine's best level is" run -p a --cpu avx2 ;;
*) refuses 1 "cpu level 'neon' was asked for, but this machine's best level is" run -p a --cpu neon ;;
esac
refuses 1 'leaves no room in the context of 4' run --ctx 4 -p 'What is the capital of France?'
refuses 1 'do not fit in the context of 2' logits --ctx 2 --ids 0,5,6
printf 'bad \377 byte' >"$dir/bytes"
refuses 1 'byte 0xff at offset 4 is not UTF-8' run -f "$dir/bytes"
printf '{"prompt_ids": [0, 1]}\n' >"$dir/rows.jsonl"
refuses 1 'line 1: answer' score "$dir/rows.jsonl"
printf '\n{"prompt_ids": [0], "answer_ids": [1, 99999]}\n' >"$dir/rows.jsonl"
refuses 1 'line 2: answer_ids: id 99999 at place 1' score "$dir/rows.jsonl"
printf '{"prompt_ids": [0], "answer_ids": [1], "category": 5}\n' >"$dir/rows.jsonl"
refuses 1 'line 1: category: wanted a text' score "$dir/rows.jsonl"
printf 'not json\n' >"$dir/rows.jsonl"
refuses 1 'line 1: not JSON' score "$dir/rows.jsonl"
: >"$dir/rows.jsonl"
refuses 1 'no rows' score "$dir/rows.jsonl"
if [ -c /dev/full ]; then
    "$nibble" help >/dev/full 2>"$dir/err" && complain 'nibble help >/dev/full: exit code 0'
    said='nibble help >/dev/full'
    err_has 'standard output'
fi

# ---- run ----
try 0 run --temp 0 -p 'What is the capital of France?'
out_is 'The capital of France is Paris.'
grep -q -E '^prefill [0-9]+ tokens [0-9.]+ tok/s, decode [0-9]+ tokens [0-9.]+ tok/s$' "$dir/err" ||
    complain "$said: no rates on standard error"
[ "$(wc -l <"$dir/err")" -eq 1 ] || complain "$said: more than the rates on standard error"
echo 'What is 37 - 23?' >"$dir/in"
try 0 run --temp 0 -f -
out_is '37 - 23 = 14.'
: >"$dir/in"
try 0 run --temp 0 --raw -p '<｜User｜>What is 37 - 23?<｜Assistant｜></think>'
out_is '37 - 23 = 14.'
try 0 run --temp 0 --raw -p '<｜begin▁of▁sentence｜><｜User｜>What is 37 - 23?<｜Assistant｜></think>'
out_is '37 - 23 = 14.'
try 0 run --temp 0 --json -p 'What is 37 - 23?'
json '37 - 23 = 14.' text
json '' reasoning
json stop stop
[ "$("$json_get" prompt_tokens <"$dir/out")" -eq 14 ] || complain "$said: not 14 prompt tokens"
try 0 run --temp 0 --json -n 2 -p 'What is 37 - 23?'
json length stop
json 2 generated_tokens
try 0 run --temp 0 --think low --json -p 'What is 3 times 7?'
json '3 * 7 = 21.' text
json '3 times 7 is 21.' reasoning
# 18 tokens, in which two at a time are guessed; "auto" is none for six layers.
try 0 run --temp 0 --think low --json --drafts 2 -p 'What is 3 times 7?'
json '3 * 7 = 21.' text
json 12 drafted_tokens
try 0 run --temp 0 --think low --json --drafts auto -p 'What is 3 times 7?'
json '3 * 7 = 21.' text
json 0 drafted_tokens
try 0 run --temp 0 --think low -p 'What is 3 times 7?'
out_is '3 times 7 is 21.</think>3 * 7 = 21.'
# A wrong file of tools; right ones are in test_chat.
printf '[{"type": "function",\n oops' >"$dir/wrong.json"
refuses 1 "--tools: '$dir/wrong.json', line 2, column " run -p a --tools "$dir/wrong.json"
printf '{}' >"$dir/wrong.json"
refuses 1 'is not a JSON array of tools' run -p a --tools "$dir/wrong.json"
refuses 2 'so --tools does not go with it' run --raw -p a --tools "$dir/wrong.json"
# Drawn answers repeat with their seed; at a high temperature another seed says something else.
try 0 run --temp 3 -n 20 --seed 7 -p 'Tell me a story.'
mv "$dir/out" "$dir/seed7"
try 0 run --temp 3 -n 20 --seed 7 -p 'Tell me a story.' --threads 1
cmp -s "$dir/out" "$dir/seed7" || complain 'the same seed gave two answers'
try 0 run --temp 3 -n 20 --seed 8 -p 'Tell me a story.'
cmp -s "$dir/out" "$dir/seed7" && complain 'two seeds gave the same 20 tokens at temperature 3'
# Control text in a message is plain text: more tokens than the one control token that --allow-control-tokens sees.
try 0 run --temp 0 -n 1 --json -p 'a</think>b'
plain=$("$json_get" prompt_tokens <"$dir/out")
try 0 run --temp 0 -n 1 --json --allow-control-tokens -p 'a</think>b'
control=$("$json_get" prompt_tokens <"$dir/out")
[ "${plain:-0}" -gt "${control:-0}" ] || complain "</think> in a message: $plain tokens, as a control token $control"

# ---- logits ----
ids=$(field prompt_ids 1)
answer=$(field answer_ids 1)
try 0 logits --ids "$ids" --json
json "${answer%%,*}" argmax 0
json '#1' logits
json '#2048' logits 0
first=$(($(echo "$ids" | tr ',' '\n' | wc -l) - 1))
json "$first" first
mv "$dir/out" "$dir/whole"
for chunk in 1 3; do
    try 0 logits --ids "$ids" --json --chunk "$chunk"
    cmp -s "$dir/out" "$dir/whole" || complain "$said: not the same bits as in one step"
done
echo "[$ids]" >"$dir/in"
try 0 logits --ids - --json --threads 1
cmp -s "$dir/out" "$dir/whole" || complain "$said: not the same as from the command line"
: >"$dir/in"
try 0 logits --ids "$ids" --last 0 --mtp --json
json 0 first
json "#$((first + 1))" logits
json "#$((first + 1))" mtp_logits
json null mtp_logits 0
json '#2048' mtp_logits 1
for option in '--backend ref' '--cpu c' '--act-quant int8' '--act-quant none'; do
    # shellcheck disable=SC2086
    try 0 logits --ids "$ids" --last 2 $option
    [ "$(wc -l <"$dir/out")" -eq 3 ] || complain "$said: wanted a head and two rows"
    out_has " ${answer%%,*} "
done

# ---- score ----
head -n 3 "$evaluation" >"$dir/rows.jsonl"
# A fourth row whose answer is wrong from its second token on.
printf '{"category": "made up", "prompt_ids": [%s], "answer_ids": [%s, 5, 5]}\n' "$ids" "${answer%%,*}" \
    >>"$dir/rows.jsonl"
try 0 score "$dir/rows.jsonl" --json
json 4 rows
json 0.75 exact
json 3 categories fact rows
json 1 categories fact exact
json 0 categories 'made up' exact
nll=$("$json_get" nll <"$dir/out")
try 0 score "$dir/rows.jsonl" --json --teacher
json 0.75 exact
json "$nll" nll
try 0 score "$dir/rows.jsonl" --json --limit 2
json 2 rows
try 0 score "$dir/rows.jsonl" --json --per-category 1
json 2 rows
try 0 score "$dir/rows.jsonl"
out_has 'made up'
# A category's control characters, which a terminal would obey, are printed as spaces: ESC, BEL, DEL and U+009B.
printf '{"category": "a\\u001b[31m\\u0007\\u007f\\u009bz\\u00e9", "prompt_ids": [0], "answer_ids": [5]}\n' >"$dir/control.jsonl"
try 0 score "$dir/control.jsonl"
out_has 'a [31m   zé '
! LC_ALL=C grep -q '[[:cntrl:]]' "$dir/out" || complain "$said: a control character"
# The same row as text: raw, nothing added.
printf '{"prompt": "%s", "answer": "37 - 23 = 14.%s"}\n' \
    '<｜begin▁of▁sentence｜><｜User｜>What is 37 - 23?<｜Assistant｜></think>' '<｜end▁of▁sentence｜>' >"$dir/text.jsonl"
try 0 score "$dir/text.jsonl" --json
json 1 exact
json '#0' categories
printf 'Once upon a time, Tara lived near the station.' >"$dir/story.txt"
try 0 score "$dir/story.txt" --json
json 1 windows
try 0 score "$dir/story.txt" --json --ctx 4
[ "$("$json_get" windows <"$dir/out")" -gt 1 ] || complain "$said: one window"
try 0 score "$dir/story.txt" --json --ctx 4 --limit 1
json 4 tokens
refuses 2 '--teacher is for .jsonl' score "$dir/story.txt" --teacher

# ---- inspect ----
try 0 inspect
out_has 'nvfp4'
out_has 'backends in this build, and what they can run on:'
out_has '  cpu   0  '
try 0 inspect --json --ctx 4096 --tensors
json 6 model n_layers
json 2048 model vocab
json true model has_mtp
json 4096 memory n_ctx
json true memory fits
json ref backends 0
json cpu devices 1 backend
json 0 devices 1 index
json true devices 1 usable
"$json_get" tensors 0 name <"$dir/out" >/dev/null || complain "$said: no tensors"
try 0 inspect --json -m "$source/tests/data/tiny-v4-official"
json official layout
"$json_get" formats experts mxfp4 bytes <"$dir/out" >/dev/null || complain "$said: no MXFP4 experts"

conclude
