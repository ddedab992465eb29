! SPDX-License-Identifier: MIT
! Trains a small residual network on its own arrays with its own AdamW. Each tensor of all layers
! is one array, as in many such codes. residual_net.f90 is the serial program and needs no library;
! residual_net_mpi.f90 is the same with lazy data parallelism (docs/gradient-engine.md), on a number
! of ranks that divides the batch.
! Compile them, once Isotherm is installed:
!   gfortran residual_net.f90
!   flags="$(pkg-config --cflags --libs isotherm)"
!   module=$(pkg-config --variable=includedir isotherm)/isotherm/isotherm.f90
!   mpif90 $module residual_net_mpi.f90 $flags
module network
    use, intrinsic :: iso_c_binding
    use isotherm; use mpi_f08
    implicit none

    integer, parameter :: depth = 4, width = 32, inputs = 2, batch = 60, last_step = 200
    integer, parameter :: in = 0, out = depth + 1 ! the layers before and behind layers 1 to depth

    type, bind(c) :: net
        real(c_float) :: input(inputs, width)
        real(c_float) :: inner(width, width, depth), bias(width, depth)
        real(c_float) :: head(width)
    end type
    integer, parameter :: total = (inputs + (width + 1) * depth + 1) * width

    type(net), target :: param, grad
    real(c_float) :: moment(total) = 0, square(total) = 0 ! AdamW's averages of g and g * g
    real(c_float), pointer :: w(:), g(:)                  ! param and grad as one array each
    real(c_float), parameter :: beta(2) = [0.9, 0.999]
    real(c_float), target :: correct(2) ! AdamW's corrections of this step

    real(c_float) :: x(inputs, batch), label(batch) ! points, and which of two spirals they are on
    real(c_float) :: h(width, batch, 0:depth), branch(width, batch, depth), y(batch)
    real(c_float) :: dh(width, batch), d(width, batch), dy(batch) ! gradients
    integer :: first = 0, rows = batch ! the rows of each batch that this program computes
    type(iso_reducer) :: reducer

contains

    ! ---- Data ------------------------------------------------------------------------------------

    real(c_float) function draw(seed) ! in [0, 1)
        integer(c_int64_t), intent(inout) :: seed
        seed = iand(seed * 1664525 + 1013904223, int(z'ffffffff', c_int64_t))
        draw = real(seed / 256, c_float) / 2.0_c_float**24
    end function

    subroutine read_batch(step)
        integer, intent(in) :: step
        integer(c_int64_t) :: seed
        real(c_float) :: t, turn
        integer :: n
        do n = 1, rows
            seed = iand(2654435761_c_int64_t * (step * batch + first + n), &
                int(z'ffffffff', c_int64_t))
            label(n) = merge(1, 0, draw(seed) < 0.5)
            t = draw(seed)
            turn = 9 * t + merge(3.14159265, 0.0, label(n) > 0)
            x(:, n) = t * [cos(turn), sin(turn)]
        end do
    end subroutine

    subroutine start()
        integer(c_int64_t) :: seed
        integer :: k, l, o, i
        call c_f_pointer(c_loc(param), w, [total])
        call c_f_pointer(c_loc(grad), g, [total])
        w = 0
        seed = 1
        do l = 1, depth
            do o = 1, width
                do i = 1, width
                    param%inner(i, o, l) = 0.4 * draw(seed) - 0.2
                end do
            end do
        end do
        do k = 1, width
            param%head(k) = 0.4 * draw(seed) - 0.2
        end do
        do o = 1, width
            do i = 1, inputs
                param%input(i, o) = 4 * draw(seed) - 2
            end do
        end do
    end subroutine

    subroutine show(what, step, value)
        character(*), intent(in) :: what
        integer, intent(in) :: step
        real(c_double), intent(in) :: value
        if (first > 0) return ! rank 0 prints
        print '(a, i0, 3a, es23.16)', 'step ', step, ': ', what, ' ', value
    end subroutine

    ! ---- Forward: h = input x, then h = h + tanh(inner h + bias) in each layer, y = head h -------

    real(c_double) function forward() result(loss)
        integer :: l, n
        do l = in, out
            call iso_check(iso_reducer_layer_needed(reducer, l))
            n = rows
            if (l == in) then
                h(:, :n, 0) = matmul(transpose(param%input), x(:, :n))
            else if (l == out) then
                y(:n) = matmul(param%head, h(:, :n, depth))
            else
                branch(:, :n, l) = tanh(spread(param%bias(:, l), 2, n) + &
                    matmul(transpose(param%inner(:, :, l)), h(:, :n, l - 1)))
                h(:, :n, l) = h(:, :n, l - 1) + branch(:, :n, l)
            end if
        end do
        dy(:n) = (1 / (1 + exp(-y(:n))) - label(:n)) / batch
        loss = sum(log(1 + exp(real(merge(-y(:n), y(:n), label(:n) > 0), c_double)))) / batch
    end function

    ! ---- Backward: the last layer first ----------------------------------------------------------

    subroutine backward()
        integer :: l, n
        do l = out, in, -1
            n = rows
            if (l == out) then
                grad%head = matmul(h(:, :n, depth), dy(:n))
                dh(:, :n) = spread(param%head, 2, n) * spread(dy(:n), 1, width)
            else if (l == in) then
                grad%input = matmul(x(:, :n), transpose(dh(:, :n)))
            else
                d(:, :n) = dh(:, :n) * (1 - branch(:, :n, l)**2)
                grad%bias(:, l) = sum(d(:, :n), 2)
                grad%inner(:, :, l) = matmul(h(:, :n, l - 1), transpose(d(:, :n)))
                dh(:, :n) = dh(:, :n) + matmul(param%inner(:, :, l), d(:, :n))
            end if
            call iso_check(iso_reducer_layer_ready(reducer, l))
        end do
    end subroutine

    ! ---- AdamW -----------------------------------------------------------------------------------

    ! Updates the parameters behind the first `at`.
    subroutine update(at, gradient, correct)
        integer, intent(in) :: at
        real(c_float), intent(in) :: gradient(:), correct(2)
        real(c_float), parameter :: lr = 3e-3, decay = 1e-2
        integer :: last
        last = at + size(gradient)
        associate (x => w(at + 1:last), m => moment(at + 1:last), v => square(at + 1:last))
            m = beta(1) * m + (1 - beta(1)) * gradient
            v = beta(2) * v + (1 - beta(2)) * gradient**2
            x = x - lr * (m / correct(1) / (sqrt(v / correct(2)) + 1e-8) + decay * x)
        end associate
    end subroutine

    integer(c_int) function update_some(u) result(status)
        type(iso_reducer_update), intent(in) :: u
        real(c_float), pointer :: gradient(:), now(:) ! now: the corrections of the update's step
        call c_f_pointer(u%gradient, gradient, [u%count]); call c_f_pointer(u%hyper, now, [2])
        call update(int(iso_update_offset(u, c_loc(param))), gradient, now); status = ISO_OK
    end function
