// Topology: which ranks share a node, and the groups that reach across nodes.
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
#define ISO_TOPOLOGY_DEFAULT ((iso_topology_config){.unit = ISO_SCOPE_NODE, .use_mpi_groups = true})

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

#ifdef __cplusplus
}
#endif
#endif
