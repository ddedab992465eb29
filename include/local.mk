# The public API: every header here is installed.
include_HEADERS = include/isotherm.h
pkginclude_HEADERS =
pkginclude_HEADERS += include/isotherm/checkpoint.h
pkginclude_HEADERS += include/isotherm/comm.h
pkginclude_HEADERS += include/isotherm/data.h
pkginclude_HEADERS += include/isotherm/device.h
pkginclude_HEADERS += include/isotherm/metrics.h
pkginclude_HEADERS += include/isotherm/nn.h
pkginclude_HEADERS += include/isotherm/optim.h
pkginclude_HEADERS += include/isotherm/parallel.h
pkginclude_HEADERS += include/isotherm/reducer.h
pkginclude_HEADERS += include/isotherm/status.h
pkginclude_HEADERS += include/isotherm/tensor.h
pkginclude_HEADERS += include/isotherm/trace.h
nodist_pkginclude_HEADERS = include/isotherm/version.h
