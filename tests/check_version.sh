#!/bin/sh
# SPDX-License-Identifier: MIT
# Checks that everything that tells the version tells the same one: a TAP result for each.
# usage: check_version.sh, in the build tree
set -u
export LC_ALL=C

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
. "$root/tests/test_env.sh"
count=0
result() { # what tells it, what it tells, what it should tell
    count=$((count + 1))
    if [ "$2" = "$3" ]; then
        echo "ok - $1 says $3"
    else
        echo "not ok - $1 says \"$2\", not \"$3\""
    fi
}

# Between releases the version is that of the next one, with -dev.
version=$(sed -n 's/^AC_INIT(\[isotherm\], \[\(.*\)\])$/\1/p' "$root/configure.ac")
number=${version%-dev}
major=${number%%.*}
patch=${number##*.}
minor=${number#"$major".}
minor=${minor%".$patch"}
expr "$number" : '[0-9]*\.[0-9]*\.[0-9]*$' >/dev/null || echo "not ok - configure.ac has the version \"$version\""

for program in train sweep predict postmortem mnist mnist-daso get-mnist elastic; do
    result "$program --version" "$(timeout -k 5 60 "bin/$program" --version 2>&1 </dev/null)" "isotherm $version"
done
result isotherm.pc "$(sed -n 's/^Version: //p' isotherm.pc)" "$version"
if command -v pkg-config >/dev/null; then
    result pkg-config "$(PKG_CONFIG_PATH=. pkg-config --modversion isotherm)" "$version"
fi

macro() { # name
    sed -n "s/^#define ISO_VERSION$1 //p" include/isotherm/version.h
}
result "ISO_VERSION" "$(macro '')" "\"$version\""
result "ISO_VERSION_MAJOR, _MINOR and _PATCH" "$(macro _MAJOR).$(macro _MINOR).$(macro _PATCH)" "$number"

# The name that programs look for changes with every version that may change the interface.
if command -v readelf >/dev/null; then
    result "the library's soname" \
        "$(readelf -d .libs/libisotherm.so | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')" "libisotherm-$major.$minor.so.0"
fi
result "the library's file" "$(basename "$(readlink -f .libs/libisotherm.so)")" "libisotherm-$major.$minor.so.0.0.$patch"
heading="## $version"
[ "$version" = "$number" ] || heading="## Unreleased"
result CHANGELOG.md "$(grep -m 1 '^## ' "$root/CHANGELOG.md")" "$heading"

echo "1..$count"
