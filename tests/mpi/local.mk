## SPDX-License-Identifier: MIT
# Tests of several ranks, the number of which is in the suite name (np4_daso).
# For each: MPI_TESTS += tests/mpi/NAME.mpi, and
#   tests_mpi_NAME_mpi_SOURCES = tests/mpi/test_NAME.c
MPI_TESTS = tests/mpi/comm.mpi
tests_mpi_comm_mpi_SOURCES = tests/mpi/test_comm.c
MPI_TESTS += tests/mpi/autocast_ranks.mpi
tests_mpi_autocast_ranks_mpi_SOURCES = tests/mpi/test_autocast_ranks.c
MPI_TESTS += tests/mpi/part_of_job.mpi
tests_mpi_part_of_job_mpi_SOURCES = tests/mpi/test_part_of_job.c
MPI_TESTS += tests/mpi/clip.mpi
tests_mpi_clip_mpi_SOURCES = tests/mpi/test_clip.c
MPI_TESTS += tests/mpi/gpt.mpi
tests_mpi_gpt_mpi_SOURCES = tests/mpi/test_gpt.c
MPI_TESTS += tests/mpi/no_sync.mpi
tests_mpi_no_sync_mpi_SOURCES = tests/mpi/test_no_sync.c
MPI_TESTS += tests/mpi/recompute.mpi
tests_mpi_recompute_mpi_SOURCES = tests/mpi/test_recompute.c
MPI_TESTS += tests/mpi/reducer.mpi
tests_mpi_reducer_mpi_SOURCES = tests/mpi/test_reducer.c
MPI_TESTS += tests/mpi/by_name.mpi
tests_mpi_by_name_mpi_SOURCES = tests/mpi/test_by_name.c \
    tests/mpi/test_by_name_modules.c
MPI_TESTS += tests/mpi/by_weight.mpi
tests_mpi_by_weight_mpi_SOURCES = tests/mpi/test_by_weight.c \
    tests/mpi/test_by_weight_modules.c
