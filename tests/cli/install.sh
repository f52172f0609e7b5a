#!/bin/sh
# Install into an empty folder, build a program against what is there with pkg-config, run it and the installed
# nibble from elsewhere. Usage: install.sh CMAKE BUILD_DIR CC
set -eu
cmake=$1
build=$2
cc=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$cmake" --install "$build" --prefix "$dir/prefix" >"$dir/log" || { cat "$dir/log"; exit 1; }
pc=$(find "$dir/prefix" -name nibble.pc)
[ -n "$pc" ] || { echo "no nibble.pc was installed"; exit 1; }

# Moved after installation: nothing may depend on the first place.
mv "$dir/prefix" "$dir/moved"
pc=$(find "$dir/moved" -name nibble.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH

cat >"$dir/hello.c" <<'C'
#include <nibble.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct nib_error  err = {0};
    struct nib_model *m;

    if (argc != 2 || nib_model_open(argv[1], &m, &err) != NIB_OK) {
        printf("%s\n", err.text);
        return 1;
    }
    printf("%s %d layers\n", nib_version(), nib_model_get_info(m)->n_layers);
    nib_model_close(m);
    return 0;
}
C
# shellcheck disable=SC2046 # flags are meant to split
"$cc" -std=c11 -Wall -Werror "$dir/hello.c" -o "$dir/hello" $(pkg-config --cflags --libs nibble)
said=$("$dir/hello" "$dir/moved/share/nibble/models/tiny-v4")
wanted="$(pkg-config --modversion nibble) 6 layers"
[ "$said" = "$wanted" ] || { echo "the program said '$said', wanted '$wanted'"; exit 1; }

for file in share/man/man1/nibble.1 share/bash-completion/completions/nibble share/zsh/site-functions/_nibble \
    share/fish/vendor_completions.d/nibble.fish share/doc/nibble/README.md; do
    [ -s "$dir/moved/$file" ] || { echo "not installed: $file"; exit 1; }
done
if "$dir/moved/bin/nibble" help | grep -q '^  serve '; then
    for file in lib/systemd/system/nibble.service share/doc/nibble/serve.conf; do
        [ -s "$dir/moved/$file" ] || { echo "not installed: $file"; exit 1; }
    done
    grep -q 'Fl Fl max.e*-seqs' "$dir/moved/share/man/man1/nibble.1" || { echo 'the manual page knows no --max-seqs'; exit 1; }
fi

cd /
said=$("$dir/moved/bin/nibble" inspect -v 2>&1 | head -n 1)
case $said in
*"$dir/moved/"*) ;;
*) echo "the installed nibble does not use the installed model: $said"; exit 1 ;;
esac
said=$("$dir/moved/bin/nibble" run --temp 0 -p 'What is the capital of France?' 2>/dev/null)
[ "$said" = 'The capital of France is Paris.' ] || { echo "the installed nibble said '$said'"; exit 1; }
echo "installed, moved, linked, answered"
