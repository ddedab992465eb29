#!/bin/sh
# SPDX-License-Identifier: MIT
# Keeps a training run going while ranks die and hosts come and go: by restarts from its saved state.
#
# The main process waits for mpirun, its child, and judges the end. Two more stand beside it. The watch looks at the
# hosts, and signals mpirun when these have changed or it hangs. The teller passes on what the run says, and keeps it.
set -u

usage() {
    cat <<'END'
Keeps a training run going while ranks die and hosts come and go: elastic [OPTION]... -- COMMAND [ARGUMENT]...
(installed as iso-elastic)

Starts COMMAND with mpirun on the hosts that answer. When the run fails, looks again which hosts answer, and starts the
same COMMAND on these, which goes on from its saved state: give iso-train --checkpoint FILE and --resume auto. When
hosts have come or left the list, has the run save its state (SIGUSR1), and starts it on those that are there.
In COMMAND, {ranks} stands for the number of ranks, and {batch} for --global-batch divided by it.

Hosts
  --hostfile FILE       hosts, one a line: NAME [slots=N] (default 1 slot); read again at each check
  --hosts-command CMD   shell command that prints such lines
                        (without these two, mpirun chooses the hosts, for --max-ranks ranks)
  --probe CMD           shell command that succeeds if the host, appended to it, answers within 10 s
                        (default: ssh, or what OMPI_MCA_plm_rsh_agent names)
  --every N             seconds between checks of the hosts during a run (default 30)
  --lost N              end a run when one of its hosts has not answered N checks in a row; 0: never (default 3)

Ranks
  --min-ranks N         start on at least N ranks (default 1)
  --max-ranks N         start on at most N ranks (default: as many as there are slots)
  --global-batch N      samples of a step over all ranks: start on the largest number of ranks that divides N

Restarts
  --max-restarts N      give up after N restarts in a row without a new saved state (default 10)
  --pause N             seconds before such a restart; doubles each time, up to 60 (default 1)
  --state FILE          path of the saved states FILE.step-* (default: the --checkpoint in COMMAND)
  --grace N             seconds that mpirun has to end, after a signal or after its ranks have failed (default 120)
  --mpirun CMD          mpirun with options of its own (default mpirun)

  --help                print this text
  --version             print the version

SIGINT, SIGTERM and SIGUSR1 are passed on to mpirun, and no restart follows. The exit status is that of the last run.
END
}

fail() { # sentence
    echo "elastic: $1" >&2
    exit 1
}
say() { echo "elastic: $1" >&2; }

# ---- Options ----

hostfile='' hosts_command='' probe='' every=30 lost=3
least=1 most='' batch=''
restarts=10 pause=1 state='' grace=120 launcher=mpirun

check_number() { # option, value, least
    case $2 in '' | *[!0-9]* | ????????*) fail "$1 $2: give a whole number: see --help" ;; esac
    [ "$2" -ge "$3" ] || fail "$1 $2: give a number from $3 on"
    case $2 in 0?*) fail "$1 $2: give the number without leading zeros" ;; esac # which would make it octal
}
print_or_fail() { # command: prints to standard output
    "$@" 2>/dev/null || fail "cannot write to standard output: is the disk full?"
    exit 0
}
print_version() { echo "isotherm @PACKAGE_VERSION@"; }

while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) print_or_fail usage ;;
    --version) print_or_fail print_version ;;
    --)
        shift
        break
        ;;
    --hostfile | --hosts-command | --probe | --every | --lost | --min-ranks | --max-ranks | --global-batch | \
        --max-restarts | --pause | --state | --grace | --mpirun)
        [ -n "${2:-}" ] || fail "$1 needs a value: see --help"
        ;;
    -*) fail "unknown option $1: see --help" ;;
    *) fail "give -- before the command, as in: elastic --max-ranks 4 -- $1" ;;
    esac
    case $1 in
    --every | --min-ranks | --max-ranks | --global-batch) check_number "$1" "$2" 1 ;;
    --lost | --max-restarts | --pause | --grace) check_number "$1" "$2" 0 ;;
    esac
    case $1 in
    --hostfile) hostfile=$2 ;;
    --hosts-command) hosts_command=$2 ;;
    --probe) probe=$2 ;;
    --every) every=$2 ;;
    --lost) lost=$2 ;;
    --min-ranks) least=$2 ;;
    --max-ranks) most=$2 ;;
    --global-batch) batch=$2 ;;
    --max-restarts) restarts=$2 ;;
    --pause) pause=$2 ;;
    --state) state=$2 ;;
    --grace) grace=$2 ;;
    --mpirun) launcher=$2 ;;
    esac
    shift 2
