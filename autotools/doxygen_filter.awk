# SPDX-License-Identifier: MIT
# Input filter of Doxygen: turns the // comments of a public header into comments that Doxygen reads.
#
#   block above a declaration                     -> ///
#   block right below one, with a blank line next -> ///<
#   comment behind code, and the lines aligned below it -> ///<
#   first block of the file                       -> @file, of the umbrella header @mainpage
#   headings between rules (// ---- X ----)       -> left as they are
#
# Lines that are indented inside a comment are shown as they stand.

function escaped(text) {
    gsub(/[\\@<>&#%"]/, "\\\\&", text)
    gsub(/--/, "\\--", text) # else it becomes a dash
    return text
}

# One line of a comment, with `mark` for what it documents.
function print_comment(indent, mark, text) {
    if (text ~ /^ *- /)
        list = 1
    else if (text !~ /^   /)
        list = 0
    if (!list && text ~ /^   /) {
        if (!verbatim) print indent mark " @code{.unparsed}"
        verbatim = 1
        print indent mark text
        return
    }
    if (verbatim) print indent mark " @endcode"
    verbatim = 0
    print indent mark escaped(text)
}

function close_verbatim(indent, mark) {
    if (verbatim) print indent mark " @endcode"
    verbatim = 0
}

# Prints the block of comment lines that was collected. below: what follows is a blank line.
function flush_block(below,    i, mark) {
    if (!lines) return
    mark = below && after_code ? "///<" : "///"
    if (below && after_code && ended) { # goes on with the type that ends above
        print "/// @" kind " " ended
        mark = "///"
    }
    if (!seen_block) {
        print "/// " (FILENAME ~ /isotherm\.h$/ ? "@mainpage Isotherm" : "@file")
        below = 0
        mark = "///"
    } else if (below && !after_code) { # belongs to nothing: a note, which stays in the header
        for (i = 1; i <= lines; i++) print block_indent "//" block[i]
        lines = 0
        return
    }
    for (i = 1; i <= lines; i++) print_comment(block_indent, mark, block[i])
    close_verbatim(block_indent, mark)
    seen_block = 1
    lines = 0
}

# A comment line.
match($0, /^ *\/\//) {
    indent = substr($0, 1, RLENGTH - 2)
    text = substr($0, RLENGTH + 1)
    if (trailing && length(indent) == trailing) { # goes on with the comment behind code
        print indent "///<" escaped(text)
        next
    }
    trailing = 0
    if (text ~ /^ ----/) {
        flush_block(1)
        print
        after_code = 0
        next
    }
    if (!lines) block_indent = indent
    block[++lines] = text
    next
}

# Code, or a blank line.
{
    blank = $0 ~ /^ *$/
    flush_block(blank || $0 ~ /^ *#/)
    trailing = 0
    after_code = !blank
    if ($0 ~ /^typedef (struct|enum) .*{$/) kind = $2
    ended = ""
    if ($0 ~ /^} [a-z0-9_]*;/) {
        ended = $2
        sub(/;.*/, "", ended)
    }
    # A comment behind code: // outside strings, which public headers do not have.
    if (!blank && $0 !~ /^ *#/ && match($0, /\/\//)) {
        trailing = RSTART - 1
        print substr($0, 1, RSTART - 1) "///<" escaped(substr($0, RSTART + 2))
        next
    }
    print
}
END { flush_block(1) }
