#!/bin/sh
# nibble selftest on the processor.  selftest.sh NIBBLE JSON_GET
# All of it passes; the file says so; what cannot be opened or written is refused.
set -u
nibble=$1
json_get=$2
. "$(dirname "$0")/checks.sh"

try 0 selftest --backend cpu --out "$dir/result"
[ "$(tail -n 1 "$dir/out")" = '8 passed, 0 failed' ] || complain "the last line is '$(tail -n 1 "$dir/out")'"
cp "$dir/result" "$dir/out"
json 8 passed
json 0 failed
json cpu backend
"$json_get" device name <"$dir/result" | grep -q . || complain "the file names no device"

"$nibble" selftest -m "$dir/none" >"$dir/out" 2>"$dir/err" && complain "a folder that is not there passes"
err_has none
try 2 selftest --kv fp8 # which the test chooses itself

# What self-tests of single kernels found stays until someone wants them again.
kept=$dir/cache/nibble/selftest
again() { # WANTED WHAT ARGUMENTS...
    wanted=$1 what=$2
    shift 2
    mkdir -p "$dir/cache/nibble" && echo "of a card" >"$kept" || exit 1
    XDG_CACHE_HOME=$dir/cache HOME=$dir "$nibble" "$@" >"$dir/out" 2>"$dir/err" || complain "$what: exit code $?: $(cat "$dir/err")"
    [ -e "$kept" ] && found=kept || found=gone
    [ $found = "$wanted" ] || complain "$what: the file is $found, wanted $wanted"
}
again kept "run" run --backend cpu --ctx 256 -n 1 -p hi
again gone "run --selftest-again" run --backend cpu --ctx 256 -n 1 -p hi --selftest-again
again gone "inspect --selftest-again" inspect --selftest-again
mkdir -p "$dir/.cache/nibble" && echo "of a card" >"$dir/.cache/nibble/selftest"
env -u XDG_CACHE_HOME HOME="$dir" "$nibble" inspect --selftest-again >"$dir/out" 2>"$dir/err" || complain "without XDG_CACHE_HOME: $(cat "$dir/err")"
[ -e "$dir/.cache/nibble/selftest" ] && complain "without XDG_CACHE_HOME the file below HOME stays"
conclude
