//! Work requests as C delivers them: lists and built batches with any content, in any state of the
//! queue pair.
//!
//! The test knows what is wrong with a request, and the library must report it. Packets come back
//! to the device, perhaps changed on the way by an attacker that knows everything.

use std::mem::zeroed;
use std::ptr;

use airdma_verbs::rlib::abi;

use crate::input::Input;
use crate::program::{Change, OPEN, Program, READABLE, call};

const EINVAL: i32 = 22;
const ENOMEM: i32 = 12;
const EOPNOTSUPP: i32 = 95;

/// Elements that any queue takes at most, and bytes of a message.
const ELEMENTS_MAX: i32 = 32;
const MESSAGE_MAX: u64 = (1 << 31) - 1;

/// Opcodes of `ibv_post_send(3)` that exist, then some that do not.
const OPCODES: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 12, 0xff, u32::MAX];

/// A program that posts what it wants.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut program = Program::new(&mut input);
    while !input.is_empty() {
        let qp = usize::from(input.one_in(3));
        match input.below(16) {
            0..=5 => post_sends(&mut program, qp, &mut input),
            6 | 7 => post_receives(&mut program, Some(qp), &mut input),
            8 => post_receives(&mut program, None, &mut input),
            9..=11 => build_batch(&mut program, qp, &mut input),
            12 => program.run(0),
            13 => {
                let changes = 1 + input.below(4);
                let changes = (0..changes).map(|_| Change::decode(&mut input));
                program.changes.extend(changes);
                program.run(0);
            }
            14 => program.run(u64::from(input.u16())),
            _ => {
                let states = [
                    abi::IBV_QPS_RTS,
                    abi::IBV_QPS_SQD,
                    abi::IBV_QPS_ERR,
                    abi::IBV_QPS_RESET,
                ];
                program.move_to(qp, input.pick(&states));
            }
        }
        program.check_memory();
    }
    program.finish();
}

/// A list of elements as a request names it: the array, and how long the program says that it is.
struct Elements {
    array: Vec<abi::ibv_sge>,
    pointer: *mut abi::ibv_sge,
    count: i32,
}

impl Elements {
    fn decode(program: &Program, inline: bool, input: &mut Input<'_>) -> Self {
        let count = input.pick(&[1, 1, 1, 1, 0, 2, 2, 3, 4, 5]);
        let mut array: Vec<_> = (0..count).map(|_| element(program, input)).collect();
        if inline {
            // Inline data are read now, from memory that must be the program's.
            for sge in &mut array {
                (sge.addr, sge.length) = (program.address(input.below(256)), sge.length % 200);
            }
        }
        let (pointer, count) = match input.below(16) {
            0 => (ptr::null_mut(), count),
            1 => (
                array.as_mut_ptr(),
                input.pick(&[-1, i32::MIN, ELEMENTS_MAX + 1, i32::MAX]),
            ),
            _ => (array.as_mut_ptr(), count),
        };
        Elements {
            array,
            pointer,
            count,
        }
    }

    /// The list cannot be looked at, or no queue takes as much.
    fn is_wrong(&self) -> bool {
        self.count < 0 || self.count > ELEMENTS_MAX || (self.count > 0 && self.pointer.is_null())
    }