done

# The values of an option in the command, one a line.
value_of() { # option, command...
    option=$1
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        "$option") echo "${2:-}" ;;
        "$option"=*) echo "${1#*=}" ;;
        esac
        shift
    done
}
check_options() { # command...
    [ $# -gt 0 ] || fail "give the command to start, as in: elastic --max-ranks 4 -- iso-train ..."
    [ -z "$hostfile" ] || [ -z "$hosts_command" ] || fail "give --hostfile or --hosts-command, not both"
    [ -n "$hostfile$hosts_command" ] || [ -n "$most" ] || fail "give --hostfile, --hosts-command or --max-ranks"
    [ -z "$most" ] || [ "$least" -le "$most" ] || fail "--min-ranks $least is more than --max-ranks $most"
    checkpoint=$(value_of --checkpoint "$@" | tail -n 1)
    state=${state:-$checkpoint}
    [ -n "$state" ] || fail "give the command a --checkpoint, or --state FILE: without saved states a run cannot go on"
    [ -z "$checkpoint" ] || [ "$(value_of --resume "$@" | tail -n 1)" = auto ] ||
        fail "add --resume auto to the command: without it a restart does not go on from the saved state"
    case "$batch $*" in
    ' '*'{batch}'*) fail "the command has {batch}: give --global-batch" ;;
    [0-9]*'{batch}'* | ' '*) ;;
    *) fail "--global-batch has no effect without --batch {batch} in the command" ;;
    esac
    command -v timeout >/dev/null || fail "the command timeout is not here: install it (coreutils)"
    # shellcheck disable=SC2086  # the launcher may have options
    set -- $launcher
    command -v "$1" >/dev/null || fail "$1 is not here: install an MPI, or give --mpirun"
}
check_options "$@"

# ---- Hosts: files of lines "NAME SLOTS" ----

ASK_S=10 # seconds that a host has to answer

# Reads lines "NAME [slots=N]" into $scratch/listed, without the hosts that are left out. Returns 1, sets $problem, and
# leaves the last list, if there is no host, or a line is malformed.
parse_hosts() { # what names the hosts, with and without a line
    code=0
    awk -v problem="$scratch/problem" '
        FILENAME == ARGV[1] { out[$1]; next }
        { sub(/\r$/, ""); sub(/#.*/, ""); text = $0; gsub(/[ \t]*=[ \t]*/, "=") }
        !NF { next }
        {
            bad = $1 ~ /=/ || $1 ~ /^[^:]*:[0-9]+$/
            slots = 1
            for (i = 2; i <= NF; i++)
                if ($i ~ /^slots=[0-9]+$/) slots = substr($i, 7)
                else if ($i !~ /^(max[-_]slots|slots[-_]max)=[0-9]+$/) bad = 1
        }
        bad {
            gsub(/^[ \t]+|[ \t]+$/, "", text)
            hint = "NAME slots=N"
            if (NF == 1 && split($1, part, ":") == 2 && part[1] != "") hint = part[1] " slots=" part[2]
            printf "line %d: \"%.60s\" is no host: write %s\n", FNR, text, hint >problem
            exit
        }
        { named = 1 }
        !($1 in out) {
            if (!($1 in sum)) name[++count] = $1
            sum[$1] += slots
        }
        END {
            if (bad) exit 1
            if (!named) exit 2
            for (i = 1; i <= count; i++) if (sum[name[i]] > 0) print name[i], sum[name[i]]
        }' "$scratch/left_out" "$scratch/lines" >"$scratch/parsed" || code=$?
    case $code in
    0) mv "$scratch/parsed" "$scratch/listed" ;;
    1) problem="$1, $(cat "$scratch/problem")" ;;
    2) problem="$2 names no host: write a line NAME slots=N for each host" ;;
    esac
    [ $code = 0 ]
}
# Without a list, mpirun's own choice is a host named "-". Returns 1, and sets $problem, if the list cannot be had.
read_hosts() {
    if [ -n "$hostfile" ]; then
        if ! problem=$(cat "$hostfile" 2>&1 >"$scratch/lines"); then
            problem="cannot read --hostfile $hostfile: ${problem##*: }: give a file with a line NAME slots=N for each host"
            return 1
        fi
        parse_hosts "$hostfile" "the file of --hostfile, $hostfile,"
    elif [ -n "$hosts_command" ]; then
        timeout -k 2 30 sh -c "$hosts_command" >"$scratch/lines" </dev/null &
        code=0
        wait $! || code=$? # which a signal ends at once
        problem="the command of --hosts-command failed with status $code"
        [ $code = 0 ] && parse_hosts "output of --hosts-command" "the command of --hosts-command"
    else
        echo "- $most" >"$scratch/listed"
    fi
}
# Takes the place of the process that calls it.
ask_host() { # name
    case $1 in - | localhost | "$(uname -n)") exit 0 ;; esac
    [ -z "$probe" ] || exec timeout -k 2 $ASK_S sh -c "$probe \"\$1\"" sh "$1"
    agent=${OMPI_MCA_plm_rsh_agent:-ssh -o BatchMode=yes -o ConnectTimeout=$ASK_S}
    # shellcheck disable=SC2086  # the agent may have options
    exec timeout -k 2 $ASK_S $agent "$1" true
}
# All at once.
find_answering() { # list, list of those that answer
    list=$1 answering=$2
    set --
    while read -r host slots; do
        (ask_host "$host") >/dev/null 2>&1 </dev/null &
        set -- "$@" $!
    done <"$list"
    while read -r host slots; do
        wait "$1" && echo "$host $slots"
        shift
    done <"$list" >"$answering"
}
# As many ranks as there are slots, within the limits, from the first host on. Their number is $planned.
plan_ranks() { # list, plan
    awk -v most="${most:-0}" -v batch="${batch:-0}" '
        { name[NR] = $1; slots[NR] = $2; ranks += $2 }
        END {
            if (most > 0 && ranks > most) ranks = most
            while (batch > 0 && ranks > 0 && batch % ranks) ranks--
            for (i = 1; i <= NR && ranks > 0; i++) {
                print name[i], slots[i] < ranks ? slots[i] : ranks
                ranks -= slots[i]
            }
        }' "$1" >"$2"
    planned=$(awk '{ sum += $2 } END { print sum + 0 }' "$2")
}
count_of() { echo "$1 $2$([ "$1" = 1 ] || echo s)"; } # number, word
names_in() { awk '{ printf "%s%s", sep, $1; sep = ", " }' "$1"; } # list