MPI_TESTS += tests/mpi/half_modules_ranks.mpi
tests_mpi_half_modules_ranks_mpi_SOURCES = tests/mpi/test_half_modules_ranks.c
MPI_TESTS += tests/mpi/half_optimizer.mpi
tests_mpi_half_optimizer_mpi_SOURCES = tests/mpi/test_half_optimizer.c
MPI_TESTS += tests/mpi/half_reducer.mpi
tests_mpi_half_reducer_mpi_SOURCES = tests/mpi/test_half_reducer.c
MPI_TESTS += tests/mpi/cpu_bf16_ranks.mpi
tests_mpi_cpu_bf16_ranks_mpi_SOURCES = tests/mpi/test_cpu_bf16_ranks.c
MPI_TESTS += tests/mpi/data_parallel.mpi
tests_mpi_data_parallel_mpi_SOURCES = tests/mpi/test_data_parallel.c
MPI_TESTS += tests/mpi/dp_tuples.mpi
tests_mpi_dp_tuples_mpi_SOURCES = tests/mpi/test_dp_tuples.c
MPI_TESTS += tests/mpi/move_inputs.mpi
tests_mpi_move_inputs_mpi_SOURCES = tests/mpi/test_move_inputs.c
MPI_TESTS += tests/mpi/gradients.mpi
tests_mpi_gradients_mpi_SOURCES = tests/mpi/test_gradients.c
MPI_TESTS += tests/mpi/used_layers.mpi
tests_mpi_used_layers_mpi_SOURCES = tests/mpi/test_used_layers.c
MPI_TESTS += tests/mpi/topology.mpi
tests_mpi_topology_mpi_SOURCES = tests/mpi/test_topology.c
MPI_TESTS += tests/mpi/node_means.mpi
tests_mpi_node_means_mpi_SOURCES = tests/mpi/test_node_means.c
MPI_TESTS += tests/mpi/hosts.mpi
tests_mpi_hosts_mpi_SOURCES = tests/mpi/test_hosts.c
MPI_TESTS += tests/mpi/hierarchy.mpi
tests_mpi_hierarchy_mpi_SOURCES = tests/mpi/test_hierarchy.c
MPI_TESTS += tests/mpi/message.mpi
tests_mpi_message_mpi_SOURCES = tests/mpi/test_message.c
MPI_TESTS += tests/mpi/pairwise_faults.mpi
tests_mpi_pairwise_faults_mpi_SOURCES = tests/mpi/test_pairwise_faults.c
MPI_TESTS += tests/mpi/pairwise.mpi
tests_mpi_pairwise_mpi_SOURCES = tests/mpi/test_pairwise.c
MPI_TESTS += tests/mpi/scope.mpi
tests_mpi_scope_mpi_SOURCES = tests/mpi/test_scope.c
MPI_TESTS += tests/mpi/many_ranks.mpi
tests_mpi_many_ranks_mpi_SOURCES = tests/mpi/test_many_ranks.c
MPI_TESTS += tests/mpi/new_comm.mpi
tests_mpi_new_comm_mpi_SOURCES = tests/mpi/test_new_comm.c
MPI_TESTS += tests/mpi/rebuild.mpi
tests_mpi_rebuild_mpi_SOURCES = tests/mpi/test_rebuild.c
MPI_TESTS += tests/mpi/failed_backward.mpi
tests_mpi_failed_backward_mpi_SOURCES = tests/mpi/test_failed_backward.c
MPI_TESTS += tests/mpi/gossip.mpi
tests_mpi_gossip_mpi_SOURCES = tests/mpi/test_gossip.c
MPI_TESTS += tests/mpi/gossip_pairs.mpi
tests_mpi_gossip_pairs_mpi_SOURCES = tests/mpi/test_gossip_pairs.c
MPI_TESTS += tests/mpi/gossip_wires.mpi
tests_mpi_gossip_wires_mpi_SOURCES = tests/mpi/test_gossip_wires.c
MPI_TESTS += tests/mpi/bulk_faults.mpi
tests_mpi_bulk_faults_mpi_SOURCES = tests/mpi/test_bulk_faults.c
MPI_TESTS += tests/mpi/async.mpi
tests_mpi_async_mpi_SOURCES = tests/mpi/test_async.c
MPI_TESTS += tests/mpi/server.mpi
tests_mpi_server_mpi_SOURCES = tests/mpi/test_server.c
MPI_TESTS += tests/mpi/server_ranks.mpi
tests_mpi_server_ranks_mpi_SOURCES = tests/mpi/test_server_ranks.c
MPI_TESTS += tests/mpi/server_sync.mpi
tests_mpi_server_sync_mpi_SOURCES = tests/mpi/test_server_sync.c
MPI_TESTS += tests/mpi/tournament.mpi
tests_mpi_tournament_mpi_SOURCES = tests/mpi/test_tournament.c
MPI_TESTS += tests/mpi/tournament_faults.mpi
tests_mpi_tournament_faults_mpi_SOURCES = tests/mpi/test_tournament_faults.c
MPI_TESTS += tests/mpi/tournament_hyper.mpi
tests_mpi_tournament_hyper_mpi_SOURCES = tests/mpi/test_tournament_hyper.c
MPI_TESTS += tests/mpi/tournament_model.mpi
tests_mpi_tournament_model_mpi_SOURCES = tests/mpi/test_tournament_model.c
MPI_TESTS += tests/mpi/tournament_choice.mpi
tests_mpi_tournament_choice_mpi_SOURCES = tests/mpi/test_tournament_choice.c
MPI_TESTS += tests/mpi/levels.mpi
tests_mpi_levels_mpi_SOURCES = tests/mpi/test_levels.c
MPI_TESTS += tests/mpi/torch_averagers.mpi
tests_mpi_torch_averagers_mpi_SOURCES = tests/mpi/test_torch_averagers.c

