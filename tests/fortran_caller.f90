! SPDX-License-Identifier: MIT
! A Fortran program as MPI codes with mpif.h are, for check_fortran.sh: ends with an error that says
! what does not hold. usage: fortran_caller train|uses|errors|mismatch
module fortran_uses
    use fortran_network
    use fortran_hooks
    implicit none

contains

    subroutine test_averages(reducer)
        type(iso_reducer), intent(in) :: reducer
        call give(reducer, dble(rank + 1))
        call report_all(reducer)
        call check(iso_reducer_finish(reducer))
        call expect(is_left(reducer, (ranks + 1) / 2d0), 'gradients become means')
        call check(iso_reducer_set_weight(reducer, 2d0, 4d0))
        call give(reducer, 1d0)
        call report_all(reducer)
        call check(iso_reducer_finish(reducer))
        call expect(is_left(reducer, 2d0 * ranks / 4), 'weight 2 of 4')
        call check(iso_reducer_set_weight(reducer, 1d0, 0d0))
        call give(reducer, 3d0)
        if (rank == 0) call report_all(reducer)
        if (rank > 0) call check(iso_reducer_shadow(reducer))
        call check(iso_reducer_finish(reducer))
        call expect(is_left(reducer, 3d0 / ranks), 'others shadow rank 0')
        call iso_reducer_zero_grad(reducer)
    end subroutine

    ! One updates the first two parameters, the other one the third.
    subroutine test_appliers(reducer, m)
        type(iso_reducer), intent(in) :: reducer
        type(model), intent(inout), target :: m
        type(model) :: old
        type(settings), target :: now
        integer :: first, second, id
        first = -5
        call check(iso_reducer_add_apply(reducer, update, c_sizeof(now), first, [1, 2], c_loc(m)))
        call check(iso_reducer_add_apply(reducer, update, c_sizeof(now), second, [3], c_loc(m)))
        call expect(first >= 0 .and. second >= 0 .and. first /= second, 'each has an id')
        old = m
        call give(reducer, 1d0)
        call report_all(reducer)
        now%lr = 0.5d0
        call refused(iso_reducer_step(reducer, c_loc(now)), ISO_ERR_STATE, '2 optimizers')
        call check(iso_reducer_step_of(reducer, first, c_loc(now)))
        call check(iso_reducer_finish(reducer))
        call expect(maxval(abs(old%weight - 0.5 - m%weight)) < 1e-6, 'the first updates its own')
        call expect(maxval(abs(old%readout - m%readout)) < 1d-300, 'and nothing else')
        call check(iso_reducer_remove_apply(reducer, first))
        call give(reducer, 1d0)
        call report_all(reducer)
        call check(iso_reducer_step(reducer, c_loc(now)))
        call check(iso_reducer_finish(reducer))
        call expect(maxval(abs(old%readout - 0.5d0 - m%readout)) < 1d-12, 'the second one is there')
        call check(iso_reducer_remove_apply(reducer, ISO_REDUCER_ONLY))
        call check(iso_reducer_set_apply(reducer, update, c_sizeof(now), c_loc(m)))
        call refused(iso_reducer_set_apply(reducer, update), ISO_ERR_STATE, 'optimizer already')
        call check(iso_reducer_set_apply(reducer))
        call check(iso_reducer_set_apply(reducer))
        id = -5
        call refused(iso_reducer_add_apply(reducer, update, c_sizeof(now), id, [4]), ISO_ERR_ARG, &
            'no parameter 3: they are 0 to 2')
        call expect(id == -5, 'outputs are written on success only')
        call check(iso_reducer_add_apply(reducer, update, c_sizeof(now), id, user=c_loc(m)))
        call expect(id >= 0, 'an applier of all')
    end subroutine

    subroutine test_statistics(reducer)
        type(iso_reducer), intent(in) :: reducer
        type(iso_reducer_stats) :: stats
        type(iso_bucket_stats) :: bucket
        character(:), allocatable :: text
        double precision :: ms
        integer :: line, b
        integer(c_size_t) :: bytes
        call iso_reducer_get_stats(reducer, stats)
        call expect(stats%steps == 2 .and. stats%bucket_count == 2, 'two steps, two buckets')
        call check(iso_reducer_bucket_text(reducer, text))
        line = index(text, new_line('a'))
        call expect(index(text(:line), 'readout') > 0 .and. index(text(line:), 'weight') > 0 &
            .and. text(len(text):) == new_line('a'), 'the last layer leaves first')
        bytes = 0
        do b = 1, 2
            call check(iso_reducer_get_bucket_stats(reducer, b, bucket))
            call expect(len(iso_string(bucket%name)) > 0, 'a bucket has a name')
            call expect(ranks == 1 .or. bucket%exchanges == 5, 'each backward was an exchange')
            bytes = bytes + bucket%bytes
        end do
        call expect(bytes == 4 * (matrix + hidden) + 8 * hidden, 'buckets hold all gradients')
        call refused(iso_reducer_get_bucket_stats(reducer, 3, bucket), ISO_ERR_ARG, 'no bucket 2')
        ms = -1
        call check(iso_reducer_measure_exchange(reducer, 2, ms))
        call expect(ms >= 0 .and. ms < 1d4, 'an exchange takes a time')
    end subroutine

    ! With all settings that a config has.
    subroutine test_settings(m)
        type(model), intent(inout), target :: m
        type(iso_reducer_config) :: config
        type(iso_reducer) :: reducer
        type(iso_reducer_param) :: params(3)
        type(iso_reducer_stats) :: stats
        integer(c_size_t), target :: sizes(2) = [768, 65536]
        character(:), allocatable :: text
        real(c_double) :: sum
        params = list(m)
        params(1)%local = .true.
        config%sync = ISO_SYNC_EXPLICIT
        config%order = ISO_ORDER_REVERSE
        config%unused = ISO_UNUSED_ZERO
        config%average = ISO_AVERAGE_SUM
        config%bucket_list = c_loc(sizes)
        config%bucket_list_count = size(sizes)
        config%sums = 2
        call check(iso_comm_hook_parse('bf16 ', config%hook))
        call check(iso_reducer_create(comm, params, names, reducer, config))
        call iso_reducer_get_stats(reducer, stats)
        call expect(stats%bytes_per_step == 2 * hidden + 8 * hidden, 'bf16, and local is local')
        call give(reducer, dble(rank + 1))
        call check(iso_reducer_add_sum(reducer, 2, rank + 1d0))
        call check(iso_reducer_all_reduce(reducer))
        call check(iso_reducer_get_sum(reducer, 2, sum))
        call expect(abs(sum - ranks * (ranks + 1) / 2d0) < 1d-12, 'numbers are summed')
        call give(reducer, dble(rank + 1))
        call check(iso_reducer_grad_ready(reducer, 3))
        call check(iso_reducer_all_reduce(reducer))
        call check(iso_reducer_bucket_text(reducer, text))
        call iso_reducer_destroy(reducer)
        call check(iso_device_create('cpu', config%device))
        call iso_device_destroy(config%device)
        call expect(.not. c_associated(config%device), 'destroying forgets')
    end subroutine

    ! ---- All uses --------------------------------------------------------------------------------

    integer(c_int) function descend(update) result(status)
        type(iso_reducer_update), intent(in) :: update
        real(c_double), pointer :: value(:), gradient(:), blocks(:, :), lr
        call c_f_pointer(update%value, value, [update%count])
        call c_f_pointer(update%gradient, gradient, [update%count])
        call c_f_pointer(update%hyper, lr)
        call expect(update%first == 1 .and. update%dtype == ISO_F64, 'an update knows its elements')
        call expect(update%param == update%slice, 'parameters are the slices')
        call c_f_pointer(update%user, blocks, [4, 3])
        call expect(iso_update_offset(update, c_loc(blocks)) == 4 * (update%slice - 1), &
            'an update knows its place')
        call expect(iso_string(update%name) == &
            'blocks['//achar(iachar('0') + update%slice - 1)//']', 'an update knows the name')
        value = value - lr*gradient
        status = ISO_OK
    end function

    ! An array of all layers, a gradient array of the program's own, and layers by their numbers.
    subroutine test_slices()
        type(iso_reducer) :: reducer
        real(c_double), target :: blocks(4, 3), given(4, 3), lr
        integer :: l
        blocks = 0
        call check(iso_reducer_create(comm, [iso_param_f64(blocks, 4, 7, given, 3)], &
            ['blocks'], reducer))
        call expect(iso_reducer_param_count(reducer) == 3, 'each slice is a parameter')
        call expect(iso_reducer_find(reducer, 'blocks[2]') == 3, 'names are found')
        call expect(iso_reducer_find(reducer, 'blocks') == 0, 'other names are not')
        call check(iso_reducer_set_update(reducer, descend, c_sizeof(lr), c_loc(blocks)))
        do l = 3, 1, -1
            given(:, l) = l*(rank + 1)
            call check(iso_reducer_layer_ready(reducer, 6 + l))
            given(:, l) = -1
        end do
        lr = 2
        call check(iso_reducer_step(reducer, c_loc(lr)))
        do l = 1, 3
            call check(iso_reducer_layer_needed(reducer, 6 + l))
            call expect(maxval(abs(blocks(:, l) + l*(ranks + 1))) < 1d-12, 'a layer is updated')
        end do
        call expect(maxval(abs(given + 1)) < 1d-300, 'the array is the program''s again')
        call refused(iso_reducer_layer_ready(reducer, 10), ISO_ERR_ARG, 'no layer 10')
        call iso_reducer_destroy(reducer)
    end subroutine

    logical(c_bool) function is_readout(name, parameter, user) bind(c, name='')
        type(c_ptr), value :: name, parameter, user
        is_readout = iso_string(name) == 'readout' .and. c_associated(parameter) &
            .and. .not. c_associated(user)
    end function

    ! The library's SGD on the program's arrays, with a group of its own, norms and clipping.
    subroutine test_optimizer(m)
        type(model), intent(inout), target :: m
        type(model) :: old
        type(iso_reducer) :: reducer
        type(iso_optimizer) :: sgd, second
        type(iso_hyper) :: hyper
        type(iso_optimizer_group) :: group
        type(iso_hyper), pointer :: mine
        double precision :: norm, total, expected, mean
        logical :: finite
        mean = (ranks + 1) / 2d0
        expected = mean * sqrt(dble(matrix + 2 * hidden))
        hyper = iso_hyper_default(ISO_SGD)
        hyper%lr = 0.5d0
        group = iso_optimizer_group(hyper=hyper, belongs=c_funloc(is_readout))
        group%hyper%lr = 0.25d0
        call check(iso_reducer_create(comm, list(m), names, reducer))
        call check(iso_reducer_set_optimizer(reducer, ISO_SGD, sgd, hyper, [group]))
        call refused(iso_reducer_set_optimizer(reducer, ISO_ADAM, second), ISO_ERR_STATE, &
            'these arrays have an optimizer')
        call expect(iso_optimizer_groups(sgd) == 2, 'there are two groups')
        mine => iso_optimizer_hyper(sgd)
        call expect(abs(mine%lr - 0.5d0) < 1d-15, 'hyperparameters are those that were given')
        mine => iso_optimizer_group_hyper(sgd, 1)
        mine%lr = 1
        old = m
        call iso_optimizer_zero_grad(sgd)
        call give(reducer, dble(rank + 1))
        call report_all(reducer)
        finite = .false.
        call check(iso_reducer_grads_finite(reducer, finite))
        call expect(finite, 'gradients are finite')
        call check(iso_reducer_grad_norm(reducer, 2d0, norm))
        call check(iso_reducer_clip_grad_norm(reducer, expected / 2, 2d0, total))
        call expect(abs(norm / expected - 1) < 1d-6 .and. abs(total - norm) < 1d-12, 'a norm')
        call check(iso_optimizer_step(sgd))
        call check(iso_reducer_finish(reducer))
        call expect(maxval(abs(old%weight - 0.25 * real(mean) - m%weight)) < 1e-5, 'SGD, clipped')
        call expect(maxval(abs(old%readout - 0.5d0 * mean - m%readout)) < 1d-5, 'its group')
        call give(reducer, dble(rank + 1) * huge(1d0))
        call report_all(reducer)
        call check(iso_reducer_grads_finite(reducer, finite))
        call expect(.not. finite, 'infinite gradients are found')
        call iso_optimizer_zero_grad(sgd)
        call check(iso_reducer_finish(reducer))
        call iso_optimizer_destroy(sgd)
        call iso_reducer_destroy(reducer)
    end subroutine

    ! The last rank asks, and all stop after the same step.
    subroutine test_stop()
        type(iso_stop) :: stop
        logical :: stops
        integer :: step
        integer(c_int64_t), target :: same(2)
        call check(iso_stop_create(comm, stop))
        stops = .true.
        call check(iso_stop_check_now(stop, stops))
        call expect(.not. stops, 'nobody has asked')
        step = 0
        do while (.not. stops .and. step < 100000000)
            step = step + 1
            if (rank == ranks - 1 .and. step == 10) call iso_stop_request(stop)
            call check(iso_stop_check(stop, stops))
        end do
        call expect(stops .and. step >= 10, 'the ranks stop')
        same = [int(step, c_int64_t), -int(step, c_int64_t)]
        call check(iso_comm_allreduce_i64(comm, same, ISO_MAX))
        call expect(same(1) == -same(2), 'the ranks stop after the same step')
        call iso_stop_destroy(stop)
    end subroutine

    subroutine test_uses()
        type(model), target :: m
        type(iso_reducer) :: reducer
        call start(m)
        if (rank > 0) m%readout = 77
        call check(iso_reducer_create(comm, list(m), names, reducer))
        call expect(abs(m%readout(1) - 0.2d0 * cos(1d0)) < 1d-12, 'all begin with values of rank 0')
        call test_stop()
        call test_averages(reducer)
        call test_appliers(reducer, m)
        call test_statistics(reducer)
        call iso_reducer_destroy(reducer)
        call test_settings(m)
        call test_slices()
        call test_optimizer(m)
        if (ranks == 1) return
        call test_hook(m)
        call test_own_exchange(m)
        call test_shipped_hooks(m)
    end subroutine

    ! ---- Errors ----------------------------------------------------------------------------------

    subroutine test_errors()
        type(model), target :: m
        type(iso_reducer) :: reducer
        type(iso_reducer_param) :: params(3)
        type(settings), target :: now
        type(iso_comm) :: none
        type(c_ptr) :: hook
        call start(m)
        call expect(iso_status_string(ISO_ERR_STATE) == 'call not allowed in this state', 'a text')
        call refused(iso_comm_create(MPI_COMM_NULL, none), ISO_ERR_ARG, 'MPI_COMM_NULL')
        call refused(iso_comm_create(MPI_COMM_WORLD, none, iso_comm_config(timeout_s=-1)), &
            ISO_ERR_ARG, '-1 s')
        call iso_comm_destroy(none)
        call refused(iso_comm_hook_parse('f8', hook), ISO_ERR_ARG, 'f8')
        call refused(iso_device_create('tpu', hook), ISO_ERR_ARG, 'tpu')
        params = list(m)
        call refused(iso_reducer_create(comm, params, names(:2), reducer), ISO_ERR_ARG, &
            'parameter 2 (counted from 0)')
        params(3) = iso_reducer_param(value=c_loc(m%readout), count=hidden, layer=2)
        call refused(iso_reducer_create(comm, params, names, reducer), ISO_ERR_TYPE, '"readout"')
        call iso_reducer_destroy(reducer)
        call check(iso_reducer_create(comm, list(m), names, reducer))
        call refused(iso_reducer_grad_ready(reducer, 4), ISO_ERR_ARG, &
            'no parameter 3: they are 0 to 2')
        call expect(.not. c_associated(iso_reducer_grad(reducer, 0)), 'no parameter 0')
        call give(reducer, 1d0)
        call check(iso_reducer_grad_ready(reducer, 3))
        call refused(iso_reducer_grad_ready(reducer, 3), ISO_ERR_STATE, '"readout"')
        call iso_error_print()
        call check(iso_reducer_grad_ready(reducer, 2))
        call check(iso_reducer_grad_ready(reducer, 1))
        call check(iso_reducer_finish(reducer))
        call check(iso_reducer_set_apply(reducer, refuse, c_sizeof(now)))
        call give(reducer, 1d0)
        call report_all(reducer)
        now%lr = 1
        call check(iso_reducer_step(reducer, c_loc(now)))
        call refused(iso_reducer_param_needed(reducer, 3), ISO_ERR_IO, 'the program said 100 %s')
        call iso_reducer_destroy(reducer)
    end subroutine

    subroutine test_mismatch()
        type(model), target :: m
        type(iso_reducer) :: reducer
        type(iso_reducer_param) :: params(3)
        integer :: failed
        call start(m)
        params = list(m)
        if (rank == ranks - 1) params(3)%count = hidden - 1
        if (iso_reducer_create(comm, params, names, reducer) == ISO_ERR_MISMATCH) then
            call iso_error_print()
            call MPI_Abort(MPI_COMM_WORLD, 5, failed)
        end if
    end subroutine
end module

program fortran_caller
    use fortran_uses
    implicit none
    character(16) :: what
    integer :: provided, failed
    call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided, failed)
    call check(iso_comm_create(MPI_COMM_WORLD, comm, iso_comm_config(timeout_s=20)))
    rank = iso_comm_rank(comm)
    ranks = iso_comm_size(comm)
    call get_command_argument(1, what)
    if (what == 'train') call test_train()
    if (what == 'uses') call test_uses()
    if (what == 'errors') call test_errors()
    if (what == 'mismatch') call test_mismatch()
    call iso_comm_destroy(comm)
    call MPI_Finalize(failed)
end program
