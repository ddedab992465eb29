// SPDX-License-Identifier: MIT
// Topology: the nodes of a communicator, groups of ranks across nodes, and the cores of each rank.
#ifndef ISOTHERM_TOPOLOGY_H
#define ISOTHERM_TOPOLOGY_H

#include <isotherm/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

// The ranks over which an average is taken.
typedef enum iso_scope {
    ISO_SCOPE_WORLD, // all ranks of the communicator
    ISO_SCOPE_NODE,  // the ranks of a node
    ISO_SCOPE_RANK   // this rank alone
} iso_scope;

typedef struct iso_topology_config {
    // ISO_SCOPE_NODE: a node is the ranks on one host, or ISO_RANKS_PER_NODE consecutive ranks.
    // Ranks are on one host if their MPI processor names and their kernels' boot numbers (Linux:
    // boot_id) are equal. ISO_SCOPE_RANK: every rank is a node of its own.
    iso_scope unit;
    // true: create leader groups by MPI_Comm_create_group, which involves only their members.
    // false: by MPI_Comm_split, which involves all ranks but takes fewer calls. The groups are the
    // same.
    bool use_mpi_groups;
} iso_topology_config;
extern const iso_topology_config iso_topology_default; // the default as an object, for C++
#ifdef __cplusplus
#define ISO_TOPOLOGY_DEFAULT iso_topology_default
#else
#define ISO_TOPOLOGY_DEFAULT ((iso_topology_config){.unit = ISO_SCOPE_NODE, .use_mpi_groups = true})
#endif

// Read only. The topology owns the communicators.
typedef struct iso_topology {
    iso_comm *world, *node; // all ranks; the ranks of this rank's node
    int nodes, node_index;  // number of nodes; this rank's node. Order: by lowest rank
    int local_rank, local_size;
    int smallest, largest; // number of ranks in the smallest and in the largest node
    double weight;         // of this node in a mean over nodes: local_size / number of ranks
    // Leader group k, 0 <= k < groups = largest, has one rank of every node, in the order of nodes:
    // the one with local rank k mod local_size. Groups with k < smallest share no rank. leaders[k]
    // is NULL on ranks outside group k.
    int groups;
    iso_comm **leaders;
} iso_topology;

// Collective over comm; retains comm. config NULL: the default. Reference-counted: create returns
// one reference.
iso_status iso_topology_create(iso_comm *comm, const iso_topology_config *config,
                               iso_topology **out);
iso_topology *iso_topology_retain(iso_topology *topology);
void iso_topology_destroy(iso_topology **topology); // collective

// ---- Cores ------------------------------------------------------------------------------------------

// The cores on which the launcher allows each rank to run. Numbers are the operating system's
// numbers of hardware threads.
typedef struct iso_cores {
    char mine[192]; // this rank: "cores 0-3 of host a"
    char all[512];  // all ranks: "ranks 0-1: cores 0-3 of host a; rank 2: core 0 of host b"
    // Warnings that name ranks and a remedy, the same on all ranks; "" if there is no problem.
    // crowded: ranks on the same cores have more compute threads (those that run kernels) than
    // cores. single: all threads of a rank, including the progress thread, share one core although
    // the host has more.
    char crowded[512], single[512];
    uint64_t share[16];    // one bit per hardware thread that iso_cores_bind would choose; 0: none
    uint64_t progress[16]; // the same for iso_cores_pin_progress
} iso_cores;

// Collective over comm. Determines the cores of each rank and logs this rank's (ISO_LOG=info).
// threads: the number of this rank's compute threads.
iso_status iso_cores_survey(iso_comm *comm, int threads, iso_cores *out);
// Local. Binds the calling thread, and threads that it creates later, to cores of this rank's own.
// Does so only if this rank has several threads, shares its set of cores with other ranks, and the
// set is large enough for all of them. Does nothing if the environment already binds threads
// (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY, KMP_AFFINITY). Returns true if it bound the
// threads.
//
// ISO_PROGRESS_CORE=own sets one of the rank's cores aside for the progress thread; the other
// threads get the rest. This takes one core more than compute threads on a rank that has its cores
// alone. Ranks that share a set of cores need one more each. If a core has several hardware
// threads, a rank alone sets aside only one of these. The default is off, because all other threads
// of the rank, such as those that prepare batches, lose that core.
bool iso_cores_bind(const iso_cores *cores);
// Local. Binds the progress thread to the core that the survey set aside for it. Call it after
// iso_cores_bind has returned true: that keeps the other threads away. Returns true if it bound the
// thread; false if there is no such core or no progress thread.
bool iso_cores_pin_progress(iso_comm *comm, const iso_cores *cores);

#ifdef __cplusplus
}
#endif
#endif