MPI_TESTS += tests/mpi/local_sgd.mpi
tests_mpi_local_sgd_mpi_SOURCES = tests/mpi/test_local_sgd.c
MPI_TESTS += tests/mpi/outer.mpi
tests_mpi_outer_mpi_SOURCES = tests/mpi/test_outer.c
MPI_TESTS += tests/mpi/evaluate.mpi
tests_mpi_evaluate_mpi_SOURCES = tests/mpi/test_evaluate.c
MPI_TESTS += tests/mpi/daso.mpi
tests_mpi_daso_mpi_SOURCES = tests/mpi/test_daso.c
MPI_TESTS += tests/mpi/daso_runs.mpi
tests_mpi_daso_runs_mpi_SOURCES = tests/mpi/test_daso_runs.c
MPI_TESTS += tests/mpi/daso_buffers.mpi
tests_mpi_daso_buffers_mpi_SOURCES = tests/mpi/test_daso_buffers.c
MPI_TESTS += tests/mpi/daso_changes.mpi
tests_mpi_daso_changes_mpi_SOURCES = tests/mpi/test_daso_changes.c
MPI_TESTS += tests/mpi/daso_faults.mpi
tests_mpi_daso_faults_mpi_SOURCES = tests/mpi/test_daso_faults.c
MPI_TESTS += tests/mpi/daso_heat.mpi
tests_mpi_daso_heat_mpi_SOURCES = tests/mpi/test_daso_heat.c
MPI_TESTS += tests/mpi/left_alone.mpi
tests_mpi_left_alone_mpi_SOURCES = tests/mpi/test_left_alone.c
MPI_TESTS += tests/mpi/comm_hooks.mpi
tests_mpi_comm_hooks_mpi_SOURCES = tests/mpi/test_comm_hooks.c
MPI_TESTS += tests/mpi/own_exchange.mpi
tests_mpi_own_exchange_mpi_SOURCES = tests/mpi/test_own_exchange.c
MPI_TESTS += tests/mpi/own_exchange_rules.mpi
tests_mpi_own_exchange_rules_mpi_SOURCES = tests/mpi/test_own_exchange_rules.c
MPI_TESTS += tests/mpi/stall.mpi
tests_mpi_stall_mpi_SOURCES = tests/mpi/test_stall.c
MPI_TESTS += tests/mpi/sum16.mpi
tests_mpi_sum16_mpi_SOURCES = tests/mpi/test_sum16.c
MPI_TESTS += tests/mpi/shm.mpi
tests_mpi_shm_mpi_SOURCES = tests/mpi/test_shm.c
MPI_TESTS += tests/mpi/resume.mpi
tests_mpi_resume_mpi_SOURCES = tests/mpi/test_resume.c
MPI_TESTS += tests/mpi/resume_replicas.mpi
tests_mpi_resume_replicas_mpi_SOURCES = tests/mpi/test_resume_replicas.c
MPI_TESTS += tests/mpi/resume_ranks.mpi
tests_mpi_resume_ranks_mpi_SOURCES = tests/mpi/test_resume_ranks.c
MPI_TESTS += tests/mpi/resume_sets.mpi
tests_mpi_resume_sets_mpi_SOURCES = tests/mpi/test_resume_sets.c
MPI_TESTS += tests/mpi/average.mpi
tests_mpi_average_mpi_SOURCES = tests/mpi/test_average.c
MPI_TESTS += tests/mpi/average_ranks.mpi
tests_mpi_average_ranks_mpi_SOURCES = tests/mpi/test_average_ranks.c
MPI_TESTS += tests/mpi/average_int4.mpi
tests_mpi_average_int4_mpi_SOURCES = tests/mpi/test_average_int4.c
MPI_TESTS += tests/mpi/average_int8.mpi
tests_mpi_average_int8_mpi_SOURCES = tests/mpi/test_average_int8.c
MPI_TESTS += tests/mpi/average_fp8.mpi
tests_mpi_average_fp8_mpi_SOURCES = tests/mpi/test_average_fp8.c
MPI_TESTS += tests/mpi/average_topk.mpi
tests_mpi_average_topk_mpi_SOURCES = tests/mpi/test_average_topk.c
MPI_TESTS += tests/mpi/debug.mpi
tests_mpi_debug_mpi_SOURCES = tests/mpi/test_debug.c
MPI_TESTS += tests/mpi/routes.mpi
tests_mpi_routes_mpi_SOURCES = tests/mpi/test_routes.c
MPI_TESTS += tests/mpi/periodic_failed.mpi
tests_mpi_periodic_failed_mpi_SOURCES = tests/mpi/test_periodic_failed.c
MPI_TESTS += tests/mpi/periodic_begin.mpi
tests_mpi_periodic_begin_mpi_SOURCES = tests/mpi/test_periodic_begin.c
MPI_TESTS += tests/mpi/periodic_exchanges.mpi
tests_mpi_periodic_exchanges_mpi_SOURCES = tests/mpi/test_periodic_exchanges.c
MPI_TESTS += tests/mpi/average_faults.mpi
tests_mpi_average_faults_mpi_SOURCES = tests/mpi/test_average_faults.c
MPI_TESTS += tests/mpi/no_memory.mpi
tests_mpi_no_memory_mpi_SOURCES = tests/mpi/test_no_memory.c
MPI_TESTS += tests/mpi/no_memory_create.mpi
tests_mpi_no_memory_create_mpi_SOURCES = tests/mpi/test_no_memory_create.c
MPI_TESTS += tests/mpi/no_memory_calls.mpi
tests_mpi_no_memory_calls_mpi_SOURCES = tests/mpi/test_no_memory_calls.c
MPI_TESTS += tests/mpi/periodic_f64.mpi
tests_mpi_periodic_f64_mpi_SOURCES = tests/mpi/test_periodic_f64.c