    fn bytes(&self) -> u64 {
        self.array.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

fn element(program: &Program, input: &mut Input<'_>) -> abi::ibv_sge {
    // SAFETY: the regions of the program.
    let (open, readable) = unsafe { ((*program.open).lkey, (*program.readable).lkey) };
    abi::ibv_sge {
        addr: match input.below(8) {
            0..=4 => program.address(OPEN.start + 8 * input.below(256)),
            5 => program.address(READABLE.start + input.below(256)),
            6 => program.address(input.pick(&[OPEN.start - 1, OPEN.end - 1, OPEN.end, 0])),
            _ => input.pick(&[0, 1, u64::MAX, u64::MAX - 7]),
        },
        length: match input.below(8) {
            0..=2 => 8,
            3 | 4 => u32::from(input.byte()),
            5 => u32::from(input.u16()) % 4096,
            6 => 0,
            _ => input.pick(&[1 << 20, 1 << 30, MESSAGE_MAX as u32, u32::MAX]),
        },
        lkey: match input.below(8) {
            0..=5 => open,
            6 => readable,
            _ => input.pick(&[0, open ^ 1, u32::MAX]),
        },
    }
}

fn remote(program: &Program, input: &mut Input<'_>) -> (u64, u32) {
    let sge = element(program, input);
    (sge.addr, sge.lkey)
}

/// One request of a list, and the errors with which it may be refused; none if it is right.
struct Request {
    wr: Box<abi::ibv_send_wr>,
    /// The array that the request points to.
    _elements: Elements,
    refusals: Vec<i32>,
    signalled: bool,
}

impl Request {
    fn decode(program: &mut Program, index: usize, state: u32, input: &mut Input<'_>) -> Self {
        let opcode = match input.below(8) {
            0..=4 => input.pick(&OPCODES[..10]),
            _ => input.pick(&OPCODES),
        };
        let flags = match input.below(8) {
            7 => input.u32() & 0xff,
            _ => u32::from(input.byte() & 0x0f),
        };
        let inline = flags & abi::IBV_SEND_INLINE != 0;
        let elements = Elements::decode(program, inline, input);
        // SAFETY: integers and pointers.
        let mut wr: Box<abi::ibv_send_wr> = Box::new(unsafe { zeroed() });
        wr.wr_id = program.wr_id();
        wr.sg_list = elements.pointer;
        wr.num_sge = elements.count;
        (wr.opcode, wr.send_flags) = (opcode, flags);
        let (remote_addr, rkey) = remote(program, input);
        wr.__bindgen_anon_1.invalidate_rkey = rkey;
        let qp_type = program.qps[index].qp_type;
        let ah = if input.one_in(8) {
            ptr::null_mut()
        } else {
            program.ah
        };
        if qp_type == abi::IBV_QPT_UD {
            wr.wr.ud = abi::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                ah,
                // SAFETY: a queue pair of the program.
                remote_qpn: unsafe { (*program.qps[1 - index].qp).qp_num },
                remote_qkey: input.pick(&[5, 5, 1 << 31, 6]),
            };
        } else if opcode == abi::IBV_WR_ATOMIC_CMP_AND_SWP
            || opcode == abi::IBV_WR_ATOMIC_FETCH_AND_ADD
        {
            wr.wr.atomic = abi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                remote_addr,
                compare_add: 1,
                swap: 2,
                rkey,
            };
        } else {
            wr.wr.rdma = abi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        }
        let number = program.srq_number;
        wr.qp_type.xrc.remote_srqn = input.pick(&[number, number, number, 0, u32::MAX]);
        let access = input.pick(&[0, 2, 7, u32::MAX]);
        wr.__bindgen_anon_2.bind_mw = abi::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw: if input.one_in(4) {
                ptr::null_mut()
            } else {
                program.window
            },
            rkey: rkey ^ 3,
            bind_info: abi::ibv_mw_bind_info {
                mr: program.open,
                addr: remote_addr,
                length: input.number(&[8, 4096]),
                mw_access_flags: access,
            },
        };
        let refusals = refusals(program, index, state, &wr, &elements, ah, access);
        let signalled = program.qps[index].signal_all || flags & abi::IBV_SEND_SIGNALED != 0;
        Request {
            wr,
            _elements: elements,
            refusals,
            signalled,
        }
    }
}

