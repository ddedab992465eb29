// Topology: which ranks share a node, the groups that reach across nodes, and the cores that ranks
// may use.
#ifndef ISOTHERM_TOPOLOGY_H
#define ISOTHERM_TOPOLOGY_H

#include <isotherm/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

// How far an average reaches.
typedef enum iso_scope {
    ISO_SCOPE_WORLD, // all ranks of the communicator
    ISO_SCOPE_NODE,  // the ranks of a node
    ISO_SCOPE_RANK   // nobody else
} iso_scope;

typedef struct iso_topology_config {
    // ISO_SCOPE_NODE: nodes are the ranks that share memory, or consecutive groups of
    // ISO_RANKS_PER_NODE ranks. ISO_SCOPE_RANK: every rank counts as a node of its own.
    iso_scope unit;
    // How leader groups are made: MPI_Comm_create_group (involves their members only) or
    // MPI_Comm_split (all ranks, fewer calls). The groups are the same.
    bool use_mpi_groups;
} iso_topology_config;
extern const iso_topology_config iso_topology_default; // the same, as C++ takes it
#ifdef __cplusplus
#define ISO_TOPOLOGY_DEFAULT iso_topology_default
#else
#define ISO_TOPOLOGY_DEFAULT ((iso_topology_config){.unit = ISO_SCOPE_NODE, .use_mpi_groups = true})
#endif

// Read only. Communicators belong to the topology.
typedef struct iso_topology {
    iso_comm *world, *node; // all ranks; those of this rank's node
    int nodes, node_index;  // how many, and this rank's; numbered by lowest rank
    int local_rank, local_size;
    int smallest, largest; // ranks of the smallest and of the largest node
    double weight;         // of this node in a mean over nodes: local_size / ranks
    // Leader group k, k in [0, largest): of every node the rank with local rank k mod local_size;
    // so every group spans all nodes and has its ranks in the order of the nodes. Groups k <
    // smallest share no rank. leaders[k] is NULL on ranks outside group k.
    int groups;
    iso_comm **leaders;
} iso_topology;

// Collective over comm, which is retained. config may be NULL. Shared: create gives one reference.
iso_status iso_topology_create(iso_comm *comm, const iso_topology_config *config,
                               iso_topology **out);
iso_topology *iso_topology_retain(iso_topology *topology);
void iso_topology_destroy(iso_topology **topology); // collective

// ---- Cores ------------------------------------------------------------------------------------------

// What the ranks may run on, as their launcher left it. Numbers are the system's, of hardware
// threads.
typedef struct iso_cores {
    char mine[192]; // of this rank: "cores 0-3 of host a"
    char all[512];  // of all ranks: "ranks 0-1: cores 0-3 of host a; rank 2: core 0 of host b"
    // A sentence that names ranks and the flag that helps, "" where all is well; the same on all
    // ranks. crowded: together they have more kernel threads than cores. single: the threads of
    // one rank, the helper that drives progress among them, share one core though the host has
    // more.
    char crowded[512], single[512];
    uint64_t share[16]; // hardware threads that iso_cores_bind chooses, a bit each; 0: none
} iso_cores;

// Collective over comm. Looks which cores each rank may use, and logs this rank's (ISO_LOG=info).
// threads: of this rank's kernels.
iso_status iso_cores_survey(iso_comm *comm, int threads, iso_cores *out);
// Local. Where ranks with several threads may all use the same cores and there are enough: keeps
// the calling thread, and the threads it starts from here on, on a share that no other rank of
// these gets. Does nothing where the environment binds threads itself (OMP_PROC_BIND, OMP_PLACES).
// Returns whether it has bound them.
bool iso_cores_bind(const iso_cores *cores);

#ifdef __cplusplus
}
#endif
#endif