MPI_TESTS += tests/mpi/resume_daso.mpi
tests_mpi_resume_daso_mpi_SOURCES = tests/mpi/test_resume_daso.c
MPI_TESTS += tests/mpi/shared.mpi
tests_mpi_shared_mpi_SOURCES = tests/mpi/test_shared.c
MPI_TESTS += tests/mpi/groups.mpi
tests_mpi_groups_mpi_SOURCES = tests/mpi/test_groups.c
MPI_TESTS += tests/mpi/dp_state_dict.mpi
tests_mpi_dp_state_dict_mpi_SOURCES = tests/mpi/test_dp_state_dict.c
MPI_TESTS += tests/mpi/mixed_reducer.mpi
tests_mpi_mixed_reducer_mpi_SOURCES = tests/mpi/test_mixed_reducer.c
MPI_TESTS += tests/mpi/mixed_types.mpi
tests_mpi_mixed_types_mpi_SOURCES = tests/mpi/test_mixed_types.c
MPI_TESTS += tests/mpi/buffers.mpi
tests_mpi_buffers_mpi_SOURCES = tests/mpi/test_buffers.c
MPI_TESTS += tests/mpi/channel.mpi
tests_mpi_channel_mpi_SOURCES = tests/mpi/test_channel.c
MPI_TESTS += tests/mpi/sync_batchnorm.mpi
tests_mpi_sync_batchnorm_mpi_SOURCES = tests/mpi/test_sync_batchnorm.c
MPI_TESTS += tests/mpi/sync_norm_training.mpi
tests_mpi_sync_norm_training_mpi_SOURCES = tests/mpi/test_sync_norm_training.c
MPI_TESTS += tests/mpi/tied.mpi
tests_mpi_tied_mpi_SOURCES = tests/mpi/test_tied.c
MPI_TESTS += tests/mpi/accumulate.mpi
tests_mpi_accumulate_mpi_SOURCES = tests/mpi/test_accumulate.c
tests_mpi_accumulate_mpi_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_mpi_accumulate_mpi_LDADD = tests/common/libiso_traincommon.la $(LDADD)
MPI_TESTS += tests/mpi/stop.mpi
tests_mpi_stop_mpi_SOURCES = tests/mpi/test_stop.c
MPI_TESTS += tests/mpi/strategy.mpi
tests_mpi_strategy_mpi_SOURCES = tests/mpi/test_strategy.c
tests_mpi_strategy_mpi_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_mpi_strategy_mpi_LDADD = tests/common/libiso_traincommon.la $(LDADD)
MPI_TESTS += tests/mpi/train_options.mpi
tests_mpi_train_options_mpi_SOURCES = tests/mpi/test_train_options.c
tests_mpi_train_options_mpi_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_mpi_train_options_mpi_LDADD = tests/common/libiso_traincommon.la $(LDADD)
MPI_TESTS += tests/mpi/grad_scaler.mpi
tests_mpi_grad_scaler_mpi_SOURCES = tests/mpi/test_grad_scaler.c
MPI_TESTS += tests/mpi/noise_scale.mpi
tests_mpi_noise_scale_mpi_SOURCES = tests/mpi/test_noise_scale.c
MPI_TESTS += tests/mpi/train_finite.mpi
tests_mpi_train_finite_mpi_SOURCES = tests/mpi/test_train_finite.c
tests_mpi_train_finite_mpi_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_mpi_train_finite_mpi_LDADD = tests/common/libiso_traincommon.la $(LDADD)
MPI_TESTS += tests/mpi/train_equal.mpi
tests_mpi_train_equal_mpi_SOURCES = tests/mpi/test_train_equal.c
tests_mpi_train_equal_mpi_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_mpi_train_equal_mpi_LDADD = tests/common/libiso_traincommon.la $(LDADD)
MPI_TESTS += tests/mpi/train_log.mpi
tests_mpi_train_log_mpi_SOURCES = tests/mpi/test_train_log.c
tests_mpi_train_log_mpi_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_mpi_train_log_mpi_LDADD = tests/common/libiso_traincommon.la $(LDADD)
MPI_TESTS += tests/mpi/strategy_sampler.mpi
tests_mpi_strategy_sampler_mpi_SOURCES = tests/mpi/test_strategy_sampler.c
tests_mpi_strategy_sampler_mpi_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_mpi_strategy_sampler_mpi_LDADD = tests/common/libiso_traincommon.la $(LDADD)
MPI_TESTS += tests/mpi/train_tournament.mpi
tests_mpi_train_tournament_mpi_SOURCES = tests/mpi/test_train_tournament.c
tests_mpi_train_tournament_mpi_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_mpi_train_tournament_mpi_LDADD = tests/common/libiso_traincommon.la $(LDADD)
MPI_TESTS += tests/mpi/train_validation.mpi
tests_mpi_train_validation_mpi_SOURCES = tests/mpi/test_train_validation.c
tests_mpi_train_validation_mpi_CPPFLAGS = $(AM_CPPFLAGS) -I$(top_srcdir) -I$(top_srcdir)/examples
tests_mpi_train_validation_mpi_LDADD = tests/common/libiso_traincommon.la $(LDADD)
MPI_TESTS += tests/mpi/channel_use.mpi
tests_mpi_channel_use_mpi_SOURCES = tests/mpi/test_channel_use.c
MPI_TESTS += tests/mpi/channel_faults.mpi
tests_mpi_channel_faults_mpi_SOURCES = tests/mpi/test_channel_faults.c
MPI_TESTS += tests/mpi/bucket_config.mpi
tests_mpi_bucket_config_mpi_SOURCES = tests/mpi/test_bucket_config.c
MPI_TESTS += tests/mpi/delayed.mpi
tests_mpi_delayed_mpi_SOURCES = tests/mpi/test_delayed.c
MPI_TESTS += tests/mpi/unused_static.mpi
tests_mpi_unused_static_mpi_SOURCES = tests/mpi/test_unused_static.c
MPI_TESTS += tests/mpi/buffer_modes.mpi
tests_mpi_buffer_modes_mpi_SOURCES = tests/mpi/test_buffer_modes.c
MPI_TESTS += tests/mpi/buffer_steps.mpi
tests_mpi_buffer_steps_mpi_SOURCES = tests/mpi/test_buffer_steps.c
MPI_TESTS += tests/mpi/join.mpi
tests_mpi_join_mpi_SOURCES = tests/mpi/test_join.c
MPI_TESTS += tests/mpi/join_rules.mpi
tests_mpi_join_rules_mpi_SOURCES = tests/mpi/test_join_rules.c
MPI_TESTS += tests/mpi/join_many.mpi
tests_mpi_join_many_mpi_SOURCES = tests/mpi/test_join_many.c
MPI_TESTS += tests/mpi/join_many_rules.mpi
tests_mpi_join_many_rules_mpi_SOURCES = tests/mpi/test_join_many_rules.c
MPI_TESTS += tests/mpi/unused.mpi
tests_mpi_unused_mpi_SOURCES = tests/mpi/test_unused.c
MPI_TESTS += tests/mpi/update_counts.mpi
tests_mpi_update_counts_mpi_SOURCES = tests/mpi/test_update_counts.c
MPI_TESTS += tests/mpi/daso_counts.mpi
tests_mpi_daso_counts_mpi_SOURCES = tests/mpi/test_daso_counts.c
MPI_TESTS += tests/mpi/array_optimizer.mpi
tests_mpi_array_optimizer_mpi_SOURCES = tests/mpi/test_array_optimizer.c
MPI_TESTS += tests/mpi/layer_arrays.mpi
tests_mpi_layer_arrays_mpi_SOURCES = tests/mpi/test_layer_arrays.c
MPI_TESTS += tests/mpi/sparse_rows.mpi
tests_mpi_sparse_rows_mpi_SOURCES = tests/mpi/test_sparse_rows.c
MPI_TESTS += tests/mpi/sparse_embedding.mpi
tests_mpi_sparse_embedding_mpi_SOURCES = tests/mpi/test_sparse_embedding.c
MPI_TESTS += tests/mpi/own_gradients.mpi
tests_mpi_own_gradients_mpi_SOURCES = tests/mpi/test_own_gradients.c
MPI_TESTS += tests/mpi/pieces.mpi
tests_mpi_pieces_mpi_SOURCES = tests/mpi/test_pieces.c
MPI_TESTS += tests/mpi/several_optimizers.mpi
tests_mpi_several_optimizers_mpi_SOURCES = tests/mpi/test_several_optimizers.c
MPI_TESTS += tests/mpi/dp_seams.mpi
tests_mpi_dp_seams_mpi_SOURCES = tests/mpi/test_dp_seams.c
MPI_TESTS += tests/mpi/dp_times.mpi
tests_mpi_dp_times_mpi_SOURCES = tests/mpi/test_dp_times.c
MPI_TESTS += tests/mpi/plan_order.mpi
tests_mpi_plan_order_mpi_SOURCES = tests/mpi/test_plan_order.c
MPI_TESTS += tests/mpi/reducer_faults.mpi
tests_mpi_reducer_faults_mpi_SOURCES = tests/mpi/test_reducer_faults.c
MPI_TESTS += tests/mpi/reduce_function.mpi
tests_mpi_reduce_function_mpi_SOURCES = tests/mpi/test_reduce_function.c
MPI_TESTS += tests/mpi/sums.mpi
tests_mpi_sums_mpi_SOURCES = tests/mpi/test_sums.c
MPI_TESTS += tests/mpi/traffic.mpi
tests_mpi_traffic_mpi_SOURCES = tests/mpi/test_traffic.c
MPI_TESTS += tests/mpi/transport.mpi
tests_mpi_transport_mpi_SOURCES = tests/mpi/test_transport.c
MPI_TESTS += tests/mpi/blocks_faults.mpi
tests_mpi_blocks_faults_mpi_SOURCES = tests/mpi/test_blocks_faults.c
MPI_TESTS += tests/mpi/channel_blocks.mpi
tests_mpi_channel_blocks_mpi_SOURCES = tests/mpi/test_channel_blocks.c
MPI_TESTS += tests/mpi/zero.mpi
tests_mpi_zero_mpi_SOURCES = tests/mpi/test_zero.c \
    tests/mpi/test_zero_hooks.c