/// Faults of a request, as the errors that `ibv_post_send(3)` may give for it.
fn refusals(
    program: &Program,
    index: usize,
    state: u32,
    wr: &abi::ibv_send_wr,
    elements: &Elements,
    ah: *mut abi::ibv_ah,
    access: u32,
) -> Vec<i32> {
    let posted = &program.qps[index];
    let (qp_type, cap) = (posted.qp_type, &posted.cap);
    let inline = wr.send_flags & abi::IBV_SEND_INLINE != 0;
    let send = matches!(wr.opcode, abi::IBV_WR_SEND | abi::IBV_WR_SEND_WITH_IMM);
    let answered = matches!(
        wr.opcode,
        abi::IBV_WR_RDMA_READ | abi::IBV_WR_ATOMIC_CMP_AND_SWP | abi::IBV_WR_ATOMIC_FETCH_AND_ADD
    );
    let atomic =
        wr.opcode == abi::IBV_WR_ATOMIC_WRITE || (answered && wr.opcode != abi::IBV_WR_RDMA_READ);
    let has_it = match qp_type {
        abi::IBV_QPT_UD => send,
        abi::IBV_QPT_UC => !answered && !atomic && wr.opcode != abi::IBV_WR_SEND_WITH_INV,
        abi::IBV_QPT_XRC_RECV => false,
        _ => true,
    };
    let bytes = elements.bytes();
    // SAFETY: the member was filled.
    let no_window = unsafe { wr.__bindgen_anon_2.bind_mw.mw.is_null() };
    let exists = OPCODES[..10].contains(&wr.opcode) || wr.opcode == abi::IBV_WR_ATOMIC_WRITE;
    let wrong = [
        wr.send_flags & !0xf != 0,
        !exists && wr.opcode != abi::IBV_WR_TSO,
        !has_it,
        qp_type == abi::IBV_QPT_UD && ah.is_null(),
        state < abi::IBV_QPS_RTS,
        elements.is_wrong(),
        !inline && elements.count > cap.max_send_sge as i32,
        inline && answered,
        inline && bytes > u64::from(cap.max_inline_data),
        bytes > MESSAGE_MAX,
        atomic && (bytes < 8 || elements.count == 0),
        wr.opcode == abi::IBV_WR_BIND_MW && (no_window || access == u32::MAX),
    ];
    let mut refusals = Vec::new();
    if wrong.contains(&true) {
        refusals.push(EINVAL);
    }
    if wr.opcode == abi::IBV_WR_TSO {
        refusals.push(EOPNOTSUPP);
    }
    if cap.max_send_wr == 0 {
        refusals.push(ENOMEM);
    }
    refusals
}

fn post_sends(program: &mut Program, index: usize, input: &mut Input<'_>) {
    let state = program.state(index);
    let length = input.pick(&[1, 1, 2, 3, 8, 20, 0]);
    let mut list: Vec<Request> = (0..length)
        .map(|_| Request::decode(program, index, state, input))
        .collect();
    let mut next = ptr::null_mut();
    for request in list.iter_mut().rev() {
        request.wr.next = next;
        next = &raw mut *request.wr;
    }
    let untouched: *mut abi::ibv_send_wr = ptr::without_provenance_mut(8);
    let mut bad = untouched;
    let out = if list.len() == 1 && input.one_in(8) {
        ptr::null_mut()
    } else {
        &raw mut bad
    };
    let qp = program.qps[index].qp;
    // SAFETY: the context of the program.
    let post = unsafe { (*program.context).ops.post_send };
    let errno = call!(post, qp, next, out);
    let refused = if out.is_null() {
        // The error number is not specified, but there is one.
        (errno != 0).then_some(0)
    } else {
        assert_eq!(
            bad == untouched,
            errno == 0,
            "bad_wr is set when, and only when, a request is refused"
        );
        (errno != 0).then(|| {
            let is_bad = |request: &Request| ptr::eq(&raw const *request.wr, bad);
            list.iter().position(is_bad).expect("a request of the list")
        })
    };
    for request in &list[..refused.unwrap_or(list.len())] {
        assert!(
            request.refusals.is_empty(),
            "posted in spite of {:?}",
            request.refusals
        );
        program.qps[index]
            .sends
            .push_back((request.wr.wr_id, request.signalled));
    }
    if let Some(request) = refused.and_then(|at| list.get(at)) {
        let full = errno == ENOMEM && request.refusals.is_empty();
        assert!(
            full || request.refusals.contains(&errno),
            "{errno} instead of {:?}",
            request.refusals
        );
    }
}

