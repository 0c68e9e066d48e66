//! The thread that negotiates lanes, beside the program's own.
//!
//! The end that connected listens at the RDMA port of its TCP port's number, which no other process
//! of its host uses for that address; the end that accepted connects there. So any worker of a
//! server finds its client, and no list of listeners is kept.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use airdma::{Blame, Device, Runner};

use crate::counters::Counter;
use crate::descriptors;
use crate::entry::options;
use crate::hosts::Hosts;
use crate::inside::Inside;
use crate::negotiation;
use crate::socket::{Socket, Stage, lock};
use crate::{policy, tcp};

/// How long an attempt to connect may take. A request that came before the peer had a device is
/// repeated by the connection manager after seconds only, by the next attempt sooner.
const FIRST_ANSWER: Duration = Duration::from_millis(500);
/// Calls that moved data after which a peer that does not answer is left alone.
const ALONE_AT: u32 = 64;
/// Most tasks with which a negotiation begins. Hand-backs, of which a connection has one, have no
/// limit.
const TASKS_MAX: usize = 4096;

/// The agent of this process; null before the first connection that may have a lane.
static AGENT: AtomicPtr<Agent> = AtomicPtr::new(ptr::null_mut());

/// The agent of a process.
pub struct Agent {
    queue: Mutex<Queue>,
    changed: Condvar,
    devices: Mutex<HashMap<IpAddr, Device>>,
    hosts: Hosts,
}

#[derive(Default)]
struct Queue {
    ready: VecDeque<Arc<Task>>,
    timers: Vec<(Instant, Waker)>,
    tasks: usize,
}

struct Task {
    agent: &'static Agent,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let agent = self.agent;
        let mut queue = lock(&agent.queue);
        if !queue.ready.iter().any(|ready| Arc::ptr_eq(ready, &self)) {
            queue.ready.push_back(self);
        }
        agent.changed.notify_one();
    }
}

/// Tries to open a lane for a connection.
pub fn consider(socket: &'static Socket, fd: c_int) {
    let _inside = Inside::enter();
    let is_active = socket.active.load(Ordering::Relaxed);
    if socket.is_attempting() || is_active && socket.sequence().is_none() {
        return;
    }
    let Some((own, peer)) = tcp::ends(fd) else {
        return;
    };
    if !policy::allows(own, peer, is_active) {
        return socket.settle(Stage::Kernel);
    }
    let Some(agent) = Agent::of_process() else {
        return socket.settle(Stage::Kernel);
    };
    if agent.hosts.is_silent(peer.ip(), Instant::now()) {
        return no_answer(socket);
    }
    if !is_active && agent.hosts.is_tried(peer.ip()) {
        return;
    }
    // The end that accepted asks once the peer has answered: most peers have no library.
    if is_active && options::has_the_kernels(fd) {
        return socket.settle(Stage::Kernel);
    }
    if lock(&agent.queue).tasks >= TASKS_MAX || !socket.begin_attempt() {
        return;
    }
    let generation = socket.generation();
    agent.spawn_task(async move {
        let outcome = agent.attempt(socket, generation, own, peer).await;
        crate::process::note(|| format!("{own} and {peer}: {outcome:?}"));
        if socket.generation() == generation {
            match outcome {
                Outcome::Lane | Outcome::Later => {}
                Outcome::Never => {
                    socket.step(Stage::Candidate, Stage::Kernel);
                }
            }
            socket.end_attempt();
        }
    });
}

fn has_the_kernels(socket: &Socket, generation: u64) -> bool {
    let inner = socket.lock();
    socket.generation() != generation || options::has_the_kernels(inner.fd)
}

/// An attempt had no answer. After that many calls the peer's process is taken to have no library.
fn no_answer(socket: &Socket) {
    if socket.calls.load(Ordering::Relaxed) >= ALONE_AT {
        socket.leave_alone();
    }
}

/// Runs a task beside the program's threads, if there is an agent.
pub fn spawn<F: Future<Output = ()> + Send + 'static>(task: impl FnOnce(&'static Agent) -> F) {
    if let Some(agent) = Agent::of_process() {
        agent.spawn_task(task(agent));
    }
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Lane,
    Later,
    Never,
}

