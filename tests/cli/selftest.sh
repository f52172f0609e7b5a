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
exit $failed
