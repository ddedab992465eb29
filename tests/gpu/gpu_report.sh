#!/bin/bash
# SPDX-License-Identifier: MIT
# Builds Isotherm on a host with a GPU, tests, measures and profiles it there, all within ten minutes.
# usage: tests/gpu/gpu_report.sh [--quick] [--budget SECONDS (570)] [--tree DIR] [--only PART,...] OUT [DEPS]
#   OUT      folder for table.md, summary.txt and logs: eight files, none above 8 MiB
#   DEPS     folder of dependencies for a host without package access: DEPS/setup.sh is sourced (it may unpack packages
#            beside it, and sets PATH and the like)
#   --quick  tiny sizes: tries the script and measures nothing
#   --tree   builds in DIR and keeps it for the next time; otherwise in a folder that is removed
#   --only   parts of build,measure,check,train,ranks,profile,sanitize (all, in this order); each needs the build, which
#            always comes; train needs GPU_REPORT_MNIST, a folder with MNIST's files
# The tree may be an unpacked "make dist", or a checkout; in one without configure autoreconf is run. What is built is
# a copy of it. No GPU setting is changed. Stages come in the order of their worth, each with its own limit; those
# for which no time is left say so. Nothing that they started is left behind.
# GPU_REPORT_CONFIGURE: flags of configure instead of --with-cuda --enable-cuda-lineinfo --with-cuda-arch=(of the GPU):
#   "--with-cuda=emulated"
# tries it all on a host without a GPU. GPU_REPORT_STEPS: options of bench_step instead of the stage's own.
# GPU_REPORT_PEER: options of peers/step_pytorch_gpu.py, whose "--device cpu" needs no GPU either. PYTHON: a Python
# that has torch (python3).
set -eu -o pipefail

self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
export MPIRUN=${MPIRUN:-mpirun} PYTHON=${PYTHON:-python3}

# ---- What stages do: "gpu_report.sh --inside NAME ARGUMENT..." ------------------------------------------------------

do_unpack() { # once, under a limit of time; sourced again later, it only sets the environment
    # shellcheck disable=SC1091
    . "$deps/setup.sh"
}

# A copy, in which what autoreconf made counts as new whatever times the files came with.
do_copy() {
    mkdir -p "$tree/source"
    tar -C "$root" --exclude='./.??*' --exclude='./build*' --exclude=./config.status --exclude=./autom4te.cache -cf - . |
        tar -C "$tree/source" -xf -
    cd "$tree/source"
    if [ ! -e configure ] || [ ! -e Makefile.in ] || [ ! -e autotools/aux/ltmain.sh ]; then
        autoreconf -i
    fi
    touch -d 2000-01-01 aclocal.m4 configure config.h.in
    touch Makefile.in
}

# Folders of headers and libraries that PyTorch's packages bring along, where the toolkit has none.
wheel_folders() { # header, include|lib
    local toolkit
    toolkit=$(dirname "$(readlink -f "$(command -v nvcc)")")/../include
    ! echo "#include <$1>" | cc -E -I"$toolkit" - >/dev/null 2>&1 || return 0
    timeout -k 2 20 "$PYTHON" - "$1" "$2" <<'END' 2>/dev/null || true
import glob, os, sys
import nvidia
for path in nvidia.__path__:
    for header in glob.glob(os.path.join(path, "*", "include", sys.argv[1])):
        print(os.path.join(os.path.dirname(os.path.dirname(header)), sys.argv[2]))
        sys.exit()
END
}

do_configure() {
    mkdir -p "$build"
    cd "$build"
    # shellcheck disable=SC2086  # flags are several words
    [ -e Makefile ] || "$tree/source/configure" $flags CPPFLAGS="${CPPFLAGS:-} $include_flags"
}

# Not even asks whether what autoreconf made is older than what it was made of.
made() { make -C "$build" am__configure_deps= am__aclocal_m4_deps= "$@"; }

do_build() {
    made -j "$jobs" all # first: it is a make of its own
    made -j "$jobs" gpu-programs tests/bench/bench_step tests/bench/bench_gpu_ops
}

