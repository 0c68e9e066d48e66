//! What the kernel last said of a path.
//!
//! A connection asks for the neighbour, the link and the MTU of its path at several steps, each by
//! a socket of its own, and a program that opens thousands asks the same for each of them. An
//! answer counts for [`FRESH`], or until the interface changes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How late a change of the kernel's routes and neighbours may be noticed.
const FRESH: Duration = Duration::from_millis(100);
/// Most paths with answers.
const PATHS_MAX: usize = 256;

/// Answers about one path; `None` where the kernel was not asked.
#[derive(Clone, Copy, Default)]
pub(crate) struct Answers {
    /// The neighbour is known, or there is none to ask for.
    pub(crate) can_leave: Option<()>,
    /// Whether the destination is on the link.
    pub(crate) is_on_link: Option<bool>,
    /// Bytes of the longest IP packet.
    pub(crate) mtu: Option<u32>,
}

/// The answers by source and destination, with the time of the first.
#[derive(Default)]
pub(crate) struct RecentPaths(Mutex<BTreeMap<(IpAddr, IpAddr), (Instant, Answers)>>);

impl RecentPaths {
    /// The answer that `of` names, if it is fresh; else that of `ask`, which counts from now on.
    /// Errors are not kept.
    pub(crate) fn get<T: Copy, E>(
        &self,
        path: (IpAddr, IpAddr),
        of: impl Fn(&mut Answers) -> &mut Option<T>,
        ask: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(answer) = *of(&mut self.fresh(path)) {
            return Ok(answer);
        }
        let answer = ask()?;
        let mut paths = self.lock();
        if paths.len() >= PATHS_MAX && !paths.contains_key(&path) {
            paths.clear();
        }
        let (since, answers) = paths
            .entry(path)
            .or_insert((Instant::now(), Answers::default()));
        if since.elapsed() >= FRESH {
            (*since, *answers) = (Instant::now(), Answers::default());
        }
        *of(answers) = Some(answer);
        Ok(answer)
    }

    /// Forgets all answers.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn fresh(&self, path: (IpAddr, IpAddr)) -> Answers {
        match self.lock().get(&path) {
            Some((since, answers)) if since.elapsed() < FRESH => *answers,
            Some(_) | None => Answers::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(IpAddr, IpAddr), (Instant, Answers)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::convert::Infallible;

    #[test]
    fn an_answer_counts_for_a_while_and_for_its_path() {
        let paths = RecentPaths::default();
        let asked = Cell::new(0);
        let mtu = |last: u8| {
            let path = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, last]));
            let ask = || {
                asked.set(asked.get() + 1);
                Ok::<_, Infallible>(1500)
            };
            paths.get(path, |answers| &mut answers.mtu, ask)
        };
        let start = Instant::now();
        for destination in [2, 2, 3, 3, 2] {
            assert_eq!(mtu(destination), Ok(1500));
        }
        // A starved machine may take longer than an answer counts.
        assert!(asked.get() == 2 || start.elapsed() >= FRESH);
        asked.set(0);
        paths.clear();
        assert_eq!(mtu(2), Ok(1500));
        assert_eq!(asked.get(), 1, "cleared");
        std::thread::sleep(FRESH);
        assert_eq!(mtu(2), Ok(1500));
        assert_eq!(asked.get(), 2, "no longer fresh");
    }

    #[test]
    fn errors_are_not_kept_and_paths_are_bounded() {
        let paths = RecentPaths::default();
        let of = |number: u16| {
            let [high, low] = number.to_be_bytes();
            (
                IpAddr::from([10, 0, 0, 1]),
                IpAddr::from([10, 1, high, low]),
            )
        };
        fn answer(answers: &mut Answers) -> &mut Option<bool> {
            &mut answers.is_on_link
        }
        assert_eq!(paths.get(of(0), answer, || Err(7)), Err(7));
        assert_eq!(paths.get(of(0), answer, || Ok::<_, i32>(true)), Ok(true));
        for number in 0..PATHS_MAX as u16 * 4 {
            paths.get(of(number), answer, || Ok::<_, i32>(false)).ok();
            assert!(paths.lock().len() <= PATHS_MAX);
        }
    }
}
