//! Keys, what they open, and for which queue pairs.

use crate::Step;
use core::ops::Range;

/// Rights, with the values of `ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(pub u32);

impl Rights {
    /// The host's own requests may write.
    pub const LOCAL_WRITE: Rights = Rights(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Rights = Rights(2);
    /// Peers may read.
    pub const REMOTE_READ: Rights = Rights(4);
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: Rights = Rights(8);
    /// Windows may be bound in it.
    pub const MW_BIND: Rights = Rights(16);
    /// Peers may flush.
    pub const FLUSH_GLOBAL: Rights = Rights(256);

    /// Whether all of `needed` are among these.
    pub fn contain(self, needed: Rights) -> bool {
        self.0 & needed.0 == needed.0
    }
}

/// A period whose begin and end may be uncertain: each has an earliest and a latest step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Begin.
    pub from: (Step, Step),
    /// End.
    pub until: (Step, Step),
}

impl Span {
    /// A period that begins now.
    pub fn since(now: Step) -> Self {
        Span {
            from: (now, now),
            until: (Step::MAX, Step::MAX),
        }
    }

    /// Whether some step of `period` may lie in it.
    pub fn touches(&self, period: (Step, Step)) -> bool {
        self.from.0 <= period.1 && period.0 <= self.until.1
    }

    /// Whether every step of `period` certainly lies in it.
    pub fn covers(&self, period: (Step, Step)) -> bool {
        self.from.1 <= period.0 && period.1 < self.until.0
    }
}

/// Users of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// All queue pairs of the protection domain: a region.
    Domain,
    /// The peer of one queue pair: a window of type 2.
    QueuePair(usize),
}

/// Memory that a key opens, with its period.
#[derive(Clone, Debug)]
pub struct Region {
    /// Host whose memory it is.
    pub host: usize,
    /// Protection domain.
    pub domain: usize,
    /// The key.
    pub key: u32,
    /// First address.
    pub va: u64,
    /// Bytes.
    pub length: u64,
    /// Offset of the first byte in the host's memory.
    pub at: usize,
    /// Rights.
    pub rights: Rights,
    /// Users.
    pub owner: Owner,
    /// Period.
    pub span: Span,
    /// Number of posted requests that close it.
    pub closers: u32,
}

/// One element of a scatter or gather list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Local key.
    pub key: u32,
    /// First address.
    pub va: u64,
    /// Bytes.
    pub length: u32,
}

/// Origin of an access: the queue pair on the side of the memory.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Host whose memory it is.
    pub host: usize,
    /// Protection domain of the queue pair.
    pub domain: usize,
    /// The queue pair; `None` for the host's own requests, which windows do not serve.
    pub peer_of: Option<usize>,
}

/// Whether an access may succeed, and whether it may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whether it may have been allowed at some step.
    pub ever: bool,
    /// Whether it was certainly allowed all the time.
    pub always: bool,
    /// Offset of its first byte, if it may be allowed.
    pub at: Option<usize>,
}

impl Standing {
    /// Standing of an access to no bytes: no key is checked (IBTA 9.7.5.2.4).
    pub const EMPTY: Standing = Standing {
        ever: true,
        always: true,
        at: None,
    };

    const REFUSED: Standing = Standing {
        ever: false,
        always: false,
        at: None,
    };
}

/// All keys that ever existed.
#[derive(Debug, Default)]
pub struct Grants {
    regions: Vec<Region>,
    /// Keys that posted binds give to windows of a host, before one of them has succeeded.
    promised: Vec<(usize, u32)>,
}

impl Grants {
    /// Adds a region or window.
    pub fn add(&mut self, region: Region) {
        self.regions.push(region);
    }

    /// The region or window that a key opens now, or may.
    pub fn find(&mut self, host: usize, key: u32) -> Option<&mut Region> {
        let mut regions = self.regions.iter_mut().rev();
        regions.find(|region| {
            region.host == host && region.key == key && region.span.until.0 == Step::MAX
        })
    }

