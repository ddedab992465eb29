#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs small sweeps, whole, interrupted and refused, and prints the results as TAP.
# usage: check_sweep.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
launcher=$(command -v "$launcher") || exit 1
sweep=$PWD/bin/sweep
common="--model mlp --steps 20 --eval-every 5"
export ISO_DIGITS=6000 # what all processes would generate anew
enter_work

holds() { # what should hold, condition...
    name=$1
    shift
    good=0
    "$@" || good=1
    result $good "$name"
}
on_two() { # program, arguments...
    run 2 "$@"
}
latest() { # key, file: the value in the last line that has it
    sed -n 's/.*"'"$1"'":"\{0,1\}\([^,"}]*\).*/\1/p' "$2" | tail -n 1
}
names() { # CSV: what its first column has, each once, in order
    sed 1d "$1" | cut -d, -f1 | uniq | tr '\n' ' '
}
is_refused() { # pattern of the sentence: one sentence of rank 0, no dump, no folder
    has_failed && one_sentence sweep ".*$1" stderr && ! has_crashed stderr && [ ! -e refused ]
}
refused() { # what is wrong, pattern of the sentence, arguments...
    name=$1 sentence=$2
    shift 2
    # shellcheck disable=SC2086  # options are several words
    run_alone "$sweep" --out refused $common "$@"
    holds "refused with one sentence: $name" is_refused "$sentence"
}

# ---- A whole sweep ----

cat >list <<'END_OF_LIST'
# Strategies that a file gives, with a comment and an empty line.

daso: --sync daso --unit rank --wait 1 --period 2,4  # two runs
END_OF_LIST
# shellcheck disable=SC2086  # options are several words
on_two "$sweep" --out one --target 0.2 $common --list list -- "lazy: --sync lazy" "blocking: --sync=blocking"
is_whole() {
    [ "$status" = 0 ] && [ "$(names one/runs.csv)" = "daso-period2 daso-period4 lazy blocking " ] &&
        [ "$(names one/points.csv)" = "daso-period2 daso-period4 lazy blocking " ] &&
        [ "$(wc -l <one/runs.csv)" = 5 ] && [ "$(wc -l <one/points.csv)" = 17 ]
}
holds "every run is in the tables, each with its four evaluations" is_whole
estimated() {
    [ "$(grep -c 'if all steps take' stdout)" = 1 ] && ! tr -d '\r' <stdout | grep -q '^$' &&
        grep -qE '^the sweep ends in [0-9]+ (s|min), if all steps take as long as the first 5' stdout
}
holds "after the first steps that were made it says how long it takes" estimated
syncs_told() {
    [ "$(grep -c '^daso-period2,' one/syncs.csv)" -gt "$(grep -c '^daso-period4,' one/syncs.csv)" ] &&
        [ "$(names one/syncs.csv)" = "daso-period2 daso-period4 " ]
}
holds "exchanges of parameters are in a table, more of the shorter period" syncs_told
# Training learns something, so that accuracy ends above chance and the time to 20 % is that of an evaluation.
numbers_hold() {
    tr -d '\r' <one/runs.csv | awk -F, 'NR > 1 {
        good += $8 > 0.2 && $8 <= 1 && $5 > 0 && $5 <= $11 && $6 % 5 == 0 && $10 == 20 && $13 >= $7 }
        END { exit good != 4 }'
}
holds "time to the target, accuracy and bytes are of the run" numbers_hold
# shellcheck disable=SC2086
on_two "$train" $common --sync lazy --quiet --log train.jsonl
same_bits() {
    [ -n "$(latest param_hash train.jsonl)" ] &&
        [ "$(latest param_hash train.jsonl)" = "$(latest param_hash one/lazy.jsonl)" ] &&
        [ "$(latest param_hash train.jsonl)" = "$(latest param_hash one/blocking.jsonl)" ]
}
holds "runs after others have the bits of a run alone" same_bits

if_gnuplot() { # what should hold, condition...
    if command -v gnuplot >/dev/null; then
        holds "$@"
    else
        echo "$1" >>results
        echo "ok - $1 # SKIP gnuplot is not installed"
    fi
}
has_plots() {
    [ "$(grep -c '<figure>' one/report.html)" = 15 ] && ! grep -q 'no plots' one/report.html &&
        [ "$(grep -c '<svg width="640"\|<svg *$' one/report.html)" = 15 ]
}
if_gnuplot "the report has its fifteen plots" has_plots
has_files() {
    [ "$(find one/figures -name '*.gp' | wc -l)" = 15 ] && [ ! -e one/.figures ] &&
        [ "$(find one/figures -name '*.svg' | wc -l)" = 15 ] &&
        [ "$(grep -c '<a href="figures/[a-z_]*.svg">SVG' one/report.html)" = 15 ]
}
if_gnuplot "... which are also files, with the scripts that draw them" has_files
draws_again() {
    cp one/figures/pareto_bytes.gp . && gnuplot -d pareto_bytes.gp 2>stderr && grep -q '</svg>' pareto_bytes.svg &&
        [ "$(wc -l <pareto_bytes.svg)" = "$(wc -l <one/figures/pareto_bytes.svg)" ]
}
if_gnuplot "... each script draws its figure alone" draws_again
# A PDF file, or the sentence that says what is missing.
has_pdf() {
    if echo 'set terminal pdfcairo' | gnuplot -d 2>/dev/null; then
        [ "$(find one/figures -name '*.pdf' | wc -l)" = 15 ] && head -c 5 one/figures/step_time.pdf | grep -q '^%PDF-'
    else
        grep -q 'There are no PDF files' one/report.html
    fi
}
if_gnuplot "... as PDF, too, if gnuplot can" has_pdf
names_sources() {
    for source in 'arXiv 2104.05588' 'Li et al., PyTorch' 'arXiv 1906.12043' 'Okabe and Ito'; do
        grep -q "$source" one/report.html || return 1
    done
    ! grep -q 'arXiv 1910.00643' one/report.html
}
holds "the page names the sources of the algorithms that were used" names_sources
describes() {
    grep -q '<td class="text">2 ranks on 1 node</td>' one/report.html && grep -q -e '--model mlp .*--progress auto ' one/report.html &&
        grep -qE '>20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9:]{8} to 20' one/report.html
}
holds "... and says what the runs were made with, where and when" describes
# Every step is computing, waiting and merging; only daso merges.
parts_hold() {
    tr -d '\r' <one/runs.csv | awk -F, 'NR > 1 {
        step = 1000 * $11 / $10; sum = $14 + $15 + $16
        good += sum > 0.999 * step && (sum < 1.001 * step || $16 == 0) && ($1 ~ /daso/) == ($15 > 0) }
        END { exit good != 4 }'
}
holds "the time of a step is divided into computing, waiting and merging" parts_hold
says_no_interval() { grep -q 'one seed, so there is no confidence interval' one/report.html && [ "$(wc -l <one/comparisons.csv)" = 13 ]; }
holds "with one seed the report says that there is no interval" says_no_interval