# Registers, stack and spilled bytes of each kernel; more than 128 registers at 256 threads halve what runs at a time.
do_resources() {
    case $flags in *emulated*) echo "none: the kernels are emulated" && return ;; esac
    cuobjdump --dump-resource-usage "$build"/.libs/libisotherm.so | sh "$tree/source/tests/gpu/gpu_resources.sh"
}

# A step of training that a GPU has to have made.
do_device() {
    "$build/tests/bench/bench_step" --device cuda --model mlp --batch 16 --steps 5 --warmup 2
}

do_check_gpu() {
    find "$build/tests" '(' -name '*.trs' -o -name '*.log' ')' -delete
    CRITERION_JOBS=${CRITERION_JOBS:-4} made -j $((jobs > 8 ? 8 : (jobs + 1) / 2)) check-gpu VERBOSE=1
}

do_train() {
    cd "$build" && sh "$tree/source/tests/gpu/gpu_train.sh" "$GPU_REPORT_MNIST" | tee "$work/train"
    ! grep -q '^not ok' "$work/train"
}

# ---- Benchmarks -----------------------------------------------------------------------------------------------------

bench() { # name, options: its lines into bench.jsonl
    local name=$1
    shift
    "$build/tests/bench/bench_$name" "$@" >>"$out/bench.jsonl"
}

do_kernels() {
    # shellcheck disable=SC2086
    bench gpu_ops --device cuda ${quick:+--quick}
}

# Batches and numbers of steps that take about as long.
do_steps() {
    local maths=bf16,tf32,f32
    if [ -n "${GPU_REPORT_STEPS:-}" ]; then
        # shellcheck disable=SC2086
        bench step --device cuda $GPU_REPORT_STEPS
        return
    fi
    if [ -n "$quick" ]; then
        bench step --device cuda --model mlp,cnn --batch 4 --math "$maths" --graphs on,off --steps 5 --warmup 2
        return
    fi
    # Enough of the short ones that the GPU's clock is up.
    bench step --device cuda --model mlp,cnn --batch 64,256,1024 --math "$maths" --graphs on,off --steps 1000 --warmup 200
    bench step --device cuda --model resnet18 --batch 64,256 --math "$maths" --graphs on,off --steps 50
    bench step --device cuda --model mlp,cnn --batch 4096 --math "$maths" --graphs on,off --steps 50
    bench step --device cuda --model resnet18 --batch 1024,4096 --math "$maths" --graphs on,off --steps 15 --warmup 4
}

do_peer() {
    local sizes="--block-ms 40"
    [ -z "$quick" ] || sizes="--models mlp,cnn --batches 4 --block-ms 2 --peak-size 64 --peak-mb 1"
    # shellcheck disable=SC2086
    "$PYTHON" "$tree/source/tests/bench/peers/step_pytorch_gpu.py" --peak $sizes ${GPU_REPORT_PEER:-} >>"$out/bench.jsonl"
}

# Two ranks that use the one GPU. host: their gradients meet in the host's memory. nccl: each claims to be a host of its
# own, as NCCL lets only ranks of different hosts share a GPU; they talk over sockets then, which is no measure of NCCL
# between GPUs, but tries that it works.
do_two_ranks() { # host|nccl
    local network steps=60
    local -a networks=("cnn 256" "resnet18 64")
    [ -z "$quick" ] || { steps=10 networks=("mlp 4"); }
    [ "$1" = host ] || export ISO_NODE_COLLECTIVE=nccl
    for network in "${networks[@]}"; do
        # shellcheck disable=SC2016
        "$MPIRUN" --oversubscribe --bind-to none -n 2 sh -c '
            [ "$1" = host ] || export NCCL_HOSTID="rank$OMPI_COMM_WORLD_RANK"
            shift
            exec "$@"' sh "$1" "$build/tests/bench/bench_step" --device cuda:0 --model "${network% *}" \
            --batch "${network#* }" --steps "$steps" --warmup 4 --report-hidden |
            sed "s/{/{\"way\": \"$1\", /" >>"$out/bench.jsonl"
    done
}

