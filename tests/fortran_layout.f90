! SPDX-License-Identifier: MIT
! Compares the types and constants of isotherm.f90 with those that fortran_layout.c knows from C;
! ends with an error that names the first difference.
program fortran_layout
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit
    use isotherm
    implicit none

    interface
        integer(c_long_long) function layout_of(name) bind(c)
            import
            character(kind=c_char), intent(in) :: name(*)
        end function
        type(c_ptr) function layout_unasked() bind(c)
            import
        end function
    end interface

    type(iso_comm_config), target :: comm
    type(iso_reducer_param), target :: param
    type(iso_reducer_config), target :: config
    type(iso_reducer_update), target :: update
    type(iso_reducer_stats), target :: stats
    type(iso_bucket_stats), target :: bucket
    type(iso_comm_hook_bucket), target :: shown
    type(iso_comm_hook), target :: hook
    type(iso_comm_hook_tensor), target :: held
    type(iso_comm_phase), target :: phase
    type(iso_comm_hook_plan), target :: plan
    type(iso_topk_config), target :: topk
    type(iso_randomk_config), target :: randomk
    type(iso_powersgd_config), target :: powersgd
    type(iso_hyper), target :: hyper
    type(iso_optimizer_group), target :: group

    call check_comm()
    call check_param()
    call check_config()
    call check_update()
    call check_stats()
    call check_bucket()
    call check_shown()
    call check_hook()
    call check_shipped()
    call check_optimizer()
    call check_values()
    if (iso_string(layout_unasked()) /= '') then
        write (error_unit, '(2a)') 'not in Fortran: ', iso_string(layout_unasked())
        stop 1
    end if

