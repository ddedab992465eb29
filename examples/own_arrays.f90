! SPDX-License-Identifier: MIT
! Trains a hand-written network on plain arrays with the gradient engine alone, on the same data as
! own_arrays.c, which also says what takes the place of all-reduces after backward.
! usage: own_arrays [blocking]; with and without blocking, it ends with the same loss
! Compile it, once Isotherm is installed:
!   flags="$(pkg-config --cflags --libs isotherm)"
!   module=$(pkg-config --variable=includedir isotherm)/isotherm/isotherm.f90
!   mpif90 $module own_arrays.f90 $flags
module network
    use, intrinsic :: iso_c_binding
    use mpi_f08
    use isotherm
    implicit none

    integer, parameter :: layers = 3, width = 48, rows = 64, steps = 3000 ! rows: of each rank
    integer, parameter :: wide(0:layers) = [2, width, width, 1]

    type layer
        real(c_float), allocatable :: weight(:, :), bias(:)
        real(c_float), pointer :: d_weight(:, :), d_bias(:) ! in the engine's buffer, which travels
        real(c_float), allocatable :: y(:, :), dz(:, :) ! output, and the gradient before its tanh
    end type

    ! Parameters in the order in which forward needs them: weight and bias of the first layer, ...
    type parameter_array
        real(c_float), pointer :: value(:)
    end type

    type(layer), target :: net(0:layers) ! y of 0 is the input
    type(parameter_array) :: param(2 * layers)
    real(c_float) :: label(rows)

