#!/bin/sh
# TaskProlog of slurm.conf: names the run, and says where to record it. Runs as the user before every task, and Slurm
# sets the variables that it prints. The launch key needs none: Stepscope takes job and step from Slurm's.
PATH=/usr/bin:/bin
RUNS=/var/lib/stepscope-runs # as in prolog.sh

# The job's name, unless the user gave one.
printf 'export STEPSCOPE_RUN=%s\n' "$(printf %s "${STEPSCOPE_RUN:-$SLURM_JOB_NAME}" | tr '\n' _)"

# One folder per step, attempt and node, because `stepscope run` never records over a recording. It starts no training
# where it cannot write, such as in the folder of another user's job that had the same number.
if [ -d "$RUNS/$SLURM_JOB_ID" ] && [ -w "$RUNS/$SLURM_JOB_ID" ]; then
    echo "export STEPSCOPE_RUN_DIR=$RUNS/$SLURM_JOB_ID/${SLURM_STEP_ID:-batch}.${SLURM_RESTART_COUNT:-0}-$SLURMD_NODENAME"
fi