end module

program residual_net
    use network
    implicit none
    real(c_double) :: loss, checksum
    integer :: t, k, steps
    type(iso_comm) :: comm
    character(12) :: given
    steps = last_step
    call get_command_argument(1, given)
    if (given /= '') read (given, *) steps
    call start()
    call MPI_Init_thread(MPI_THREAD_MULTIPLE, k)
    call iso_check(iso_comm_create(MPI_COMM_WORLD%MPI_VAL, comm))
    call iso_require(mod(batch, iso_comm_size(comm)) == 0, 'ranks must divide 60')
    rows = batch / iso_comm_size(comm); first = rows * iso_comm_rank(comm)
    call iso_check(iso_reducer_create(comm, [ &
        iso_param_f32(param%input, inputs * width, in, grad%input), &
        iso_param_f32(param%inner, width**2, 1, grad%inner, depth), &
        iso_param_f32(param%bias, width, 1, grad%bias, depth), &
        iso_param_f32(param%head, width, out, grad%head)], ['input', 'inner', 'bias ', 'head '], &
        reducer, iso_reducer_config(average=ISO_AVERAGE_SUM, &
            sync=merge(ISO_SYNC_BLOCKING, ISO_SYNC_LAZY, command_argument_count() > 1))))
    call iso_check(iso_reducer_set_update(reducer, update_some, c_sizeof(correct)))
    loss = 0
    do t = 1, steps
        call read_batch(t)
        loss = loss + forward()
        call backward()
        correct = 1 - beta**t
        call iso_check(iso_reducer_step(reducer, c_loc(correct)))
        if (mod(t, 20) > 0) cycle
        call MPI_Allreduce(MPI_IN_PLACE, loss, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
        call show('loss', t, loss / 20)
        loss = 0
    end do
    call iso_reducer_destroy(reducer) ! makes the last update
    checksum = 0
    do k = 1, total
        checksum = checksum + real(w(k), c_double)**2 / k
    end do
    call show('checksum', steps, checksum)
    call iso_comm_destroy(comm); call MPI_Finalize()
end program
