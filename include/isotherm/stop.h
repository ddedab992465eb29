// SPDX-License-Identifier: MIT
// Stopping all ranks after the same step, for instance because a batch system has sent a signal.
//
//   iso_stop_create(comm, &stop);
//   while (more steps) {
//       ... one step of training; a signal handler calls iso_stop_request(stop) ...
//       if ((status = iso_stop_check(stop, &stops)) < 0) break;
//       if (stops) break; // in the same step on every rank: save here
//   }
//   iso_stop_destroy(&stop);
#ifndef ISOTHERM_STOP_H
#define ISOTHERM_STOP_H

#include <isotherm/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct iso_stop iso_stop;

// Local. Retains comm, whose collectives the program may go on to use.
iso_status iso_stop_create(iso_comm *comm, iso_stop **out);
// Collective, if an exchange may be under way: completes it. Sets *stop to NULL. NULL is allowed.
void iso_stop_destroy(iso_stop **stop);
// Local. Asks all ranks to stop; one rank suffices. May be called at any time by any thread, and by
// a signal handler.
void iso_stop_request(iso_stop *stop);
// Collective. Call it after each step. All ranks must call it equally often, and in the same order
// relative to the collectives of comm. *stops is the same on all ranks. Once it is true, it stays
// true.
//
// Most calls exchange nothing. About every 0.2 s of training, or in every step if steps take
// longer, the ranks start a non-blocking sum of two numbers. The call that starts the next sum
// waits for this one, so a rank waits only if another rank is that far behind. Ranks stop at most
// 0.4 s or two steps after a request; later if steps have just become longer. On one rank, the call
// sets *stops at once. ISO_ERR_TIMEOUT as for iso_request_wait.
iso_status iso_stop_check(iso_stop *stop, bool *stops);
// The same at once, with a blocking exchange: for places where ranks meet anyway, such as the end
// of an epoch, and after which the next step may be long in coming.
iso_status iso_stop_check_now(iso_stop *stop, bool *stops);

#ifdef __cplusplus
}
#endif
#endif
