! SPDX-License-Identifier: MIT
! Fortran 2008 interface of the gradient engine. isotherm/reducer.h, comm.h, stop.h, optim.h and clip.h
! document the procedures. The module is installed as source, because a .mod file works with one compiler only.
! Compile it with your program:
!
!   mpif90 $(pkg-config --variable=includedir isotherm)/isotherm/isotherm.f90 program.f90 \
!       $(pkg-config --cflags --libs isotherm)
!
! Names, components, defaults and constants are those of C. The differences:
! - Indices of parameters, pieces, buckets, sums and elements start at 1. Layers, ranks and ids of
!   update functions have the same numbers as in C. Messages of the library count from 0, and so
!   do all numbers that a communication hook gets or sets (bucket%index, tensor offsets, phase).
! - A C function that returns iso_status is a function with that result; < 0 is an error.
! - Optional arguments come last. Without a config all settings have their defaults.
! - A communicator is the integer of mpif.h and `use mpi`. With mpi_f08 pass comm%MPI_VAL.
! - void * is type(c_ptr): pass c_loc of a variable with the target attribute, and read a result
!   with c_f_pointer. An array passed to a reducer must be contiguous. Do not deallocate it,
!   or assign an array of another shape to it, while the reducer exists.
! - real(c_float) is ISO_F32, and real(c_double) is ISO_F64.
! - Update functions (iso_reducer_apply) are module or external procedures, without bind(c).
module isotherm
    use, intrinsic :: iso_c_binding
    implicit none
    private

    ! ---- Constants -------------------------------------------------------------------------------

    enum, bind(c) ! iso_status
        enumerator :: ISO_OK = 0, ISO_PENDING = 1, ISO_ERR_ARG = -1, ISO_ERR_NOMEM = -2, &
            ISO_ERR_IO = -3, ISO_ERR_FORMAT = -4, ISO_ERR_SHAPE = -5, ISO_ERR_TYPE = -6, &
            ISO_ERR_STATE = -7, ISO_ERR_MISMATCH = -8, ISO_ERR_TIMEOUT = -9, ISO_ERR_MPI = -10, &
            ISO_ERR_DEVICE = -11, ISO_ERR_UNSUPPORTED = -12
    end enum
    enum, bind(c) ! iso_dtype
        enumerator :: ISO_F32, ISO_F64, ISO_BF16, ISO_F16, ISO_I64, ISO_I32, ISO_U8
    end enum
    enum, bind(c) ! iso_progress
        enumerator :: ISO_PROGRESS_AUTO, ISO_PROGRESS_OFF, ISO_PROGRESS_POLL, ISO_PROGRESS_THREAD
    end enum
    enum, bind(c) ! iso_scope
        enumerator :: ISO_SCOPE_WORLD, ISO_SCOPE_NODE, ISO_SCOPE_RANK
    end enum
    enum, bind(c) ! iso_sync
        enumerator :: ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_NONE, ISO_SYNC_EXPLICIT
    end enum
    enum, bind(c) ! iso_order
        enumerator :: ISO_ORDER_NEED, ISO_ORDER_REVERSE
    end enum
    enum, bind(c) ! iso_unused
        enumerator :: ISO_UNUSED_ERROR, ISO_UNUSED_ZERO, ISO_UNUSED_NEGOTIATE, ISO_UNUSED_STATIC
    end enum
    enum, bind(c) ! iso_average_mode
        enumerator :: ISO_AVERAGE_POST, ISO_AVERAGE_PRE, ISO_AVERAGE_SPLIT, ISO_AVERAGE_SUM
    end enum
    enum, bind(c) ! iso_comm_operation
        enumerator :: ISO_COMM_SUM, ISO_COMM_GATHER, ISO_COMM_ALLTOALL
    end enum
    enum, bind(c) ! iso_reduce
        enumerator :: ISO_SUM, ISO_MAX, ISO_MIN
    end enum
    enum, bind(c) ! iso_optimizer_kind
        enumerator :: ISO_SGD, ISO_ADAM, ISO_ADAMW, ISO_ADADELTA, ISO_ADAGRAD, ISO_RMSPROP, &
            ISO_LAMB, ISO_NADAM
    end enum
    integer, parameter :: ISO_REDUCER_ONLY = -1
    integer, parameter :: ISO_COMM_HOOK_PHASES = 4

    public :: ISO_OK, ISO_PENDING, ISO_ERR_ARG, ISO_ERR_NOMEM, ISO_ERR_IO, ISO_ERR_FORMAT, &
        ISO_ERR_SHAPE, ISO_ERR_TYPE, ISO_ERR_STATE, ISO_ERR_MISMATCH, ISO_ERR_TIMEOUT, &
        ISO_ERR_MPI, ISO_ERR_DEVICE, ISO_ERR_UNSUPPORTED
    public :: ISO_F32, ISO_F64, ISO_BF16, ISO_F16, ISO_I64, ISO_I32, ISO_U8
    public :: ISO_PROGRESS_AUTO, ISO_PROGRESS_OFF, ISO_PROGRESS_POLL, ISO_PROGRESS_THREAD
    public :: ISO_SCOPE_WORLD, ISO_SCOPE_NODE, ISO_SCOPE_RANK
    public :: ISO_SYNC_LAZY, ISO_SYNC_BLOCKING, ISO_SYNC_NONE, ISO_SYNC_EXPLICIT
    public :: ISO_ORDER_NEED, ISO_ORDER_REVERSE
    public :: ISO_UNUSED_ERROR, ISO_UNUSED_ZERO, ISO_UNUSED_NEGOTIATE, ISO_UNUSED_STATIC
    public :: ISO_AVERAGE_POST, ISO_AVERAGE_PRE, ISO_AVERAGE_SPLIT, ISO_AVERAGE_SUM
    public :: ISO_REDUCER_ONLY
    public :: ISO_COMM_SUM, ISO_COMM_GATHER, ISO_COMM_ALLTOALL, ISO_COMM_HOOK_PHASES
    public :: ISO_SUM, ISO_MAX, ISO_MIN
    public :: ISO_SGD, ISO_ADAM, ISO_ADAMW, ISO_ADADELTA, ISO_ADAGRAD, ISO_RMSPROP, ISO_LAMB, &
        ISO_NADAM

    ! ---- Types, with the components of the C structs ---------------------------------------------

    type, bind(c), public :: iso_comm_config
        integer(c_int) :: progress = ISO_PROGRESS_AUTO
        real(c_double) :: timeout_s = 0
    end type

    ! value, count and dtype are required. Number the layers too: with the default, all parameters
    ! are in one layer.
    type, bind(c), public :: iso_reducer_param
        type(c_ptr) :: name = c_null_ptr ! iso_reducer_create sets it
        type(c_ptr) :: value = c_null_ptr
        integer(c_size_t) :: count = 0
        integer(c_int) :: dtype = -1
        integer(c_int) :: layer = 0
        integer(c_int64_t) :: shape_id = 0
        type(c_ptr) :: shape_text = c_null_ptr ! text that ends with c_null_char
        integer(c_size_t) :: row = 0
        logical(c_bool) :: whole = .false._c_bool
        logical(c_bool) :: local = .false._c_bool
        logical(c_bool) :: delayed = .false._c_bool
        type(c_ptr) :: gradient = c_null_ptr
        integer(c_int) :: layers = 0
        integer(c_size_t) :: stride = 0
        type(c_ptr) :: user = c_null_ptr
        integer(c_size_t) :: sparse_rows = 0
    end type

    type, bind(c), public :: iso_reducer_config
        type(c_ptr) :: device = c_null_ptr
        integer(c_int) :: sync = ISO_SYNC_LAZY
        integer(c_int) :: scope = ISO_SCOPE_WORLD
        integer(c_int) :: order = ISO_ORDER_NEED
        integer(c_int) :: unused = ISO_UNUSED_ERROR
        integer(c_int) :: average = ISO_AVERAGE_POST
        real(c_double) :: split_factor = 0
        ! From iso_comm_hook_parse, or c_loc of an iso_comm_hook, such as one of iso_hook_topk.
        type(c_ptr) :: hook = c_null_ptr
        integer(c_size_t) :: bucket_bytes = 0
        integer(c_size_t) :: first_bucket_bytes = 0, last_bucket_bytes = 0
        type(c_ptr) :: bucket_list = c_null_ptr ! c_loc of an integer(c_size_t) array
        integer(c_int) :: bucket_list_count = 0
        integer(c_size_t) :: piece_bytes = 0
        integer(c_int) :: sums = 0
        integer(c_int) :: zero = 0 ! the stage: 1 or 2
        integer(c_int) :: zero_scope = ISO_SCOPE_WORLD
        logical(c_bool) :: keep_values = .false._c_bool
        logical(c_bool) :: by_name = .false._c_bool
        logical(c_bool) :: by_weight = .false._c_bool
    end type

    ! first and slice are counted from 1, as param is.
    type, bind(c), public :: iso_reducer_update
        integer(c_int) :: param
        type(c_ptr) :: name ! iso_string(name) returns the text
        integer(c_int) :: slice
        integer(c_size_t) :: first, count
        integer(c_int) :: dtype
        type(c_ptr) :: value, gradient
        real(c_double) :: scale
        type(c_ptr) :: hyper, param_user, user
    end type

    type, bind(c), public :: iso_reducer_stats
        integer(c_long_long) :: steps
        integer(c_int) :: bucket_count
        integer(c_size_t) :: bytes_per_step
        integer(c_long_long) :: bytes_world, bytes_node
        real(c_double) :: wait_ms
        real(c_double) :: exchange_ms
        logical(c_bool) :: shared_memory
        logical(c_bool) :: nccl
        integer(c_long_long) :: exchanges
        logical(c_bool) :: planned
        integer(c_long_long) :: bytes_sent, bytes_between_nodes
        integer(c_size_t) :: gradient_peak
        logical(c_bool) :: two_levels
        logical(c_bool) :: pairwise
    end type

    type, bind(c), public :: iso_bucket_stats
        type(c_ptr) :: name ! iso_string(name) returns the text
        integer(c_size_t) :: bytes, wire_bytes
        integer(c_long_long) :: exchanges
        real(c_double) :: ready_ms, start_ms, done_ms
        real(c_double) :: need_ms
        real(c_double) :: wait_ms
    end type

    type, bind(c), public :: iso_comm_hook_bucket
        integer(c_size_t) :: count
        integer(c_int) :: dtype
        type(c_ptr) :: gradient
        type(c_ptr) :: wire
        type(c_ptr) :: state
        type(c_ptr) :: name
        integer(c_int) :: index
        logical(c_bool) :: is_last
        integer(c_int) :: rank, ranks ! this and the rest: only for hooks that own their exchange
        type(c_ptr) :: tensor ! an array of tensor_count iso_comm_hook_tensor
        integer(c_int) :: tensor_count
        type(c_ptr) :: data(ISO_COMM_HOOK_PHASES)
        type(c_ptr) :: comm ! iso_hook_comm(bucket) returns it as an iso_comm
        integer(c_long_long) :: exchange
    end type

    type, bind(c), public :: iso_comm_hook_tensor
        type(c_ptr) :: name ! iso_string(name) returns the text
        integer(c_size_t) :: offset, count
        integer(c_size_t) :: row
    end type

    type, bind(c), public :: iso_comm_phase
        integer(c_int) :: operation = ISO_COMM_SUM
        integer(c_size_t) :: count = 0
        integer(c_int) :: dtype = ISO_F32
    end type

    type, bind(c), public :: iso_comm_hook_plan
        integer(c_int) :: phase_count = 0
        type(iso_comm_phase) :: phase(ISO_COMM_HOOK_PHASES)
        integer(c_size_t) :: state_floats = 0
        logical(c_bool) :: plain = .false._c_bool
    end type

    type, bind(c), public :: iso_comm_hook
        type(c_ptr) :: name = c_null_ptr ! text that ends with c_null_char
        integer(c_int) :: wire = ISO_F32
        integer(c_int) :: state_floats = 0
        logical(c_bool) :: divides = .false._c_bool
        logical(c_bool) :: silent = .false._c_bool
        type(c_funptr) :: compress = c_null_funptr ! c_funloc of an iso_comm_hook_convert
        type(c_funptr) :: decompress = c_null_funptr
        type(c_funptr) :: declare = c_null_funptr ! c_funloc of an iso_comm_hook_declare
        type(c_funptr) :: run = c_null_funptr ! c_funloc of an iso_comm_hook_run
        integer(c_long_long) :: start = 0
        type(c_ptr) :: user = c_null_ptr
        integer(c_size_t) :: user_bytes = 0
    end type

    type, bind(c), public :: iso_topk_config
        real(c_double) :: ratio = 0.01d0
    end type

    type, bind(c), public :: iso_randomk_config
        real(c_double) :: ratio = 0.01d0
        integer(c_int64_t) :: seed = 0
    end type

    type, bind(c), public :: iso_powersgd_config
        integer(c_int) :: rank = 1
        integer(c_long_long) :: start = 1000
        real(c_double) :: least_saving = 2
        integer(c_int64_t) :: seed = 0
        logical(c_bool) :: batched = .false._c_bool
    end type

    ! From iso_hyper_default.
    type, bind(c), public :: iso_hyper
        real(c_double) :: lr, momentum, dampening, weight_decay
        real(c_double) :: beta1, beta2, rho, alpha, eps, lr_decay, initial_accumulator_value
        logical(c_bool) :: nesterov, centered, amsgrad, maximize
        real(c_double) :: momentum_decay
        integer(c_int64_t) :: step
    end type

    type, bind(c), public :: iso_optimizer_group
        type(iso_hyper) :: hyper
        type(c_funptr) :: belongs = c_null_funptr ! c_funloc of an iso_group_filter
        type(c_ptr) :: user = c_null_ptr
    end type

    ! ---- Callbacks -------------------------------------------------------------------------------

    abstract interface
        integer(c_int) function iso_reducer_apply(i, gradient, scale, hyper, user)
            import
            integer, intent(in) :: i
            type(c_ptr), intent(in) :: gradient, hyper, user
            real(c_double), intent(in) :: scale
        end function
        integer(c_int) function iso_reducer_apply_piece(i, first, count, gradient, scale, hyper, &
                user)
            import
            integer, intent(in) :: i
            integer(c_size_t), intent(in) :: first, count ! elements first to first + count - 1
            type(c_ptr), intent(in) :: gradient, hyper, user
            real(c_double), intent(in) :: scale
        end function
        integer(c_int) function iso_reducer_updater(update)
            import
            type(iso_reducer_update), intent(in) :: update
        end function
        ! Declare yours with bind(c, name=''), else its name is global in the program.
        integer(c_int) function iso_comm_hook_convert(bucket, factor, user) bind(c)
            import
            type(iso_comm_hook_bucket), intent(in) :: bucket
            real(c_double), value :: factor
            type(c_ptr), value :: user
        end function
        integer(c_int) function iso_comm_hook_declare(bucket, plan, user) bind(c)
            import
            type(iso_comm_hook_bucket), intent(in) :: bucket
            type(iso_comm_hook_plan), intent(inout) :: plan
            type(c_ptr), value :: user
        end function
        integer(c_int) function iso_comm_hook_run(bucket, phase, factor, user) bind(c)
            import
            type(iso_comm_hook_bucket), intent(in) :: bucket
            integer(c_int), value :: phase
            real(c_double), value :: factor
            type(c_ptr), value :: user
        end function
        ! iso_string(name) returns the text. Declare yours with bind(c, name=''), too.
        logical(c_bool) function iso_group_filter(name, parameter, user) bind(c)
            import
            type(c_ptr), value :: name, parameter, user
        end function
    end interface
    public :: iso_group_filter
    public :: iso_reducer_apply, iso_reducer_apply_piece, iso_reducer_updater, iso_comm_hook_convert
    public :: iso_comm_hook_declare, iso_comm_hook_run

    ! ---- Handles: a copy refers to the same object -----------------------------------------------

    type, public :: iso_comm
        private
        type(c_ptr) :: handle = c_null_ptr
    end type

    type, public :: iso_stop
        private
        type(c_ptr) :: handle = c_null_ptr
    end type

    type :: applier
        procedure(iso_reducer_apply), pointer, nopass :: apply => null()
        procedure(iso_reducer_apply_piece), pointer, nopass :: apply_piece => null()
        procedure(iso_reducer_updater), pointer, nopass :: update => null()
        type(c_ptr) :: user = c_null_ptr
        integer(c_int) :: id = ISO_REDUCER_ONLY ! the id of iso_reducer_set_apply
        type(applier), pointer :: next => null()
    end type

    type :: engine
        type(c_ptr) :: handle = c_null_ptr
        type(applier), pointer :: appliers => null()
    end type

    type, public :: iso_reducer
        private
        type(engine), pointer :: engine => null()
    end type

    type, public :: iso_optimizer
        private
        type(c_ptr) :: handle = c_null_ptr
    end type

    public :: iso_check, iso_require, iso_param_f32, iso_param_f64, iso_update_offset
    public :: iso_hyper_default, iso_reducer_set_optimizer, iso_optimizer_step, &
        iso_optimizer_zero_grad, iso_optimizer_destroy, iso_optimizer_hyper, &
        iso_optimizer_groups, iso_optimizer_group_hyper
    public :: iso_reducer_grad_norm, iso_reducer_clip_grad_norm, iso_reducer_grads_finite
    public :: iso_status_string, iso_error_message, iso_error_print, iso_error_set, iso_string
    public :: iso_comm_create, iso_comm_destroy, iso_comm_rank, iso_comm_size
    public :: iso_comm_mpi, iso_comm_barrier, iso_comm_bcast, iso_comm_allreduce_f64, &
        iso_comm_allreduce_i64
    public :: iso_stop_create, iso_stop_destroy, iso_stop_request, iso_stop_check, &
        iso_stop_check_now
    public :: iso_comm_hook_parse, iso_device_create, iso_device_destroy
    public :: iso_hook_int8, iso_hook_topk, iso_hook_powersgd, iso_hook_comm
    public :: iso_hook_fp8, iso_hook_onebit, iso_hook_dithering, iso_hook_randomk
    public :: iso_reducer_create, iso_reducer_destroy, iso_reducer_grad, iso_reducer_set_apply, &
        iso_reducer_set_update, iso_reducer_add_apply, iso_reducer_set_apply_piece, &
        iso_reducer_remove_apply, &
        iso_reducer_step_of, iso_reducer_grad_ready, iso_reducer_pieces, iso_reducer_piece, &
        iso_reducer_own, iso_reducer_piece_ready, iso_reducer_step, iso_reducer_param_needed, &
        iso_reducer_piece_needed, iso_reducer_finish, iso_reducer_all_reduce, &
        iso_reducer_zero_grad, iso_reducer_poll, iso_reducer_set_weight, iso_reducer_shadow, &
        iso_reducer_layer_ready, iso_reducer_layer_needed, iso_reducer_param_count, &
        iso_reducer_find, iso_reducer_add_sum, iso_reducer_get_sum, iso_reducer_add_weight, &
        iso_reducer_watch_gradients, iso_reducer_get_stats, iso_reducer_bucket_text, &
        iso_reducer_get_bucket_stats, iso_reducer_measure_exchange

    ! ---- The C functions -------------------------------------------------------------------------

    abstract interface ! shared by several functions
        integer(c_int) function of_handle(handle) bind(c)
            import
            type(c_ptr), value :: handle
        end function
        integer(c_int) function of_index(handle, i) bind(c)
            import
            type(c_ptr), value :: handle
            integer(c_int), value :: i
        end function
        integer(c_int) function of_index_by_name(handle, name) bind(c)
            import
            type(c_ptr), value :: handle, name
        end function
        integer(c_int) function of_piece(handle, i, k) bind(c)
            import
            type(c_ptr), value :: handle
            integer(c_int), value :: i, k
        end function
        subroutine on_handle(handle) bind(c)
            import
            type(c_ptr), value :: handle
        end subroutine
        subroutine on_pointer(handle) bind(c)
            import
            type(c_ptr), intent(inout) :: handle
        end subroutine
        integer(c_int) function by_name(name, out) bind(c)
            import
            type(c_ptr), value :: name
            type(c_ptr), intent(inout) :: out
        end function
        integer(c_int) function of_stop(stop, stops) bind(c)
            import
            type(c_ptr), value :: stop
            logical(c_bool), intent(inout) :: stops
        end function
    end interface

    procedure(of_handle), bind(c, name='iso_comm_rank') :: c_comm_rank
    procedure(of_handle), bind(c, name='iso_comm_size') :: c_comm_size
    procedure(of_handle), bind(c, name='iso_comm_mpi_fortran') :: c_comm_mpi
    procedure(of_handle), bind(c, name='iso_comm_barrier') :: c_comm_barrier
    procedure(of_handle), bind(c, name='iso_reducer_finish') :: c_finish
    procedure(of_handle), bind(c, name='iso_reducer_all_reduce') :: c_all_reduce
    procedure(of_handle), bind(c, name='iso_reducer_shadow') :: c_shadow
    procedure(of_index), bind(c, name='iso_reducer_grad_ready') :: c_grad_ready
    procedure(of_index), bind(c, name='iso_reducer_param_needed') :: c_param_needed
    procedure(of_index), bind(c, name='iso_reducer_pieces') :: c_pieces
    procedure(of_index), bind(c, name='iso_reducer_remove_apply') :: c_remove_apply
    procedure(of_index), bind(c, name='iso_reducer_layer_ready') :: c_layer_ready
    procedure(of_index), bind(c, name='iso_reducer_layer_needed') :: c_layer_needed
    procedure(of_handle), bind(c, name='iso_reducer_param_count') :: c_param_count
    procedure(of_index_by_name), bind(c, name='iso_reducer_find') :: c_find
    procedure(of_piece), bind(c, name='iso_reducer_piece_ready') :: c_piece_ready
    procedure(of_piece), bind(c, name='iso_reducer_piece_needed') :: c_piece_needed
    procedure(on_handle), bind(c, name='iso_reducer_zero_grad') :: c_zero_grad
    procedure(on_handle), bind(c, name='iso_reducer_poll') :: c_poll
    procedure(on_handle), bind(c, name='iso_reducer_watch_gradients') :: c_watch_gradients
    procedure(on_handle), bind(c, name='iso_optimizer_zero_grad') :: c_optimizer_zero_grad
    procedure(of_handle), bind(c, name='iso_optimizer_step') :: c_optimizer_step
    procedure(of_handle), bind(c, name='iso_optimizer_groups') :: c_optimizer_groups
    procedure(on_pointer), bind(c, name='iso_optimizer_destroy') :: c_optimizer_destroy
    procedure(on_handle), bind(c, name='iso_error_print') :: c_error_print
    procedure(on_handle), bind(c, name='iso_comm_free') :: c_free
    procedure(on_pointer), bind(c, name='iso_comm_destroy') :: c_comm_destroy
    procedure(by_name), bind(c, name='iso_stop_create') :: c_stop_create
    procedure(on_pointer), bind(c, name='iso_stop_destroy') :: c_stop_destroy
    procedure(on_handle), bind(c, name='iso_stop_request') :: c_stop_request
    procedure(of_stop), bind(c, name='iso_stop_check') :: c_stop_check
    procedure(of_stop), bind(c, name='iso_stop_check_now') :: c_stop_check_now
    procedure(on_pointer), bind(c, name='iso_device_destroy') :: iso_device_destroy
    procedure(on_pointer), bind(c, name='iso_reducer_destroy') :: c_reducer_destroy
    procedure(by_name), bind(c, name='iso_comm_hook_parse') :: c_hook_parse
    procedure(by_name), bind(c, name='iso_device_create') :: c_device_create

    interface
        integer(c_size_t) function c_strlen(text) bind(c, name='strlen')
            import
            type(c_ptr), value :: text
        end function
        type(c_ptr) function c_status_string(status) bind(c, name='iso_status_string')
            import
            integer(c_int), value :: status
        end function
        type(c_ptr) function c_last_error() bind(c, name='iso_last_error')
            import
        end function
        subroutine c_exit(code) bind(c, name='exit')
            import
            integer(c_int), value :: code
        end subroutine
        integer(c_int) function c_error_set(code, text) bind(c, name='iso_error_set_text')
            import
            integer(c_int), value :: code
            type(c_ptr), value :: text
        end function
        integer(c_int) function c_comm_create(mpi_comm, config, out) &
                bind(c, name='iso_comm_create_fortran')
            import
            integer(c_int), value :: mpi_comm
            type(iso_comm_config), intent(in) :: config
            type(c_ptr), intent(inout) :: out
        end function
        integer(c_int) function c_bcast(comm, data, bytes, root) bind(c, name='iso_comm_bcast')
            import
            type(c_ptr), value :: comm, data
            integer(c_size_t), value :: bytes
            integer(c_int), value :: root
        end function
        integer(c_int) function c_allreduce_f64(comm, data, count, op) &
                bind(c, name='iso_comm_allreduce_f64')
            import
            type(c_ptr), value :: comm
            real(c_double), intent(inout) :: data(*)
            integer(c_size_t), value :: count
            integer(c_int), value :: op
        end function
        integer(c_int) function c_allreduce_i64(comm, data, count, op) &
                bind(c, name='iso_comm_allreduce_i64')
            import
            type(c_ptr), value :: comm
            integer(c_int64_t), intent(inout) :: data(*)
            integer(c_size_t), value :: count
            integer(c_int), value :: op
        end function
        type(iso_comm_hook) function c_hook_topk(config) bind(c, name='iso_hook_topk')
            import
            type(c_ptr), value :: config
        end function
        type(iso_comm_hook) function c_hook_randomk(config) bind(c, name='iso_hook_randomk')
            import
            type(c_ptr), value :: config
        end function
        type(iso_comm_hook) function c_hook_powersgd(config) bind(c, name='iso_hook_powersgd')
            import
            type(c_ptr), value :: config
        end function
        integer(c_int) function c_reducer_create(comm, params, count, config, out) &
                bind(c, name='iso_reducer_create')
            import
            type(c_ptr), value :: comm
            type(iso_reducer_param), intent(in) :: params(*)
            integer(c_int), value :: count
            type(iso_reducer_config), intent(in) :: config
            type(c_ptr), intent(inout) :: out
        end function
        type(c_ptr) function c_grad(reducer, i) bind(c, name='iso_reducer_grad')
            import
            type(c_ptr), value :: reducer
            integer(c_int), value :: i
        end function
        integer(c_int) function c_set_apply(reducer, apply, hyper_bytes, user) &
                bind(c, name='iso_reducer_set_apply')
            import
            type(c_ptr), value :: reducer, user
            type(c_funptr), value :: apply
            integer(c_size_t), value :: hyper_bytes
        end function
        integer(c_int) function c_set_update(reducer, update, hyper_bytes, user) &
                bind(c, name='iso_reducer_set_update')
            import
            type(c_ptr), value :: reducer, user
            type(c_funptr), value :: update
            integer(c_size_t), value :: hyper_bytes
        end function
        integer(c_int) function c_add_apply(reducer, params, count, apply, hyper_bytes, user, id) &
                bind(c, name='iso_reducer_add_apply')
            import
            type(c_ptr), value :: reducer, params, user
            integer(c_int), value :: count
            type(c_funptr), value :: apply
            integer(c_size_t), value :: hyper_bytes
            integer(c_int), intent(inout) :: id
        end function
        integer(c_int) function c_set_apply_piece(reducer, id, apply) &
                bind(c, name='iso_reducer_set_apply_piece')
            import
            type(c_ptr), value :: reducer
            integer(c_int), value :: id
            type(c_funptr), value :: apply
        end function
        integer(c_int) function c_step_of(reducer, id, hyper) bind(c, name='iso_reducer_step_of')
            import
            type(c_ptr), value :: reducer, hyper
            integer(c_int), value :: id
        end function
        subroutine c_piece(reducer, i, k, first, count) bind(c, name='iso_reducer_piece')
            import
            type(c_ptr), value :: reducer
            integer(c_int), value :: i, k
            integer(c_size_t), intent(out) :: first, count
        end subroutine
        subroutine c_own(reducer, i, k, first, count) bind(c, name='iso_reducer_own')
            import
            type(c_ptr), value :: reducer
            integer(c_int), value :: i, k
            integer(c_size_t), intent(out) :: first, count
        end subroutine
        integer(c_int) function c_set_weight(reducer, weight, total) &
                bind(c, name='iso_reducer_set_weight')
            import
            type(c_ptr), value :: reducer
            real(c_double), value :: weight, total
        end function
        integer(c_int) function c_add_weight(reducer, weight) &
                bind(c, name='iso_reducer_add_weight')
            import
            type(c_ptr), value :: reducer
            real(c_double), value :: weight
        end function
        integer(c_int) function c_add_sum(reducer, k, value) &
                bind(c, name='iso_reducer_add_sum')
            import
            type(c_ptr), value :: reducer
            integer(c_int), value :: k
            real(c_double), value :: value
        end function
        integer(c_int) function c_get_sum(reducer, k, sum) &
                bind(c, name='iso_reducer_get_sum')
            import
            type(c_ptr), value :: reducer
            integer(c_int), value :: k
            real(c_double), intent(inout) :: sum
        end function
        subroutine c_get_stats(reducer, stats) bind(c, name='iso_reducer_get_stats')
            import
            type(c_ptr), value :: reducer
            type(iso_reducer_stats), intent(out) :: stats
        end subroutine
        integer(c_int) function c_bucket_text(reducer, text) &
                bind(c, name='iso_reducer_bucket_text')
            import
            type(c_ptr), value :: reducer
            type(c_ptr), intent(inout) :: text
        end function
        integer(c_int) function c_get_bucket_stats(reducer, bucket, stats) &
                bind(c, name='iso_reducer_get_bucket_stats')
            import
            type(c_ptr), value :: reducer
            integer(c_int), value :: bucket
            type(iso_bucket_stats), intent(inout) :: stats
        end function
        type(iso_hyper) function c_hyper_default(kind) bind(c, name='iso_hyper_default')
            import
            integer(c_int), value :: kind
        end function
        type(c_ptr) function c_group_hyper(optimizer, group) &
                bind(c, name='iso_optimizer_group_hyper')
            import
            type(c_ptr), value :: optimizer
            integer(c_int), value :: group
        end function
        integer(c_int) function c_set_optimizer(reducer, kind, hyper, groups, count, out) &
                bind(c, name='iso_reducer_set_optimizer')
            import
            type(c_ptr), value :: reducer
            integer(c_int), value :: kind, count
            type(iso_hyper), intent(in) :: hyper
            type(iso_optimizer_group), intent(in) :: groups(*)
            type(c_ptr), intent(inout) :: out
        end function
        integer(c_int) function c_grad_norm(reducer, norm_type, norm) &
                bind(c, name='iso_reducer_grad_norm')
            import
            type(c_ptr), value :: reducer
            real(c_double), value :: norm_type
            real(c_double), intent(inout) :: norm
        end function
        integer(c_int) function c_clip_grad_norm(reducer, max_norm, norm_type, norm) &
                bind(c, name='iso_reducer_clip_grad_norm')
            import
            type(c_ptr), value :: reducer
            real(c_double), value :: max_norm, norm_type
            real(c_double), intent(inout) :: norm
        end function
        integer(c_int) function c_grads_finite(reducer, finite) &
                bind(c, name='iso_reducer_grads_finite')
            import
            type(c_ptr), value :: reducer
            logical(c_bool), intent(inout) :: finite
        end function
        integer(c_int) function c_measure(reducer, repeats, ms) &
                bind(c, name='iso_reducer_measure_exchange')
            import
            type(c_ptr), value :: reducer
            integer(c_int), value :: repeats
            real(c_double), intent(inout) :: ms
        end function
    end interface