# ---- Without gnuplot; all runs are finished, so that only the report is made ----

mkdir bin
for tool in $(echo "$PATH" | tr : ' ' | sed 's/$/ /'); do
    find "$tool/" -maxdepth 1 ! -name gnuplot ! -type d -exec ln -sf {} bin/ \; 2>/dev/null
done
# shellcheck disable=SC2086
on_two env PATH="$work/bin" "$sweep" --out one --target 0.2 $common --list list -- \
    "lazy: --sync lazy" "blocking: --sync=blocking"
tells_package() {
    [ "$status" = 0 ] && grep -q 'There are no plots: .*gnuplot-nox' one/report.html &&
        ! grep -q '<figure>' one/report.html && [ "$(wc -l <one/runs.csv)" = 5 ] &&
        [ "$(find one/figures -type f | sed 's/.*\.//' | sort -u)" = gp ] && grep -q '^\$mode0' one/figures/pareto_bytes.gp
}
holds "without gnuplot the tables and scripts are there and the page names the package" tells_package

# ---- Seeds ----

# A learning rate that learns nothing is the planted difference.
seeded() { # seeds, options...
    seeds=$1
    shift
    # shellcheck disable=SC2086
    on_two "$sweep" --out seeds --target 0.2 $common --seeds "$seeds" "$@" -- "lazy: --sync lazy" "low: --sync lazy --lr 1e-9"
}
seeded 3,1
pairs_of() { # CSV: run and seed of each line, each once
    sed 1d "$1" | cut -d, -f1,2 | uniq | tr '\n' ' '
}
carries_seeds() {
    for table in runs points; do
        [ "$(pairs_of seeds/$table.csv)" = "lazy,3 low,3 lazy,1 low,1 " ] || return 1
    done
    [ "$status" = 0 ] && [ "$(find seeds -name '*.jsonl' | sort | tr '\n' ' ')" = \
        "seeds/lazy-seed1.jsonl seeds/lazy-seed3.jsonl seeds/low-seed1.jsonl seeds/low-seed3.jsonl " ]
}
holds "every run is made with each seed, and the tables have the seed" carries_seeds
# As a kill leaves them; then one more seed.
cp seeds/lazy-seed1.jsonl seeds/low-seed3.jsonl .
mv seeds/lazy-seed3.jsonl seeds/.lazy-seed3.jsonl.part
seeded 1,2,3
continues_seeds() {
    [ "$status" = 0 ] && cmp -s lazy-seed1.jsonl seeds/lazy-seed1.jsonl && cmp -s low-seed3.jsonl seeds/low-seed3.jsonl &&
        [ "$(pairs_of seeds/runs.csv)" = "lazy,1 low,1 lazy,2 low,2 lazy,3 low,3 " ] &&
        [ "$(latest param_hash seeds/lazy-seed2.jsonl)" != "$(latest param_hash seeds/lazy-seed3.jsonl)" ]
}
holds "a killed sweep goes on with the runs and seeds that are missing" continues_seeds
# shellcheck disable=SC2086
on_two "$train" $common --sync lazy --seed 3 --quiet --log seed3.jsonl
same_seed() {
    [ -n "$(latest param_hash seed3.jsonl)" ] && [ "$(latest param_hash seed3.jsonl)" = "$(latest param_hash seeds/lazy-seed3.jsonl)" ]
}
holds "a run with a seed has the bits of --seed" same_seed
# By the numbers of the runs: mean and interval of three, t(0.975, 2) = 4.302653.
statistics_hold() {
    tr -d '\r' <seeds/runs.csv | awk -F, -v run="$1" '
        $1 == run { n++; s += $8; q += $8 * $8 }
        END { m = s / n; h = 4.302653 * sqrt((q - n * m * m) / (n - 1) / n); printf "%.6f %.6f %.6f", m, m - h, m + h }' >want
    tr -d '\r' <seeds/modes.csv | sed 's/"[^"]*"//' | awk -F, -v run="$1" '
        $1 == run && $7 == "test_accuracy" { printf "%.6f %.6f %.6f", $9, $11, $12; exit $8 != 3 }' >got && [ -s want ] && cmp -s want got
}
holds "means and intervals over seeds are those of the runs" statistics_hold lazy
# run, setup, baseline, metric, pairs, difference, low, high, t, p, p_holm
finds_difference() { # run, baseline, sign
    tr -d '\r' <seeds/comparisons.csv | awk -F, -v run="$1" -v base="$2" -v sign="$3" '
        $1 == run && $3 == base && $4 == "train_loss" { good = $5 == 3 && $6 * sign > 0 && $7 * $8 > 0 && $10 < 0.05 && $11 >= $10 }
        END { exit !good }'
}
holds "a planted difference is found by the paired test against the first run" finds_difference low lazy 1
seeded 1,2,3 --baseline low
holds "... and against a chosen baseline" finds_difference lazy low -1
bands_hold() { grep -q 'filledcurves' seeds/figures/loss_steps.gp && ! grep -q 'filledcurves' one/figures/loss_steps.gp; }
holds "figures have bands if there are several seeds" bands_hold
# What was made without --seeds is one of the seeds.
# shellcheck disable=SC2086
on_two "$sweep" --out grown $common -- "lazy: --sync lazy"
cp grown/lazy.jsonl .
# shellcheck disable=SC2086
on_two "$sweep" --out grown $common --seeds 2,1 -- "lazy: --sync lazy"
adopts() {
    [ "$status" = 0 ] && cmp -s lazy.jsonl grown/lazy.jsonl && [ ! -e grown/lazy-seed1.jsonl ] &&
        [ "$(pairs_of grown/runs.csv)" = "lazy,2 lazy,1 " ]
}
holds "a run that was made alone counts as that of its seed" adopts
refused "a list of seeds with a gap" '--seeds 1,,2: give whole numbers' --seeds 1,,2 -- "a: --sync lazy"
refused "a seed given twice" '--seeds has 1 twice' --seeds 1,2,1 -- "a: --sync lazy"
refused "--seed beside --seeds" '--seed and --seeds say the same thing' --seeds 1,2 --seed 3 -- "a: --sync lazy"
refused "a baseline that is no run" '--baseline b is not the name of a run, such as a' --baseline b -- "a: --sync lazy"