# ---- The watch, a process of its own ----

# A second; returns 1 if the main process has ended, which holds the other end of the line.
let_pass() {
    timeout 1 cat <&7 >/dev/null &
    second=$!
    wait $second
    code=$?
    second=
    [ $code != 0 ]
}
stop_watch() {
    [ -z "$second" ] || kill "$second" 2>/dev/null
    exit 0
}
end_launcher() { # why
    say "$1: ends mpirun"
    kill -TERM "$run" 2>/dev/null
    patience=5
    while [ $patience -gt 0 ] && let_pass; do patience=$((patience - 1)); done
    kill -KILL "$run" 2>/dev/null
}
# Whether mpirun has been told to end, or has lost its ranks.
is_ending() {
    [ -e "$scratch/stopping" ] || [ -e "$scratch/moving" ] ||
        grep -q 'the job ends here by MPI_Abort' "$scratch/said" 2>/dev/null
}
# With the last list as long as a new one cannot be had: a host that is lost is noticed, but the run is not moved.
check_hosts() {
    if read_hosts; then
        problem=
    elif [ "$problem" != "$told" ]; then
        say "cannot read the list of hosts, and keeps the last one: $problem"
    fi
    told=$problem
    find_answering "$scratch/listed" "$scratch/there"
    awk '
        FILENAME == ARGV[1] { listed[$1]; next }
        FILENAME == ARGV[2] { there[$1]; next }
        FILENAME == ARGV[3] { missed[$1] = $2; next }
        !($1 in listed) { print "left", $1; next }
        !($1 in there) { print "silent", $1, missed[$1] + 1 }' \
        "$scratch/listed" "$scratch/there" "$scratch/missed" "$scratch/used" >"$scratch/news"
    sed -n 's/^silent //p' "$scratch/news" >"$scratch/missed"
    dead=$(awk -v most="$lost" 'most > 0 && $2 >= most { print $1; exit }' "$scratch/missed")
    if [ -n "$dead" ]; then
        end_launcher "$dead has not answered $lost checks in a row"
    elif [ -z "$problem" ] && [ ! -s "$scratch/missed" ]; then
        plan_ranks "$scratch/there" "$scratch/next"
        [ "$planned" -le "$ranks" ] && [ ! -s "$scratch/news" ] || move_run
    fi
}
# As long as it can go on elsewhere.
move_run() {
    [ "$planned" -ge "$least" ] || return 0
    say "the hosts have changed: has the run save its state, to go on with $(count_of "$planned" rank) in place of $ranks"
    : >"$scratch/moving"
    kill -USR1 "$run" 2>/dev/null
}
watch_run() {
    exec 7<"$scratch/line" 8>&-
    second='' elapsed=0 deadline='' told=''
    : >"$scratch/missed"
    trap : HUP TERM USR1
    trap stop_watch USR2
    while let_pass; do
        elapsed=$((elapsed + 1))
        [ -n "$deadline" ] || ! is_ending || deadline=$((elapsed + grace))
        if [ -z "$deadline" ]; then
            [ $((elapsed % every)) != 0 ] || check_hosts
        elif [ $elapsed -ge $deadline ]; then
            end_launcher "mpirun still runs $grace s after it should have ended"
        fi
    done
    kill -TERM "$run" 2>/dev/null # the main process was killed
    rm -rf "$scratch"
}

