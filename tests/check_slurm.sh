#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the batch script of docs/cluster.md under a Slurm of its own on this machine: the job is signalled, requeues
# itself, and ends with the parameters of a run that nobody disturbed. Prints the results as TAP.
# usage: check_slurm.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
. "$root/tests/idx_files.sh"
PATH=$PATH:/usr/sbin:/sbin
skip() {
    echo "1..0 # SKIP $1"
    exit 0
}
need_launcher
for command in slurmctld slurmd sbatch scontrol scancel squeue; do
    command -v $command >/dev/null || skip "$command is not installed (Debian: slurmctld, slurmd, slurm-client)"
done
"$launcher" --version 2>/dev/null | grep -q 'Open MPI' || skip "the signals are those of Open MPI's launcher"

controller=
daemon=
# By number, and the job with them: it is a child of slurmd.
end_slurm() {
    [ -z "$daemon" ] || { scancel --full --signal=KILL "${job:-0}" && sleep 1; } 2>/dev/null
    for process in $daemon $controller; do kill "$process" 2>/dev/null; done
    # shellcheck disable=SC2086  # none or two
    [ -z "$daemon$controller" ] || wait $daemon $controller 2>/dev/null
    rm -rf "$work"
}
enter_work
trap end_slurm EXIT
trap 'exit 143' INT TERM HUP
shown="output slurmctld.log slurmd.log"
data_set images 400 40 8
mkdir state spool bin

# ---- Slurm ----

port=$((20000 + $$ % 20000))
host=$(hostname | cut -d . -f 1)
cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=2
PartitionName=test Nodes=$host Default=YES
END
export SLURM_CONF="$work/slurm.conf"
slurmctld -D >slurmctld.log 2>&1 &
controller=$!
slurmd -D >slurmd.log 2>&1 &
daemon=$!
await() { # seconds, command...
    tries=$(($1 * 5))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $((tries -= 1)) -gt 0 ] || return 1
        sleep 0.2
    done
}
is_ready() { sinfo --noheader --format=%t | grep -q idle; }
runs_still() { kill -0 "$controller" && kill -0 "$daemon"; }
await 30 is_ready || {
    runs_still || skip "Slurm cannot start here: $(grep -hE 'fatal|error' slurmctld.log slurmd.log | tail -n 1)"
    explain
    skip "Slurm does not become ready here"
}

# ---- The documented script ----

# The code block that begins with #!/bin/sh in this section; data, sizes and lengths are those of the test.
sed -n '/^## A job that is requeued/,/^## [^A]/s/^    //p' "$root/docs/cluster.md" | sed \
    -e 's/--ntasks=16 --ntasks-per-node=4 --cpus-per-task=4/--ntasks=2/' \
    -e "s,--data /shared/mnist --epochs 300 --threads 3,--data $work/images --model mlp --batch 8 --epochs 40," >job.sh
cat >bin/iso-train <<END
#!/bin/sh
exec "$train" "\$@"
END
chmod +x bin/iso-train
PATH=$work/bin:$PATH
export PATH
export OMPI_MCA_rmaps_base_oversubscribe=1
echo "$launcher" | grep -q / && ln -s "$launcher" bin/mpirun

state_of() { scontrol show job "$job" | sed -n 's/.* JobState=\([A-Z]*\).*/\1/p;s/^ *JobState=\([A-Z]*\).*/\1/p' | head -n 1; }
is_in() { [ "$(state_of)" = "$1" ]; }
restarts() { scontrol show job "$job" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p'; }
has_started() { [ "$(grep -c '"resume"\|"epoch"' run.jsonl)" -gt "$1" ]; }
is_saved() { [ -n "$(find . -name 'net.safetensors.step-????????????')" ]; }

job=$(sbatch --parsable --output=output job.sh 2>>output)
[ -n "$job" ] && grep -q 'USR1@' job.sh && await 60 has_started 1
result $? "the documented script starts"
scancel --batch --signal=USR1 "$job"
await 60 is_in PENDING && [ "$(restarts)" = 1 ] && is_saved && grep -q '"event":"stop"' run.jsonl
result $? "on SIGUSR1 the run is saved, and the job requeues itself"
sleep 2 # Slurm refuses to start a job in the second in which it was killed
scontrol update JobId="$job" StartTime=now
await 90 is_in COMPLETED && [ "$(grep -c '"resume"' run.jsonl)" = 1 ]
result $? "the job goes on where it was, and is completed"
train_hash=$(summary_field param_hash run.jsonl)
run 2 "$train" --data images --model mlp --batch 8 --epochs 40 --quiet --log whole.jsonl
[ "$status" = 0 ] && [ -n "$train_hash" ] && [ "$train_hash" = "$(summary_field param_hash whole.jsonl)" ]
result $? "with the parameters of a run that nobody disturbed"

print_plan
