#!/bin/sh
# nibble selftest on the processor.  selftest.sh NIBBLE JSON_GET
# All of it passes; the file says so; what cannot be opened or written is refused.
set -u
nibble=$1
get=$2
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0
complain() {
    echo "selftest.sh: $*" >&2
    failed=1
}

"$nibble" selftest --backend cpu --out "$dir/result" >"$dir/out" 2>"$dir/err" || complain "exit code $?: $(cat "$dir/out" "$dir/err")"
tail -n 1 "$dir/out" | grep -q '^6 passed, 0 failed$' || complain "the last line is '$(tail -n 1 "$dir/out")'"
[ "$("$get" passed <"$dir/result")" = 6 ] || complain "'passed' of the file is not 6"
[ "$("$get" failed <"$dir/result")" = 0 ] || complain "'failed' of the file is not 0"
[ "$("$get" backend <"$dir/result")" = cpu ] || complain "'backend' of the file is not cpu"
"$get" device name <"$dir/result" | grep -q . || complain "the file names no device"

"$nibble" selftest -m "$dir/none" >"$dir/out" 2>"$dir/err" && complain "a folder that is not there passes"
grep -q "none" "$dir/err" || complain "the folder that is not there is not named: $(cat "$dir/err")"
"$nibble" selftest --kv fp8 >"$dir/out" 2>"$dir/err"
[ $? = 2 ] || complain "--kv, which the test chooses itself, is taken"

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
exit $failed