# ---- The main process ----

scratch='' run='' watch='' sleeper='' starting='' caught=''

clean_up() {
    [ -z "$run" ] || kill -TERM "$run" 2>/dev/null
    [ -z "$watch" ] || kill -USR2 "$watch" 2>/dev/null
    [ -z "$sleeper" ] || kill "$sleeper" 2>/dev/null
    [ -z "$scratch" ] || rm -rf "$scratch"
}
take_signal() { # name, status if there is no run
    caught=$1
    [ -z "$starting" ] || return 0
    [ -n "$run" ] || exit "$2"
    : >"$scratch/stopping"
    kill -s "$1" "$run" 2>/dev/null
}
trap clean_up EXIT
trap 'take_signal HUP 129' HUP
trap 'take_signal INT 130' INT
trap 'take_signal TERM 143' TERM
trap 'take_signal USR1 75' USR1 # what is saved is saved

scratch=$(mktemp -d "${TMPDIR:-/tmp}/iso-elastic.XXXXXX") || fail "cannot make a folder in ${TMPDIR:-/tmp}"
mkfifo "$scratch/line" "$scratch/errors" || fail "cannot make a pipe in $scratch"
exec 8<>"$scratch/line"
: >"$scratch/left_out"
: >"$scratch/proven"

fill_in() { printf '%s\n' "$1" | sed "s/{ranks}/$ranks/g; s/{batch}/$((${batch:-0} / ranks))/g"; } # word

# Ends when nobody holds the other end of the pipe.
tell_errors() {
    trap '' HUP INT TERM USR1
    exec <"$scratch/errors" 8>&- 9>&-
    : >"$scratch/listening"
    tee "$scratch/said" >&2
    [ ! -d "$scratch" ] || : >"$scratch/told"
}
start_run() { # command...
    for word; do
        set -- "$@" "$(fill_in "$word")"
        shift
    done
    hosts=$(awk '{ printf "%s%s:%d", sep, $1, $2; sep = "," }' "$scratch/used")
    case $hosts in
    -*) say "starts on $(count_of "$ranks" rank)" ;;
    *)
        say "starts on $(count_of "$ranks" rank): $hosts"
        set -- --host "$hosts" "$@"
        ;;
    esac
    rm -f "$scratch/listening" "$scratch/told" "$scratch/moving" "$scratch/stopping"
    : >"$scratch/said"
    exec 9<>"$scratch/errors"
    tell_errors &
    until [ -e "$scratch/listening" ]; do sleep 0.1; done
    starting=yes
    # shellcheck disable=SC2086  # the launcher may have options
    $launcher -n "$ranks" "$@" 2>&9 8>&- 9>&- </dev/null &
    run=$!
    exec 9>&-
    watch_run &
    watch=$!
    starting=
    [ -z "$caught" ] || take_signal "$caught" 0
}
# A signal ends a wait, too.
await_run() {
    while :; do
        status=0
        wait "$run" || status=$?
        [ $status -gt 128 ] && kill -0 "$run" 2>/dev/null || break
    done
    run=
    kill -USR2 "$watch" 2>/dev/null
    wait "$watch" 2>/dev/null
    watch=
    tries=20
    until [ -e "$scratch/told" ] || [ $tries = 0 ]; do # or somebody still holds the pipe
        tries=$((tries - 1))
        sleep 0.1
    done
}

