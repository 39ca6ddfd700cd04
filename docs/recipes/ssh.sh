#!/bin/sh
# Trains on several machines that are reached by SSH, and stops what it has started there:
#
#     sh ssh.sh machines.txt 16 train.xmc -o model
#
# machines.txt has one name or address per line, by which the machines reach each other. The
# scheduler runs on the first machine and listens on a free port of that address only. 16 is the
# number of threads per machine. The remaining arguments are those of `dismec train`.
#
# Environment variables: DASK is the command `dask` on the machines (by default its path on this
# machine), SSH is the command to reach them, and SCRATCH is a directory there for the data of
# workers that cannot read yours.
set -eu
machines=$1 threads=$2
shift 2
dask=${DASK:-$(command -v dask)}
ssh="${SSH:-ssh} -o BatchMode=yes"
scratch=${SCRATCH:-/tmp}
first=$(head -n 1 "$machines")
file=$scratch/dismec-scheduler-$(uname -n)-$$.json

# With a terminal (-tt), remote processes end with their connection.
started=
stop() {
    $ssh "$first" rm -f "$file" || true
    kill $started 2> /dev/null || true
    wait
}
trap stop EXIT
trap 'exit 130' INT TERM

$ssh -tt "$first" $dask scheduler --host "$first" --port 0 --no-dashboard \
    --scheduler-file "$file" < /dev/null > /dev/null 2>&1 &
started="$started $!"
until address=$($ssh "$first" cat "$file" 2> /dev/null | python3 -c \
    'import json, sys; print(json.load(sys.stdin)["address"])' 2> /dev/null); do
    kill -0 $started || { echo "$first: the scheduler has not started" >&2; exit 1; }
    sleep 1
done
while read -r machine; do
    $ssh -tt "$machine" $dask worker "$address" --host "$machine" --nthreads "$threads" \
        --memory-limit 0 --no-dashboard --local-directory "$scratch" < /dev/null > /dev/null 2>&1 &
    started="$started $!"
done < "$machines"
dismec train "$@" --cluster "$address"