# ---- Sanitizer and profile ------------------------------------------------------------------------------------------

# Several at a time: most of their time passes on the host.
do_sanitize() { # memcheck|racecheck
    local -a programs=(step:mlp:off:f32 step:cnn:on:bf16 step:resnet18:off:bf16 tests/gpu/cuda_layout.unit
        tests/gpu/cuda_bias.unit tests/gpu/cuda_clip.unit tests/gpu/cuda_norm_types.unit tests/unit/device_loss.unit
        tests/unit/device_norm.unit tests/unit/device_activation.unit)
    [ "$1" = racecheck ] || programs+=(step:mlp:on:bf16 step:cnn:on:tf32 step:resnet18:off:f32 tests/gpu/cuda_half.unit
        tests/gpu/cuda_pool_types.unit tests/unit/device_pool.unit tests/unit/device_conv.unit tests/unit/device_update.unit
        tests/gpu/cuda_conv.unit)
    printf '%s\n' "${programs[@]}" | xargs -P $((jobs > 8 ? 6 : 3)) -n 1 bash "$self" --inside sanitize_one "$1"
}

NVIDIAS='nvjet|cutlass|xmma|cudnn|cublas|cask'
do_sanitize_one() { # tool, program
    local status=0 log
    local -a command
    log=$(mktemp "$work/sanitizer.XXXXXX")
    case $2 in
    step:*)
        IFS=: read -r _ model graphs math <<<"$2"
        command=("$build/tests/bench/bench_step" --device cuda --model "$model" --graphs "$graphs" --math "$math"
            --batch 4 --steps 2 --warmup 8)
        ;;
    *) command=("$build/$2" --jobs 1) ;;
    esac
    timeout -k 2 70 compute-sanitizer --tool "$1" --target-processes all --require-cuda-init=no \
        --error-exitcode 86 --print-limit 1000 "${command[@]}" >"$log" 2>&1 </dev/null || status=$?
    ! grep -qE 'SUMMARY: [1-9][0-9]* (error|hazard)' "$log" || status=86
    # Kernels of NVIDIA's libraries have ways of waiting that racecheck does not know. Excluding them by its options
    # makes it fail.
    if [ "$1 $status" = "racecheck 86" ] && grep -q 'Race reported' "$log" &&
        ! grep -oE '(Read|Write) access at [^ ]+' "$log" | grep -qvE "$NVIDIAS"; then
        status=0
    fi
    case $status in
    0) echo "PASS: $1 of $2" ;;
    124 | 137) echo "SKIP: $1 of $2 took too long" ;;
    *) echo "FAIL: $1 of $2 (status $status)" ;;
    esac >>"$work/sanitized"
    { echo "---- $1 of $2: ${command[*]} (status $status)" && head -c 200000 "$log"; } >"$log.short"
    cat "$log.short" >>"$out/sanitizer.log"
    [ "$status" = 0 ] || [ "$status" = 124 ] || [ "$status" = 137 ]
}

# A library that writes down when each kernel ran; folders with CUPTI: of the toolkit, or of PyTorch.
make_kernel_times() {
    local toolkit folder
    toolkit=$(dirname "$(readlink -f "$(command -v nvcc)")")/..
    folder=$(wheel_folders cupti.h include)
    cc -std=c11 -shared -fPIC "$tree/source/tests/gpu/kernel_times.c" -o "$work/libkernel_times.so" \
        -I"$toolkit/include" ${folder:+-isystem "$folder"} -L"$toolkit/lib64" -L"$toolkit/extras/CUPTI/lib64" \
        ${folder:+-L"${folder%/include}/lib"} -lcupti
}

