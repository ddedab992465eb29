// SPDX-License-Identifier: MIT
// Fibers of the executor thread. They are begun by ucontext and switched by setjmp, which makes no
// system call; under a sanitizer, which must be told of every switch, by ucontext alone.
#undef _FORTIFY_SOURCE // its longjmp refuses to change to another stack
#include "emulated_fibers.h"
#include "emulated_internal.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulated {

static const size_t stack_size = 256 << 10, page = 4096;

struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool started = false;
    char *stack = nullptr;
    void (*body)(void) = nullptr;
};

static Fiber *current;
static Fiber main_fiber; // the executor's own stack

#if defined(__SANITIZE_ADDRESS__)

static const void *main_stack;
static size_t main_size;

static void begin() {
    __sanitizer_finish_switch_fiber(nullptr, &main_stack, &main_size);
    current->body();
}

static void change(Fiber *from, Fiber *to) {
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, to->stack ? to->stack : main_stack,
                                   to->stack ? stack_size : main_size);
    swapcontext(&from->context, &to->context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}

#elif defined(__SANITIZE_THREAD__)

static void begin() { current->body(); }
static void change(Fiber *from, Fiber *to) { swapcontext(&from->context, &to->context); }

#else

static void begin() { current->body(); }

static void change(Fiber *from, Fiber *to) {
    if (_setjmp(from->place) != 0) return;
    if (!to->started) {
        to->started = true;
        setcontext(&to->context);
    }
    _longjmp(to->place, 1);
}

#endif

Fiber *fiber_create(void (*body)(void)) {
    Fiber *f = new Fiber;
    void *stack = mmap(nullptr, stack_size + page, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, page, PROT_NONE) != 0)
        die("no memory for the threads of a block");
    f->stack = static_cast<char *>(stack) + page;
    f->body = body;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = stack_size;
    f->context.uc_link = nullptr;
    makecontext(&f->context, begin, 0);
    return f;
}

void fiber_enter(Fiber *fiber) {
    main_fiber.started = true;
    current = fiber;
    change(&main_fiber, fiber);
}

void fiber_leave() { change(current, &main_fiber); }

} // namespace emulated
