# What scripts share that run a program and look at what it says; read by them with `.`. $nibble is the program and $json_get
# the reader for its JSON. $dir is a folder of the script's own, and `conclude` ends it.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
: >"$dir/in"
failures=0

complain() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# expect CODE COMMAND...: runs it, keeps its output, requires the exit code. Input comes from $dir/in.
expect() {
    want=$1
    shift
    said=$*
    "$@" <"$dir/in" >"$dir/out" 2>"$dir/err"
    code=$?
    if [ "$code" -ne "$want" ]; then
        complain "$said: exit code $code, wanted $want"
        sed 's/^/    /' "$dir/err"
    fi
}

# try CODE ARGUMENTS...: the same of nibble.
try() {
    want=$1
    shift
    expect "$want" "$nibble" "$@"
}

out_has() { grep -q -F -e "$1" "$dir/out" || complain "$said: no '$1' on standard output"; }
err_has() { grep -q -F -e "$1" "$dir/err" || complain "$said: no '$1' in: $(cat "$dir/err")"; }
out_is() { [ "$(cat "$dir/out")" = "$1" ] || complain "$said: printed '$(cat "$dir/out")', wanted '$1'"; }

# json VALUE KEY...: what the output holds there.
json() {
    wanted=$1
    shift
    found=$("$json_get" "$@" <"$dir/out")
    [ "$found" = "$wanted" ] || complain "$said: $* is '$found', wanted '$wanted'"
}

# refuses CODE TEXT ARGUMENTS...: one line on standard error holding TEXT, nothing on standard output.
refuses() {
    want=$1
    text=$2
    shift 2
    try "$want" "$@"
    err_has "$text"
    lines=$(wc -l <"$dir/err")
    [ "$lines" -eq 1 ] || complain "$said: $lines lines on standard error, wanted 1"
    grep -q '^nibble: ' "$dir/err" || complain "$said: the error does not begin with 'nibble: '"
    [ ! -s "$dir/out" ] || complain "$said: something on standard output"
}

conclude() {
    if [ "$failures" -gt 0 ]; then
        echo "$failures checks failed"
        exit 1
    fi
    echo 'all checks passed'
}