# Times of all kernels, as they run in graphs; then a few of a step with what they use of the GPU.
do_profile() {
    local run model math batch
    make_kernel_times
    for run in "mlp bf16 64" "mlp tf32 64" "cnn bf16 64" "cnn tf32 64" "cnn bf16 256" "resnet18 bf16 64" "resnet18 bf16 1024"; do
        read -r model math batch <<<"$run"
        KERNEL_TIMES=$work/$model-$math-$batch.txt CUDA_INJECTION64_PATH=$work/libkernel_times.so \
            "$build/tests/bench/bench_step" --device cuda --model "$model" --math "$math" --graphs on --batch "$batch" \
            --steps 6 --warmup 24
        "$PYTHON" "$tree/source/tests/gpu/kernel_steps.py" "$work/$model-$math-$batch.txt"
    done
    command -v ncu >/dev/null || return 0
    ncu --clock-control none --launch-skip 1200 --launch-count 40 --csv \
        --metrics gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__warps_active.avg.pct_of_peak_sustained_active \
        "$build/tests/bench/bench_step" --device cuda --model resnet18 --math bf16 --graphs off --batch 1024 --steps 10 --warmup 5
}

# ---- Limits ---------------------------------------------------------------------------------------------------------

# The processes of a session.
members() { # session
    local file line
    local -a field
    for file in /proc/[0-9]*/stat; do
        { read -r line <"$file"; } 2>/dev/null || continue
        read -ra field <<<"${line##*) }" # state, parent, group, session
        [ "${field[3]:-}" != "$1" ] || [ "${field[0]}" = Z ] || echo "${file//[!0-9]/}"
    done
}

end_session() { # session
    local signal pids i
    for signal in TERM KILL; do
        for i in 1 2 3 4 5 6 7 8 9 10; do
            pids=$(members "$1")
            [ -n "$pids" ] || return 0
            # shellcheck disable=SC2086
            [ "$i" != 1 ] || kill -s $signal $pids 2>/dev/null || true
            sleep 0.2
        done
    done
}

# Runs a command in a session of its own, of which nothing is left afterwards. Status 124: it took too long. It is not
# waited for then, as a process that is stuck in a driver cannot be ended.
limited() { # seconds, command...
    local deadline=$((SECONDS + $1)) pid status=0
    shift
    [ "$deadline" -le $((budget - reserve)) ] || deadline=$((budget - reserve))
    setsid "$@" </dev/null &
    pid=$!
    while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
    ! kill -0 "$pid" 2>/dev/null || status=124
    end_session "$pid"
    [ "$status" = 124 ] || wait "$pid" || status=$?
    return "$status"
}

# Keeps both ends of a file that is too long.
cap() { # file
    local most=8000000
    [ "$(stat -c %s "$1")" -gt $most ] || return 0
    { head -c $((most / 2)) "$1" && printf '\n\n... cut ...\n\n' && tail -c $((most / 2 - 100)) "$1"; } >"$1.capped"
    mv "$1.capped" "$1"
}

note() { # stage, result
    printf '%-28s %s\n' "$1" "$2" | tee -a "$out/summary.txt"
}

# Runs a stage and tells how it ended; fails unless it ended well.
stage() { # name, limit, log, function, arguments...
    local name=$1 limit=$2 log=$out/$3 start=$SECONDS status=0
    shift 3
    if [ $((budget - reserve - SECONDS)) -lt 3 ]; then
        note "$name" "cut: no time is left"
        cuts=$((cuts + 1))
        return 1
    fi
    printf '\n======== %s\n' "$name" >>"$log"
    limited "$limit" bash "$self" --inside "$@" >>"$log" 2>&1 || status=$?
    cap "$log"
    case $status in
    0) note "$name" "done in $((SECONDS - start)) s" ;;
    124)
        note "$name" "cut after $((SECONDS - start)) s"
        cuts=$((cuts + 1))
        ;;
    *)
        note "$name" "FAILED with status $status after $((SECONDS - start)) s: see $(basename "$log")"
        failures=$((failures + 1))
        tail -n 15 "$log" | sed 's/^/    /'
        ;;
    esac
    return "$status"
}

# ---- The host -------------------------------------------------------------------------------------------------------

ask_gpu() { # field
    timeout -k 2 20 nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -n 1 || true
}

