dnl SPDX-License-Identifier: MIT
# What the macros of all dependencies share.

# ISO_LINKS(CFLAGS, LIBS, PROLOGUE, BODY, IF-YES, IF-NO)
# Does a program with this body compile and link with these flags?
AC_DEFUN([ISO_LINKS], [
    iso_save_CPPFLAGS=$CPPFLAGS iso_save_LIBS=$LIBS
    CPPFLAGS="$CPPFLAGS $1" LIBS="$2 $LIBS"
    AC_LINK_IFELSE([AC_LANG_PROGRAM([$3], [$4])], [iso_links=yes], [iso_links=no])
    CPPFLAGS=$iso_save_CPPFLAGS LIBS=$iso_save_LIBS
    AS_IF([test $iso_links = yes], [$5], [$6])
])

# ISO_DEPENDENCY(name, NAME, purpose, pkg-config module or empty, header, prologue, body,
#                libraries, Debian package)
# Adds --with-name[=DIR|no], default auto: found is used, not found is left out, asked for and not
# found is an error. Sets NAME_CFLAGS, NAME_LIBS, ISO_HAVE_NAME (config.h and conditional) and
# have_name (yes or no).
AC_DEFUN([ISO_DEPENDENCY], [
    AC_ARG_WITH([$1], [AS_HELP_STRING([--with-$1@<:@=DIR|no@:>@], [$3 (default: if found)])],
                [], [with_$1=auto])
    AC_ARG_VAR([$2_CFLAGS], [compiler flags for $1, instead of those found])
    AC_ARG_VAR([$2_LIBS], [linker flags for $1, instead of those found])
    AS_CASE([$with_$1],
        [no], [iso_cflags= iso_libs=],
        [auto|yes], [
            iso_cflags= iso_libs="$8"
            AS_IF([test -n "$4" && test -n "$PKG_CONFIG" && $PKG_CONFIG --exists "$4"],
                  [iso_cflags=`$PKG_CONFIG --cflags "$4"` iso_libs=`$PKG_CONFIG --libs "$4"`])],
        [AS_IF([test ! -f "$with_$1/include/$5"],
               [AC_MSG_ERROR([--with-$1=$with_$1: no file $with_$1/include/$5
(Debian: apt-get install $9, and no directory is needed)])])
         iso_cflags="-I$with_$1/include"
         iso_libs="-L$with_$1/lib -Wl,-rpath,$with_$1/lib $8"])
    have_$1=no
    AS_IF([test "$with_$1" != no], [
        $2_CFLAGS=${$2_CFLAGS-$iso_cflags}
        $2_LIBS=${$2_LIBS-$iso_libs}
        AC_MSG_CHECKING([for $1])
        ISO_LINKS([$$2_CFLAGS], [$$2_LIBS], [$6], [$7], [have_$1=yes])
        AC_MSG_RESULT([$have_$1])
    ])
    AS_IF([test $have_$1 = yes],
          [AC_DEFINE([ISO_HAVE_$2], [1], [Define to 1 to build with $1: $3.])],
          [AS_CASE([$with_$1], [no|auto], [],
                   [AC_MSG_ERROR([--with-$1: $1 was not found (Debian: apt-get install $9)])])
           $2_CFLAGS= $2_LIBS=])
    AM_CONDITIONAL([ISO_HAVE_$2], [test $have_$1 = yes])
])