fn post_receives(program: &mut Program, index: Option<usize>, input: &mut Input<'_>) {
    let length = input.pick(&[1, 1, 2, 4, 10]);
    let mut list: Vec<(Box<abi::ibv_recv_wr>, Elements)> = (0..length)
        .map(|_| {
            let elements = Elements::decode(program, false, input);
            let wr = abi::ibv_recv_wr {
                wr_id: program.wr_id(),
                next: ptr::null_mut(),
                sg_list: elements.pointer,
                num_sge: elements.count,
            };
            (Box::new(wr), elements)
        })
        .collect();
    let mut next = ptr::null_mut();
    for (wr, _) in list.iter_mut().rev() {
        wr.next = next;
        next = &raw mut **wr;
    }
    let mut bad = ptr::null_mut();
    // SAFETY: the context of the program, and its queue pairs.
    let ops = unsafe { &(*program.context).ops };
    let (errno, max_sge, none) = match index {
        Some(index) => {
            let posted = &program.qps[index];
            // SAFETY: a queue pair of the program.
            let shared = unsafe { !(*posted.qp).srq.is_null() };
            let kind = posted.qp_type;
            let none = shared || kind == abi::IBV_QPT_XRC_SEND || kind == abi::IBV_QPT_XRC_RECV;
            let reset = program.state(index) == abi::IBV_QPS_RESET;
            let errno = call!(ops.post_recv, posted.qp, next, &raw mut bad);
            (errno, posted.cap.max_recv_sge, none || reset)
        }
        None => (
            call!(
                ops.post_srq_recv,
                program.srqs[input.below(2)],
                next,
                &raw mut bad
            ),
            2,
            false,
        ),
    };
    let refused = (errno != 0).then(|| {
        list.iter()
            .position(|(wr, _)| ptr::eq(&raw const **wr, bad))
            .expect("a request of the list")
    });
    let wrong =
        |elements: &Elements| none || elements.is_wrong() || elements.count > max_sge as i32;
    for (wr, elements) in &list[..refused.unwrap_or(list.len())] {
        assert!(!wrong(elements), "a receive was posted that cannot be");
        match index {
            Some(index) => program.qps[index].receives.push_back(wr.wr_id),
            None => program.shared.push(wr.wr_id),
        }
    }
    if let Some(at) = refused {
        let expected = if wrong(&list[at].1) {
            [EINVAL, ENOMEM]
        } else {
            [ENOMEM, ENOMEM]
        };
        assert!(expected.contains(&errno), "{errno} instead of {expected:?}");
    }
}

/// `ibv_wr_*` calls in any order.
fn build_batch(program: &mut Program, index: usize, input: &mut Input<'_>) {
    let qp: *mut abi::ibv_qp_ex = program.qps[index].qp.cast();
    // SAFETY: a queue pair of the program; the table is there if it was created for it.
    let Some(start) = (unsafe { (*qp).wr_start }) else {
        return;
    };
    let signal_all = program.qps[index].signal_all;
    let mut ids = Vec::new();
    let mut wrong = false;
    if input.one_in(16) {
        wrong = true; // complete without start
    } else {
        // SAFETY: as above.
        unsafe { start(qp) };
    }
    for _ in 0..input.below(12) {
        let wr_id = program.wr_id();
        let flags = u32::from(input.byte() & 0x0f);
        // SAFETY: the public fields of the queue pair.
        unsafe { ((*qp).wr_id, (*qp).wr_flags) = (wr_id, flags) };
        let began = build_one(program, qp, input, &mut wrong);
        if began {
            ids.push((wr_id, signal_all || flags & abi::IBV_SEND_SIGNALED != 0));
        }
    }
    // SAFETY: the table of the queue pair.
    let (complete, abort) = unsafe { ((*qp).wr_complete, (*qp).wr_abort) };
    if input.one_in(8) {
        call!(abort, qp);
        return;
    }
    let errno = call!(complete, qp);
    if errno == 0 {
        assert!(!wrong, "posted in spite of a mistake");
        program.qps[index].sends.extend(ids);
    } else {
        assert!([EINVAL, ENOMEM, EOPNOTSUPP].contains(&errno), "{errno}");
    }
}