MPI_TESTS += tests/mpi/zero_nodes.mpi
tests_mpi_zero_nodes_mpi_SOURCES = tests/mpi/test_zero_nodes.c
MPI_TESTS += tests/mpi/zero_lamb.mpi
tests_mpi_zero_lamb_mpi_SOURCES = tests/mpi/test_zero_lamb.c
# The same tests for stage 2.
MPI_TESTS += tests/mpi/zero_stage2.mpi
tests_mpi_zero_stage2_mpi_SOURCES = tests/mpi/test_zero.c \
    tests/mpi/test_zero_arrays.c \
    tests/mpi/test_zero_faults.c \
    tests/mpi/test_zero_hooks.c \
    tests/mpi/test_zero_lamb.c \
    tests/mpi/test_zero_nodes.c
tests_mpi_zero_stage2_mpi_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_STAGE=2
# And for stage 3.
MPI_TESTS += tests/mpi/zero_stage3.mpi
tests_mpi_zero_stage3_mpi_SOURCES = tests/mpi/test_zero.c \
    tests/mpi/test_zero_hooks.c \
    tests/mpi/test_zero_lamb.c \
    tests/mpi/test_zero_nodes.c
tests_mpi_zero_stage3_mpi_CPPFLAGS = $(AM_CPPFLAGS) -DZERO_STAGE=3
MPI_TESTS += tests/mpi/zero_values.mpi
tests_mpi_zero_values_mpi_SOURCES = tests/mpi/test_zero_values.c \
    tests/mpi/test_zero_layers.c