impl Agent {
    fn new() -> Agent {
        Agent {
            queue: Mutex::default(),
            changed: Condvar::new(),
            devices: Mutex::default(),
            hosts: Hosts::default(),
        }
    }

    fn of_process() -> Option<&'static Agent> {
        // SAFETY: null, or an agent, which is never freed.
        if let Some(agent) = unsafe { AGENT.load(Ordering::Acquire).as_ref() } {
            return Some(agent);
        }
        static STARTING: Mutex<()> = Mutex::new(());
        let Ok(_starting) = STARTING.try_lock() else {
            return None;
        };
        // SAFETY: as above.
        if let Some(agent) = unsafe { AGENT.load(Ordering::Acquire).as_ref() } {
            return Some(agent);
        }
        let agent: &'static Agent = Box::leak(Box::new(Agent::new()));
        without_signals(|| {
            std::thread::Builder::new()
                .name("airdma-sockets".into())
                .spawn(|| agent.run())
        })
        .ok()?;
        AGENT.store(ptr::from_ref(agent).cast_mut(), Ordering::Release);
        Some(agent)
    }

    fn spawn_task(&'static self, future: impl Future<Output = ()> + Send + 'static) {
        lock(&self.queue).tasks += 1;
        let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
        Arc::new(Task {
            agent: self,
            future: Mutex::new(Some(future)),
        })
        .wake();
    }

    fn run(&self) {
        loop {
            let task = self.next();
            let _inside = Inside::enter();
            let waker = Waker::from(Arc::clone(&task));
            let mut future = lock(&task.future);
            if let Some(running) = future.as_mut()
                && running
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_ready()
            {
                *future = None;
                lock(&self.queue).tasks -= 1;
            }
        }
    }

    fn next(&self) -> Arc<Task> {
        let mut queue = lock(&self.queue);
        loop {
            let now = Instant::now();
            let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut queue.timers)
                .into_iter()
                .partition(|(at, _)| *at <= now);
            queue.timers = later;
            if !due.is_empty() {
                drop(queue);
                due.into_iter().for_each(|(_, waker)| waker.wake());
                queue = lock(&self.queue);
            }
            if let Some(task) = queue.ready.pop_front() {
                return task;
            }
            let first = queue.timers.iter().map(|(at, _)| *at).min();
            let limit = first.map_or(Duration::from_secs(3600), |at| {
                at.saturating_duration_since(Instant::now())
            });
            queue = match self.changed.wait_timeout(queue, limit) {
                Ok((queue, _)) => queue,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// The future of a later time.
    pub fn sleep(&'static self, duration: Duration) -> Sleep {
        Sleep {
            agent: self,
            until: Instant::now() + duration,
        }
    }

    /// What a future gives within `limit`.
    pub async fn within<T>(
        &'static self,
        limit: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let mut sleep = self.sleep(limit);
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| {
            if let Poll::Ready(result) = future.as_mut().poll(context) {
                return Poll::Ready(Some(result));
            }
            Pin::new(&mut sleep).poll(context).map(|()| None)
        })
        .await
    }

    async fn attempt(
        &'static self,
        socket: &'static Socket,
        generation: u64,
        own: SocketAddr,
        peer: SocketAddr,
    ) -> Outcome {
        if self.hosts.is_silent(peer.ip(), Instant::now()) {
            no_answer(socket);
            return Outcome::Later;
        }
        let Some(device) = self.device(own.ip()) else {
            return Outcome::Never;
        };
        let is_active = socket.active.load(Ordering::Relaxed);
        let endpoint = if is_active {
            let Ok(listener) = device.listen(own.port()) else {
                return Outcome::Never;
            };
            loop {
                let accepted = self.within(Duration::from_secs(5), listener.accept()).await;
                if socket.generation() != generation {
                    return Outcome::Never;
                }
                match accepted {
                    Some(Ok(endpoint)) if endpoint.peer() == peer.ip() => {
                        socket.end_alone();
                        break endpoint;
                    }
                    // Another host is not the peer of this connection.
                    Some(Ok(_)) => {}
                    None => socket.leave_alone(),
                    Some(Err(_)) => return Outcome::Never,
                }
            }
        } else {
            let Some(host) = self.hosts.begin(peer.ip(), Instant::now()) else {
                return Outcome::Later;
            };
            match self.within(FIRST_ANSWER, device.connect(peer)).await {
                Some(Ok(endpoint)) => {
                    host.answered();
                    socket.end_alone();
                    endpoint
                }
                None => {
                    host.unanswered(Instant::now());
                    no_answer(socket);
                    return Outcome::Later;
                }
                Some(Err(error)) => {
                    match error.blame() {
                        Blame::Peer => host.answered(),
                        Blame::You | Blame::Network | Blame::System => {
                            host.refused(Instant::now());
                        }
                    }
                    return Outcome::Later;
                }
            }
        };
        if !is_active && has_the_kernels(socket, generation) {
            return Outcome::Never;
        }
        let connection = negotiation::Connection {
            agent: self,
            socket,
            generation,
            own,
            peer,
            is_active,
        };
        match connection.negotiate(&device, endpoint).await {
            negotiation::Outcome::Lane => Outcome::Lane,
            negotiation::Outcome::Busy => Outcome::Later,
            negotiation::Outcome::Refused => Outcome::Never,
            negotiation::Outcome::Forged => {
                self.hosts.leave_alone(peer.ip(), Instant::now());
                Outcome::Never
            }
        }
    }

    /// Tries no lane with a host for a while.
    pub fn leave_alone(&self, host: IpAddr) {
        self.hosts.leave_alone(host, Instant::now());
    }

    /// Whether no lane is tried with a host for now.
    pub fn leaves_alone(&self, host: IpAddr) -> bool {
        self.hosts.is_silent(host, Instant::now())
    }

    /// The device of an address of this host.
    pub fn device(&self, own: IpAddr) -> Option<Device> {
        let mut devices = lock(&self.devices);
        if let Some(device) = devices.get(&own).filter(|device| !device.is_gone()) {
            return Some(device.clone());
        }
        let device = descriptors::opening(|| {
            let device = Device::open(&own.to_string())?;
            // The first call opens the counters file.
            device.count_sockets(Counter::Lanes, 0);
            airdma::Result::Ok(device)
        });
        let device = device.ok()?;
        // The kernel's connection beside a lane tells whether its host lives.
        let device = device.patient();
        devices.insert(own, device.clone());
        Some(device)
    }
}