/// One call between `ibv_wr_start` and `ibv_wr_complete`; true if it begins a request.
fn build_one(
    program: &mut Program,
    qp: *mut abi::ibv_qp_ex,
    input: &mut Input<'_>,
    wrong: &mut bool,
) -> bool {
    // SAFETY: a queue pair of the program, created for this interface.
    let table = unsafe { &*qp };
    let (va, rkey) = remote(program, input);
    let choice = input.below(20);
    match choice {
        0 | 1 => call!(table.wr_send, qp),
        2 => call!(table.wr_send_imm, qp, 5),
        3 => call!(table.wr_send_inv, qp, rkey),
        4 | 5 => call!(table.wr_rdma_write, qp, rkey, va),
        6 => call!(table.wr_rdma_write_imm, qp, rkey, va, 5),
        7 => call!(table.wr_rdma_read, qp, rkey, va),
        8 => call!(table.wr_atomic_cmp_swp, qp, rkey, va, 1, 2),
        9 => call!(table.wr_atomic_fetch_add, qp, rkey, va, 1),
        10 => {
            let data = [7_u8; 8];
            let null = input.one_in(4);
            *wrong |= null;
            let data = if null {
                ptr::null()
            } else {
                data.as_ptr().cast()
            };
            call!(table.wr_atomic_write, qp, rkey, va, data);
        }
        11 => call!(table.wr_local_inv, qp, rkey),
        12 => {
            let bind = abi::ibv_mw_bind_info {
                mr: program.open,
                addr: va,
                length: 8,
                mw_access_flags: 2,
            };
            let null = input.one_in(4);
            *wrong |= null;
            let info = if null { ptr::null() } else { &raw const bind };
            call!(table.wr_bind_mw, qp, program.window, rkey, info);
        }
        13 => {
            *wrong = true;
            call!(table.wr_send_tso, qp, ptr::null_mut(), 14, 100);
        }
        14 => {
            let null = input.one_in(4);
            *wrong |= null;
            let ah = if null { ptr::null_mut() } else { program.ah };
            call!(table.wr_set_ud_addr, qp, ah, 5, 5);
        }
        15 => {
            let number = input.pick(&[program.srq_number, u32::MAX]);
            call!(table.wr_set_xrc_srqn, qp, number);
        }
        16 => {
            let sge = element(program, input);
            call!(table.wr_set_sge, qp, sge.lkey, sge.addr, sge.length);
        }
        17 => {
            let elements = Elements::decode(program, false, input);
            *wrong |= elements.is_wrong();
            let count = elements.count as usize;
            call!(table.wr_set_sge_list, qp, count, elements.pointer);
        }
        18 => {
            let data = [9_u8; 256];
            let (length, pointer) = match input.below(8) {
                0 => (usize::MAX, data.as_ptr()),
                1 => (8, ptr::null()),
                2 => (0, ptr::null()),
                _ => (input.below(256), data.as_ptr()),
            };
            *wrong |= pointer.is_null() && length > 0 || length > 256;
            call!(
                table.wr_set_inline_data,
                qp,
                pointer.cast_mut().cast(),
                length
            );
        }
        _ => {
            let data = [9_u8; 256];
            let pieces: Vec<abi::ibv_data_buf> = (0..input.below(4))
                .map(|_| {
                    let addr: *mut std::ffi::c_void = if input.one_in(8) {
                        ptr::null_mut()
                    } else {
                        data.as_ptr().cast_mut().cast()
                    };
                    let length = if input.one_in(8) {
                        usize::MAX
                    } else {
                        input.below(256)
                    };
                    *wrong |= addr.is_null() && length > 0 || length > 256;
                    abi::ibv_data_buf { addr, length }
                })
                .collect();
            call!(
                table.wr_set_inline_data_list,
                qp,
                pieces.len(),
                pieces.as_ptr()
            );
        }
    }
    choice < 13
}
