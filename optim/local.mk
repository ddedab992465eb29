# Optimizers and schedules, those that join them with communication too.
libiso_core_la_SOURCES +=
libiso_core_la_SOURCES += optim/adadelta.c
libiso_core_la_SOURCES += optim/adam.c
libiso_core_la_SOURCES += optim/lr_schedule.c
libiso_core_la_SOURCES += optim/optim_impl.h
libiso_core_la_SOURCES += optim/optimizer.c
libiso_core_la_SOURCES += optim/sgd.c
libiso_core_la_SOURCES += optim/dp_optimizer.c
