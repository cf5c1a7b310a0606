#!/bin/sh
# Prolog of slurm.conf: makes the node's ledger directory, and the job's folder for recordings. Runs as root on every
# node of a job. It always succeeds: a failing prolog would drain the node.
PATH=/usr/bin:/bin
LEDGERS=/dev/shm/stepscope
RUNS=/var/lib/stepscope-runs # on a file system that all nodes share, a job has its recordings in one place

log() { logger -t stepscope-prolog "$*" 2>/dev/null || echo "stepscope-prolog: $*" >&2; }

# Every user may add ledgers, and nobody may remove those of others. It never follows a link that a user has made.
mkdir -m 1777 "$LEDGERS" 2>/dev/null
if [ -L "$LEDGERS" ] || [ ! -d "$LEDGERS" ]; then
    log "$LEDGERS is no directory and cannot be made: the steps of job $SLURM_JOB_ID will not be seen"
fi

# RUNS belongs to root: users write only into the folders of their jobs.
job="$RUNS/$SLURM_JOB_ID"
[ -d "$RUNS" ] || (umask 022 && mkdir -p "$RUNS") 2>/dev/null
if mkdir -m 750 "$job" 2>/dev/null; then # otherwise another node or an earlier attempt has made it
    # Some file systems refuse root. `stepscope run` would not start a training in a folder that it cannot write to.
    chown "$SLURM_JOB_UID:$SLURM_JOB_GID" "$job" 2>/dev/null || rmdir "$job"
fi
[ -d "$job" ] || log "$job cannot be made for user $SLURM_JOB_UID: job $SLURM_JOB_ID records in its working directory"
exit 0