# The step of the newest saved state; -1: there is none.
newest_step() {
    newest=-1
    for file in "$state".step-[0-9]*; do
        step=${file#"$state".step-}
        case $step in *[!0-9]*) continue ;; esac
        step=$(echo "$step" | sed 's/^0*\(.\)/\1/')
        [ "$step" -le "$newest" ] || newest=$step
    done
    echo "$newest"
}
# Hosts that have come since the last run that saved something.
find_new() { awk 'FILENAME == ARGV[1] { old[$1]; next } !($1 in old)' "$scratch/proven" "$scratch/used"; }
# Of a run that ended by itself with an error, and saved nothing: whether another one would, too.
will_repeat() {
    [ $status -lt 128 ] && [ $status != 75 ] && ! grep -q 'ISO_TIMEOUT sets the limit' "$scratch/said" || return 1
    if [ $started -gt 1 ]; then
        cmp -s "$scratch/words" "$scratch/words.before" || return 1
        # The lock of a run that lost its host is taken over after a while.
        ! grep -qE 'another .* (writes|has just begun to write) ' "$scratch/said" || return 1
    fi
    find_answering "$scratch/used" "$scratch/there"
    cmp -s "$scratch/used" "$scratch/there"
}
# Returns 1 if there are none, or they are not to blame.
leave_out_new() {
    [ $status -lt 128 ] && [ $status != 75 ] && [ -s "$scratch/proven" ] && find_new >"$scratch/new" &&
        [ -s "$scratch/new" ] || return 1
    say "leaves out $(names_in "$scratch/new"): the run failed with what is new before it saved a state"
    cat "$scratch/new" >>"$scratch/left_out"
}
# Sets $why, the reason for a restart, and whether it $counts; or ends this program.
judge_run() {
    sed 's/[0-9][0-9]*/N/g' "$scratch/said" | sort -u >"$scratch/words"
    step=$(newest_step)
    why="the run ended with status $status after step $step was saved" counts=yes
    [ $status != 0 ] || exit 0
    [ -z "$caught" ] || exit $status
    if [ "$step" -gt "$saved" ]; then
        saved=$step failures=0
        cp "$scratch/used" "$scratch/proven"
    else
        why="the run ended with status $status before it saved a new state"
        if ! leave_out_new && will_repeat; then
            say "$why, and would do so again: not started again"
            exit $status
        fi
    fi
    mv "$scratch/words" "$scratch/words.before"
    [ -e "$scratch/moving" ] && [ $status = 75 ] && counts=no
    return 0
}
# Returns 1 if there are too few. At the first start, ends this program if the file of hosts is wrong.
choose_hosts() {
    if ! read_hosts; then
        why=$problem
        [ -z "$hostfile" ] || [ $((started + failures)) -gt 0 ] || fail "$why"
        return 1
    fi
    find_answering "$scratch/listed" "$scratch/there"
    plan_ranks "$scratch/there" "$scratch/used"
    ranks=$planned
    [ "$ranks" -lt "$least" ] || return 0
    why="the hosts that answer ($(names_in "$scratch/there")) have room for $(count_of "$ranks" rank), and --min-ranks is $least"
    awk 'FILENAME == ARGV[1] { there[$1]; next } !($1 in there)' "$scratch/there" "$scratch/listed" >"$scratch/silent"
    [ ! -s "$scratch/silent" ] || why="$why; no answer from $(names_in "$scratch/silent")"
    return 1
}
wait_before_restart() {
    failures=$((failures + 1))
    if [ $failures -gt "$restarts" ]; then
        say "gives up after $(count_of "$restarts" restart) without a new saved state: $why"
        exit "$status"
    fi
    seconds=$pause doubled=1
    while [ $doubled -lt $failures ] && [ $seconds -lt 60 ]; do
        seconds=$((2 * seconds)) doubled=$((doubled + 1))
    done
    [ $seconds -le 60 ] || seconds=60
    say "$why: starts again in $seconds s ($failures of $restarts)"
    sleep $seconds 8>&- &
    sleeper=$!
    wait $sleeper
    sleeper=
}

failures=0 started=0 status=1
saved=$(newest_step)
while :; do
    if choose_hosts; then
        started=$((started + 1))
        start_run "$@"
        await_run
        judge_run
        [ $counts = yes ] || continue
    fi
    wait_before_restart
done