contains

    ! ---- Texts and errors ------------------------------------------------------------------------

    ! A copy of the C string at `pointer`.
    function iso_string(pointer) result(text)
        type(c_ptr), intent(in) :: pointer
        character(:), allocatable :: text
        character(kind=c_char), pointer :: letter(:)
        integer :: n
        call c_f_pointer(pointer, letter, [c_strlen(pointer)])
        allocate (character(size(letter)) :: text)
        do n = 1, size(letter)
            text(n:n) = letter(n)
        end do
    end function

    ! The text as a C string. Assign it to a variable with the target attribute to pass its c_loc.
    function c_text(text) result(letter)
        character(*), intent(in) :: text
        character(kind=c_char) :: letter(len(text) + 1)
        integer :: n
        do n = 1, len(text)
            letter(n) = text(n:n)
        end do
        letter(len(text) + 1) = c_null_char
    end function

    function iso_status_string(status) result(text)
        integer(c_int), intent(in) :: status
        character(:), allocatable :: text
        text = iso_string(c_status_string(status))
    end function

    ! The message of the last error of this thread: what failed, where, and what to do. Empty
    ! without an error.
    function iso_error_message() result(text)
        character(:), allocatable :: text
        type, bind(c) :: start ! of iso_error
            integer(c_int) :: code, rank
            character(kind=c_char) :: message(512)
        end type
        type(start), pointer :: error
        call c_f_pointer(c_last_error(), error)
        text = iso_string(c_loc(error%message))
    end function

    ! Prints the last error to standard error.
    subroutine iso_error_print()
        call c_error_print(c_null_ptr)
    end subroutine

    ! For programs that end with the first error: if status is one, prints the last error and stops.
    ! mpirun then ends the other ranks.
    subroutine iso_check(status)
        integer(c_int), intent(in) :: status
        if (status >= 0) return
        call iso_error_print()
        call c_exit(1_c_int) ! error stop would print the stack of every rank
    end subroutine

    ! The same for a condition of the program: if it does not hold, text is the error.
    subroutine iso_require(holds, text)
        logical, intent(in) :: holds
        character(*), intent(in) :: text
        if (.not. holds) call iso_check(iso_error_set(ISO_ERR_ARG, text))
    end subroutine

    integer(c_int) function iso_error_set(code, text) result(status)
        integer(c_int), intent(in) :: code
        character(*), intent(in) :: text
        character(kind=c_char), target :: said(len(text) + 1)
        said = c_text(text)
        status = c_error_set(code, c_loc(said))
    end function

    ! ---- Communicators, devices, hooks -----------------------------------------------------------

    integer(c_int) function iso_comm_create(mpi_comm, comm, config) result(status)
        integer, intent(in) :: mpi_comm
        type(iso_comm), intent(inout) :: comm
        type(iso_comm_config), intent(in), optional :: config
        type(iso_comm_config) :: given
        if (present(config)) given = config
        status = c_comm_create(int(mpi_comm, c_int), given, comm%handle)
    end function

    subroutine iso_comm_destroy(comm)
        type(iso_comm), intent(inout) :: comm
        call c_comm_destroy(comm%handle)
    end subroutine

    integer function iso_comm_rank(comm) result(rank)
        type(iso_comm), intent(in) :: comm
        rank = c_comm_rank(comm%handle)
    end function

    integer function iso_comm_size(comm) result(size)
        type(iso_comm), intent(in) :: comm
        size = c_comm_size(comm%handle)
    end function

    ! For MPI's own procedures: the integer of mpif.h and `use mpi`.
    integer function iso_comm_mpi(comm) result(mpi_comm)
        type(iso_comm), intent(in) :: comm
        mpi_comm = c_comm_mpi(comm%handle)
    end function

    integer(c_int) function iso_comm_barrier(comm) result(status)
        type(iso_comm), intent(in) :: comm
        status = c_comm_barrier(comm%handle)
    end function

    integer(c_int) function iso_stop_create(comm, stop) result(status)
        type(iso_comm), intent(in) :: comm
        type(iso_stop), intent(inout) :: stop
        status = c_stop_create(comm%handle, stop%handle)
    end function

    subroutine iso_stop_destroy(stop)
        type(iso_stop), intent(inout) :: stop
        call c_stop_destroy(stop%handle)
    end subroutine

    subroutine iso_stop_request(stop)
        type(iso_stop), intent(in) :: stop
        call c_stop_request(stop%handle)
    end subroutine

    integer(c_int) function iso_stop_check(stop, stops) result(status)
        type(iso_stop), intent(in) :: stop
        logical, intent(inout) :: stops
        logical(c_bool) :: answer
        answer = logical(stops, c_bool)
        status = c_stop_check(stop%handle, answer)
        stops = answer
    end function

    integer(c_int) function iso_stop_check_now(stop, stops) result(status)
        type(iso_stop), intent(in) :: stop
        logical, intent(inout) :: stops
        logical(c_bool) :: answer
        answer = logical(stops, c_bool)
        status = c_stop_check_now(stop%handle, answer)
        stops = answer
    end function

    integer(c_int) function iso_comm_bcast(comm, data, bytes, root) result(status)
        type(iso_comm), intent(in) :: comm
        type(c_ptr), intent(in) :: data
        integer(c_size_t), intent(in) :: bytes
        integer, intent(in) :: root
        status = c_bcast(comm%handle, data, bytes, int(root, c_int))
    end function

    integer(c_int) function iso_comm_allreduce_f64(comm, data, op) result(status)
        type(iso_comm), intent(in) :: comm
        real(c_double), intent(inout) :: data(:)
        integer(c_int), intent(in) :: op
        status = c_allreduce_f64(comm%handle, data, size(data, kind=c_size_t), op)
    end function

    integer(c_int) function iso_comm_allreduce_i64(comm, data, op) result(status)
        type(iso_comm), intent(in) :: comm
        integer(c_int64_t), intent(inout) :: data(:)
        integer(c_int), intent(in) :: op
        status = c_allreduce_i64(comm%handle, data, size(data, kind=c_size_t), op)
    end function

    ! For iso_reducer_config%hook: a pointer to a shipped hook.
    integer(c_int) function iso_comm_hook_parse(name, hook) result(status)
        character(*), intent(in) :: name
        type(c_ptr), intent(inout) :: hook
        character(kind=c_char), target :: text(len_trim(name) + 1)
        text = c_text(trim(name))
        status = c_hook_parse(c_loc(text), hook)
    end function

    ! This function and the next ones return a hook. Assign it to a variable with the target
    ! attribute, and pass the c_loc of the variable as iso_reducer_config%hook.
    type(iso_comm_hook) function iso_hook_int8() result(hook)
        hook = shipped_hook('int8')
    end function

    type(iso_comm_hook) function iso_hook_fp8() result(hook)
        hook = shipped_hook('fp8')
    end function

    type(iso_comm_hook) function iso_hook_onebit() result(hook)
        hook = shipped_hook('onebit')
    end function

    type(iso_comm_hook) function iso_hook_dithering() result(hook)
        hook = shipped_hook('dithering')
    end function

    type(iso_comm_hook) function shipped_hook(name) result(hook)
        character(*), intent(in) :: name
        type(iso_comm_hook), pointer :: shipped
        type(c_ptr) :: found
        found = c_null_ptr
        if (iso_comm_hook_parse(name, found) < 0) return
        call c_f_pointer(found, shipped)
        hook = shipped
    end function

    ! The variable passed as config needs the target attribute. It must exist, unchanged, until the
    ! reducer is created.
    type(iso_comm_hook) function iso_hook_topk(config) result(hook)
        type(iso_topk_config), intent(in), target, optional :: config
        if (present(config)) hook = c_hook_topk(c_loc(config))
        if (.not. present(config)) hook = c_hook_topk(c_null_ptr)
    end function

    ! As for iso_hook_topk.
    type(iso_comm_hook) function iso_hook_randomk(config) result(hook)
        type(iso_randomk_config), intent(in), target, optional :: config
        if (present(config)) hook = c_hook_randomk(c_loc(config))
        if (.not. present(config)) hook = c_hook_randomk(c_null_ptr)
    end function

    ! As for iso_hook_topk.
    type(iso_comm_hook) function iso_hook_powersgd(config) result(hook)
        type(iso_powersgd_config), intent(in), target, optional :: config
        if (present(config)) hook = c_hook_powersgd(c_loc(config))
        if (.not. present(config)) hook = c_hook_powersgd(c_null_ptr)
    end function

    ! bucket%comm, for the functions iso_comm_*. Do not destroy it.
    type(iso_comm) function iso_hook_comm(bucket) result(comm)
        type(iso_comm_hook_bucket), intent(in) :: bucket
        comm%handle = bucket%comm
    end function

    ! For iso_reducer_config%device.
    integer(c_int) function iso_device_create(name, device) result(status)
        character(*), intent(in) :: name
        type(c_ptr), intent(inout) :: device
        character(kind=c_char), target :: text(len_trim(name) + 1)
        text = c_text(trim(name))
        status = c_device_create(c_loc(text), device)
    end function

    ! ---- The reducer -----------------------------------------------------------------------------

    ! An entry of params, in short, for an array of real(c_float) and any rank. value and gradient
    ! need the target attribute.
    type(iso_reducer_param) function iso_param_f32(value, count, layer, gradient, layers) &
            result(entry)
        real(c_float), intent(in), target :: value(*)
        integer, intent(in) :: count, layer
        real(c_float), intent(in), target, optional :: gradient(*)
        integer, intent(in), optional :: layers
        entry = iso_reducer_param(value=c_loc(value), count=count, dtype=ISO_F32, layer=layer)
        if (present(gradient)) entry%gradient = c_loc(gradient)
        if (present(layers)) entry%layers = layers
    end function

    ! The same for real(c_double).
    type(iso_reducer_param) function iso_param_f64(value, count, layer, gradient, layers) &
            result(entry)
        real(c_double), intent(in), target :: value(*)
        integer, intent(in) :: count, layer
        real(c_double), intent(in), target, optional :: gradient(*)
        integer, intent(in), optional :: layers
        entry = iso_reducer_param(value=c_loc(value), count=count, dtype=ISO_F64, layer=layer)
        if (present(gradient)) entry%gradient = c_loc(gradient)
        if (present(layers)) entry%layers = layers
    end function

    ! names: the names of the parameters; trailing blanks are removed. They replace params%name.
    integer(c_int) function iso_reducer_create(comm, params, names, reducer, config) result(status)
        type(iso_comm), intent(in) :: comm
        type(iso_reducer_param), intent(in) :: params(:)
        character(*), intent(in) :: names(:)
        type(iso_reducer), intent(inout) :: reducer
        type(iso_reducer_config), intent(in), optional :: config
        type(iso_reducer_config) :: given
        type(iso_reducer_param) :: list(size(params))
        character(kind=c_char), target :: text(len(names) + 1, size(params))
        type(c_ptr) :: handle
        integer :: i
        if (present(config)) given = config
        list = params
        list%name = c_null_ptr
        do i = 1, min(size(params), size(names))
            text(:len_trim(names(i)) + 1, i) = c_text(trim(names(i)))
            list(i)%name = c_loc(text(1, i))
        end do
        handle = c_null_ptr
        status = c_reducer_create(comm%handle, list, int(size(list), c_int), given, handle)
        if (status < 0) return
        allocate (reducer%engine)
        reducer%engine%handle = handle
    end function

    subroutine iso_reducer_destroy(reducer)
        type(iso_reducer), intent(inout) :: reducer
        type(applier), pointer :: gone
        if (.not. associated(reducer%engine)) return
        call c_reducer_destroy(reducer%engine%handle)
        do while (associated(reducer%engine%appliers))
            gone => reducer%engine%appliers
            reducer%engine%appliers => gone%next
            deallocate (gone)
        end do
        deallocate (reducer%engine)
    end subroutine

    ! Access it with: call c_f_pointer(iso_reducer_grad(reducer, i), gradient, shape(value)).
    type(c_ptr) function iso_reducer_grad(reducer, i) result(gradient)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: i
        gradient = c_grad(reducer%engine%handle, int(i - 1, c_int))
    end function

    integer(c_int) function iso_reducer_grad_ready(reducer, i) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: i
        status = c_grad_ready(reducer%engine%handle, int(i - 1, c_int))
    end function

    integer function iso_reducer_pieces(reducer, i) result(pieces)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: i
        pieces = c_pieces(reducer%engine%handle, int(i - 1, c_int))
    end function

    ! Piece k is elements first to first + count - 1 of parameter i.
    subroutine iso_reducer_piece(reducer, i, k, first, count)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: i, k
        integer(c_size_t), intent(out) :: first, count
        call c_piece(reducer%engine%handle, int(i - 1, c_int), int(k - 1, c_int), first, count)
        first = first + 1
    end subroutine

    ! In piece k, this rank updates elements first to first + count - 1 of parameter i.
    subroutine iso_reducer_own(reducer, i, k, first, count)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: i, k
        integer(c_size_t), intent(out) :: first, count
        call c_own(reducer%engine%handle, int(i - 1, c_int), int(k - 1, c_int), first, count)
        first = first + 1
    end subroutine

    integer(c_int) function iso_reducer_piece_ready(reducer, i, k) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: i, k
        status = c_piece_ready(reducer%engine%handle, int(i - 1, c_int), int(k - 1, c_int))
    end function

    ! hyper: c_loc of the struct whose c_sizeof was passed to iso_reducer_set_apply.
    integer(c_int) function iso_reducer_step(reducer, hyper) result(status)
        type(iso_reducer), intent(in) :: reducer
        type(c_ptr), intent(in) :: hyper
        status = iso_reducer_step_of(reducer, ISO_REDUCER_ONLY, hyper)
    end function

    integer(c_int) function iso_reducer_step_of(reducer, id, hyper) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: id
        type(c_ptr), intent(in) :: hyper
        status = c_step_of(reducer%engine%handle, int(id, c_int), hyper)
    end function

    integer(c_int) function iso_reducer_param_needed(reducer, i) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: i
        status = c_param_needed(reducer%engine%handle, int(i - 1, c_int))
    end function

    integer(c_int) function iso_reducer_piece_needed(reducer, i, k) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: i, k
        status = c_piece_needed(reducer%engine%handle, int(i - 1, c_int), int(k - 1, c_int))
    end function

    integer(c_int) function iso_reducer_layer_ready(reducer, layer) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: layer
        status = c_layer_ready(reducer%engine%handle, int(layer, c_int))
    end function

    integer(c_int) function iso_reducer_layer_needed(reducer, layer) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: layer
        status = c_layer_needed(reducer%engine%handle, int(layer, c_int))
    end function

    integer function iso_reducer_param_count(reducer) result(count)
        type(iso_reducer), intent(in) :: reducer
        count = c_param_count(reducer%engine%handle)
    end function

    ! 0 if no parameter has that name.
    integer function iso_reducer_find(reducer, name) result(i)
        type(iso_reducer), intent(in) :: reducer
        character(*), intent(in) :: name
        character(kind=c_char), target :: text(len_trim(name) + 1)
        text = c_text(trim(name))
        i = c_find(reducer%engine%handle, c_loc(text)) + 1
    end function

    integer(c_int) function iso_reducer_finish(reducer) result(status)
        type(iso_reducer), intent(in) :: reducer
        status = c_finish(reducer%engine%handle)
    end function

    integer(c_int) function iso_reducer_all_reduce(reducer) result(status)
        type(iso_reducer), intent(in) :: reducer
        status = c_all_reduce(reducer%engine%handle)
    end function

    subroutine iso_reducer_zero_grad(reducer)
        type(iso_reducer), intent(in) :: reducer
        call c_zero_grad(reducer%engine%handle)
    end subroutine

    subroutine iso_reducer_poll(reducer)
        type(iso_reducer), intent(in) :: reducer
        call c_poll(reducer%engine%handle)
    end subroutine

    subroutine iso_reducer_watch_gradients(reducer)
        type(iso_reducer), intent(in) :: reducer
        call c_watch_gradients(reducer%engine%handle)
    end subroutine

    integer(c_int) function iso_reducer_set_weight(reducer, weight, total) result(status)
        type(iso_reducer), intent(in) :: reducer
        real(c_double), intent(in) :: weight, total
        status = c_set_weight(reducer%engine%handle, weight, total)
    end function

    integer(c_int) function iso_reducer_add_weight(reducer, weight) result(status)
        type(iso_reducer), intent(in) :: reducer
        real(c_double), intent(in) :: weight
        status = c_add_weight(reducer%engine%handle, weight)
    end function

    integer(c_int) function iso_reducer_shadow(reducer) result(status)
        type(iso_reducer), intent(in) :: reducer
        status = c_shadow(reducer%engine%handle)
    end function

    integer(c_int) function iso_reducer_add_sum(reducer, k, value) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: k
        real(c_double), intent(in) :: value
        status = c_add_sum(reducer%engine%handle, int(k - 1, c_int), value)
    end function

    integer(c_int) function iso_reducer_get_sum(reducer, k, sum) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: k
        real(c_double), intent(inout) :: sum
        status = c_get_sum(reducer%engine%handle, int(k - 1, c_int), sum)
    end function

    subroutine iso_reducer_get_stats(reducer, stats)
        type(iso_reducer), intent(in) :: reducer
        type(iso_reducer_stats), intent(out) :: stats
        call c_get_stats(reducer%engine%handle, stats)
    end subroutine

    ! The lines of text end with a line feed, achar(10).
    integer(c_int) function iso_reducer_bucket_text(reducer, text) result(status)
        type(iso_reducer), intent(in) :: reducer
        character(:), allocatable, intent(inout) :: text
        type(c_ptr) :: made
        made = c_null_ptr
        status = c_bucket_text(reducer%engine%handle, made)
        if (status < 0) return
        text = iso_string(made)
        call c_free(made)
    end function

    integer(c_int) function iso_reducer_get_bucket_stats(reducer, bucket, stats) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: bucket
        type(iso_bucket_stats), intent(inout) :: stats
        status = c_get_bucket_stats(reducer%engine%handle, int(bucket - 1, c_int), stats)
    end function

    integer(c_int) function iso_reducer_measure_exchange(reducer, repeats, ms) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: repeats
        real(c_double), intent(inout) :: ms
        status = c_measure(reducer%engine%handle, int(repeats, c_int), ms)
    end function

    ! Between the last grad_ready and step. norm_type: 2 for the Euclidean norm.
    integer(c_int) function iso_reducer_grad_norm(reducer, norm_type, norm) result(status)
        type(iso_reducer), intent(in) :: reducer
        real(c_double), intent(in) :: norm_type
        real(c_double), intent(inout) :: norm
        status = c_grad_norm(reducer%engine%handle, norm_type, norm)
    end function

    ! total_norm: the norm before clipping.
    integer(c_int) function iso_reducer_clip_grad_norm(reducer, max_norm, norm_type, total_norm) &
            result(status)
        type(iso_reducer), intent(in) :: reducer
        real(c_double), intent(in) :: max_norm, norm_type
        real(c_double), intent(inout), optional :: total_norm
        real(c_double) :: norm
        norm = 0
        status = c_clip_grad_norm(reducer%engine%handle, max_norm, norm_type, norm)
        if (status >= 0 .and. present(total_norm)) total_norm = norm
    end function

    integer(c_int) function iso_reducer_grads_finite(reducer, finite) result(status)
        type(iso_reducer), intent(in) :: reducer
        logical, intent(inout) :: finite
        logical(c_bool) :: found
        found = .false._c_bool
        status = c_grads_finite(reducer%engine%handle, found)
        if (status >= 0) finite = logical(found)
    end function

    ! ---- Optimizers of the library ---------------------------------------------------------------

    type(iso_hyper) function iso_hyper_default(kind) result(hyper)
        integer(c_int), intent(in) :: kind
        hyper = c_hyper_default(kind)
    end function

    ! Without hyper: the default. groups become groups 1, 2, ... Destroy the optimizer first.
    integer(c_int) function iso_reducer_set_optimizer(reducer, kind, optimizer, hyper, groups) &
            result(status)
        type(iso_reducer), intent(in) :: reducer
        integer(c_int), intent(in) :: kind
        type(iso_optimizer), intent(inout) :: optimizer
        type(iso_hyper), intent(in), optional :: hyper
        type(iso_optimizer_group), intent(in), optional :: groups(:)
        type(iso_optimizer_group), allocatable :: list(:)
        type(iso_hyper) :: given
        type(c_ptr) :: handle
        given = c_hyper_default(kind)
        if (present(hyper)) given = hyper
        allocate (list(0))
        if (present(groups)) list = groups
        handle = c_null_ptr
        status = c_set_optimizer(reducer%engine%handle, kind, given, list, int(size(list), c_int), &
            handle)
        if (status >= 0) optimizer%handle = handle
    end function

    integer(c_int) function iso_optimizer_step(optimizer) result(status)
        type(iso_optimizer), intent(in) :: optimizer
        status = c_optimizer_step(optimizer%handle)
    end function

    subroutine iso_optimizer_zero_grad(optimizer)
        type(iso_optimizer), intent(in) :: optimizer
        call c_optimizer_zero_grad(optimizer%handle)
    end subroutine

    subroutine iso_optimizer_destroy(optimizer)
        type(iso_optimizer), intent(inout) :: optimizer
        call c_optimizer_destroy(optimizer%handle)
    end subroutine

    ! The hyperparameters of group 0, to be read or changed between steps.
    function iso_optimizer_hyper(optimizer) result(hyper)
        type(iso_optimizer), intent(in) :: optimizer
        type(iso_hyper), pointer :: hyper
        hyper => iso_optimizer_group_hyper(optimizer, 0)
    end function

    integer function iso_optimizer_groups(optimizer) result(groups)
        type(iso_optimizer), intent(in) :: optimizer
        groups = c_optimizer_groups(optimizer%handle)
    end function

    ! Groups have the same numbers as in C.
    function iso_optimizer_group_hyper(optimizer, group) result(hyper)
        type(iso_optimizer), intent(in) :: optimizer
        integer, intent(in) :: group
        type(iso_hyper), pointer :: hyper
        call c_f_pointer(c_group_hyper(optimizer%handle, int(group, c_int)), hyper)
    end function

    ! ---- Update functions ------------------------------------------------------------------------

    ! C calls one of these two. `user` is the applier, which holds the program's function.
    integer(c_int) function apply_from_c(i, gradient, scale, hyper, user) result(status) &
            bind(c, name='')
        integer(c_int), value :: i
        type(c_ptr), value :: gradient, hyper, user
        real(c_double), value :: scale
        type(applier), pointer :: mine
        call c_f_pointer(user, mine)
        status = mine%apply(int(i) + 1, gradient, scale, hyper, mine%user)
    end function

    integer(c_int) function piece_from_c(i, first, count, gradient, scale, hyper, user) &
            result(status) bind(c, name='')
        integer(c_int), value :: i
        integer(c_size_t), value :: first, count
        type(c_ptr), value :: gradient, hyper, user
        real(c_double), value :: scale
        type(applier), pointer :: mine
        call c_f_pointer(user, mine)
        status = mine%apply_piece(int(i) + 1, first + 1, count, gradient, scale, hyper, mine%user)
    end function

    integer(c_int) function update_from_c(update) result(status) bind(c, name='')
        type(iso_reducer_update), intent(in) :: update
        type(iso_reducer_update) :: told
        type(applier), pointer :: mine
        call c_f_pointer(update%user, mine)
        told = update
        told%param = told%param + 1
        told%slice = told%slice + 1
        told%first = told%first + 1
        told%user = mine%user
        status = mine%update(told)
    end function

    ! Adds an applier with the id of iso_reducer_set_apply; C may assign another id later.
    function remember(in, apply, user) result(mine)
        type(engine), intent(inout) :: in
        procedure(iso_reducer_apply) :: apply
        type(c_ptr), intent(in), optional :: user
        type(applier), pointer :: mine
        allocate (mine)
        mine%apply => apply
        if (present(user)) mine%user = user
        mine%next => in%appliers
        in%appliers => mine
    end function

    subroutine forget(in, gone)
        type(engine), intent(inout) :: in
        type(applier), pointer, intent(in) :: gone
        type(applier), pointer :: before, freed
        if (.not. associated(gone)) return ! an optimizer of the library has none
        freed => gone
        if (associated(in%appliers, freed)) then
            in%appliers => freed%next
        else
            before => in%appliers
            do while (.not. associated(before%next, freed))
                before => before%next
            end do
            before%next => freed%next
        end if
        deallocate (freed)
    end subroutine

    ! Removes other appliers with this id. C reuses an id after it has dropped the applier,
    ! even if iso_reducer_remove_apply failed.
    subroutine forget_others(in, mine)
        type(engine), intent(inout) :: in
        type(applier), pointer, intent(in) :: mine
        type(applier), pointer :: other, next
        other => in%appliers
        do while (associated(other))
            next => other%next
            if (other%id == mine%id .and. .not. associated(other, mine)) call forget(in, other)
            other => next
        end do
    end subroutine

    ! The applier for `id`, which C has already accepted: the one with this id; else that of
    ! iso_reducer_set_apply; else the only one. Null if there is none.
    function find(in, id) result(found)
        type(engine), intent(in) :: in
        integer, intent(in) :: id
        type(applier), pointer :: found
        found => in%appliers
        do while (associated(found))
            if (found%id == id) return
            found => found%next
        end do
        if (id /= ISO_REDUCER_ONLY) return ! an optimizer of the library
        found => in%appliers
        do while (associated(found))
            if (found%id == ISO_REDUCER_ONLY .or. .not. associated(found%next)) return
            found => found%next
        end do
    end function

    ! Without apply, gradients are only averaged. hyper_bytes: c_sizeof of the struct passed to
    ! iso_reducer_step.
    integer(c_int) function iso_reducer_set_apply(reducer, apply, hyper_bytes, user) result(status)
        type(iso_reducer), intent(in) :: reducer
        procedure(iso_reducer_apply), optional :: apply
        integer(c_size_t), intent(in), optional :: hyper_bytes
        type(c_ptr), intent(in), optional :: user
        type(applier), pointer :: mine
        integer(c_size_t) :: bytes
        associate (in => reducer%engine)
            bytes = 0
            if (present(hyper_bytes)) bytes = hyper_bytes
            if (present(apply)) then
                mine => remember(in, apply, user)
                status = c_set_apply(in%handle, c_funloc(apply_from_c), bytes, c_loc(mine))
                if (status < 0) then
                    call forget(in, mine)
                else
                    call forget_others(in, mine)
                end if
            else
                status = c_set_apply(in%handle, c_null_funptr, bytes, c_null_ptr)
                mine => find(in, ISO_REDUCER_ONLY)
                if (status >= 0 .and. associated(mine)) then
                    if (mine%id == ISO_REDUCER_ONLY) call forget(in, mine)
                end if
            end if
        end associate
    end function

    ! As iso_reducer_set_apply; iso_reducer_set_apply without a function removes it.
    integer(c_int) function iso_reducer_set_update(reducer, update, hyper_bytes, user) &
            result(status)
        type(iso_reducer), intent(in) :: reducer
        procedure(iso_reducer_updater) :: update
        integer(c_size_t), intent(in) :: hyper_bytes
        type(c_ptr), intent(in), optional :: user
        type(applier), pointer :: mine
        allocate (mine)
        mine%update => update
        if (present(user)) mine%user = user
        mine%next => reducer%engine%appliers
        reducer%engine%appliers => mine
        status = c_set_update(reducer%engine%handle, c_funloc(update_from_c), hyper_bytes, &
            c_loc(mine))
        if (status < 0) then
            call forget(reducer%engine, mine)
        else
            call forget_others(reducer%engine, mine)
        end if
    end function

    ! For an optimizer whose state is in arrays like the program's: the number of elements before
    ! update%value in the array at `array`, its c_loc.
    integer(c_intptr_t) function iso_update_offset(update, array) result(elements)
        type(iso_reducer_update), intent(in) :: update
        type(c_ptr), intent(in) :: array
        integer(c_intptr_t) :: bytes, size
        bytes = transfer(update%value, bytes) - transfer(array, bytes)
        size = 2 ! ISO_BF16 and ISO_F16
        if (update%dtype == ISO_F32) size = 4
        if (update%dtype == ISO_F64) size = 8
        elements = bytes / size
    end function

    ! params: the parameters to update; all if absent.
    integer(c_int) function iso_reducer_add_apply(reducer, apply, hyper_bytes, id, params, user) &
            result(status)
        type(iso_reducer), intent(in) :: reducer
        procedure(iso_reducer_apply) :: apply
        integer(c_size_t), intent(in) :: hyper_bytes
        integer, intent(inout) :: id
        integer, intent(in), optional :: params(:)
        type(c_ptr), intent(in), optional :: user
        type(applier), pointer :: mine
        integer(c_int), allocatable, target :: list(:)
        type(c_ptr) :: first
        integer :: count
        first = c_null_ptr
        count = 0
        if (present(params)) count = size(params)
        allocate (list(count + 1)) ! never empty
        if (present(params)) then
            list(:count) = int(params - 1, c_int)
            first = c_loc(list)
        end if
        associate (in => reducer%engine)
            mine => remember(in, apply, user)
            status = c_add_apply(in%handle, first, int(count, c_int), &
                c_funloc(apply_from_c), hyper_bytes, c_loc(mine), mine%id)
            if (status < 0) then
                call forget(in, mine)
            else
                id = mine%id
                call forget_others(in, mine)
            end if
        end associate
    end function

    ! Without apply_piece, parameters are updated as a whole again.
    integer(c_int) function iso_reducer_set_apply_piece(reducer, id, apply_piece) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: id
        procedure(iso_reducer_apply_piece), optional :: apply_piece
        type(applier), pointer :: mine
        type(c_funptr) :: function
        function = c_null_funptr
        if (present(apply_piece)) function = c_funloc(piece_from_c)
        status = c_set_apply_piece(reducer%engine%handle, int(id, c_int), function)
        if (status < 0) return
        mine => find(reducer%engine, id)
        if (.not. associated(mine)) return
        mine%apply_piece => null()
        if (present(apply_piece)) mine%apply_piece => apply_piece
    end function

    integer(c_int) function iso_reducer_remove_apply(reducer, id) result(status)
        type(iso_reducer), intent(in) :: reducer
        integer, intent(in) :: id
        status = c_remove_apply(reducer%engine%handle, int(id, c_int))
        if (status >= 0) call forget(reducer%engine, find(reducer%engine, id))
    end function
end module