# ---- Shards, and one report on several folders ----

mkdir shards
good=0
for shard in 0 1 2; do
    # shellcheck disable=SC2086
    run_alone "$sweep" --out shards/$shard --shard $shard/3 $common --seeds 1,2 -- "lazy: --sync lazy" "low: --sync lazy --lr 1e-9"
    [ "$status" = 0 ] || good=1
done
in_shards() {
    [ "$good" = 0 ] && [ "$(find shards -name '*.jsonl' | sort | tr '\n' ' ')" = \
        "shards/0/lazy-seed1.jsonl shards/0/low-seed2.jsonl shards/1/low-seed1.jsonl shards/2/lazy-seed2.jsonl " ]
}
holds "each shard makes its runs in its folder" in_shards
run_alone env PATH="$work/bin" "$sweep" --report shards/0 shards/1 shards/2 seeds --out merged --target 0.2 --baseline lazy
# rows: "run setup ranks seeds"
setups_of() { # modes.csv
    tr -d '\r' <"$1" | sed 's/"[^"]*"//' | awk -F, '$7 == "test_accuracy" { print $1, $2, $4, $8 }' | sort | tr '\n' ';'
}
is_merged() {
    [ "$status" = 0 ] && [ "$(wc -l <merged/runs.csv)" = 11 ] && grep -q '10 runs of 4 folders' stdout &&
        case "$(setups_of merged/modes.csv)" in
        "lazy A 1 2;lazy B 2 3;low A 1 2;low B 2 3;" | "lazy A 2 3;lazy B 1 2;low A 2 3;low B 1 2;") ;;
        *) false ;;
        esac
}
holds "without MPI, folders of different rank counts make one report that tells them apart" is_merged
told_apart() {
    grep -q '>lazy \[A\]<code>' merged/report.html && grep -q '>lazy \[B\]<code>' merged/report.html &&
        grep -q '<td class="text">1 rank on 1 node</td>' merged/report.html &&
        grep -q '<td class="text">2 ranks on 1 node</td>' merged/report.html
}
holds "... in its tables" told_apart
same_statistics() { # those of two ranks, which are also alone in a folder
    for folder in merged seeds; do
        tr -d '\r' <$folder/comparisons.csv | awk -F, '$5 == 3 && $4 == "train_loss" { $2 = ""; print }' >$folder.test
    done
    [ "$(wc -l <seeds.test)" = 1 ] && cmp -s seeds.test merged.test
}
run_alone "$sweep" --report seeds --baseline lazy --target 0.2
holds "... and does not mix them in its statistics" same_statistics
redrawn() { [ "$status" = 0 ] && [ "$(ls seeds/figures/*.svg | wc -l)" -ge 6 ] && [ ! -e seeds/.lock ] && [ ! -e seeds/.figures ]; }
if_gnuplot "a report on one folder is drawn anew in it" redrawn
run_alone "$sweep" --report shards/1 shards/1/ --out merged --target 0.2
once_only() {
    [ "$status" = 0 ] && [ "$(wc -l <merged/runs.csv)" = 2 ] &&
        one_sentence sweep 'shards/1//low-seed1.jsonl is a run of another folder, too: the report has it once$' stderr
}
holds "a run that is in two folders counts once" once_only
mkdir older
sed '/"event":"run"/s/,"seed":.*/}/; s/"merge_ms_per_step":[^,]*,//' one/daso-period2.jsonl >older/daso-period2.jsonl
run_alone "$sweep" --report older --target 0.2
reads_older() {
    [ "$status" = 0 ] && ! grep -q machine older/daso-period2.jsonl &&
        tr -d '\r' <older/runs.csv | grep -q '^daso-period2,1,.*,2,1,.*,,,,A$' && grep -q '<td class="text">2 ranks on 1 node</td>' older/report.html
}
holds "results of an older version are read" reads_older
ln -s /dev/zero older/endless.jsonl
mkfifo older/pipe.jsonl
run_alone timeout 10 "$sweep" --report older --target 0.2
omits_them() { reads_older && [ "$(grep -c 'cannot read older/\(endless\|pipe\).jsonl: .*; the report omits it$' stderr)" = 2 ]; }
holds "a link to a device and a pipe are omitted" omits_them
refuses_report() { # pattern, arguments...
    sentence=$1
    shift
    run_alone "$sweep" "$@"
    has_failed && one_sentence sweep ".*$sentence" stderr && [ ! -e refused ]
}
holds "refused: a report on several folders without one of its own" refuses_report 'needs one of its own: --out' --report seeds shards/0
holds "refused: a report on a folder without results" refuses_report 'no results of a sweep in shards' --report shards --out refused
holds "refused: a report on a folder that is not there" refuses_report 'cannot read the folder nowhere' --report nowhere --out refused
holds "refused: a report with options of runs" refuses_report '--steps is for runs' --report seeds --steps 3 --out refused
holds "refused: a report with seeds" refuses_report '--seeds is for runs' --report seeds --seeds 3 --out refused
holds "refused: a report with runs" refuses_report '--report makes no runs' --report seeds --out refused -- "a: --sync lazy"
holds "refused: a report with another baseline" refuses_report '--baseline b is not the name of a run' --report seeds --out refused --baseline b
# Two folders have another mode of one name; one of their logs is damaged afterwards.
for period in 2 4; do
    # shellcheck disable=SC2086
    on_two "$sweep" --out twin$period --target 0.2 $common -- "m: --sync localsgd --period $period"