    /// Whether a window is bound for `owner` from `now` on, and whether that is certain.
    pub fn bound(&self, host: usize, key: u32, owner: Option<usize>, now: Step) -> (bool, bool) {
        let windows = self.regions.iter().filter(|region| {
            let owned = match region.owner {
                Owner::QueuePair(qp) => owner.is_none_or(|owner| owner == qp),
                Owner::Domain => false,
            };
            region.host == host && region.key == key && owned
        });
        windows.fold((false, false), |(maybe, surely), window| {
            let Span { from, until } = window.span;
            let open = window.span.touches((now, Step::MAX));
            (
                maybe || open,
                surely || (from.1 <= now && until.0 == Step::MAX),
            )
        })
    }

    /// Records a posted bind, which gives that key to a window if it succeeds.
    pub fn promise(&mut self, host: usize, key: u32) {
        self.promised.push((host, key));
    }

    /// Records its success.
    pub fn give(&mut self, host: usize, key: u32) {
        self.promised.retain(|&promised| promised != (host, key));
    }

    /// Whether it is uncertain that a window has that key: a bind without success gave it.
    pub fn is_only_promised(&self, host: usize, key: u32) -> bool {
        self.promised.contains(&(host, key))
    }

    /// Number of posted requests that close the window of that key.
    pub fn closers(&self, host: usize, key: u32) -> u32 {
        let windows = self.regions.iter().filter(|region| {
            region.host == host && region.key == key && region.owner != Owner::Domain
        });
        windows.map(|window| window.closers).max().unwrap_or(0)
    }

    /// The window of that key, closed or not.
    pub fn window(&mut self, host: usize, key: u32) -> Option<&mut Region> {
        let mut regions = self.regions.iter_mut().rev();
        regions.find(|region| {
            region.host == host && region.key == key && region.owner != Owner::Domain
        })
    }

    /// All regions that a window with that key ever opened.
    pub fn windows(&mut self, host: usize, key: u32) -> impl Iterator<Item = &mut Region> {
        let regions = self.regions.iter_mut();
        regions.filter(move |region| {
            region.host == host && region.key == key && region.owner != Owner::Domain
        })
    }

    /// Whether the bytes may be accessed during `period`.
    pub fn standing(
        &self,
        asker: Asker,
        sge: Sge,
        needs: Rights,
        period: (Step, Step),
    ) -> Standing {
        if sge.length == 0 {
            return Standing::EMPTY;
        }
        let mut standing = Standing::REFUSED;
        for region in self.regions.iter().rev() {
            let fits = region.host == asker.host
                && region.key == sge.key
                && region.domain == asker.domain
                && region.rights.contain(needs)
                && region.serves(asker)
                && region.span.touches(period);
            if let Some(offset) = region.offset(sge).filter(|_| fits) {
                standing.ever = true;
                standing.always |= region.span.covers(period);
                standing.at = standing.at.or(Some(region.at + offset));
            }
        }
        standing
    }

    /// Whether windows may be open in these bytes of the host's memory.
    pub fn windows_in(&self, host: usize, range: &Range<usize>, now: Step) -> bool {
        self.regions.iter().any(|window| {
            window.host == host
                && window.owner != Owner::Domain
                && window.at < range.end
                && range.start < window.at + window.length as usize
                && window.span.touches((now, now))
        })
    }
}

impl Region {
    fn serves(&self, asker: Asker) -> bool {
        match self.owner {
            Owner::Domain => true,
            Owner::QueuePair(qp) => asker.peer_of == Some(qp),
        }
    }

    fn offset(&self, sge: Sge) -> Option<usize> {
        let offset = sge.va.checked_sub(self.va)?;
        let end = offset.checked_add(u64::from(sge.length))?;
        (end <= self.length).then_some(offset as usize)
    }
}
