//! Calls by which other programs start, and calls of the C library that use a descriptor behind
//! the hooks: connections are handed back before them.
//!
//! Some take any number of arguments, and `vfork(2)` returns twice from its caller's frame: so each
//! function keeps its arguments, hands back, and jumps to the next function of its name.

use std::ffi::{c_int, c_void};

use airdma_preload::{Failure, errno, real};

use crate::hand_back::{self, Need};
use crate::inside::is_inside;
use crate::{descriptors, next, socket};

/// Where a jump goes: a function that the C library lacks is one that fails.
struct Target(*const c_void);

impl Failure for Target {
    const FAILURE: Target = Target(fails as *const c_void);
}

extern "C" fn fails() -> isize {
    errno::set(libc::ENOSYS);
    -1
}

/// Defines functions that call another one before the next one of their name.
macro_rules! before {
    ($($before:ident: $($name:ident)*;)*) => {$($(
        /// The function of that name, after what is done before it.
        ///
        /// # Safety
        /// As its man page demands.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn target(first: *const c_void) -> *const c_void {
                fn next() -> Target {
                    Target(real!($name: fn() -> Target) as *const c_void)
                }
                crate::entry::guard((), || $before(first));
                next().0
            }
            // Seven registers of arguments keep the stack aligned.
            std::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                "call {target}",
                "mov r11, rax",
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                target = sym target,
            )
        }
    )*)*};
}

before! {
    new_image: execve execv execvp execvpe execl execle execlp fexecve execveat;
    cloned: clone;
    other_process: vfork posix_spawn posix_spawnp system popen;
    behind: fdopen dprintf vdprintf __dprintf_chk __vdprintf_chk preadv2 preadv64v2 pwritev2 pwritev64v2;
    new_number: pipe pipe2 socketpair inotify_init signalfd creat fopen fopen64 opendir;
    behind_aio: aio_read aio_read64 aio_write aio_write64;
}

/// Before this process becomes another program. A child of `vfork(2)` has no lane that its parent
/// has not handed back.
pub fn new_image(_: *const c_void) {
    if !is_inside() && !socket::is_of_parent() {
        hand_back::all(Need::All);
        without_lost();
    }
}

/// Before another program starts beside this one, with the descriptors that it inherits.
fn other_process(_: *const c_void) {
    if !is_inside() && socket::is_own_table() {
        hand_back::inheritable();
    }
}

/// Before `clone(2)`, which may make a process of its own.
fn cloned(_: *const c_void) {
    if !is_inside() && socket::is_own_table() {
        hand_back::all(Need::All);
    }
}

/// Before the C library opens a descriptor.
fn new_number(_: *const c_void) {
    descriptors::settle();
}

/// Before the C library's own calls on a descriptor.
fn behind(fd: *const c_void) {
    if !is_inside() {
        hand_back::descriptor(fd as c_int);
    }
}

/// The same, of the descriptor in a `struct aiocb`.
fn behind_aio(request: *const c_void) {
    if !is_inside() && !request.is_null() {
        // SAFETY: the structure begins with its descriptor.
        hand_back::descriptor(unsafe { request.cast::<c_int>().read() });
    }
}

/// A stream whose next bytes are in the parent's memory is an error in the new program.
fn without_lost() {
    for (fd, socket) in socket::by_descriptor() {
        if socket.stage() != socket::Stage::Lost || socket.is_datagram() {
            continue;
        }
        // SAFETY: plain integers; the descriptor is the program's, and has no other use here.
        unsafe {
            let unconnected = next::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
            let flags = next::fcntl(fd, libc::F_GETFD, 0);
            let to = if flags & libc::FD_CLOEXEC == 0 {
                0
            } else {
                libc::O_CLOEXEC
            };
            if unconnected < 0 || next::dup3(unconnected, fd, to) < 0 {
                next::close(fd);
            }
            if unconnected >= 0 {
                next::close(unconnected);
            }
        }
    }
}