done
tells_twins_apart() {
    run_alone "$sweep" --report twin2 twin4 --out twins --baseline "m #2"
    [ "$status" = 0 ] && [ "$(cut -d, -f1 twins/modes.csv | sort -u | tr '\n' ',')" = "m,m #2,run," ] &&
        [ "$(cut -d, -f1 twins/points.csv | sort -u | tr '\n' ',')" = "m,m #2,run," ] &&
        [ "$(cut -d, -f1 twins/runs.csv | sort -u | tr '\n' ',')" = "m,m #2,run," ] &&
        [ "$(tr -d '\r' <twins/points.csv | awk -F, '{ print $NF }' | sort -u | tr '\n' ,)" = "A,setup," ]
}
holds "modes of one name are numbered, also for --baseline" tells_twins_apart
holds "refused: a number that no mode has" refuses_report '--baseline m #7 is not the name of a run' --report twin2 twin4 \
    --out refused --baseline "m #7"
# As if the second had trained on a folder, by a version whose name is longer.
mkdir elsewhere
sed 's|--data digits|--data /set|; s/\("version":"[^"]*\)"/\1-x"/' twin2/m.jsonl >elsewhere/m.jsonl
of_other_data() {
    run_alone "$sweep" --report elsewhere twin2 --out both
    [ "$status" = 0 ] && [ "$(cut -d, -f1,2 both/modes.csv | sort -u | tr '\n' ' ')" = "m,A m,B run,setup " ] &&
        [ "$(tr -d '\r' <both/runs.csv | wc -l)" = 3 ]
}
holds "another data set is another setup" of_other_data
mkdir other
sed 's/"test_accuracy":[0-9.]*/"test_accuracy":0.5/' twin2/m.jsonl >other/m.jsonl
says_other_results() {
    run_alone "$sweep" --report twin2 other --out both
    [ "$status" = 0 ] && one_sentence sweep 'other/m.jsonl is a run of another folder, too, with other results: .*' stderr
}
holds "a run with other results than its copy is told" says_other_results
mkdir failing
cp seeds/*.jsonl failing
head -n 1 twin2/m.jsonl | sed 's/"name":"m"/"name":"first"/; s/"date":"[^"]*"/"date":"2000-01-01T00:00:00Z"/' >failing/first.failed
echo '{"event":"failed","reason":"no luck"}' >>failing/first.failed
compares_with_none() {
    run_alone "$sweep" --report failing --out none
    [ "$status" = 0 ] && [ "$(wc -l <none/comparisons.csv)" = 1 ] && grep -q 'No run of the baseline, first, has results' none/report.html
}
holds "if the first run fails, no other one becomes the baseline" compares_with_none
# As a run leaves them that failed alone, and succeeded as one of several seeds.
mkdir retried failed.alone
cp seeds/lazy-seed1.jsonl retried
head -n 1 seeds/lazy-seed1.jsonl >failed.alone/lazy.failed
echo '{"event":"failed","reason":"no luck"}' >>failed.alone/lazy.failed
cp failed.alone/lazy.failed retried
succeeded() { # folder, lines of its runs.csv
    [ "$status" = 0 ] && [ "$(wc -l <"$1/runs.csv")" = "$2" ] && ! grep -q 'no luck' "$1/runs.csv" && ! grep -q 'Runs that failed' "$1/report.html"
}
run_alone "$sweep" --report retried
holds "a run that succeeded is not reported as failed under its other name" succeeded retried 2
run_alone "$sweep" --report failed.alone seeds --out merged
holds "... nor if it failed in another folder" succeeded merged 7
# shellcheck disable=SC2086
on_two "$sweep" --out retried --target 0.2 $common --seeds 1 -- "lazy: --sync lazy"
holds "... nor by a sweep that has it finished" succeeded retried 2
# One of three seeds failed.
mkdir lacking
cp seeds/*.jsonl lacking
{
    head -n 1 seeds/low-seed2.jsonl
    echo '{"event":"failed","reason":"no luck"}'
} >lacking/low-seed2.failed
rm lacking/low-seed2.jsonl
run_alone "$sweep" --report lacking --baseline lazy --target 0.01
mode_has() { # mode, metric, awk condition
    tr -d '\r' <lacking/modes.csv | sed 's/"[^"]*"//' | awk -F, '$1 == "'"$1"'" && $7 == "'"$2"'" { good = '"$3"' } END { exit !good }'
}
tells_lacking() {
    [ "$status" = 0 ] && grep -q '>low (2 of 3 seeds)<code>' lacking/report.html &&
        grep -q '<td>2 of 3<br><small>1 failed</small></td><td>2 of 3 seeds</td>' lacking/report.html &&
        mode_has low test_accuracy '$8 == 2 && $9 > 0 && $13 == 1 && $15 == 2' &&
        mode_has low seconds_to_target '$9 == ""' && mode_has lazy seconds_to_target '$8 == 3 && $9 > 0 && $13 == 0' &&
        tr -d '\r' <lacking/comparisons.csv | grep -q '^low,A,lazy,train_loss,2,.*,3$'
}
holds "a mean that lacks the seed of a run that failed says so, and the time to the target has none" tells_lacking
mkdir longer
sed 's/"seed":[0-9]*/"seed":77/; s/--seed [0-9]*/--seed 77/; s/\("version":"[^"]*\)"/\1-x"/' twin2/m.jsonl >longer/m-seed77.jsonl
both_versions() {
    run_alone "$sweep" --report longer twin2 --out versions
    version=$(sed -n 's/.*"version":"\([^"]*\)".*/\1/p' twin2/m.jsonl | head -n 1)
    [ "$status" = 0 ] && { grep -qF ">$version-x, $version<" versions/report.html || grep -qF ">$version, $version-x<" versions/report.html; }
}
holds "a version whose name begins as another one's is told, too" both_versions
omits_half_logs() {
    echo '{"event":"summary"}' >>twin4/m.jsonl
    run_alone "$sweep" --report twin2 twin4 --out halves
    grep -q 'twin4/m.jsonl does not hold the results of a finished run.*; the report omits it$' stderr &&
        grep -q '1 run of 2 folders, without 1 file$' stdout && ! grep -q '^m #2' halves/modes.csv
}
holds "a log whose summary has no numbers is not believed" omits_half_logs
refused "a shard that is not there" '--shard 3/3: give I/N' --shard 3/3 -- "a: --sync lazy"
refused "a shard without runs" '--shard 2/3 has no run: the list has only 2' --shard 2/3 --seeds 1,2 -- "a: --sync lazy"

