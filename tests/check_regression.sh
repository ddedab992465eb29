#!/bin/sh
# SPDX-License-Identifier: MIT
# Trains examples/regression.c on a CSV file made here, gives it damaged files, and prints the results as TAP.
# usage: check_regression.sh, in the build tree; uses MPIRUN and MPIRUN_FLAGS
# Not -e: what fails here is a result, not the end.
set -u

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
# shellcheck source=tests/program_tests.sh
. "$root/tests/program_tests.sh"
need_launcher
regression=$programs/regression
limit=120
enter_work

# Friedman's first test function, of the first five of six columns: its deviation is about 5.
table() { # rows
    awk -v rows="$1" '
        BEGIN {
            srand(1)
            print "a,b,c,d,e,f,\"the result\""
            for (i = 0; i < rows; i++) {
                for (k = 1; k <= 6; k++) {
                    x[k] = rand()
                    printf "%.6f,", x[k]
                }
                print 10 * sin(3.14159265 * x[1] * x[2]) + 20 * (x[3] - 0.5) ^ 2 + 10 * x[4] + 5 * x[5]
            }
        }'
}
table 500 >table.csv

last_error() { sed -n 's/^epoch 40: root mean square error of the test \([0-9.e+-]*\) .*/\1/p' stdout; }
is_refusal() { # pattern
    has_failed && [ "$(grep -c '^error' stderr)" = 1 ] && grep -qE "^error: $1" stderr && ! has_crashed stderr
}

for ranks in 1 2 3 4; do
    run $ranks "$regression" table.csv
    error=$(last_error)
    [ "$status" = 0 ] && [ ! -s stderr ] && awk -v e="${error:-9}" 'BEGIN { exit !(e < 1) }'
    result $? "$ranks ranks learn the function (error ${error:-unknown})"
done

# Columns in another order, by name and by number, with CR LF and without an end of the last line.
awk -F, -v OFS=, '{ print $7, $1, $2, $3, $4, $5, $6 }' table.csv | sed 's/$/\r/' | head -c -2 >other.csv
for column in "the result" 1; do
    run 2 "$regression" other.csv "$column"
    one=$(last_error)
    run 2 "$regression" table.csv
    [ "$status" = 0 ] && [ -n "$one" ] && [ "$one" = "$(last_error)" ]
    result $? "the column \"$column\" of another file gives the same"
done

cp table.csv damaged.csv
echo "1,2,x,4,5,6,7" >>damaged.csv
run 3 "$regression" damaged.csv
is_refusal 'damaged.csv:502: column 3 \(c\) holds "x": this is not a number'
result $? "a cell that is no number is refused, once"
head -n 500 table.csv >damaged.csv
echo "1,2" >>damaged.csv
run 2 "$regression" damaged.csv
is_refusal 'damaged.csv:501: this row has 2 cells and the first one has 7'
result $? "a row of another length is refused"
run 2 "$regression" table.csv price
is_refusal 'table.csv has no column "price": its columns are a, b, c, d, e, f, the result'
result $? "a missing column is refused"
run 2 "$regression" table.csv a,b
is_refusal 'name one column to predict, not "a,b"'
result $? "several columns are refused"
: >empty.csv
run 2 "$regression" empty.csv
is_refusal 'empty.csv is empty'
result $? "an empty file is refused"
run 2 "$regression" none.csv
is_refusal 'cannot open none.csv'
result $? "a missing file is refused"
head -n 5 table.csv >short.csv
run 2 "$regression" short.csv
is_refusal 'short.csv has 4 rows: it needs 5 or more'
result $? "too few rows are refused"
run 2 "$regression"
is_refusal 'give a CSV file'
result $? "no file is refused"

# Rank 0 runs in the folder a, and rank 1 in the folder b.
mkdir a b
table 100 >a/table.csv
table 101 >b/table.csv
# shellcheck disable=SC2016  # $@ belongs to the inner shells
run 1 sh -c 'cd a && exec "$@"' sh "$regression" table.csv : -n 1 sh -c 'cd b && exec "$@"' sh "$regression" table.csv
is_refusal 'table.csv is not the same on all ranks: rank 1 has other contents than rank 0'
result $? "another file on one rank is refused"

print_plan
