#!/bin/sh
# Trains on the nodes of a SLURM job, one worker per node:
#
#     sbatch slurm.sh train.xmc -o model
#
# The arguments are those of `dismec train`. The environment in which `sbatch` is called must have
# dismec with its extra `dask`, on every node.
#SBATCH --job-name=dismec
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
set -eu
# Files and a port of this job alone: several jobs may run at the same time, even on one node.
file=$SLURM_SUBMIT_DIR/.dismec-$SLURM_JOB_ID.json
started=
stop() {
    kill $started 2> /dev/null || true
    wait
    rm -f "$file"
}
trap stop EXIT
trap 'exit 143' INT TERM

dask scheduler --host "$SLURMD_NODENAME" --port 0 --no-dashboard --scheduler-file "$file" &
started="$started $!"
# A step does not inherit the CPUs per task of its job (SLURM 22.05 and later).
srun --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" sh -c '
    exec dask worker --scheduler-file "$1" --host "$SLURMD_NODENAME" --no-dashboard \
        --nthreads "$SLURM_CPUS_PER_TASK" --memory-limit 0 --local-directory "${TMPDIR:-/tmp}"
' worker "$file" &
started="$started $!"
dismec train "$@" --cluster "$file"
