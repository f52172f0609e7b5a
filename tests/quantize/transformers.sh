#!/bin/sh
# Another reader: transformers reads the config, safetensors the tensors, of a quantised folder. Both come from PyPI into a virtual
# environment, once; without Python or a network this is skipped.
# Usage: transformers.sh NIBBLE SOURCE VENV
set -u
skip() {
    echo "skipped: $1"
    exit 77
}
command -v python3 >/dev/null || skip "there is no python3"
if [ ! -x "$3/bin/python" ]; then
    python3 -m venv "$3" || skip "python3 cannot make a virtual environment"
fi
if ! "$3/bin/python" -c 'import transformers, safetensors, numpy' 2>/dev/null; then
    "$3/bin/pip" install -q --disable-pip-version-check transformers safetensors numpy || skip "transformers cannot be had from PyPI"
fi
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
"$1" quantize --preset full --layout hf --shard-size 0.004 "$2" "$dir/full" || exit 1
"$1" quantize "$2" "$dir/experts" || exit 1
"$3/bin/python" "$(dirname "$0")/read_with_transformers.py" "$dir/full" "$dir/experts" "$2"
