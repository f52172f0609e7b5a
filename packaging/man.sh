#!/bin/sh
# The manual page: packaging/nibble.1.in with each command's help in it as mdoc, so that page and program cannot differ.
# Usage: man.sh NIBBLE nibble.1.in >nibble.1
set -eu
nibble=$1
page=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$nibble" help >"$dir/all"
{
    sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' "$dir/all" | grep -v '^help$'
    echo 'bench --serve'
    echo 'bench --predict'
} >"$dir/names"
while read -r command; do
    # shellcheck disable=SC2086 # a command and its first option
    "$nibble" $command --help >"$dir/help"
    # Options of the engine stand once, where they are the same as the first command's.
    sed -n '/^Engine:/,$p' "$dir/help" >"$dir/engine-now"
    [ -s "$dir/engine" ] || cp "$dir/engine-now" "$dir/engine"
    if [ -s "$dir/engine-now" ] && cmp -s "$dir/engine" "$dir/engine-now"; then
        sed -i '/^Engine:/,$d' "$dir/help"
        echo 'Engine options, see below.' >>"$dir/help"
    fi
    { echo "@command $command"; cat "$dir/help"; } >>"$dir/commands"
done <"$dir/names"

# Help as mdoc: the usage, paragraphs, and under each title its options, whose text begins at column 26 or on the next line.
cat >"$dir/mdoc.awk" <<'AWK'
function escaped(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); return s ~ /^[.']/ ? "\\&" s : s }
# Sentences and 72 columns: as manual pages are written.
function fill(s,    words, n, i, line) {
    n = split(s, words, / +/)
    line = ""
    for (i = 1; i <= n; i++) {
        if (line != "" && length(line) + length(words[i]) > 72) { print escaped(line); line = "" }
        line = line (line == "" ? "" : " ") words[i]
        if (words[i] ~ /[.]$/) { print escaped(line); line = "" }
    }
    if (line != "") print escaped(line)
}
function end_text() { if (text != "") { fill(text); text = "" } }
function end_list() { end_text(); if (in_list) print ".El"; in_list = 0 }
function item(s,    words, n, i, out) {
    n = split(s, words, / /)
    out = ".It"
    for (i = 1; i <= n; i++) {
        if (words[i] ~ /^--/) out = out " Fl Fl " escaped(substr(words[i], 3))
        else if (words[i] ~ /^-.,$/) out = out " Fl " substr(words[i], 2, 1) " ,"
        else if (words[i] ~ /^-/) out = out " Fl " escaped(substr(words[i], 2))
        else out = out " Ar \\&" escaped(words[i])
    }
    print out
}
/^@command / { end_list(); print ".Ss nibble " escaped(substr($0, 10)); paragraph = 0; usage = 1; next }
/^Usage: / || (usage && /^       /) { print ".Dl " escaped(substr($0, 8)); next }
{ usage = 0 }
/^  -/ {
    end_text()
    if (!in_list) { print ".Bl -tag -width Ds"; in_list = 1 }
    split_here = substr($0, 26, 1) == " "
    left = split_here ? substr($0, 1, 26) : $0
    gsub(/^ +| +$/, "", left)
    item(left)
    text = split_here ? substr($0, 27) : ""
    next
}
in_list && /^                          / { text = text (text == "" ? "" : " ") substr($0, 27); next }
/^$/ { end_list(); paragraph = 1; next }
{
    if (in_list) { end_list(); paragraph = 1 }
    if (paragraph) { end_text(); print ".Pp"; paragraph = 0 }
    text = text (text == "" ? "" : " ") $0
}
END { end_list() }
AWK
awk -f "$dir/mdoc.awk" "$dir/commands" >"$dir/commands.mdoc"
sed 1d "$dir/engine" | awk -f "$dir/mdoc.awk" >"$dir/engine.mdoc"
awk -v commands="$dir/commands.mdoc" -v engine="$dir/engine.mdoc" '
    $0 == "@COMMANDS@" { while ((getline line < commands) > 0) print line; next }
    $0 == "@ENGINE@" { while ((getline line < engine) > 0) print line; next }
    { print }' "$page"
