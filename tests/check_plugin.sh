#!/bin/sh
# SPDX-License-Identifier: MIT
# Loads plugins into train and sweep: examples/plugin_diloco.c has the bits of --sync diloco, and a file that is no
# plugin is refused with one sentence. Prints the results as TAP.
# usage: check_plugin.sh, in the build tree; uses MPICC (mpicc), MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
build=$PWD
cc=${MPICC:-mpicc}
plugin=$PWD/bin/.libs/plugin_diloco.so
if [ ! -e "$plugin" ]; then
    echo "1..0 # SKIP this build has no shared library"
    exit 0
fi
enter_work

# ---- The example ----

result "$([ "$(wc -l <"$root/examples/plugin_diloco.c")" -lt 120 ]; echo $?)" "the example has less than 120 lines"

set -- --model mlp --batch 16 --steps 48 --quiet --overwrite --checkpoint state --checkpoint-every 12
numbers="--period 7 --outer-lr 0.6 --outer-momentum 0.8"
for ranks in 2 3; do
    # shellcheck disable=SC2086  # several words
    run $ranks "$train" "$@" --log builtin --sync diloco $numbers
    expected=$(field param_hash builtin)
    rm -f state*
    # shellcheck disable=SC2086
    run $ranks "$train" "$@" --log own --plugin "$plugin" --sync my-diloco $numbers
    [ "$status" = 0 ] && [ -n "$expected" ] && [ "$(field param_hash own)" = "$expected" ]
    result $? "the plugin has the bits of --sync diloco on $ranks ranks"
    # Without its last set a run goes on from the one before, which lies inside a period.
    rm -f state.step-000000000048*
    # shellcheck disable=SC2086
    run $ranks "$train" "$@" --log resumed --plugin="$plugin" --sync my-diloco $numbers --resume state
    [ "$status" = 0 ] && [ "$(field param_hash resumed)" = "$expected" ] && grep -q '"event":"resume"' resumed
    result $? "a resumed run with a plugin has the same bits on $ranks ranks"
    rm -f state*
done
run 2 "$train" --model mlp --dtype f64 --batch 16 --steps 20 --quiet --log a --sync diloco --period 6
run 2 "$train" --model mlp --dtype f64 --batch 16 --steps 20 --quiet --log b --sync my-diloco --period 6 \
    --plugin "$plugin"
[ -n "$(field param_hash a)" ] && [ "$(field param_hash a)" = "$(field param_hash b)" ]
result $? "the plugin has the bits of --sync diloco in f64"

run_alone "$train" --plugin "$plugin" --help
grep -q 'my-diloco: DiLoCo, written as a plugin' stdout && grep -q -- '--outer-lr X.*my-diloco 0.7' stdout
result $? "--help shows the modes and options of a plugin"

cp "$plugin" here.so
run 2 "$programs/sweep" --out study --plugin here.so --model mlp --steps 20 --test-limit 50 --quiet -- \
    "own: --sync my-diloco --period 4,8"
[ "$status" = 0 ] && grep -q own-period4 study/runs.csv && grep -q own-period8 study/runs.csv
result $? "sweep compares the modes of a plugin, which lies in this folder"

# ---- What is no plugin ----

# Every rank must end: with one sentence, and in time.
refused() { # what is wrong, pattern of the sentence, arguments...
    name=$1
    sentence=$2
    shift 2
    run 3 "$train" --model mlp --steps 5 --quiet "$@"
    has_failed && one_sentence train ".*$sentence" stderr && ! has_crashed stderr
    result $? "refused with one sentence: $name"
}
compile() { # name, text: name.so
    printf '#include <isotherm.h>\n%s\n' "$2" >"$1.c"
    "$cc" -shared -fPIC -I"$root/include" -I"$build/include" -o "$1.so" "$1.c" >compiler 2>&1 || sed 's/^/# /' compiler
}
nothing='iso_status iso_plugin_init(void) { return ISO_OK; }'
refused "no such file" 'cannot read the plugin nowhere.so: No such file' --plugin nowhere.so
echo "not a shared object" >text.so
refused "a text" 'cannot load the plugin text.so: .*: build it as' --plugin text.so
head -c "$(($(wc -c <"$plugin") / 2))" "$plugin" >half.so
refused "a file that was cut off" 'the plugin half.so is cut off' --plugin half.so
refused "a folder" 'cannot load the plugin \./: ' --plugin ./
refused "no value" '--plugin needs a value: FILE.so' --plugin
refused "two plugins" '--plugin is given twice' --plugin "$plugin" --plugin "$plugin"
compile bare "$nothing"
refused "a library without a version" 'the plugin bare.so does not say for which version' --plugin bare.so
compile empty 'ISO_PLUGIN;'
refused "no entry point" 'the plugin empty.so has no function iso_plugin_init' --plugin empty.so
compile failing 'ISO_PLUGIN; iso_status iso_plugin_init(void) { return iso_error_set(ISO_ERR_IO, "no tea"); }'
refused "an entry point that fails" 'the plugin failing.so failed to start: no tea' --plugin failing.so
compile silent "ISO_PLUGIN; $nothing"
refused "no strategy" 'the plugin silent.so registered no strategy' --plugin silent.so
compile other 'const int iso_plugin_version[2] = {9, 8}; iso_status iso_plugin_init(void) { *(volatile int *)0 = 1; return ISO_OK; }'
refused "another version" 'the plugin other.so was built for Isotherm 9.8, and this is Isotherm' --plugin other.so
compile undefined 'ISO_PLUGIN; int missing(void); iso_status iso_plugin_init(void) { return (iso_status)missing(); }'
refused "an undefined symbol" 'cannot load the plugin undefined.so: undefined symbol: missing' --plugin undefined.so
compile taken 'ISO_PLUGIN; iso_status iso_plugin_init(void) { return iso_strategy_register(&(iso_strategy){.name = "lazy"}); }'
refused "a name in use" 'the plugin taken.so failed to start: strategy .lazy. exists already' --plugin taken.so
compile clash 'ISO_PLUGIN; static const iso_setting own[] = {{"epochs", ISO_SETTING_INTEGER, 0, 1, 9}};
iso_status iso_plugin_init(void) {
    return iso_strategy_register(&(iso_strategy){.name = "clash", .text = "clashes", .setting = own, .setting_count = 1});
}'
refused "a setting that train has" 'the plugin clash.so: setting epochs of clash is an option of train already' --plugin clash.so
refused "a setting out of range" '--outer-lr 0: give a number' --plugin "$plugin" --sync my-diloco --outer-lr 0
refused "a mode without its plugin" '--sync my-diloco is not supported' --sync my-diloco
# The copy beside the program may differ between machines: here, rank 1 has none.
# shellcheck disable=SC2016  # of the inner shell
run 3 sh -c 'cd "$([ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-1}}" = 1 ] && echo / || pwd)" && exec "$@"' sh \
    "$train" --model mlp --steps 5 --quiet --plugin here.so
has_failed && grep -q 'train: rank 1: cannot read the plugin here.so: No such file' stderr
result $? "a plugin that one rank lacks ends all"

print_plan