# ---- Folders of others ----

# Whether a sweep, and a report, refuse the folder and change nothing in it.
spares() { # file
    cp -r own own.before
    run_alone "$sweep" --out own --model mlp --steps 1 -- "lazy: --sync lazy"
    is_refused "own has a file $1 that no sweep has written: give another --out, or move it away$" && diff -r own own.before || return 1
    run_alone "$sweep" --report twin2 --out own
    is_refused "own has a file $1 that no sweep has written: " && diff -r own own.before && rm -r own own.before
}
mkdir own
echo 'name,time' >own/runs.csv
holds "a sweep does not replace a table of the user's" spares runs.csv
mkdir own
echo '<html>mine</html>' >own/report.html
echo '{"event":"epoch","epoch":1}' >own/train.jsonl
holds "nor a page, beside a log of train" spares report.html
mkdir own
echo mine >own/notes
cp twin2/m.jsonl own
echo mine >own/runs.csv
takes_own() { run_alone "$sweep" --report own && [ "$status" = 0 ] && run_alone "$sweep" --report twin2 --out only &&
    rm only/*.csv && run_alone "$sweep" --report twin2 --out only && [ "$status" = 0 ]; }
holds "it does in a folder with logs or a page of a sweep" takes_own
mkdir -p stuck/.runs.csv.part # as if the disk were full
takes_rest() {
    run_alone "$sweep" --out stuck --model mlp --steps 1 -- "lazy: --sync lazy"
    has_failed && grep -q 'cannot write stuck/runs.csv' stderr && rmdir stuck/.runs.csv.part || return 1
    run_alone "$sweep" --out stuck --model mlp --steps 1 -- "lazy: --sync lazy"
    [ "$status" = 0 ]
}
holds "and in one whose first report was not completed" takes_rest
mkdir locked
echo run >locked/points.csv # whose page comes
printf 'elsewhere 1 %d\n' "$(date +%s)" >locked/.lock
asks_lock() { run_alone "$sweep" --report twin2 --out locked && is_refused 'another sweep writes locked: process 1 on host elsewhere'; }
holds "a sweep that writes meanwhile is told of first" asks_lock

# ---- A list without runs of the folder ----

# shellcheck disable=SC2086
on_two "$sweep" --out one --target 0.2 $common -- "lazy: --sync lazy"
keeps_others() {
    [ "$status" = 0 ] && [ "$(names one/runs.csv)" = "lazy blocking daso-period2 daso-period4 " ] &&
        [ "$(names one/points.csv)" = "lazy blocking daso-period2 daso-period4 " ]
}
holds "a smaller list drops no run of the folder from the report" keeps_others
echo '{"event":"epoch"}' >one/mine.jsonl
# shellcheck disable=SC2086
on_two "$sweep" --out one $common -- "lazy: --sync lazy"
leaves_out() {
    [ "$status" = 0 ] && grep -q '^sweep: one/mine.jsonl does not hold the results .*; the report omits it$' stderr &&
        [ "$(wc -l <one/runs.csv)" = 5 ]
}
holds "a file of others in the folder is left out with a word" leaves_out
rm one/mine.jsonl
# shellcheck disable=SC2086
on_two "$sweep" --out one $common --seed 2 -- "new: --sync lazy"
shares() {
    [ "$status" != 0 ] && grep -q '^sweep: one/blocking.jsonl was made with --seed 1, and now it is --seed 2' stderr &&
        [ ! -e one/new.jsonl ]
}
holds "runs that the list does not have must be comparable with those that it has" shares
run_alone "$sweep" --out one $common -- "new: --sync lazy"
ranks_differ() {
    [ "$status" != 0 ] && grep -q '^sweep: one/blocking.jsonl was made with 2 ranks, and now it is 1 ranks' stderr
}
# shellcheck disable=SC2086
holds "... made on as many ranks, too" ranks_differ

# ---- Interrupted ----

# Starts a sweep, with the given words before it, and sends it a signal in its second run.
suffix=
interrupt() { # folder, words...
    folder=$1
    shift
    # shellcheck disable=SC2086
    "$@" "$sweep" --out "$folder" $common -- "quick: --sync lazy" "long: --sync lazy --steps 100000" \
        >stdout 2>stderr </dev/null &
    job=$!
    tries=0
    while [ ! -e "$folder/.long$suffix.jsonl.part" ] && [ $tries -lt 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -TERM $job
    status=0
    wait $job || status=$?
}
interrupt alone env
is_stopped() {
    [ "$status" = 143 ] && grep -q '^sweep: stopped; .* has the results of 1 of 2 runs, ' stderr &&
        [ "$(names alone/runs.csv)" = "quick " ] && [ -e alone/quick.jsonl ] && [ -e alone/report.html ] &&
        [ "$(find alone -type f ! -path '*/figures/*' | wc -l)" = 7 ]
}
holds "a signal ends it with the report of what is finished and no other files" is_stopped
all=$common common="$common --seeds 1,2" suffix=-seed1
interrupt begun env
common=$all suffix=
tells_left() {
    [ "$status" = 143 ] && grep -q '>quick (1 of 2 seeds)<code>' begun/report.html &&
        grep -q '<td>1 of 2<br><small>1 to be made</small></td>' begun/report.html
}
holds "... which says how many seeds of a mode are still to be made" tells_left
# shellcheck disable=SC2086  # flags are several words
interrupt two "$launcher" $flags -n 2 # which gives its ranks no time
is_kept() { [ "$status" != 0 ] && [ "$(names two/runs.csv)" = "quick " ] && [ -e two/report.html ]; }
holds "when the launcher is stopped, what is finished is there" is_kept
cp two/quick.jsonl quick.before
# shellcheck disable=SC2086
on_two "$sweep" --out two $common -- "quick: --sync lazy" "long: --sync lazy --steps 30"
goes_on() {
    [ "$status" = 0 ] && cmp -s quick.before two/quick.jsonl && [ "$(names two/runs.csv)" = "quick long " ] &&
        [ "$(latest steps two/long.jsonl)" = 30 ] && [ "$(find two -type f ! -path '*/figures/*' | wc -l)" = 8 ]
}
holds "started again it keeps what is finished and makes the rest" goes_on
# shellcheck disable=SC2086
on_two "$sweep" --out two $common --lr 0.1 -- "quick: --sync lazy"
is_untouched() {
    [ "$status" != 0 ] && grep -q '^sweep: two/quick.jsonl was made with --lr not given, and now it is --lr 0.1' \
        stderr && cmp -s quick.before two/quick.jsonl
}
holds "other options for a finished run are refused" is_untouched
head -n 3 quick.before >two/quick.jsonl
# shellcheck disable=SC2086
on_two "$sweep" --out two $common -- "quick: --sync lazy"
is_cut() { [ "$status" != 0 ] && grep -q '^sweep: two/quick.jsonl does not hold .* finished run' stderr; }
holds "a cut result is refused" is_cut
# A NUL byte in the second line, and a line without its beginning.
good=0
for damage in 's/:/\x00/3' 's/^{//'; do
    sed "2$damage" quick.before >two/quick.jsonl
    cp two/quick.jsonl damaged
    # shellcheck disable=SC2086
    on_two "$sweep" --out two $common -- "quick: --sync lazy"
    has_failed && one_sentence sweep 'line 2 of two/quick.jsonl is damaged: remove the file to repeat the run$' stderr &&
        cmp -s damaged two/quick.jsonl || good=1
done
result $good "a damaged result is refused"
# What a killed sweep leaves of a run that it had nearly finished.
rm two/quick.jsonl
sed 's/"test_accuracy":[^,]*/"test_accuracy":2/' quick.before >two/.quick.jsonl.part
# shellcheck disable=SC2086
on_two "$sweep" --out two $common -- "quick: --sync lazy"
is_repeated() {
    [ "$status" = 0 ] && [ ! -e two/.quick.jsonl.part ] && ! grep -q '"test_accuracy":2[,}]' two/quick.jsonl &&
        [ "$(grep -c '"event":"summary"' two/quick.jsonl)" = 1 ]
}
holds "a log that a killed sweep left behind is not read" is_repeated

# ---- Continued in the middle of a run ----

# Two runs, so that the lock of the folder must outlive the first one's.
stateful() { # folder, steps of the second run, words before the program...; in a subshell, which it becomes
    folder=$1 steps=$2
    shift 2
    exec "$@" "$sweep" --out "$folder" --model mlp --eval-every 20 --checkpoint-every 20 -- "quick: --sync lazy --steps 20" \
        "long: --sync daso --unit rank --wait 1 --period 4 --steps $steps"
}
status=0
# shellcheck disable=SC2086  # flags are several words
(stateful whole 400 timeout -k 5 "$limit" "$launcher" $flags -n 2) >stdout 2>stderr </dev/null || status=$?
is_clean() { [ "$status" = 0 ] && [ -z "$(find whole -name '*.state*')" ] && [ "$(latest steps whole/long.jsonl)" = 400 ]; }
holds "no saved state is left of a run that was finished" is_clean
# As a sweep leaves them that is killed right after a run.
: >whole/.quick.state.step-000000000020
: >whole/.quick.state.lock
# shellcheck disable=SC2086
(stateful whole 400 timeout -k 5 "$limit" "$launcher" $flags -n 2) >stdout 2>stderr </dev/null || status=$?
is_clean_too() { is_clean && [ ! -e whole/.quick.state.lock ]; }
holds "... nor of one that an earlier sweep had finished" is_clean_too
# shellcheck disable=SC2086
stateful killed 400 "$launcher" $flags -n 2 >stdout 2>stderr </dev/null &
job=$!
tries=0
while ! ls killed/.long.state.step-* >/dev/null 2>&1 && [ $tries -lt 600 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
[ -e killed/.lock ]
locked=$?
kill -TERM $job
wait $job
in_middle() {
    [ $locked = 0 ] && [ -e killed/.long.jsonl.part ] && [ ! -e killed/long.jsonl ] && ls killed/.long.state.step-* >/dev/null
}
holds "a killed sweep leaves the log and state of its run, and its lock until then" in_middle
cp -R killed changed
cp -R killed full
status=0
# shellcheck disable=SC2086
(stateful killed 400 timeout -k 5 "$limit" "$launcher" $flags -n 2) >stdout 2>stderr </dev/null || status=$?
steps_of() { # points.csv without times
    tr -d '\r' <"$1" | cut -d, -f1-3,5-
}
continues_run() {
    [ "$status" = 0 ] && grep -q '"event":"resume","step":[1-9]' killed/long.jsonl &&
        [ "$(latest param_hash killed/long.jsonl)" = "$(latest param_hash whole/long.jsonl)" ] &&
        [ -z "$(find killed -name '.long*')" ]
}
holds "started again it continues in the middle of the run, with the same bits" continues_run
same_points() { [ "$(steps_of killed/points.csv)" = "$(steps_of whole/points.csv)" ]; }
holds "... and its evaluations are those of a run that was not killed" same_points
status=0
# shellcheck disable=SC2086
(stateful changed 20 timeout -k 5 "$limit" "$launcher" $flags -n 2) >stdout 2>stderr </dev/null || status=$?
begins_anew() {
    [ "$status" = 0 ] && ! grep -q '"event":"resume"' changed/long.jsonl && [ "$(latest steps changed/long.jsonl)" = 20 ] &&
        [ -z "$(find changed -name '.long*')" ]
}
holds "... but with other options the run begins anew" begins_anew

# A limit of the size of rank 0's files takes the place of a full disk.
limited='trap "" XFSZ; [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" != 0 ] || ulimit -f 1000; exec "$@"'
status=0
# shellcheck disable=SC2086
(stateful full 400 timeout -k 5 "$limit" "$launcher" $flags -n 2 sh -c "$limited" sh) >stdout 2>stderr </dev/null || status=$?
keeps_state() {
    has_failed && grep -q '^sweep: run long failed' stderr && [ -e full/long.failed ] && [ -e full/.long.jsonl.part ] &&
        ls full/.long.state.step-* >/dev/null
}
holds "a run that fails, but does not diverge, keeps its state" keeps_state
status=0
# shellcheck disable=SC2086
(stateful full 400 timeout -k 5 "$limit" "$launcher" $flags -n 2) >stdout 2>stderr </dev/null || status=$?
continues_after() {
    [ "$status" = 0 ] && grep -q '"event":"resume","step":[1-9]' full/long.jsonl && [ ! -e full/long.failed ] &&
        [ "$(latest param_hash full/long.jsonl)" = "$(latest param_hash whole/long.jsonl)" ]
}
holds "... and the next sweep continues it, with the same bits" continues_after

# ---- Two at once ----

# shellcheck disable=SC2086  # several words
timeout -k 5 120 "$sweep" --out both $common -- "long: --sync lazy --steps 100000" >first 2>&1 </dev/null &
job=$!
tries=0
while [ ! -e both/.long.jsonl.part ] && [ $tries -lt 300 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
on_two "$sweep" --out both/ $common -- "long: --sync lazy --steps 100000"
is_alone() {
    has_failed && one_sentence sweep "another sweep writes both/?: process [0-9]+ on host .*, or give another --out \(if" \
        stderr && kill -0 $job && [ -e both/.long.jsonl.part ]
}
holds "a second sweep on the same folder is refused at the start" is_alone
run_alone "$sweep" --report both
holds "... and so is a report on it, before anything is read" is_alone
holder=$(cut -d ' ' -f 2 both/.lock)
[ -n "$holder" ] && kill -9 "$holder"
kill -TERM $job
wait $job
# shellcheck disable=SC2086
on_two "$sweep" --out both $common -- "quick: --sync lazy"
takes_over() {
    [ "$status" = 0 ] && [ ! -e both/.lock ] &&
        one_sentence sweep "warning: took over both/.lock of process $holder on host .*, which has ended" stderr
}
holds "... and may follow when the first was killed" takes_over
# shellcheck disable=SC2086
on_two "$sweep" --out three $common -- "wild: --optimizer sgd --lr 1e6" "tame: --sync lazy"
goes_past() {
    [ "$status" != 0 ] && grep -q '^sweep: run wild failed' stderr && [ "$(names three/runs.csv)" = "tame wild " ]
}
holds "a training that diverges does not keep the next from being made" goes_past

fails_in_report() {
    grep -q '^wild,1,--optimizer sgd --lr 1e6,,,.*,.*diverged' three/runs.csv && [ -e three/wild.failed ] &&
        grep -q '<h2>Runs that failed</h2>' three/report.html && grep -q '<td class="text">.*diverged.*</td>' three/report.html &&
        [ "$(names three/points.csv)" = "tame " ]
}
holds "the report tells of it, and why" fails_in_report
# shellcheck disable=SC2086
on_two "$sweep" --out three $common -- "tame: --sync lazy"
holds "... as well when the next list does not have it" fails_in_report
cp three/wild.failed failed.before
# shellcheck disable=SC2086
on_two "$sweep" --out three $common -- "wild: --optimizer sgd --lr 0.01"
tried_again() {
    [ "$status" = 0 ] && [ "$(names three/runs.csv)" = "wild tame " ] && [ ! -e three/wild.failed ] &&
        ! grep -q 'Runs that failed' three/report.html
}
holds "it is tried again, and what succeeds takes its place" tried_again
# As a kill leaves it between the two steps of that.
cp failed.before three/wild.failed
# shellcheck disable=SC2086
on_two "$sweep" --out three $common -- "tame: --sync lazy"
told_once() {
    [ "$status" = 0 ] && [ "$(names three/runs.csv)" = "tame wild " ] && [ "$(wc -l <three/runs.csv)" = 3 ] &&
        ! grep -q 'Runs that failed' three/report.html
}
holds "... also in the report of a sweep that was killed before it removed the failure" told_once

# Ranks that exchange at steps of their own end the job; both ranks of a pair know of it.
# shellcheck disable=SC2086
on_two "$sweep" --out four $common -- "wild: --sync gossip --optimizer sgd --lr 1e6" "tame: --sync lazy"
pair_goes_past() { [ "$status" != 0 ] && [ "$(names four/runs.csv)" = "tame wild " ]; }
holds "two ranks that gossip and diverge do not keep the next run from being made" pair_goes_past
# shellcheck disable=SC2086
run 3 "$sweep" --out five $common -- "wild: --sync gossip --optimizer sgd --lr 1e6" "tame: --sync lazy"
[ "$status" != 0 ] && [ -e five/wild.failed ] && [ ! -e five/tame.jsonl ] && grep -q 'diverged' five/wild.failed
result $? "three ranks end the job, and leave what failed"
# shellcheck disable=SC2086
run 3 "$sweep" --out five $common -- "wild: --sync gossip --optimizer sgd --lr 1e6" "tame: --sync lazy"
[ "$status" != 0 ] && [ -e five/wild.failed ] && [ -e five/tame.jsonl ]
result $? "... and the same sweep again makes the other run first"

# A comma separates runs, so + separates levels. Names have _ for characters that they cannot have.
# shellcheck disable=SC2086
on_two "$sweep" --out levels $common -- "h: --sync localsgd --levels 2:2,2:1+4:2"
has_valid_names() {
    [ "$status" = 0 ] && [ "$(names levels/runs.csv)" = "h-levels2_2 h-levels2_1+4_2 " ]
}
holds "values with characters that names cannot have make runs" has_valid_names

# ---- Refused ----

refused "no runs" 'nothing to compare'
refused "a run without a name" '"--sync lazy" is not a run' -- "--sync lazy"
refused "a name that is no file's" 'is not a valid run name' -- "../a: --sync lazy"
refused "two runs of one name" 'two runs are called a' -- "a: --sync lazy" "a: --sync blocking"
refused "a value that is missing between commas" 'comma without a value' -- "a: --sync localsgd --period 4,,8"
refused "a bad option, with the run's name" 'run a: --sync never is not supported' -- "a: --sync never"
for option in --seed=3 "--math bf16" "--device cuda" "--dtype f64" "--threads 2" "--mean 0.1,0.2"; do
    refused "an option that must be the same for all: $option" \
        "run a[a-z0-9.-]*: ${option%%[ =]*} is the same for all runs: give it before the --" -- "a: $option"
done
# shellcheck disable=SC2086  # options are several words
run_alone "$sweep" --out refused $common --math tf32 -- "a: --sync lazy"
blames_no_run() { is_refused '--math tf32 needs a GPU' && ! grep -q 'run a' stderr; }
holds "refused with one sentence, of which no run is blamed: a wrong option of all" blames_no_run
refused "an option of one --sync for all runs" '--period depends on --sync: give it in the list' \
    --period 4 -- "a: --sync daso"
refused "a list of values in the list of runs" 'the commas of --milestones would make several runs' -- \
    "a: --schedule multi-step --milestones 1,2"
refused "an option that one run has twice" 'run a: --lr is given twice' -- "a: --lr 1 --lr 2"
# Settings are one value, with their commas, beside an option whose values make two runs.
# shellcheck disable=SC2086  # options are several words
run_alone "$sweep" --out settings $common -- "a: --sync lazy --sync-option=alpha=1,beta=2 --lr 0.1,0.2"
takes_settings() {
    [ "$status" != 0 ] && [ "$(grep -c '^sweep: lazy has no setting "alpha"' stderr)" = 2 ] &&
        grep -q '^sweep: run a-lr0.1 failed' stderr && grep -q '^sweep: run a-lr0.2 failed' stderr
}
holds "the commas of --sync-option make no runs" takes_settings
# What a run gives holds in place of what all runs have, --epochs in place of --steps, too.
# shellcheck disable=SC2086
run_alone "$sweep" --out held --model mlp --epochs 9 --lr 0.5 -- "b: --lr 0.001 --steps 7"
held_steps() { [ "$status" = 0 ] && [ "$(latest steps held/b.jsonl)" = 7 ]; }
holds "options of a run hold in place of those of all" held_steps
refused "a table for which there is no place" '--stats is for train only' --stats -- "a: --sync lazy"
refused "an option that runs cannot have" 'run a: --log is not an option of a run' -- "a: --log x"
refused "a log for all runs" '--log is for train only; .*remove it' --log x -- "a: --sync lazy"
refused "an accuracy above 1" '--target 98: give a number from 0.01 to 1' --target 98 -- "a: --sync lazy"
refused "a list that is not there" 'cannot read the list nowhere' --list nowhere
refused "data that are not there, in a folder named as an option but for two letters" 'there is no data folder mylist' \
    --data mylist -- "a: --sync lazy"
refused "a run that stands before the --" '"a: --sync lazy" is a run: give the runs after --' "a: --sync lazy"
: >taken
# shellcheck disable=SC2086  # options are several words
run_alone "$sweep" --out taken $common -- "a: --sync lazy"
holds "refused with one sentence: a file in place of the folder" is_refused 'taken exists and is not a folder'
# shellcheck disable=SC2086  # flags are several words
run_alone "$launcher" $flags -n 1 "$sweep" --out refused $common -- "a: --sync lazy" : \
    -n 1 "$sweep" --out refused $common -- "a: --sync blocking"
holds "refused with one sentence: ranks with different runs" is_refused 'rank 1: started with "a: --sync blocking" where'
on_two "$sweep" -- "a: --sync lazy"
holds "refused with one sentence on 2 ranks: no folder" is_refused 'needs a folder'
run_alone "$sweep" --out one --target 0.5 --target=0.6 -- "a: --sync lazy"
holds "refused with one sentence: an option given twice" is_refused '--target is given twice: give it once'
run_alone "$sweep" --out one --out two -- "a: --sync lazy"
holds "refused with one sentence: a second folder" is_refused '--out is given twice: give it once'

# ---- Another network ----

# Each rank is a node. At 1 Mbit/s the bytes decide: lazy sends gradients in each of 4 steps, localsgd parameters once.
# shellcheck disable=SC2086  # flags are several words
ISO_RANKS_PER_NODE=1 run_alone "$launcher" $flags -n 2 "$sweep" --out nodes --model mlp --steps 4 --eval-every 2 \
    --target 0.01 --predict 1,5 -- "lazy: --sync lazy" "few: --sync localsgd --period 4"
predicted() { # mode, column
    tr -d '\r' <nodes/predictions.csv | awk -F, -v mode="$1" -v column="$2" '$1 == mode { print $column }'
}
winner_is_named() {
    [ "$status" = 0 ] && [ "$(wc -l <nodes/predictions.csv)" = 3 ] && [ "$(predicted few 3) $(predicted lazy 3)" = "1 2" ] &&
        grep -q '<p>Predicted winner: <b>few</b>, [0-9.]* s to 1 % test accuracy' nodes/report.html
}
holds "--predict names the mode that would win on another network" winner_is_named
# 4 steps of 2.68 MB from each node take 89.6 s with headers; computing and waits come on top.
bytes_decide() {
    awk -v lazy="$(predicted lazy 10)" -v measured="$(predicted lazy 9)" \
        'BEGIN { exit !(lazy > 89 && lazy < 91 + measured) }'
}
holds "what it predicts is what the bytes take" bytes_decide
run_alone "$sweep" --report nodes --predict=1000000
predicts_anew() {
    [ "$status" = 0 ] && [ "$(predicted lazy 4)" = 1000000 ] &&
        awk -v then="$(predicted lazy 10)" -v now="$(predicted lazy 9)" 'BEGIN { exit !(now > 0 && then / now < 1.01) }' &&
        run_alone "$sweep" --report nodes && [ "$status" = 0 ] && [ ! -e nodes/predictions.csv ] &&
        ! grep -q 'Predicted' nodes/report.html
}
holds "--report predicts anew, and no faster network; without --predict nothing is left of it" predicts_anew
cp -r nodes local && sed -i 's/"nodes":2/"nodes":1/' local/*.jsonl
run_alone "$sweep" --report local --predict=10
[ "$status" = 0 ] && grep -q '2 of 2 modes cannot be predicted: their ranks were on one node' local/report.html &&
    ! grep -q 'Predicted winner' local/report.html && grep -q '^lazy,A,[12],10,0,1,[0-9.]*,,[0-9.]*,,0,0.$' local/predictions.csv
result $? "--predict says that ranks of one node cannot be predicted"
run_alone "$sweep" --report nodes --predict 100,
holds "refused with one sentence: half a network" is_refused '--predict 100,: give RATE or RATE,LATENCY'

refused "a misspelt option of its own" 'unknown option --tagret: did you mean --target\?' --tagret 0.9 -- "a: --sync lazy"
refused "a misspelt option of all runs" 'unknown option --epoch: did you mean --epochs\?' --epoch=3 -- "a: --sync lazy"
run_alone "$sweep" -h
helped() { [ "$status" = 0 ] && grep -q '^  --out FOLDER' stdout; }
holds "-h prints the help" helped

print_plan
