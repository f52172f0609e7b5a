#!/bin/sh
# Every op on aarch64's rungs (c, neon, dotprod) against ref, cross-compiled and run by qemu's user mode.
set -eu
compiler=aarch64-linux-gnu-gcc
command -v $compiler >/dev/null || { echo "skipped: opcheck on aarch64 needs $compiler (gcc-aarch64-linux-gnu)"; exit 77; }
for qemu in qemu-aarch64-static qemu-aarch64 none; do
    command -v $qemu >/dev/null && break
done
[ $qemu != none ] || { echo "skipped: opcheck on aarch64 needs qemu-aarch64 (qemu-user)"; exit 77; }

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
sh "$(dirname "$0")/static.sh" "$dir/opcheck" $compiler
for level in neon dotprod; do
    # qemu's most capable processor has the dot products of bytes.
    OMP_NUM_THREADS=2 $qemu -cpu max "$dir/opcheck" --cpu $level --n "${1:-10}"
done
