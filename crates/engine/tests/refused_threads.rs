//! The system refuses threads to a process with idle devices. The test has a process of its own,
//! as that stays so.
#![allow(clippy::unwrap_used)]

mod common;

use common::*;

/// From now on each attempt of this process to start a thread fails with `EAGAIN`.
fn refuse_threads() {
    let statement = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let is_call = |number: libc::c_long, jt, jf| {
        let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        statement(code, jt, jf, number as u32)
    };
    let result = |value| statement(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        is_call(libc::SYS_clone3, 1, 0),
        is_call(libc::SYS_clone, 0, 1),
        result(libc::SECCOMP_RET_ERRNO | libc::EAGAIN.cast_unsigned()),
        result(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain integers, and a program that outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        let set = libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Threads of the library in this process: the watcher once it runs, those that serve one device,
/// and those that were just started for that.
fn threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let comm = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
    let names = threads.filter_map(|thread| comm(thread.ok()?).ok());
    // A new one has the watcher's name until it runs.
    names.filter(|comm| comm.starts_with("airdma-")).count()
}

#[test]
fn devices_whose_threads_are_refused_are_all_served() {
    let pairs = [
        ["127.0.0.33", "127.0.0.34"],
        ["127.0.0.35", "127.0.0.36"],
        ["127.0.0.37", "127.0.0.38"],
    ];
    let pairs = pairs.map(|[left, right]| {
        let (left, right) = sockets(left, right);
        pair_on(&left, &right, 4096)
    });
    refuse_threads();
    wait_until("devices without threads", || threads() == 1);
    // The timers of these requests wake the watcher for all devices, and it keeps trying.
    for (left, right) in &pairs {
        left.qp.post_send(&left.write(right, 0, 64)).unwrap();
        right.qp.post_send(&right.write(left, 64, 64)).unwrap();
    }
    for (left, right) in &pairs {
        let mut open = vec![left, right];
        wait_until("both ends to be done", || {
            open.retain(|end| end.try_complete().is_none());
            open.is_empty()
        });
    }
    for (left, right) in &pairs {
        // The right end makes no calls.
        left.memory.fill(0, &pattern(4096, 3));
        left.qp.post_send(&left.write(right, 0, 4096)).unwrap();
        left.ok();
        assert_eq!(right.memory.bytes(0, 4096), pattern(4096, 3));
    }
    assert_eq!(threads(), 1, "threads are refused");
}
