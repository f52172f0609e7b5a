#!/bin/sh
# Sixteen streams against one, and against the engine alone: rates.sh NIBBLE [THREADS]
#
# Three rounds of `nibble bench --serve` with 1 and 16 clients, each followed by `nibble bench` at batch 1 and 16. Wanted in the middle
# round: 16 streams 2.5 times as fast as one, and at least 0.8 of the engine's steps. Those are taken at four positions in a row, since
# every fourth compresses; the server's prompts, samples, texts and connections all count in its own figure, and so does the client.
# Both move by tens of percent where other programs run: without NIBBLE_LOAD_QUIET_MACHINE nothing is judged.
set -u
nibble=$1
threads=${2:-0}
if [ -z "${NIBBLE_LOAD_QUIET_MACHINE:-}" ]; then
    echo "skipped: rates are judged where NIBBLE_LOAD_QUIET_MACHINE says that nothing else runs"
    exit 77
fi
# Threads of a step that wait asleep are another program's speed.
unset OMP_WAIT_POLICY
port=$((20000 + $$ % 20000))
url=http://127.0.0.1:$port
"$nibble" serve --port $port --threads "$threads" --ctx 1024 --log-level quiet 2>/dev/null &
server=$!
trap 'kill $server; kill $server; wait $server' EXIT

# The tokens/s of so many clients.
served() {
    "$nibble" bench --serve "$url" --concurrency "$1" --requests "$2" --prompt-tokens 14 --max-tokens 256 2>/dev/null |
        awk -v clients="$1" '$1 == clients { print $5 }'
}

n=0
until [ -n "$(served 1 1)" ]; do
    n=$((n + 1))
    if [ $n -gt 100 ]; then
        echo "the server did not answer"
        exit 1
    fi
    sleep 0.2
done
for round in 1 2 3; do
    one=$(served 1 6)
    many=$(served 16 48)
    # The mean time of a step, from rates.
    "$nibble" bench --threads "$threads" --phase decode --part all --batch 1,16 --context 143,144,145,146 --repeat 60 2>/dev/null |
        awk -v one="$one" -v many="$many" '
            $1 == "decode" && $2 == "all" { time[$4] += 1 / $5; steps[$4]++ }
            END {
                alone = steps[16] / time[16]
                printf "%.2f %.2f  %.0f and %.0f tokens/s, steps of 1 and 16 %.0f and %.0f\n", many / one, many / alone, one, many,
                       steps[1] / time[1], alone
            }'
done | sort -n | tee /dev/stderr | awk '{ times[NR] = $1; share[NR] = $2 }
    END {
        if (NR != 3) { print "not three rounds"; exit 1 }
        middle = share[1] + share[2] + share[3]
        least = share[1] < share[2] ? share[1] : share[2]; least = least < share[3] ? least : share[3]
        most = share[1] > share[2] ? share[1] : share[2]; most = most > share[3] ? most : share[3]
        middle -= least + most
        printf "16 streams: %.2f times one (2.5 wanted), %.2f of the engine alone (0.8 wanted)\n", times[2], middle
        exit times[2] < 2.5 || middle < 0.8
    }'
