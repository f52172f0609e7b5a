#!/bin/sh
# Build, then let the bundled model answer. Usage: demo.sh JOBS
set -eu
cd "$(dirname "$0")/.."

log=build/demo-build.log
mkdir -p build
echo "building into build/ ..."
if ! { cmake --preset release && cmake --build build -j "$1" --target nibble_program; } >"$log" 2>&1; then
    tail -n 40 "$log"
    echo "the build failed; all of its output is in $log"
    exit 1
fi

for question in "What is the capital of France?" "What is 37 - 23?" \
    "Say these words in reverse order: winter desert umbrella stone whistle"; do
    printf '\n> %s\n' "$question"
    build/programs/nibble run --temp 0 -p "$question"
done
printf '\nAsk it more: build/programs/nibble run --temp 0 -p "..."\n'