MPI_TESTS += tests/mpi/zero_gradients.mpi
tests_mpi_zero_gradients_mpi_SOURCES = tests/mpi/test_zero_gradients.c \
    tests/mpi/test_zero_modules.c
MPI_TESTS += tests/mpi/zero_arrays.mpi
tests_mpi_zero_arrays_mpi_SOURCES = tests/mpi/test_zero_arrays.c
MPI_TESTS += tests/mpi/zero_faults.mpi
tests_mpi_zero_faults_mpi_SOURCES = tests/mpi/test_zero_faults.c
MPI_TESTS += tests/mpi/shards.mpi
tests_mpi_shards_mpi_SOURCES = tests/mpi/test_shards.c
MPI_TESTS += tests/mpi/shuffle.mpi
tests_mpi_shuffle_mpi_SOURCES = tests/mpi/test_shuffle.c tests/mpi/test_shuffle_faults.c
MPI_TESTS += tests/mpi/resume_data.mpi
tests_mpi_resume_data_mpi_SOURCES = tests/mpi/test_resume_data.c

# With another MPI, in a build tree of its own (../configure MPICC=mpicc.mpich). Without a helper thread: MPICH 4.0.2
# may end a program in MPI_Finalize where a thread has tested requests while another one was in MPI_Allreduce, as tests
# are. Each test once, on 3 ranks if there is such a suite.
# What does not run is listed here, with the reason; docs/testing.md has the numbers.
MPICH_WITHOUT = $(MPICH_HELPED) $(MPICH_OPEN_MPI)
# Most of its tests need a helper thread.
MPICH_HELPED = tests/mpi/transport.mpi
# It counts what Open MPI's all-reduce sends.
MPICH_OPEN_MPI = tests/mpi/traffic.mpi
# Of the programs that run, these tests are skipped. They need a helper thread, and fail with Open MPI, too, if there is
# none; but for rank_that_stops_is_a_time_out: MPICH's MPI_Bcast waits for the rank that is stopped.
MPICH_SKIPPED = \
    np2_channel_use/helper_sends_all_chunks_without_a_wait np2_channel_use/rank_that_stops_is_a_time_out \
    np2_channel_use/the_helper_sleeps_longer_when_exchanges_are_early \
    np2_channel_use/time_out_names_the_item_and_can_be_waited_for_again \
    np2_comm/hundred_thousand_mixed_exchanges_under_the_helper np3_own_exchange/every_way_conforms \
    np3_stall/a_late_rank_is_named_in_a_channel np3_stall/what_a_late_rank_began_last_is_told \
    np3_stall_apart/a_late_rank_is_named_by_messages \
    np4_shm/helpers_complete_without_a_wait
MPICH_TESTS = for t in $(MPI_TESTS); do \
    case "$$t $(MPICH_WITHOUT) " in tests/gpu/* | *" $$t "*) ;; *) echo $$t ;; esac; done
.PHONY: check-mpich mpich-programs
check-mpich: mpich-programs
	tests=$$($(MPICH_TESTS)) && \
	    ISO_PROGRESS=poll ISO_TEST_ONCE=3 ISO_TEST_WITHOUT="$$(echo $(MPICH_SKIPPED))" \
	    $(MAKE) $(AM_MAKEFLAGS) check-TESTS TESTS="$$(echo $$tests)" check_PROGRAMS="$$(echo $$tests)"
mpich-programs: $(check_DATA)
	$(MAKE) $(AM_MAKEFLAGS) $$($(MPICH_TESTS))
