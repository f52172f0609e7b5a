#!/bin/sh
# The op checker as one static program for any Linux of an architecture, to run where nothing is installed:
#   static.sh OUT [COMPILER]          COMPILER: cc, or a cross compiler such as aarch64-linux-gnu-gcc
set -eu
out=$1
compiler=${2:-cc}
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here"
# The flags that results depend on are those of CMakeLists.txt.
exec "$compiler" -std=c11 -O2 -ffp-contract=off -fno-math-errno -fopenmp -static \
    -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -Iinclude -Isrc -Itests \
    src/base/*.c src/number/*.c src/backend/ref/*.c src/backend/cpu/*.c src/backend/*.c \
    tests/support/opcheck_*.c tests/opcheck/test_opcheck.c -o "$out" -lm