contains

    subroutine check(status)
        integer(c_int), intent(in) :: status
        if (status >= 0) return
        call iso_error_print()
        call MPI_Abort(MPI_COMM_WORLD, 1)
    end subroutine

    ! ---- The network -----------------------------------------------------------------------------

    real(c_float) function draw(seed) ! in [-1, 1)
        integer(c_int64_t), intent(inout) :: seed
        seed = iand(seed * 1664525 + 1013904223, 4294967295_c_int64_t)
        draw = real(shiftr(seed, 8), c_float) / 2**23 - 1
    end function

    ! Points of two spirals, into the input.
    subroutine next_points(seed)
        integer(c_int64_t), intent(inout) :: seed
        real(c_float) :: t, turn
        integer :: n
        do n = 1, rows
            label(n) = mod(n - 1, 2)
            t = abs(draw(seed))
            turn = 9 * sqrt(t) + 3.14159265 * label(n)
            net(0)%y(1, n) = sqrt(t) * cos(turn) + 0.02 * draw(seed)
            net(0)%y(2, n) = sqrt(t) * sin(turn) + 0.02 * draw(seed)
        end do
    end subroutine

    real(c_double) function loss() ! logistic, and its gradient
        real(c_float) :: p(rows)
        p = 1 / (1 + exp(-net(layers)%y(1, :)))
        loss = -sum(log(1e-12_c_double + merge(p, 1 - p, label > 0))) / rows
        net(layers)%dz(1, :) = (p - label) / rows
    end function

    ! ---- What the engine needs -------------------------------------------------------------------

    integer(c_int) function update(i, gradient, scale, hyper, user) result(status)
        integer, intent(in) :: i
        type(c_ptr), intent(in) :: gradient, hyper, user
        real(c_double), intent(in) :: scale
        real(c_double), pointer :: lr
        real(c_float), pointer :: g(:)
        call c_f_pointer(hyper, lr)
        call c_f_pointer(gradient, g, shape(param(i)%value))
        param(i)%value = param(i)%value - real(lr * scale, c_float) * g
        status = ISO_OK
    end function

    subroutine make_reducer(comm, sync, reducer)
        type(iso_comm), intent(in) :: comm
        integer(c_int), intent(in) :: sync
        type(iso_reducer), intent(out) :: reducer
        character(*), parameter :: names(2 * layers) = ['w1', 'b1', 'w2', 'b2', 'w3', 'b3']
        type(iso_reducer_param) :: list(2 * layers)
        integer(c_int64_t) :: seed
        integer :: i, p, k
        seed = 1
        allocate (net(0)%y(wide(0), rows))
        do i = 1, layers
            allocate (net(i)%y(wide(i), rows), net(i)%dz(wide(i), rows))
            allocate (net(i)%weight(wide(i - 1), wide(i)), net(i)%bias(wide(i)))
            param(2 * i - 1)%value(1:size(net(i)%weight)) => net(i)%weight
            param(2 * i)%value => net(i)%bias
            do p = 2 * i - 1, 2 * i
                do k = 1, size(param(p)%value)
                    param(p)%value(k) = draw(seed) * sqrt(3.0 / wide(i - 1))
                end do
                list(p) = iso_reducer_param(value=c_loc(param(p)%value), &
                    count=size(param(p)%value), dtype=ISO_F32, layer=i)
            end do
        end do
        call check(iso_reducer_create(comm, list, names, reducer, iso_reducer_config(sync=sync)))
        do i = 1, layers
            call c_f_pointer(iso_reducer_grad(reducer, 2 * i - 1), net(i)%d_weight, &
                shape(net(i)%weight))
            call c_f_pointer(iso_reducer_grad(reducer, 2 * i), net(i)%d_bias, [wide(i)])
        end do
        call check(iso_reducer_set_apply(reducer, update, c_sizeof(0.0_c_double)))
    end subroutine

    real(c_double) function step(reducer, seed, lr)
        type(iso_reducer), intent(in) :: reducer
        integer(c_int64_t), intent(inout) :: seed
        real(c_double), intent(in), target :: lr
        integer :: i
        call next_points(seed)
        do i = 1, layers
            call check(iso_reducer_param_needed(reducer, 2 * i - 1)) ! awaits its gradient
            call check(iso_reducer_param_needed(reducer, 2 * i))
            associate (l => net(i))
                l%y = matmul(transpose(l%weight), net(i - 1)%y) + spread(l%bias, 2, rows)
                if (i < layers) l%y = tanh(l%y)
            end associate
        end do
        step = loss()
        do i = layers, 1, -1
            associate (l => net(i), x => net(i - 1)%y)
                l%d_weight = matmul(x, transpose(l%dz)) ! written anew in each backward
                l%d_bias = sum(l%dz, 2)
                call check(iso_reducer_grad_ready(reducer, 2 * i)) ! leaves while the rest computes
                call check(iso_reducer_grad_ready(reducer, 2 * i - 1))
                if (i > 1) net(i - 1)%dz = matmul(l%weight, l%dz) * (1 - x**2)
            end associate
        end do
        call check(iso_reducer_step(reducer, c_loc(lr)))
    end function
end module

program own_arrays
    use network
    implicit none
    type(iso_comm) :: comm
    type(iso_reducer) :: reducer
    real(c_double) :: total
    integer(c_int64_t) :: seed
    integer :: provided, s
    character(8) :: how
    call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided)
    call check(iso_comm_create(MPI_COMM_WORLD%MPI_VAL, comm))
    call get_command_argument(1, how)
    call make_reducer(comm, merge(ISO_SYNC_BLOCKING, ISO_SYNC_LAZY, how == 'blocking'), reducer)
    seed = 1000 + iso_comm_rank(comm)
    do s = 1, steps
        if (mod(s, 500) == 1) total = 0
        total = total + step(reducer, seed, 0.5_c_double * (1 - real(s - 1, c_double) / steps))
        if (mod(s, 500) /= 0) cycle
        call MPI_Allreduce(MPI_IN_PLACE, total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
        total = total / 500 / iso_comm_size(comm)
        if (iso_comm_rank(comm) == 0) print '(a, i0, a, f6.4)', 'step ', s, ': loss ', total
    end do
    call check(iso_reducer_finish(reducer)) ! all parameters are current
    call iso_reducer_destroy(reducer)
    call iso_comm_destroy(comm)
    call MPI_Finalize()
end program
