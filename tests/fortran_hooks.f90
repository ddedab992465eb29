! SPDX-License-Identifier: MIT
! Communication hooks of a Fortran program, and those of the library, for fortran_caller.f90.
module fortran_hooks
    use fortran_network
    implicit none

contains

    ! ---- A communication hook of the program: it doubles what is sent ----------------------------

    integer(c_int) function compress(bucket, factor, user) result(status) bind(c, name='')
        type(iso_comm_hook_bucket), intent(in) :: bucket
        real(c_double), value :: factor
        type(c_ptr), value :: user
        status = convert(bucket%gradient, bucket%wire, 2 * factor, bucket, user)
    end function

    integer(c_int) function decompress(bucket, factor, user) result(status) bind(c, name='')
        type(iso_comm_hook_bucket), intent(in) :: bucket
        real(c_double), value :: factor
        type(c_ptr), value :: user
        status = convert(bucket%wire, bucket%gradient, factor, bucket, user)
    end function

    integer(c_int) function convert(from, to, factor, bucket, user) result(status)
        type(c_ptr), intent(in) :: from, to, user
        real(c_double), intent(in) :: factor
        type(iso_comm_hook_bucket), intent(in) :: bucket
        real(c_float), pointer :: source(:), sink(:), state(:)
        integer, pointer :: seen
        call c_f_pointer(from, source, [bucket%count])
        call c_f_pointer(to, sink, [bucket%count])
        call c_f_pointer(bucket%state, state, [bucket%count])
        call c_f_pointer(user, seen)
        sink = real(source * factor, c_float)
        state = state + 1
        seen = seen + 1
        call expect(iso_string(bucket%name) /= '', 'a bucket has a name')
        status = merge(ISO_OK, ISO_ERR_TYPE, bucket%dtype == ISO_F32 .and. all(nint(state) == seen))
    end function

    subroutine test_hook(m)
        type(model), intent(inout), target :: m
        character(kind=c_char), target :: name(7) = ['d', 'o', 'u', 'b', 'l', 'e', c_null_char]
        integer, target :: seen
        type(iso_comm_hook), target :: hook
        type(iso_reducer) :: reducer
        real(c_float), pointer :: narrow(:)
        integer :: s
        hook = iso_comm_hook(name=c_loc(name), state_floats=1, compress=c_funloc(compress), &
            decompress=c_funloc(decompress), user=c_loc(seen))
        call check(iso_reducer_create(comm, list(m), names, reducer, &
            iso_reducer_config(hook=c_loc(hook))))
        seen = 0
        do s = 1, 2
            call give(reducer, dble(rank + 1))
            call report_all(reducer)
            call check(iso_reducer_finish(reducer))
        end do
        call c_f_pointer(iso_reducer_grad(reducer, 1), narrow, [matrix])
        call expect(seen == 4, 'a bucket of f32 is converted twice in each step')
        call expect(maxval(abs(narrow - (ranks + 1))) < 1e-5, 'and doubled')
        call iso_reducer_destroy(reducer)
    end subroutine

    ! ---- A hook that sums over the communicator of the bucket ------------------------------------

    integer(c_int) function declare(bucket, plan, user) result(status) bind(c, name='')
        type(iso_comm_hook_bucket), intent(in) :: bucket
        type(iso_comm_hook_plan), intent(inout) :: plan
        type(c_ptr), value :: user
        status = merge(ISO_OK, ISO_ERR_ARG, c_associated(user))
        plan%plain = bucket%dtype /= ISO_F32
    end function

    integer(c_int) function run(bucket, phase, factor, user) result(status) bind(c, name='')
        type(iso_comm_hook_bucket), intent(in) :: bucket
        integer(c_int), value :: phase
        real(c_double), value :: factor
        type(c_ptr), value :: user
        type(iso_comm) :: over
        real(c_float), pointer :: gradient(:)
        double precision :: sum(bucket%count)
        integer(c_int64_t) :: largest(1)
        integer, target :: root_rank
        integer, pointer :: seen
        integer :: many, failed
        call c_f_pointer(user, seen)
        call c_f_pointer(bucket%gradient, gradient, [bucket%count])
        over = iso_hook_comm(bucket)
        call expect(phase == 0 .and. iso_comm_rank(over) == bucket%rank &
            .and. iso_comm_size(over) == bucket%ranks, 'the communicator is that of the bucket')
        call check(iso_comm_barrier(over))
        root_rank = bucket%rank
        call check(iso_comm_bcast(over, c_loc(root_rank), c_sizeof(root_rank), bucket%ranks - 1))
        largest = bucket%rank
        call check(iso_comm_allreduce_i64(over, largest, ISO_MAX))
        call MPI_Allreduce(1, many, 1, MPI_INTEGER, MPI_SUM, iso_comm_mpi(over), failed)
        call expect(root_rank == bucket%ranks - 1 .and. largest(1) == root_rank &
            .and. many == bucket%ranks, 'collectives and MPI work over it')
        sum = gradient
        status = iso_comm_allreduce_f64(over, sum, ISO_SUM)
        gradient = real(sum * factor, c_float)
        seen = seen + 1
    end function

    subroutine test_own_exchange(m)
        type(model), intent(inout), target :: m
        character(kind=c_char), target :: name(4) = ['o', 'w', 'n', c_null_char]
        integer, target :: seen
        type(iso_comm_hook), target :: hook
        type(iso_reducer) :: reducer
        hook = iso_comm_hook(name=c_loc(name), declare=c_funloc(declare), run=c_funloc(run), &
            user=c_loc(seen))
        call check(iso_reducer_create(comm, list(m), names, reducer, &
            iso_reducer_config(sync=ISO_SYNC_BLOCKING, hook=c_loc(hook))))
        seen = 0
        call give(reducer, dble(rank + 1))
        call report_all(reducer)
        call check(iso_reducer_finish(reducer))
        call expect(is_left(reducer, (ranks + 1) / 2d0) .and. seen == 1, 'its sums become means')
        call iso_reducer_destroy(reducer)
    end subroutine

    ! ---- The hooks that are shipped --------------------------------------------------------------

    ! The bytes that a step sends with a hook, which leaves means of gradients that are one number.
    integer(c_size_t) function bytes_with(hook, m, exact) result(bytes)
        type(iso_comm_hook), intent(in), target :: hook
        type(model), intent(inout), target :: m
        logical, intent(in) :: exact
        type(iso_reducer_param) :: params(3)
        type(iso_reducer_stats) :: stats
        type(iso_reducer) :: reducer
        params = list(m)
        params(1)%row = inputs
        call check(iso_reducer_create(comm, params, names, reducer, &
            iso_reducer_config(hook=c_loc(hook))))
        call give(reducer, dble(rank + 1))
        call report_all(reducer)
        call check(iso_reducer_finish(reducer))
        call expect(is_left(reducer, (ranks + 1) / 2d0) .eqv. exact, 'gradients become means')
        call iso_reducer_get_stats(reducer, stats)
        bytes = stats%bytes_per_step
        call iso_reducer_destroy(reducer)
    end function

    subroutine test_shipped_hooks(m)
        type(model), intent(inout), target :: m
        type(iso_comm_hook), target :: hook
        type(iso_topk_config), target :: some, every
        type(iso_randomk_config), target :: whole
        type(iso_powersgd_config), target :: one, two
        integer(c_size_t) :: plain, bytes
        hook = iso_hook_int8()
        plain = 4 * (matrix + hidden) + 8 * hidden
        bytes = bytes_with(hook, m, .true.)
        call expect(bytes < plain / 2, 'int8 sends less')
        hook = iso_hook_fp8()
        bytes = bytes_with(hook, m, .true.)
        call expect(bytes < plain / 2, 'fp8 sends less')
        hook = iso_hook_topk()
        bytes = bytes_with(hook, m, .false.)
        some%ratio = 0.2d0
        hook = iso_hook_topk(some)
        call expect(bytes_with(hook, m, .false.) > 5 * bytes, 'topk sends a share of 0.2, not 0.01')
        every%ratio = 1
        hook = iso_hook_topk(every)
        bytes = bytes_with(hook, m, .true.)
        hook = iso_hook_randomk()
        bytes = bytes_with(hook, m, .false.)
        whole%ratio = 1
        hook = iso_hook_randomk(whole)
        call expect(bytes_with(hook, m, .true.) > bytes, 'randomk sends as much as it is told to')
        hook = iso_hook_onebit()
        call expect(c_associated(hook%run), 'onebit owns its exchange')
        hook = iso_hook_dithering()
        call expect(c_associated(hook%run), 'dithering owns its exchange')
        one%start = 0
        hook = iso_hook_powersgd(one)
        bytes = bytes_with(hook, m, .true.)
        two%start = 0
        two%rank = 2
        hook = iso_hook_powersgd(two)
        call expect(bytes_with(hook, m, .true.) > bytes .and. bytes < plain / 4, &
            'powersgd sends a product of two matrices')
        hook = iso_hook_powersgd()
        call expect(hook%start == 1000, 'powersgd begins after 1000 exchanges')
    end subroutine

end module
