#!/bin/sh
# What comes with the program: the manual page, the systemd unit, the configuration file. Usage: packaging.sh NIBBLE FOLDER.
# Tools that are not installed are named and left out; what needs none of them is always checked.
set -u
nibble=$1
folder=$2
. "$(dirname "$0")/checks.sh"

# ---- The manual page: every option of every command, and no complaint of the formatter ----
sh "$folder/man.sh" "$nibble" "$folder/nibble.1.in" >"$dir/nibble.1" || complain 'man.sh fails'
grep -q '@' "$dir/nibble.1" && grep -q -E '^@(COMMANDS|ENGINE)@' "$dir/nibble.1" && complain 'the page was not filled in'
page_has() {
    wanted=$(echo "$2" | sed 's/^--/Fl Fl /; s/-/\\\\-/g')
    grep -q "^\.It.* $wanted\( \|\$\)" "$dir/nibble.1" || complain "the page lacks $1 $2"
}
for command in $("$nibble" help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -v help); do
    grep -q "^\.Ss nibble $command\$" "$dir/nibble.1" || complain "the page lacks $command"
    for option in $("$nibble" --complete "$command" -- | cut -f 1 | grep -v '^--help$'); do
        page_has "$command" "$option"
    done
done
page_has 'bench --serve' --concurrency
page_has 'bench --predict' --gpus
if command -v mandoc >/dev/null; then
    # Whether other pages are installed is the machine's affair.
    mandoc -T lint "$dir/nibble.1" 2>/dev/null | grep -v -E 'referenced manual not found|outdated mandoc.db' && complain 'mandoc complains'
else
    echo 'skipped: cases of mandoc, which is not installed'
fi
if man --version 2>/dev/null | grep -q '^man 2'; then
    said=$(MANROFFOPT='' man --warnings=w -l "$dir/nibble.1" 2>&1 >"$dir/text" | head -n 5)
    [ -z "$said" ] || complain "man complains: $said"
    grep -q -e '--max-seqs\|--preset' "$dir/text" || complain 'man shows no options'
else
    echo 'skipped: cases of man, which is not installed'
fi

if "$nibble" help | grep -q '^  serve '; then
    # ---- The configuration: its lines, and those that are commented out, are options ----
    "$nibble" --complete serve -- | cut -f 1 >"$dir/options"
    sed -n 's/^#* *\([a-z-]*\) [^ ]*$/--\1/p' "$folder/serve.conf" >"$dir/used"
    [ "$(wc -l <"$dir/used")" -ge 8 ] || complain 'serve.conf holds few options'
    while read -r option; do
        grep -q -x -e "$option" "$dir/options" || complain "serve.conf: $option is no option of nibble serve"
    done <"$dir/used"

    # ---- The unit: as it is but for where the program lies ----
    if command -v systemd-analyze >/dev/null; then
        sed "s|^ExecStart=nibble|ExecStart=$nibble|; /^Documentation=/d" "$folder/nibble.service" >"$dir/nibble.service"
        said=$(systemd-analyze verify "$dir/nibble.service" 2>&1) || complain "systemd-analyze verify fails: $said"
        [ -z "$said" ] || complain "systemd-analyze verify: $said"
        if systemd-analyze security --help 2>/dev/null | grep -q offline; then
            systemd-analyze security --offline=true --threshold=20 --no-pager "$dir/nibble.service" >"$dir/security" 2>&1 ||
                complain "systemd-analyze security: $(tail -n 1 "$dir/security")"
        fi
    else
        echo 'skipped: cases of systemd-analyze, which is not installed'
    fi
fi

conclude
