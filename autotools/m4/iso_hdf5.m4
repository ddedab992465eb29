dnl SPDX-License-Identifier: MIT
# ISO_HDF5: libhdf5, to read HDF5 files. A build of it without MPI is the first choice. The
# headers of one with MPI need those of MPI.
AC_DEFUN([ISO_HDF5], [
    AS_IF([test -n "$PKG_CONFIG" && $PKG_CONFIG --exists hdf5-serial],
          [iso_hdf5_module=hdf5-serial], [iso_hdf5_module=hdf5])
    iso_hdf5_cppflags=$CPPFLAGS iso_hdf5_libs=$LIBS
    CPPFLAGS="$CPPFLAGS $MPI_CFLAGS" LIBS="$MPI_LIBS $LIBS"
    ISO_DEPENDENCY([hdf5], [HDF5], [reading HDF5 files], [$iso_hdf5_module], [hdf5.h],
                   [#include <hdf5.h>],
                   [return H5Fis_hdf5("x") > 0;],
                   [-lhdf5], [libhdf5-dev])
    CPPFLAGS=$iso_hdf5_cppflags LIBS=$iso_hdf5_libs
])