look_at_host() {
    local capability
    gpu=$(ask_gpu name)
    driver=$(ask_gpu driver_version)
    capability=$(ask_gpu compute_cap)
    flags=${GPU_REPORT_CONFIGURE:---with-cuda --enable-cuda-lineinfo${capability:+ --with-cuda-arch=${capability/./}}}
    jobs=$(env -u OMP_NUM_THREADS nproc)
    PATH=$PATH:/usr/local/cuda/bin
    include_flags=
    if command -v nvcc >/dev/null && [ -z "${GPU_REPORT_CONFIGURE:-}" ]; then
        local header folder
        for header in cublas_v2.h cudnn.h nccl.h; do
            folder=$(wheel_folders $header include)
            [ -z "$folder" ] || include_flags="$include_flags -isystem $folder"
            folder=$(wheel_folders $header lib)
            [ -z "$folder" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
        done
    fi
    export gpu driver flags jobs include_flags PATH
    [ -z "${LD_LIBRARY_PATH:-}" ] || export LD_LIBRARY_PATH
}

torch_sees_gpu() {
    [ -z "${GPU_REPORT_PEER:-}" ] || return 0
    limited 60 "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' >>"$out/runs.log" 2>&1
}

# Whether compute-sanitizer runs a program, and then one that uses the GPU.
sanitizer_works() {
    command -v compute-sanitizer >/dev/null || {
        note sanitizer "skipped: there is no compute-sanitizer"
        return 1
    }
    if limited 20 compute-sanitizer --require-cuda-init=no true &&
        limited 60 compute-sanitizer "$build/tests/bench/bench_step" --device cuda --model mlp --batch 4 --steps 1 --warmup 1; then
        return 0
    fi >>"$out/sanitizer.log" 2>&1
    note sanitizer "skipped: compute-sanitizer does not run programs here: see sanitizer.log"
    return 1
}

# ---- All stages -----------------------------------------------------------------------------------------------------

make_ready() {
    if [ -n "$deps" ] && [ -e "$deps/setup.sh" ]; then
        stage "dependencies" 60 build.log unpack || return 1
        set +eu +o pipefail
        # shellcheck disable=SC1091
        . "$deps/setup.sh" >>"$out/build.log" 2>&1
        set -eu -o pipefail
    fi
    # shellcheck source=../test_env.sh
    . "$root/tests/test_env.sh"
    look_at_host
    note "host" "${gpu:-no GPU that nvidia-smi knows}${driver:+, driver $driver}, $jobs cores; configure $flags"
    stage "copy of the tree" 60 build.log copy && stage "configure" 90 build.log configure && stage "build" 280 build.log build &&
        { stage "registers and spills" 60 build.log resources || true; }
}

# Programs that were ended with the stage neither passed nor failed.
forget_ended() {
    local log
    { grep -lr --include='*.log' 'terminated by signal 15' "$build/tests" || true; } |
        while read -r log; do rm -f "${log%.log}.trs"; done
}

# One context stays open meanwhile, so that no program waits for the driver to start the GPU up.
hold_context() {
    [ -z "${GPU_REPORT_CONFIGURE:-}" ] || return 0
    setsid "$PYTHON" -c 'import time, torch; x = torch.zeros(1, device="cuda"); time.sleep(600)' </dev/null >/dev/null 2>&1 &
    holder=$!
}

measure() {
    stage "steps" 150 runs.log steps || true
    if torch_sees_gpu; then
        stage "steps of PyTorch" 240 runs.log peer || true
    else
        note "steps of PyTorch" "skipped: $PYTHON has no torch that sees a GPU"
    fi
    stage "kernels" 60 runs.log kernels || true
}

check() {
    stage "make check-gpu" 240 tests.log check_gpu || forget_ended
}

train() {
    if [ -z "${GPU_REPORT_MNIST:-}" ]; then
        note "MNIST" "skipped: GPU_REPORT_MNIST is not set"
        return
    fi
    stage "MNIST" 120 runs.log train || true
    grep -E '^(not )?ok ' "$out/runs.log" | tee -a "$out/summary.txt"
}

sanitize() {
    sanitizer_works || return 0
    stage "memcheck" 120 sanitizer.log sanitize memcheck || true
    stage "racecheck" 150 sanitizer.log sanitize racecheck || true
}

profile() {
    if command -v nvcc >/dev/null && [ -z "${GPU_REPORT_CONFIGURE:-}" ]; then
        stage "profile" 90 profile.log profile || true
    else
        note "profile" "skipped: there is no nvcc"
    fi
}

ranks() {
    command -v "$MPIRUN" >/dev/null || { note "two ranks" "skipped: there is no $MPIRUN" && return; }
    stage "two ranks, host memory" 60 runs.log two_ranks host || true
    if grep -q '^#define ISO_HAVE_NCCL' "$build/config.h"; then
        stage "two ranks, NCCL" 45 runs.log two_ranks nccl || true
    else
        note "two ranks, NCCL" "skipped: configure found no NCCL"
    fi
}

# Numbers of tests, of programs under the sanitizer, and the tables.
sum_up() {
    local tests
    tests=$(sh "$root/tests/summary.sh" "$build" 2>/dev/null | tee -a "$out/tests.log" | tail -n 1) || failures=$((failures + 1))
    note "tests" "${tests:-none were run}"
    if [ -s "$work/sanitized" ]; then
        note "sanitizer" "$(grep -c ^PASS "$work/sanitized") passed, $(grep -c ^FAIL "$work/sanitized") failed, $(
            grep -c ^SKIP "$work/sanitized"
        ) skipped"
        sed -n 's/^FAIL: /    /p' "$work/sanitized" | tee -a "$out/summary.txt"
        { echo && sort "$work/sanitized"; } >>"$out/sanitizer.log"
    fi
    awk -f "$(dirname "$self")/gpu_table.awk" -v gpu="${gpu:-(no GPU)}" -v driver="${driver:-}" -v date="$(date +%F)" \
        -v quick="$quick" "$out/bench.jsonl" >"$out/table.md" || failures=$((failures + 1))
    note "stages" "$failures failed, $cuts cut; $SECONDS of $budget s"
}