contains

    subroutine same(name, mine)
        character(*), intent(in) :: name
        integer(c_size_t), intent(in) :: mine
        if (layout_of(name//c_null_char) == mine) return
        write (error_unit, '(2a, i0, a, i0, a)') name, ': ', layout_of(name//c_null_char), &
            ' in C, ', mine, ' in Fortran'
        stop 1
    end subroutine

    subroutine constant(name, mine)
        character(*), intent(in) :: name
        integer, intent(in) :: mine
        call same(name, int(mine, c_size_t))
    end subroutine

    subroutine field(name, start, here)
        character(*), intent(in) :: name
        type(c_ptr), intent(in) :: start, here
        call same(name, transfer(here, 0_c_size_t) - transfer(start, 0_c_size_t))
    end subroutine

    subroutine check_comm()
        call same('iso_comm_config', c_sizeof(comm))
        call field('iso_comm_config.progress', c_loc(comm), c_loc(comm%progress))
        call field('iso_comm_config.timeout_s', c_loc(comm), c_loc(comm%timeout_s))
    end subroutine

    subroutine check_param()
        call same('iso_reducer_param', c_sizeof(param))
        call field('iso_reducer_param.name', c_loc(param), c_loc(param%name))
        call field('iso_reducer_param.value', c_loc(param), c_loc(param%value))
        call field('iso_reducer_param.count', c_loc(param), c_loc(param%count))
        call field('iso_reducer_param.dtype', c_loc(param), c_loc(param%dtype))
        call field('iso_reducer_param.layer', c_loc(param), c_loc(param%layer))
        call field('iso_reducer_param.shape_id', c_loc(param), c_loc(param%shape_id))
        call field('iso_reducer_param.shape_text', c_loc(param), c_loc(param%shape_text))
        call field('iso_reducer_param.row', c_loc(param), c_loc(param%row))
        call field('iso_reducer_param.whole', c_loc(param), c_loc(param%whole))
        call field('iso_reducer_param.local', c_loc(param), c_loc(param%local))
        call field('iso_reducer_param.delayed', c_loc(param), c_loc(param%delayed))
        call field('iso_reducer_param.gradient', c_loc(param), c_loc(param%gradient))
        call field('iso_reducer_param.layers', c_loc(param), c_loc(param%layers))
        call field('iso_reducer_param.stride', c_loc(param), c_loc(param%stride))
        call field('iso_reducer_param.user', c_loc(param), c_loc(param%user))
        call field('iso_reducer_param.sparse_rows', c_loc(param), c_loc(param%sparse_rows))
    end subroutine

    subroutine check_config()
        call same('iso_reducer_config', c_sizeof(config))
        call field('iso_reducer_config.device', c_loc(config), c_loc(config%device))
        call field('iso_reducer_config.sync', c_loc(config), c_loc(config%sync))
        call field('iso_reducer_config.scope', c_loc(config), c_loc(config%scope))
        call field('iso_reducer_config.order', c_loc(config), c_loc(config%order))
        call field('iso_reducer_config.unused', c_loc(config), c_loc(config%unused))
        call field('iso_reducer_config.average', c_loc(config), c_loc(config%average))
        call field('iso_reducer_config.split_factor', c_loc(config), c_loc(config%split_factor))
        call field('iso_reducer_config.hook', c_loc(config), c_loc(config%hook))
        call field('iso_reducer_config.bucket_bytes', c_loc(config), c_loc(config%bucket_bytes))
        call field('iso_reducer_config.first_bucket_bytes', c_loc(config), &
            c_loc(config%first_bucket_bytes))
        call field('iso_reducer_config.last_bucket_bytes', c_loc(config), &
            c_loc(config%last_bucket_bytes))
        call field('iso_reducer_config.bucket_list', c_loc(config), c_loc(config%bucket_list))
        call field('iso_reducer_config.bucket_list_count', c_loc(config), &
            c_loc(config%bucket_list_count))
        call field('iso_reducer_config.piece_bytes', c_loc(config), c_loc(config%piece_bytes))
        call field('iso_reducer_config.sums', c_loc(config), c_loc(config%sums))
        call field('iso_reducer_config.zero', c_loc(config), c_loc(config%zero))
        call field('iso_reducer_config.zero_scope', c_loc(config), c_loc(config%zero_scope))
        call field('iso_reducer_config.keep_values', c_loc(config), c_loc(config%keep_values))
        call field('iso_reducer_config.by_name', c_loc(config), c_loc(config%by_name))
        call field('iso_reducer_config.by_weight', c_loc(config), c_loc(config%by_weight))
    end subroutine

    subroutine check_update()
        call same('iso_reducer_update', c_sizeof(update))
        call field('iso_reducer_update.param', c_loc(update), c_loc(update%param))
        call field('iso_reducer_update.name', c_loc(update), c_loc(update%name))
        call field('iso_reducer_update.slice', c_loc(update), c_loc(update%slice))
        call field('iso_reducer_update.first', c_loc(update), c_loc(update%first))
        call field('iso_reducer_update.count', c_loc(update), c_loc(update%count))
        call field('iso_reducer_update.dtype', c_loc(update), c_loc(update%dtype))
        call field('iso_reducer_update.value', c_loc(update), c_loc(update%value))
        call field('iso_reducer_update.gradient', c_loc(update), c_loc(update%gradient))
        call field('iso_reducer_update.scale', c_loc(update), c_loc(update%scale))
        call field('iso_reducer_update.hyper', c_loc(update), c_loc(update%hyper))
        call field('iso_reducer_update.param_user', c_loc(update), c_loc(update%param_user))
        call field('iso_reducer_update.user', c_loc(update), c_loc(update%user))
    end subroutine

    subroutine check_stats()
        call same('iso_reducer_stats', c_sizeof(stats))
        call field('iso_reducer_stats.steps', c_loc(stats), c_loc(stats%steps))
        call field('iso_reducer_stats.bucket_count', c_loc(stats), c_loc(stats%bucket_count))
        call field('iso_reducer_stats.bytes_per_step', c_loc(stats), c_loc(stats%bytes_per_step))
        call field('iso_reducer_stats.bytes_world', c_loc(stats), c_loc(stats%bytes_world))
        call field('iso_reducer_stats.bytes_node', c_loc(stats), c_loc(stats%bytes_node))
        call field('iso_reducer_stats.wait_ms', c_loc(stats), c_loc(stats%wait_ms))
        call field('iso_reducer_stats.exchange_ms', c_loc(stats), c_loc(stats%exchange_ms))
        call field('iso_reducer_stats.shared_memory', c_loc(stats), c_loc(stats%shared_memory))
        call field('iso_reducer_stats.nccl', c_loc(stats), c_loc(stats%nccl))
        call field('iso_reducer_stats.exchanges', c_loc(stats), c_loc(stats%exchanges))
        call field('iso_reducer_stats.planned', c_loc(stats), c_loc(stats%planned))
        call field('iso_reducer_stats.bytes_sent', c_loc(stats), c_loc(stats%bytes_sent))
        call field('iso_reducer_stats.bytes_between_nodes', c_loc(stats), c_loc(stats%bytes_between_nodes))
        call field('iso_reducer_stats.gradient_peak', c_loc(stats), c_loc(stats%gradient_peak))
        call field('iso_reducer_stats.two_levels', c_loc(stats), c_loc(stats%two_levels))
        call field('iso_reducer_stats.pairwise', c_loc(stats), c_loc(stats%pairwise))
    end subroutine

    subroutine check_bucket()
        call same('iso_bucket_stats', c_sizeof(bucket))
        call field('iso_bucket_stats.name', c_loc(bucket), c_loc(bucket%name))
        call field('iso_bucket_stats.bytes', c_loc(bucket), c_loc(bucket%bytes))
        call field('iso_bucket_stats.wire_bytes', c_loc(bucket), c_loc(bucket%wire_bytes))
        call field('iso_bucket_stats.exchanges', c_loc(bucket), c_loc(bucket%exchanges))
        call field('iso_bucket_stats.ready_ms', c_loc(bucket), c_loc(bucket%ready_ms))
        call field('iso_bucket_stats.start_ms', c_loc(bucket), c_loc(bucket%start_ms))
        call field('iso_bucket_stats.done_ms', c_loc(bucket), c_loc(bucket%done_ms))
        call field('iso_bucket_stats.need_ms', c_loc(bucket), c_loc(bucket%need_ms))
        call field('iso_bucket_stats.wait_ms', c_loc(bucket), c_loc(bucket%wait_ms))
    end subroutine

    subroutine check_shown()
        call same('iso_comm_hook_bucket', c_sizeof(shown))
        call field('iso_comm_hook_bucket.count', c_loc(shown), c_loc(shown%count))
        call field('iso_comm_hook_bucket.dtype', c_loc(shown), c_loc(shown%dtype))
        call field('iso_comm_hook_bucket.gradient', c_loc(shown), c_loc(shown%gradient))
        call field('iso_comm_hook_bucket.wire', c_loc(shown), c_loc(shown%wire))
        call field('iso_comm_hook_bucket.state', c_loc(shown), c_loc(shown%state))
        call field('iso_comm_hook_bucket.name', c_loc(shown), c_loc(shown%name))
        call field('iso_comm_hook_bucket.index', c_loc(shown), c_loc(shown%index))
        call field('iso_comm_hook_bucket.is_last', c_loc(shown), c_loc(shown%is_last))
        call field('iso_comm_hook_bucket.rank', c_loc(shown), c_loc(shown%rank))
        call field('iso_comm_hook_bucket.ranks', c_loc(shown), c_loc(shown%ranks))
        call field('iso_comm_hook_bucket.tensor', c_loc(shown), c_loc(shown%tensor))
        call field('iso_comm_hook_bucket.tensor_count', c_loc(shown), c_loc(shown%tensor_count))
        call field('iso_comm_hook_bucket.data', c_loc(shown), c_loc(shown%data))
        call field('iso_comm_hook_bucket.comm', c_loc(shown), c_loc(shown%comm))
        call field('iso_comm_hook_bucket.exchange', c_loc(shown), c_loc(shown%exchange))
        call same('iso_comm_hook_tensor', c_sizeof(held))
        call field('iso_comm_hook_tensor.name', c_loc(held), c_loc(held%name))
        call field('iso_comm_hook_tensor.offset', c_loc(held), c_loc(held%offset))
        call field('iso_comm_hook_tensor.count', c_loc(held), c_loc(held%count))
        call field('iso_comm_hook_tensor.row', c_loc(held), c_loc(held%row))
        call same('iso_comm_phase', c_sizeof(phase))
        call field('iso_comm_phase.operation', c_loc(phase), c_loc(phase%operation))
        call field('iso_comm_phase.count', c_loc(phase), c_loc(phase%count))
        call field('iso_comm_phase.dtype', c_loc(phase), c_loc(phase%dtype))
        call same('iso_comm_hook_plan', c_sizeof(plan))
        call field('iso_comm_hook_plan.phase_count', c_loc(plan), c_loc(plan%phase_count))
        call field('iso_comm_hook_plan.phase', c_loc(plan), c_loc(plan%phase))
        call field('iso_comm_hook_plan.state_floats', c_loc(plan), c_loc(plan%state_floats))
        call field('iso_comm_hook_plan.plain', c_loc(plan), c_loc(plan%plain))
    end subroutine

    subroutine check_hook()
        call same('iso_comm_hook', c_sizeof(hook))
        call field('iso_comm_hook.name', c_loc(hook), c_loc(hook%name))
        call field('iso_comm_hook.wire', c_loc(hook), c_loc(hook%wire))
        call field('iso_comm_hook.state_floats', c_loc(hook), c_loc(hook%state_floats))
        call field('iso_comm_hook.divides', c_loc(hook), c_loc(hook%divides))
        call field('iso_comm_hook.silent', c_loc(hook), c_loc(hook%silent))
        call field('iso_comm_hook.compress', c_loc(hook), c_loc(hook%compress))
        call field('iso_comm_hook.decompress', c_loc(hook), c_loc(hook%decompress))
        call field('iso_comm_hook.declare', c_loc(hook), c_loc(hook%declare))
        call field('iso_comm_hook.run', c_loc(hook), c_loc(hook%run))
        call field('iso_comm_hook.start', c_loc(hook), c_loc(hook%start))
        call field('iso_comm_hook.user', c_loc(hook), c_loc(hook%user))
        call field('iso_comm_hook.user_bytes', c_loc(hook), c_loc(hook%user_bytes))
    end subroutine

    subroutine check_shipped()
        call same('iso_topk_config', c_sizeof(topk))
        call field('iso_topk_config.ratio', c_loc(topk), c_loc(topk%ratio))
        call same('iso_randomk_config', c_sizeof(randomk))
        call field('iso_randomk_config.ratio', c_loc(randomk), c_loc(randomk%ratio))
        call field('iso_randomk_config.seed', c_loc(randomk), c_loc(randomk%seed))
        call same('iso_powersgd_config', c_sizeof(powersgd))
        call field('iso_powersgd_config.rank', c_loc(powersgd), c_loc(powersgd%rank))
        call field('iso_powersgd_config.start', c_loc(powersgd), c_loc(powersgd%start))
        call field('iso_powersgd_config.least_saving', c_loc(powersgd), c_loc(powersgd%least_saving))
        call field('iso_powersgd_config.seed', c_loc(powersgd), c_loc(powersgd%seed))
        call field('iso_powersgd_config.batched', c_loc(powersgd), c_loc(powersgd%batched))
    end subroutine

    subroutine check_optimizer()
        call same('iso_hyper', c_sizeof(hyper))
        call field('iso_hyper.lr', c_loc(hyper), c_loc(hyper%lr))
        call field('iso_hyper.momentum', c_loc(hyper), c_loc(hyper%momentum))
        call field('iso_hyper.dampening', c_loc(hyper), c_loc(hyper%dampening))
        call field('iso_hyper.weight_decay', c_loc(hyper), c_loc(hyper%weight_decay))
        call field('iso_hyper.beta1', c_loc(hyper), c_loc(hyper%beta1))
        call field('iso_hyper.beta2', c_loc(hyper), c_loc(hyper%beta2))
        call field('iso_hyper.rho', c_loc(hyper), c_loc(hyper%rho))
        call field('iso_hyper.alpha', c_loc(hyper), c_loc(hyper%alpha))
        call field('iso_hyper.eps', c_loc(hyper), c_loc(hyper%eps))
        call field('iso_hyper.lr_decay', c_loc(hyper), c_loc(hyper%lr_decay))
        call field('iso_hyper.initial_accumulator_value', c_loc(hyper), &
            c_loc(hyper%initial_accumulator_value))
        call field('iso_hyper.nesterov', c_loc(hyper), c_loc(hyper%nesterov))
        call field('iso_hyper.centered', c_loc(hyper), c_loc(hyper%centered))
        call field('iso_hyper.amsgrad', c_loc(hyper), c_loc(hyper%amsgrad))
        call field('iso_hyper.maximize', c_loc(hyper), c_loc(hyper%maximize))
        call field('iso_hyper.momentum_decay', c_loc(hyper), c_loc(hyper%momentum_decay))
        call field('iso_hyper.step', c_loc(hyper), c_loc(hyper%step))
        call same('iso_optimizer_group', c_sizeof(group))
        call field('iso_optimizer_group.hyper', c_loc(group), c_loc(group%hyper))
        call field('iso_optimizer_group.belongs', c_loc(group), c_loc(group%belongs))
        call field('iso_optimizer_group.user', c_loc(group), c_loc(group%user))
        call same('iso_optimizer_kind', c_sizeof(0_c_int))
        call constant('ISO_SGD', ISO_SGD)
        call constant('ISO_ADAM', ISO_ADAM)
        call constant('ISO_ADAMW', ISO_ADAMW)
        call constant('ISO_ADADELTA', ISO_ADADELTA)
        call constant('ISO_ADAGRAD', ISO_ADAGRAD)
        call constant('ISO_RMSPROP', ISO_RMSPROP)
        call constant('ISO_LAMB', ISO_LAMB)
        call constant('ISO_NADAM', ISO_NADAM)
    end subroutine

    subroutine check_values()
        call same('iso_reduce', c_sizeof(0_c_int))
        call constant('ISO_SUM', ISO_SUM)
        call constant('ISO_MAX', ISO_MAX)
        call constant('ISO_MIN', ISO_MIN)
        call same('iso_status', c_sizeof(0_c_int))
        call same('iso_dtype', c_sizeof(0_c_int))
        call same('iso_progress', c_sizeof(0_c_int))
        call same('iso_scope', c_sizeof(0_c_int))
        call same('iso_sync', c_sizeof(0_c_int))
        call same('iso_order', c_sizeof(0_c_int))
        call same('iso_unused', c_sizeof(0_c_int))
        call same('iso_average_mode', c_sizeof(0_c_int))
        call constant('ISO_OK', ISO_OK)
        call constant('ISO_PENDING', ISO_PENDING)
        call constant('ISO_ERR_ARG', ISO_ERR_ARG)
        call constant('ISO_ERR_NOMEM', ISO_ERR_NOMEM)
        call constant('ISO_ERR_IO', ISO_ERR_IO)
        call constant('ISO_ERR_FORMAT', ISO_ERR_FORMAT)
        call constant('ISO_ERR_SHAPE', ISO_ERR_SHAPE)
        call constant('ISO_ERR_TYPE', ISO_ERR_TYPE)
        call constant('ISO_ERR_STATE', ISO_ERR_STATE)
        call constant('ISO_ERR_MISMATCH', ISO_ERR_MISMATCH)
        call constant('ISO_ERR_TIMEOUT', ISO_ERR_TIMEOUT)
        call constant('ISO_ERR_MPI', ISO_ERR_MPI)
        call constant('ISO_ERR_DEVICE', ISO_ERR_DEVICE)
        call constant('ISO_ERR_UNSUPPORTED', ISO_ERR_UNSUPPORTED)
        call constant('ISO_F32', ISO_F32)
        call constant('ISO_F64', ISO_F64)
        call constant('ISO_BF16', ISO_BF16)
        call constant('ISO_F16', ISO_F16)
        call constant('ISO_I64', ISO_I64)
        call constant('ISO_I32', ISO_I32)
        call constant('ISO_U8', ISO_U8)
        call constant('ISO_PROGRESS_AUTO', ISO_PROGRESS_AUTO)
        call constant('ISO_PROGRESS_OFF', ISO_PROGRESS_OFF)
        call constant('ISO_PROGRESS_POLL', ISO_PROGRESS_POLL)
        call constant('ISO_PROGRESS_THREAD', ISO_PROGRESS_THREAD)
        call constant('ISO_SCOPE_WORLD', ISO_SCOPE_WORLD)
        call constant('ISO_SCOPE_NODE', ISO_SCOPE_NODE)
        call constant('ISO_SCOPE_RANK', ISO_SCOPE_RANK)
        call constant('ISO_SYNC_LAZY', ISO_SYNC_LAZY)
        call constant('ISO_SYNC_BLOCKING', ISO_SYNC_BLOCKING)
        call constant('ISO_SYNC_NONE', ISO_SYNC_NONE)
        call constant('ISO_SYNC_EXPLICIT', ISO_SYNC_EXPLICIT)
        call constant('ISO_ORDER_NEED', ISO_ORDER_NEED)
        call constant('ISO_ORDER_REVERSE', ISO_ORDER_REVERSE)
        call constant('ISO_UNUSED_ERROR', ISO_UNUSED_ERROR)
        call constant('ISO_UNUSED_ZERO', ISO_UNUSED_ZERO)
        call constant('ISO_UNUSED_NEGOTIATE', ISO_UNUSED_NEGOTIATE)
        call constant('ISO_UNUSED_STATIC', ISO_UNUSED_STATIC)
        call constant('ISO_AVERAGE_POST', ISO_AVERAGE_POST)
        call constant('ISO_AVERAGE_PRE', ISO_AVERAGE_PRE)
        call constant('ISO_AVERAGE_SPLIT', ISO_AVERAGE_SPLIT)
        call constant('ISO_AVERAGE_SUM', ISO_AVERAGE_SUM)
        call constant('ISO_COMM_SUM', ISO_COMM_SUM)
        call constant('ISO_COMM_GATHER', ISO_COMM_GATHER)
        call constant('ISO_COMM_ALLTOALL', ISO_COMM_ALLTOALL)
        call constant('ISO_COMM_HOOK_PHASES', ISO_COMM_HOOK_PHASES)
        call constant('ISO_REDUCER_ONLY', ISO_REDUCER_ONLY)
    end subroutine
end program
