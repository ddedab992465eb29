// SPDX-License-Identifier: MIT
// Private to optim: the settings that the periodic strategies publish.
#ifndef ISO_DASO_SETTINGS_H
#define ISO_DASO_SETTINGS_H

#include "exchange/codec.h"

#include <isotherm/daso.h>
#include <isotherm/strategy.h>

enum {
    ISO__OUTER_SETTINGS = 4, // the last ones of local SGD, post-local SGD and DASO
    ISO__ZERO_SETTINGS = 2,  // before these in DASO
    ISO__LOCAL_SGD_SETTINGS = 12,
    ISO__POST_LOCAL_SETTINGS = 14,
    ISO__DASO_SETTINGS = 25,
    ISO__SLOWMO_SETTINGS = 11,
    ISO__DILOCO_SETTINGS = 11,
    ISO__STREAMING_SETTINGS = 11,
    ISO__OVERLAP_SETTINGS = 7,
    ISO__GOSSIP_SETTINGS = 13,
    ISO__ASYNC_SETTINGS = 5,
    ISO__SERVER_SETTINGS = 6,
    ISO__TOURNAMENT_SETTINGS = 12,
    ISO__HEAT_SETTINGS = 9,
    ISO__SETTINGS_ROOM = 2048 // bytes of text
};
extern const iso_setting iso__local_sgd_setting[], iso__post_local_setting[], iso__daso_setting[],
    iso__slowmo_setting[], iso__diloco_setting[], iso__streaming_setting[], iso__overlap_setting[],
    iso__gossip_setting[], iso__async_setting[], iso__server_setting[], iso__tournament_setting[],
    iso__heat_setting[];

// Memory for what a config points to. On entry, what the mode has without settings.
typedef struct iso__daso_rules {
    iso_outer outer;           // name NULL: the mode has none
    iso_tournament tournament; // read only if the config points to it
    const char *hyper_names;   // hyperparameters that move with a model; NULL: none
    int zero;                  // the stage in which the ranks of a node divide the updates
    iso_tournament_hyper hyper[ISO_TOURNAMENT_HYPERS]; // room for them, and those of the caller
} iso__daso_rules;

// Of the settings "zero" and "zero-stage" in all strategies that have them.
#define ISO__ZERO_MEANING                                                                          \
    .initial = "no", .meaning = "ZeRO stage 1: divide optimizer state and updates among ranks; "   \
                                "with daso, among those of a node"

#define ISO__ZERO_STAGES                                                                           \
    .low = 0, .high = 3, .initial = "0", .instead = "zero",                                        \
    .meaning = "stage of ZeRO, instead of --zero; 2 divides gradients, too, 3 also parameters; "   \
               "0: no ZeRO"

// NULL for an unknown wire, or a topk_ratio that is not allowed.
const iso__codec *iso__wire_codec(iso_wire wire, double topk_ratio);
// The consensus step of gossip in this wire, see consensus_step of iso_daso_config.
double iso__wire_consensus(iso_wire wire, double topk_ratio);

// Read settings into a config. Fields without a default keep their value. table: any of them except
// iso__heat_setting. *rules become those of the settings; config->outer then points to the outer
// optimizer, if there is one.
iso_status iso__daso_settings_read(iso_settings *settings, const iso_setting *table, int count,
                                   iso_daso_config *config, iso__daso_rules *rules);
iso_status iso__heat_settings_read(iso_settings *settings, iso_daso_heat_config *config);

// Write the settings that must be equal on all ranks, as lines "KEY: VALUE". config has been
// checked; its callback, user and scheduler are left out. room: ISO__SETTINGS_ROOM.
void iso__daso_settings_write(const iso_daso_config *config, char *text, size_t room);
void iso__heat_settings_write(const iso_daso_heat_config *config, char *text, size_t room);

#endif
