#!/bin/sh
# Completion: what the program offers, held to its help; and the scripts of bash, and of zsh and fish where they are installed.
# Usage: completion.sh NIBBLE FOLDER, where FOLDER holds nibble.bash, nibble.zsh and nibble.fish.
set -u
nibble=$1
folder=$2
. "$(dirname "$0")/checks.sh"

# offers 'WANTED...' WORD...: exactly these, in this order, one blank between.
offers() {
    wanted=$1
    shift
    got=$("$nibble" --complete "$@" | cut -f 1 | tr '\n' ' ')
    [ "$got" = "$wanted" ] || complain "--complete $*: got '$got', wanted '$wanted'"
}
offers 'score selftest serve ' s
offers 'version ' v
offers 'inspect ' help i
offers 'f32 fp8 ' run --kv f
offers '--kv=f32 --kv=fp8 ' run --kv=f
offers ':folders ' run -m ''
offers ':folders ' inspect --model=
offers ':files ' serve --config ''
offers ':files ' serve --api-key-file x
offers ':files ' run --trace ''
offers '' run --temp ''
offers '--drain-timeout ' serve --config /no/such/file --drain
offers '--preset ' quantize SRC --pre
offers ':files ' score -- --js
offers '' nothing --x
[ "$("$nibble" --complete | wc -l)" -gt 6 ] || complain 'no commands are offered for nothing'

# Every option of every command's help, and no other.
for command in $("$nibble" help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' | grep -v help); do
    "$nibble" help "$command" | grep -o -E '^  (-[a-zA-Z], )?--?[a-z-]+' | tr -d ' ' | tr ',' '\n' | sort >"$dir/help"
    "$nibble" --complete "$command" - | cut -f 1 | grep -v '^--help$' | sort >"$dir/offered"
    [ -s "$dir/help" ] || complain "$command has no options"
    diff "$dir/help" "$dir/offered" || complain "$command: help and completion differ"
done

PATH=$(dirname "$nibble"):$PATH
export PATH
cd "$dir" || exit 1
mkdir 'one folder' two
: >'three files'

if command -v bash >/dev/null; then
    bash_offers() {
        got=$(bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nibble 2>/dev/null; printf "%s\n" "${COMPREPLY[@]}" | sort | tr "\n" "|"' \
            "$folder/nibble.bash" "$@")
        [ "$got" = "$wanted" ] || complain "bash, $*: got '$got', wanted '$wanted'"
    }
    wanted='score|selftest|serve|' && bash_offers nibble s
    wanted='f32|fp8|' && bash_offers nibble run --kv f
    wanted='f32|fp8|' && bash_offers nibble run --kv = f
    wanted='bf16|f32|fp8|nvfp4|' && bash_offers nibble run --kv =
    wanted='one folder|' && bash_offers nibble run -m o
    wanted='three files|two|' && bash_offers nibble score t
else
    echo 'skipped: cases of bash, which is not installed'
fi
if command -v zsh >/dev/null; then
    zsh_offers() {
        got=$(zsh -f -c 'script=$1; shift
            compadd() { while [[ $1 != -- ]]; do shift; done; shift; printf "%s|" "$@"; }
            _files() { printf "files %s|" "$*"; }
            words=("$@"); CURRENT=$#; set --; . $script' zsh "$folder/nibble.zsh" "$@")
        [ "$got" = "$wanted" ] || complain "zsh, $*: got '$got', wanted '$wanted'"
    }
    wanted='score|selftest|serve|' && zsh_offers nibble s
    wanted='f32|fp8|' && zsh_offers nibble run --kv f
    wanted='--kv=f32|--kv=fp8|' && zsh_offers nibble run --kv=f
    wanted='files -/|' && zsh_offers nibble run -m ''
    wanted='--json|' && zsh_offers nibble score --js
else
    echo 'skipped: cases of zsh, which is not installed'
fi
if command -v fish >/dev/null; then
    fish_offers() {
        got=$(HOME=$dir fish --no-config -c "source '$folder/nibble.fish'; complete -C '$1'" 2>/dev/null | cut -f 1 | tr '\n' '|')
        [ "$got" = "$wanted" ] || complain "fish, $1: got '$got', wanted '$wanted'"
    }
    wanted='score|selftest|serve|' && fish_offers 'nibble s'
    wanted='f32|fp8|' && fish_offers 'nibble run --kv f'
    wanted='--kv=f32|--kv=fp8|' && fish_offers 'nibble run --kv=f'
    wanted='one folder/|' && fish_offers 'nibble run -m o'
else
    echo 'skipped: cases of fish, which is not installed'
fi

conclude
