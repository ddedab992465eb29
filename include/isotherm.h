// SPDX-License-Identifier: MIT
// Isotherm: asynchronous data-parallel neural-network training over MPI. Umbrella header.
#ifndef ISOTHERM_H
#define ISOTHERM_H

#include <isotherm/checkpoint.h>
#include <isotherm/clip.h>
#include <isotherm/comm.h>
#include <isotherm/comm_hook.h>
#include <isotherm/daso.h>
#include <isotherm/daso_heat.h>
#include <isotherm/data.h>
#include <isotherm/device.h>
#include <isotherm/grad_scaler.h>
#include <isotherm/join.h>
#include <isotherm/layers.h>
#include <isotherm/loss.h>
#include <isotherm/metrics.h>
#include <isotherm/nn.h>
#include <isotherm/noise_scale.h>
#include <isotherm/optim.h>
#include <isotherm/outlier.h>
#include <isotherm/parallel.h>
#include <isotherm/plateau.h>
#include <isotherm/recorder.h>
#include <isotherm/reducer.h>
#include <isotherm/resume.h>
#include <isotherm/schedule.h>
#include <isotherm/shuffle.h>
#include <isotherm/state_dict.h>
#include <isotherm/status.h>
#include <isotherm/stop.h>
#include <isotherm/strategy.h>
#include <isotherm/sync_batchnorm.h>
#include <isotherm/tensor.h>
#include <isotherm/topology.h>
#include <isotherm/tournament.h>
#include <isotherm/trace.h>
#include <isotherm/version.h>

#endif
