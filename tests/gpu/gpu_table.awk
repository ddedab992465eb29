# SPDX-License-Identifier: MIT
# Makes Markdown tables of the JSON lines that benchmarks on a GPU leave; gpu_report.sh runs it.
# Variables: gpu, driver, date, quick (not empty: sizes were tiny)

# A field of the line, "" if it has none.
function field(name, found, rest) {
    found = index($0, "\"" name "\": ")
    if (!found) return ""
    rest = substr($0, found + length(name) + 4)
    if (substr(rest, 1, 1) == "\"") {
        rest = substr(rest, 2)
        return substr(rest, 1, index(rest, "\"") - 1)
    }
    match(rest, /^[^,}]*/)
    return substr(rest, 1, RLENGTH)
}
function remember(list, count, value) { if (!(value in seen)) { seen[value] = 1; list[++count] = value }; return count }
function number(value, format) { return value == "" ? "-" : sprintf(format, value) }
function least(a, b) { return a == "" ? b : b == "" ? a : (a + 0 < b + 0 ? a : b) }
function share(a, b) { return a == "" || b == "" || b + 0 == 0 ? "-" : sprintf("%.2f", a / b) }
# What the vendor states for dense products on tensor cores (f32: without them), TFLOP/s.
function stated(math) {
    if (gpu ~ /H[12]00/ && gpu !~ /PCIe|NVL/) return math == "f32" ? "67" : math == "tf32" ? "495" : "989"
    if (gpu ~ /A100/) return math == "f32" ? "19.5" : math == "tf32" ? "156" : "312"
    return ""
}

/"bench": "gpu_op", "device"/ { device = field("device") }
/"bench": "peak"/ {
    if (field("tflops") != "") peak[field("math")] = field("tflops")
    else their_copy = field("gbs")
}
/"bench": "step"/ && field("peer") != "" {
    peer = field("peer")
    key = field("model") " | " field("batch") " | " field("math")
    steps = remember(step_keys, steps, key)
    theirs[key, field("mode")] = field("step_ms")
}
/"bench": "step"/ && field("device") != "" && field("ranks") == 1 {
    key = field("model") " | " field("batch") " | " field("math")
    steps = remember(step_keys, steps, key)
    ours[key, field("graphs")] = field("step_ms")
}
/"bench": "step"/ && field("hidden") != "" {
    hidden[++hiddens] = sprintf("| %s | %s | %s | %s | %s | %s | %s | %s | %s |", field("model"), field("batch"),
        field("way") == "nccl" ? "NCCL over sockets" : "host memory", field("none_ms"),
        field("exchange_alone_ms"), field("blocking_ms"), field("lazy_ms"), field("exposed_ms"), field("hidden"))
}
/"bench": "gpu_op"/ && field("tflops") != "" {
    op = field("op")
    if (op ~ /^conv/) {
        direction = op
        sub(/.* on [0-9x]* /, "", direction)
        op = "convolutions of resnet18, " direction
    }
    products = remember(product_ops, products, op)
    work[op, field("math")] += field("tflops") * field("ms")
    time[op, field("math")] += field("ms")
}
/"bench": "gpu_op"/ && field("gbs") != "" { memory[++memories] = "| " field("op") " | " field("gbs") " | " field("of_copy") " |" }
/"bench": "gpu_op"/ && field("us") != "" { launch = field("us") }

function rate(op, math, value) {
    if (!((op, math) in time) || time[op, math] == 0) return "- | -"
    value = work[op, math] / time[op, math]
    return sprintf("%.1f | %s", value, share(value, peak[math]))
}
function tell_steps(i, k, mine, best) {
    print "| network | batch | math | Isotherm | without graphs | PyTorch eager | graph | compile | graph, deterministic | Isotherm / best |"
    print "|---|---|---|---|---|---|---|---|---|---|"
    for (i = 1; i <= steps; i++) {
        k = step_keys[i]
        mine = least(least(ours[k, "on"], ours[k, "off"]), ours[k, "default"])
        best = least(least(theirs[k, "eager"], theirs[k, "graph"]), least(theirs[k, "compile"], theirs[k, "max-autotune"]))
        print "| " k " | " number(least(ours[k, "on"], ours[k, "default"]), "%.3f") " | " number(ours[k, "off"], "%.3f") " | " \
            number(theirs[k, "eager"], "%.3f") " | " number(theirs[k, "graph"], "%.3f") " | " \
            number(theirs[k, "compile"], "%.3f") " | " number(theirs[k, "graph deterministic"], "%.3f") " | " \
            share(mine, best) " |"
    }
}
function tell_products(i, op) {
    print "| product | f32 | of peak | tf32 | of peak | bf16 | of peak |"
    print "|---|---|---|---|---|---|---|"
    for (i = 1; i <= products; i++) {
        op = product_ops[i]
        print "| " op " | " rate(op, "f32") " | " rate(op, "tf32") " | " rate(op, "bf16") " |"
    }
    print "| peak: matmul of PyTorch | " number(peak["f32"], "%.1f") " | | " number(peak["tf32"], "%.1f") " | | " \
        number(peak["bf16"], "%.1f") " | |"
    if (stated("f32") != "") print "| stated by the vendor | " stated("f32") " | | " stated("tf32") " | | " stated("bf16") " | |"
}
END {
    printf "On %s%s, %s%s (`tests/gpu/gpu_report.sh`)%s.\n", gpu, driver == "" ? "" : ", driver " driver, date,
        peer == "" ? "" : ", against " peer, quick == "" ? "" : ". **Tiny sizes: these figures are no measurement**"
    if (device != "") print "\nDevice: " device "."
    if (steps) { print "\nMilliseconds of a training step:\n"; tell_steps() }
    if (products) { print "\nTFLOP/s of products:\n"; tell_products() }
    if (memories) {
        print "\nGB/s of kernels that memory bounds, against a copy on the device" \
            (their_copy == "" ? "" : " (PyTorch's: " their_copy " GB/s)") ":\n"
        print "| kernel | GB/s | of copy |\n|---|---|---|"
        for (i = 1; i <= memories; i++) print memory[i]
        if (launch != "") print "\nA kernel of 256 numbers follows another after " launch " us."
    }
    if (hiddens) {
        print "\nTwo ranks that share one GPU (ms; hidden: of the exchange):\n"
        print "| network | batch each | way | compute | exchange alone | blocking | lazy | exposed | hidden |\n|---|---|---|---|---|---|---|---|---|"
        for (i = 1; i <= hiddens; i++) print hidden[i]
    }
    if (!steps && !products) print "\nNothing was measured."
}
