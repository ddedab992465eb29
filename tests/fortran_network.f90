! SPDX-License-Identifier: MIT
! A network on arrays of a Fortran program, trained with the engine and without it, for
! fortran_caller.f90.
module fortran_network
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit
    use isotherm
    implicit none
    include 'mpif.h'

    integer, parameter :: inputs = 64, hidden = 96, samples = 12, steps = 12 ! samples: of all ranks
    integer, parameter :: matrix = inputs * hidden
    character(*), parameter :: names(3) = ['weight ', 'bias   ', 'readout']

    type model ! readout * tanh(transpose(weight) * x + bias)
        real(c_float) :: weight(inputs, hidden), bias(hidden)
        double precision :: readout(hidden)
    end type

    type, bind(c) :: settings ! of a step
        real(c_double) :: lr
    end type

    type(iso_comm) :: comm
    integer :: rank, ranks, calls

contains

    subroutine expect(holds, what)
        logical, intent(in) :: holds
        character(*), intent(in) :: what
        integer :: failed
        if (holds) return
        write (error_unit, '(a, i0, 4a)') 'rank ', rank, ': not so: ', what, '; last error: ', &
            iso_error_message()
        call MPI_Abort(MPI_COMM_WORLD, 3, failed)
    end subroutine

    subroutine check(status)
        integer(c_int), intent(in) :: status
        call expect(status >= 0, 'a call succeeds')
    end subroutine

    subroutine refused(status, code, text)
        integer(c_int), intent(in) :: status, code
        character(*), intent(in) :: text ! a part of the message
        character(:), allocatable :: message
        message = iso_error_message()
        call expect(status == code .and. index(message, text) > 0, &
            iso_status_string(code)//': ... '//text//' ...')
    end subroutine

    ! ---- The network -----------------------------------------------------------------------------

    subroutine start(m)
        type(model), intent(out) :: m
        integer :: j, k
        do k = 1, hidden
            m%weight(:, k) = [(0.1 * sin(real(7 * j + 3 * k)), j = 1, inputs)]
        end do
        m%bias = 0
        m%readout = [(0.2d0 * cos(dble(k)), k = 1, hidden)]
    end subroutine

    ! Means over samples first to last.
    subroutine gradients(m, first, last, d_weight, d_bias, d_readout)
        type(model), intent(in) :: m
        integer, intent(in) :: first, last
        real(c_float), intent(out) :: d_weight(inputs, hidden), d_bias(hidden)
        double precision, intent(out) :: d_readout(hidden)
        real(c_float) :: x(inputs), h(hidden), dz(hidden)
        double precision :: miss
        integer :: s, j
        d_weight = 0
        d_bias = 0
        d_readout = 0
        do s = first, last
            x = [(sin(real(s * j)), j = 1, inputs)]
            h = tanh(matmul(x, m%weight) + m%bias)
            miss = (dot_product(m%readout, dble(h)) - cos(dble(s))) / (last - first + 1)
            d_readout = d_readout + miss * h
            dz = real(miss * m%readout, c_float) * (1 - h**2)
            d_bias = d_bias + dz
            d_weight = d_weight + spread(x, 2, hidden) * spread(dz, 1, inputs)
        end do
    end subroutine

    ! What one process computes on all samples.
    subroutine train_alone(m)
        type(model), intent(out) :: m
        real(c_float) :: d_weight(inputs, hidden), d_bias(hidden)
        double precision :: d_readout(hidden), lr
        integer :: s
        call start(m)
        do s = 1, steps
            lr = 0.05d0 / s
            call gradients(m, 1, samples, d_weight, d_bias, d_readout)
            m%weight = m%weight - real(lr, c_float) * d_weight
            m%bias = m%bias - real(lr, c_float) * d_bias
            m%readout = m%readout - lr * d_readout
        end do
    end subroutine

    ! ---- Updates ---------------------------------------------------------------------------------

    integer(c_int) function update(i, gradient, scale, hyper, user) result(status)
        integer, intent(in) :: i
        type(c_ptr), intent(in) :: gradient, hyper, user
        real(c_double), intent(in) :: scale
        integer(c_size_t), parameter :: counts(3) = [matrix, hidden, hidden]
        status = update_piece(i, 1_c_size_t, counts(i), gradient, scale, hyper, user)
        calls = calls - 1 ! those counted are of pieces
    end function

    integer(c_int) function update_piece(i, first, count, gradient, scale, hyper, user) &
            result(status)
        integer, intent(in) :: i
        integer(c_size_t), intent(in) :: first, count
        type(c_ptr), intent(in) :: gradient, hyper, user
        real(c_double), intent(in) :: scale
        type(model), pointer :: m
        type(settings), pointer :: now
        real(c_float), pointer :: narrow(:), flat(:)
        double precision, pointer :: wide(:)
        calls = calls + 1
        call c_f_pointer(user, m)
        call c_f_pointer(hyper, now)
        call c_f_pointer(gradient, narrow, [count])
        call c_f_pointer(gradient, wide, [count])
        if (i == 1) then
            flat(1:matrix) => m%weight
            flat(first:first + count - 1) = flat(first:first + count - 1) &
                - real(now%lr * scale, c_float) * narrow
        else if (i == 2) then
            m%bias = m%bias - real(now%lr * scale, c_float) * narrow
        else
            m%readout = m%readout - now%lr * scale * wide
        end if
        status = ISO_OK
    end function

    integer(c_int) function refuse(i, gradient, scale, hyper, user) result(status)
        integer, intent(in) :: i
        type(c_ptr), intent(in) :: gradient, hyper, user
        real(c_double), intent(in) :: scale
        status = ISO_OK
        if (c_associated(gradient) .and. c_associated(hyper) .and. .not. c_associated(user) .and. &
            i == 3 .and. scale > 0) status = iso_error_set(ISO_ERR_IO, 'the program said 100 %s')
    end function

    ! ---- Training on a share of the samples ------------------------------------------------------

    function list(m) result(params)
        type(model), intent(in), target :: m
        type(iso_reducer_param) :: params(3)
        params(1) = iso_reducer_param(value=c_loc(m%weight), count=matrix, dtype=ISO_F32, &
            layer=1, row=inputs)
        params(2) = iso_reducer_param(value=c_loc(m%bias), count=hidden, dtype=ISO_F32, layer=1)
        params(3) = iso_reducer_param(value=c_loc(m%readout), count=hidden, dtype=ISO_F64, layer=2)
    end function

    subroutine backward(reducer, m, first, last)
        type(iso_reducer), intent(in) :: reducer
        type(model), intent(in) :: m
        integer, intent(in) :: first, last
        real(c_float), pointer :: d_weight(:, :), d_bias(:)
        double precision, pointer :: d_readout(:)
        integer :: k
        call c_f_pointer(iso_reducer_grad(reducer, 1), d_weight, shape(m%weight))
        call c_f_pointer(iso_reducer_grad(reducer, 2), d_bias, shape(m%bias))
        call c_f_pointer(iso_reducer_grad(reducer, 3), d_readout, shape(m%readout))
        call gradients(m, first, last, d_weight, d_bias, d_readout)
        call check(iso_reducer_grad_ready(reducer, 3))
        call check(iso_reducer_grad_ready(reducer, 2))
        do k = 1, iso_reducer_pieces(reducer, 1)
            call check(iso_reducer_piece_ready(reducer, 1, k))
        end do
    end subroutine

    subroutine forward_waits(reducer)
        type(iso_reducer), intent(in) :: reducer
        integer :: k
        do k = 1, iso_reducer_pieces(reducer, 1)
            call check(iso_reducer_piece_needed(reducer, 1, k))
        end do
        call check(iso_reducer_param_needed(reducer, 2))
        call check(iso_reducer_param_needed(reducer, 3))
    end subroutine

    subroutine check_pieces(reducer)
        type(iso_reducer), intent(in) :: reducer
        integer(c_size_t) :: first, count, next, own_first, own_count
        integer :: k
        next = 1
        do k = 1, iso_reducer_pieces(reducer, 1)
            call iso_reducer_piece(reducer, 1, k, first, count)
            call expect(first == next, 'pieces follow each other, from element 1 on')
            next = first + count
            call iso_reducer_own(reducer, 1, k, own_first, own_count)
            call expect(own_first == first .and. own_count == count, 'a rank updates whole pieces')
        end do
        call expect(next == matrix + 1, 'pieces end where the parameter does')
        call expect(iso_reducer_pieces(reducer, 1) > 1, 'the weight is cut')
        call expect(iso_reducer_pieces(reducer, 3) == 1, 'the readout is not cut')
    end subroutine

    subroutine train(sync, by_piece, m)
        integer(c_int), intent(in) :: sync
        logical, intent(in) :: by_piece
        type(model), intent(out), target :: m
        type(iso_reducer) :: reducer
        type(settings), target :: now
        integer :: s
        call start(m)
        call check(iso_reducer_create(comm, list(m), names, reducer, &
            iso_reducer_config(sync=sync, piece_bytes=4096)))
        call check_pieces(reducer)
        call check(iso_reducer_set_apply(reducer, update, c_sizeof(now), c_loc(m)))
        if (by_piece) call check(iso_reducer_set_apply_piece(reducer, ISO_REDUCER_ONLY, &
            update_piece))
        do s = 1, steps
            call forward_waits(reducer)
            call backward(reducer, m, rank * samples / ranks + 1, (rank + 1) * samples / ranks)
            now%lr = 0.05d0 / s
            call check(iso_reducer_step(reducer, c_loc(now)))
            now%lr = 1d9 ! this step has frozen its own
        end do
        call check(iso_reducer_finish(reducer))
        call iso_reducer_destroy(reducer)
        call iso_reducer_destroy(reducer)
    end subroutine

    logical function same_bits(a, b)
        type(model), intent(in) :: a, b
        same_bits = all(transfer(a%weight, [0_c_int]) == transfer(b%weight, [0_c_int])) .and. &
            all(transfer(a%bias, [0_c_int]) == transfer(b%bias, [0_c_int])) .and. &
            all(transfer(a%readout, [0_c_int]) == transfer(b%readout, [0_c_int]))
    end function

    subroutine test_train()
        type(model), target :: lazy, whole, blocking, alone, before
        call train(ISO_SYNC_LAZY, .true., lazy)
        call expect(calls > 2 * steps, 'pieces are updated')
        call train(ISO_SYNC_LAZY, .false., whole)
        call train(ISO_SYNC_BLOCKING, .false., blocking)
        call expect(same_bits(lazy, blocking), 'lazy equals blocking bit for bit')
        call expect(same_bits(whole, blocking), 'in pieces equals as a whole bit for bit')
        call train_alone(alone)
        call start(before)
        call expect(maxval(abs(alone%weight - before%weight)) > 1e-3, 'training moves the weight')
        call expect(maxval(abs(alone%readout - before%readout)) > 1d-2, 'and the readout')
        call expect(maxval(abs(lazy%weight - alone%weight)) < 1e-6, 'the weight of one rank')
        call expect(maxval(abs(lazy%bias - alone%bias)) < 1e-6, 'the bias of one rank')
        call expect(maxval(abs(lazy%readout - alone%readout)) < 1d-6, 'the readout of one rank')
    end subroutine

    ! ---- Gradients ---------------------------------------------------------------------------------

    ! Gradients that are one number everywhere, then what is left of them is one, too.
    subroutine give(reducer, number)
        type(iso_reducer), intent(in) :: reducer
        double precision, intent(in) :: number
        real(c_float), pointer :: narrow(:)
        double precision, pointer :: wide(:)
        integer :: i
        do i = 1, 3
            if (i == 3) then
                call c_f_pointer(iso_reducer_grad(reducer, i), wide, [hidden])
                wide = number
            else
                call c_f_pointer(iso_reducer_grad(reducer, i), narrow, &
                    [merge(matrix, hidden, i == 1)])
                narrow = real(number, c_float)
            end if
        end do
    end subroutine

    logical function is_left(reducer, number)
        type(iso_reducer), intent(in) :: reducer
        double precision, intent(in) :: number
        real(c_float), pointer :: narrow(:)
        double precision, pointer :: wide(:)
        call c_f_pointer(iso_reducer_grad(reducer, 1), narrow, [matrix])
        call c_f_pointer(iso_reducer_grad(reducer, 3), wide, [hidden])
        is_left = maxval(abs(narrow - number)) < 1e-2 .and. maxval(abs(wide - number)) < 1d-12
    end function

    subroutine report_all(reducer)
        type(iso_reducer), intent(in) :: reducer
        integer :: i
        do i = 3, 1, -1
            call check(iso_reducer_grad_ready(reducer, i))
            call iso_reducer_poll(reducer)
        end do
    end subroutine

end module