parse() {
    local words
    words=$(sed -n '4,12s/^# \{0,1\}//p' "$self")
    quick='' budget=570 tree='' deps='' only=measure,check,train,ranks,profile,sanitize
    while [ $# -gt 0 ]; do
        case $1 in
        --quick) quick=yes ;;
        --budget) budget=$2 && shift ;;
        --tree) tree=$2 && shift ;;
        --only) only=$2 && shift ;;
        -*) echo "$words" >&2 && exit 2 ;;
        *) break ;;
        esac
        shift
    done
    [ $# = 1 ] || [ $# = 2 ] || { echo "$words" >&2 && exit 2; }
    mkdir -p "$1"
    out=$(cd "$1" && pwd)
    [ -z "${2:-}" ] || deps=$(cd "$2" && pwd)
    for part in ${only//,/ }; do
        case $part in
        build | measure | check | train | ranks | profile | sanitize) ;;
        *) echo "gpu_report.sh: --only: there is no part \"$part\" (build, measure, check, train, ranks, profile, sanitize)" >&2 && exit 2 ;;
        esac
    done
}

main() {
    parse "$@"
    root=$(cd "$(dirname "$self")/../.." && pwd)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    tree=${tree:-$work}
    mkdir -p "$tree"
    tree=$(cd "$tree" && pwd)
    build=$tree/build
    failures=0 cuts=0
    reserve=10 # seconds for the end
    export quick build tree out root work deps
    : >"$work/sanitized"
    for file in summary.txt table.md build.log tests.log sanitizer.log bench.jsonl runs.log profile.log; do : >"$out/$file"; done
    holder=
    if make_ready && stage "a step on the device" 120 runs.log device; then
        hold_context
        for part in measure check train ranks profile sanitize; do
            case ,$only, in *,$part,*) $part ;; esac
        done
    fi
    [ -z "$holder" ] || end_session "$holder"
    sum_up
    [ "$failures$cuts" = 00 ]
}

if [ "${1:-}" = --inside ]; then
    shift
    "do_$1" "${@:2}"
else
    main "$@"
fi