/// Lets leave what waits for the next run of a device.
pub fn flush() {
    // SAFETY: null, or an agent, which is never freed.
    if let Some(agent) = unsafe { AGENT.load(Ordering::Acquire).as_ref() }
        && let Ok(devices) = agent.devices.try_lock()
    {
        devices.values().for_each(Device::flush);
    }
}

/// A runner of each device.
pub fn runners() -> Vec<Runner> {
    // SAFETY: null, or an agent, which is never freed.
    let Some(agent) = (unsafe { AGENT.load(Ordering::Acquire).as_ref() }) else {
        return Vec::new();
    };
    // A thread that opens one has the lock for long.
    let devices = agent.devices.try_lock();
    devices.map_or_else(
        |_| Vec::new(),
        |devices| devices.values().map(Device::runner).collect(),
    )
}

/// In a child after fork: it has no agent.
pub fn in_child() {
    AGENT.store(ptr::null_mut(), Ordering::Release);
}

/// See [`Agent::sleep`].
pub struct Sleep {
    agent: &'static Agent,
    until: Instant,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.until <= Instant::now() {
            return Poll::Ready(());
        }
        let mut queue = lock(&self.agent.queue);
        let until = self.until;
        let is_known =
            |(at, waker): &(Instant, Waker)| *at == until && waker.will_wake(context.waker());
        if !queue.timers.iter().any(is_known) {
            queue.timers.push((until, context.waker().clone()));
        }
        Poll::Pending
    }
}

/// Runs `start` with all signals blocked: threads that it starts run no handler of the program.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals on the stack.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        started
    }
}
