//! Resolves the receiver that a user names: an address, or a name.

use crate::Home;
use crate::discovery::{Neighbour, Service, is_link_local, namesakes, neighbours};
use crate::place::place_of;
use airdma_files::session::{Pin, Place, PublicKey, Role};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Time of a search for a name on this network.
const LOOK: Duration = Duration::from_secs(2);

/// Most receivers that are listed if the user has to choose.
const NAMED_MAX: usize = 20;

/// A named receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name that its key is stored under: as typed, without the port.
    pub name: String,
    /// Addresses where it listens, the best first.
    pub addresses: Vec<SocketAddr>,
    /// Key that it claims to have, unproven.
    pub key: Option<PublicKey>,
    /// Where its name holds; `None` for an address on a network that cannot be told from others.
    pub place: Option<Place>,
}

/// Keys that a receiver may have, by what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// One of these, which are known under its name.
    Met(Vec<PublicKey>),
    /// None is known under its name, but it announces a key that is known under another name.
    ///
    /// The user can decide whether it is that receiver.
    Announced {
        /// The announced key.
        key: PublicKey,
        /// The name that the key is known under.
        met_as: String,
    },
    /// It needs a code.
    Unknown,
}

/// Why no receiver was found.
#[derive(Debug, thiserror::Error)]
pub enum NoPeer {
    /// The name is unknown.
    #[error(
        "no receiver is called {name:?}, and no file here has that name; give an address, or the name that `airdma recv` shows there{because}"
    )]
    Name {
        /// The typed name.
        name: String,
        /// In brackets, what hindered the search.
        because: String,
    },
    /// A link-local address without an interface.
    #[error(
        "{0} is a link-local address and needs its interface, as in {0}%eth0 (`airdma devices` lists them)"
    )]
    NoZone(IpAddr),
    /// A link-local address with an unknown interface.
    #[error("{0}: there is no such interface (`airdma devices` lists them)")]
    Zone(String),
    /// Several receivers have the name, and none of them is known under it.
    #[error("several receivers are called {name:?}; give the address of one of them ({addresses})")]
    Namesakes {
        /// The typed name.
        name: String,
        /// Their addresses.
        addresses: String,
    },
    /// No name was given, and no receiver waits.
    #[error("no `airdma recv` waits on this network; start one, or give its address{0}")]
    Nobody(String),
    /// No name was given, and several receivers wait.
    #[error("several receivers wait on this network; name one of them: {0}")]
    Several(String),
}

impl Peer {
    /// Resolves a receiver.
    ///
    /// Accepts `192.0.2.1`, `192.0.2.1:7000`, `2001:db8::1`, `[2001:db8::1]:7000`, `fe80::1%eth0`,
    /// `[fe80::1%eth0]:7000`, `name` or `name:7000`. A name is searched for among the receivers on
    /// this network, then as a host name.
    ///
    /// # Errors
    /// The name is unknown, or a link-local address lacks its interface.
    pub fn find(service: Service, typed: &str) -> Result<Self, NoPeer> {
        let usual = service.port();
        if let Some((zoned, port)) = zoned(typed, usual) {
            let resolved = (zoned, port).to_socket_addrs();
            let addresses: Vec<SocketAddr> = resolved.into_iter().flatten().collect();
            if addresses.is_empty() {
                return Err(NoPeer::Zone(zoned.to_owned()));
            }
            // A link cannot be told from others with the same interface name.
            return Ok(Self {
                name: zoned.to_owned(),
                addresses,
                key: None,
                place: None,
            });
        }
        if let Some(address) = address(typed, usual) {
            if is_link_local(&address.ip()) {
                return Err(NoPeer::NoZone(address.ip()));
            }
            return Ok(Self {
                name: address.ip().to_string(),
                addresses: vec![address],
                key: None,
                place: place_of(address.ip()),
            });
        }
        let is_meant = |neighbour: &Neighbour| neighbour.name.eq_ignore_ascii_case(typed);
        let around = namesakes(service, LOOK, NAMED_MAX, is_meant);
        let because = around.as_ref().err().map(|error| format!(" ({error})"));
        let met = || {
            let home = Home::open().ok();
            home.map(|home| home.keys(Role::Receiver, &Place::Anywhere, typed))
        };
        if let Some(found) = one_of(around.unwrap_or_default(), typed, met)? {
            return Ok(Self {
                name: typed.to_owned(),
                ..found.into()
            });
        }
        let (name, port) = split(typed, usual);
        let resolved = (name, port).to_socket_addrs();
        let addresses: Vec<SocketAddr> = resolved.into_iter().flatten().collect();
        if addresses.is_empty() {
            return Err(NoPeer::Name {
                name: name.to_owned(),
                because: because.unwrap_or_default(),
            });
        }
        Ok(Self {
            name: name.to_owned(),
            addresses,
            key: None,
            place: Some(Place::Anywhere),
        })
    }

    /// Keys that it may have.
    ///
    /// All keys known under its name are valid: several users of a host, and hosts that had one
    /// address, share a name. An announced key is never valid by itself, or each known peer could
    /// take the name of another.
    pub fn expected(&self, home: &Home) -> Expected {
        let place = self.place.as_ref();
        let met = place.map(|place| home.keys(Role::Receiver, place, &self.name));
        if let Some(keys) = met.filter(|keys| !keys.is_empty()) {
            return Expected::Met(keys);
        }
        let announced = self.key.and_then(|key| {
            let met_as = home.name(&key, &[Role::Receiver])?;
            Some(Expected::Announced { key, met_as })
        });
        announced.unwrap_or(Expected::Unknown)
    }

    /// A pin for it as a known receiver, if its place can be recognised again.
    pub fn pin(&self, key: PublicKey) -> Option<Pin> {
        let place = self.place.clone()?;
        Some(Pin::new(key, Role::Receiver, place, &self.name))
    }

    /// The only receiver that waits on this network.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn only(service: Service) -> Result<Self, NoPeer> {
        let mut around = neighbours(service, LOOK, NAMED_MAX, |_| true)
            .map_err(|error| NoPeer::Nobody(format!(" ({error})")))?;
        match (around.pop(), &around[..]) {
            (Some(only), []) => Ok(only.into()),
            (Some(last), others) => {
                let all = || others.iter().chain([&last]);
                let described = |one: &Neighbour| {
                    let has_namesake = all().filter(|other| other.name == one.name).count() > 1;
                    let first = one.addresses.first().filter(|_| has_namesake);
                    let at = first.map_or_else(String::new, |at| format!(" ({})", at.ip()));
                    format!("{}{at}", one.name)
                };
                let names: Vec<_> = all().map(described).collect();
                Err(NoPeer::Several(names.join(", ")))
            }
            (None, _) => Err(NoPeer::Nobody(String::new())),
        }
    }
}

/// The one of several receivers with one name that is known under it; any, if all have the same
/// key.
fn one_of(
    mut found: Vec<Neighbour>,
    typed: &str,
    met: impl Fn() -> Option<Vec<PublicKey>>,
) -> Result<Option<Neighbour>, NoPeer> {
    found.sort_by(|one, other| one.instance.cmp(&other.instance));
    let are_one = found.windows(2).all(|two| two[0].key == two[1].key);
    if are_one {
        return Ok(found.into_iter().next());
    }
    let met = met().unwrap_or_default();
    let is_met = |it: &Neighbour| it.key.is_some_and(|key| met.contains(&key));
    if let Some(at) = found.iter().position(is_met) {
        return Ok(Some(found.swap_remove(at)));
    }
    let firsts = found.iter().filter_map(|it| it.addresses.first());
    let mut firsts: Vec<_> = firsts.map(SocketAddr::ip).collect();
    firsts.sort();
    let firsts: Vec<_> = firsts.iter().map(ToString::to_string).collect();
    Err(NoPeer::Namesakes {
        name: typed.to_owned(),
        addresses: firsts.join(", "),
    })
}

impl From<Neighbour> for Peer {
    fn from(found: Neighbour) -> Self {
        Self {
            name: found.name,
            addresses: found.addresses,
            key: found.key,
            place: Some(Place::Anywhere),
        }
    }
}

/// Parses a link-local address with its interface, and a port or the default one.
fn zoned(typed: &str, usual: u16) -> Option<(&str, u16)> {
    let (bare, port) = match typed.strip_prefix('[').and_then(|it| it.split_once(']')) {
        Some((bare, "")) => (bare, usual),
        Some((bare, port)) => (bare, port.strip_prefix(':')?.parse().ok()?),
        None => (typed, usual),
    };
    let (address, _) = bare.split_once('%')?;
    address.parse::<Ipv6Addr>().ok()?;
    Some((bare, port))
}

/// Parses an address, with or without a port.
fn address(typed: &str, usual: u16) -> Option<SocketAddr> {
    if let Ok(address) = typed.parse::<SocketAddr>() {
        return Some(address);
    }
    let bare = typed
        .strip_prefix('[')
        .and_then(|typed| typed.strip_suffix(']'))
        .unwrap_or(typed);
    let address = bare.parse::<IpAddr>().ok()?;
    Some(SocketAddr::new(address, usual))
}

/// Splits a name from its port.
fn split(typed: &str, usual: u16) -> (&str, u16) {
    let split = typed.rsplit_once(':');
    let with_port = split.and_then(|(name, port)| Some((name, port.parse().ok()?)));
    with_port.unwrap_or((typed, usual))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::PORT;
    use airdma_files::session::{Identity, NetworkName};

    /// A home that is removed with the test.
    struct Kept(Home, std::path::PathBuf);

    impl Kept {
        fn new(name: &str) -> Self {
            let name = format!("airdma-transfer-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            Self(Home::at(&directory).unwrap(), directory)
        }

        fn pin(&self, key: PublicKey, role: Role, place: &Place, name: &str) {
            let pin = Pin::new(key, role, place.clone(), name);
            self.0.pin(pin, false).unwrap();
        }

        fn expected(&self, place: Option<&Place>, name: &str, key: PublicKey) -> Expected {
            let peer = Peer {
                name: name.to_owned(),
                addresses: Vec::new(),
                key: Some(key),
                place: place.cloned(),
            };
            peer.expected(&self.0)
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.1).ok();
        }
    }

    #[test]
    fn a_known_peer_cannot_take_the_name_of_another() {
        let home = Kept::new("expected");
        let [anna, ben, sender, stranger] = [(); 4].map(|()| Identity::draw().public());
        let anywhere = &Place::Anywhere;
        home.pin(anna, Role::Receiver, anywhere, "Anna");
        home.pin(ben, Role::Receiver, anywhere, "Ben");
        home.pin(sender, Role::Sender, anywhere, "elsewhere");
        let expected = |name, key| home.expected(Some(anywhere), name, key);
        assert_eq!(expected("anna", ben), Expected::Met(vec![anna]));
        assert_eq!(expected("anna", stranger), Expected::Met(vec![anna]));
        let met_as = "Ben".to_owned();
        let asked = Expected::Announced { key: ben, met_as };
        assert_eq!(expected("elsewhere", ben), asked);
        assert_eq!(expected("elsewhere", stranger), Expected::Unknown);
        assert_eq!(expected("elsewhere", sender), Expected::Unknown);
        // Another user of the same host.
        home.pin(stranger, Role::Receiver, anywhere, "Anna");
        let mut both = vec![anna, stranger];
        both.sort_unstable();
        assert_eq!(expected("anna", ben), Expected::Met(both));
    }

    #[test]
    fn an_address_stands_for_nobody_on_another_network() {
        let home = Kept::new("elsewhere");
        let [met, stranger] = [(); 2].map(|()| Identity::draw().public());
        let [here, there] = ["02:00:00:00:00:01@10.0.0.0/24", "eth0@10.0.0.0/24"]
            .map(|name| Place::Network(NetworkName::new(name).unwrap()));
        home.pin(met, Role::Receiver, &here, "10.0.0.5");
        let expected = |place| home.expected(place, "10.0.0.5", stranger);
        assert_eq!(expected(Some(&here)), Expected::Met(vec![met]));
        assert_eq!(expected(Some(&there)), Expected::Unknown);
        assert_eq!(expected(Some(&Place::Anywhere)), Expected::Unknown);
        assert_eq!(expected(None), Expected::Unknown);
    }

    #[test]
    fn of_several_of_one_name_the_one_that_was_met_is_meant() {
        let [first, second] = [(); 2].map(|()| Identity::draw().public());
        let neighbour = |instance: &str, key, address: &str| Neighbour {
            instance: instance.to_owned(),
            name: "anna".to_owned(),
            addresses: vec![address.parse().unwrap()],
            key: Some(key),
        };
        let both = || {
            let one = neighbour("anna 1", first, "10.0.1.2:7479");
            vec![neighbour("anna 2", second, "10.0.2.2:7479"), one]
        };
        for key in [first, second] {
            let found = one_of(both(), "anna", || Some(vec![key]));
            assert_eq!(found.unwrap().unwrap().key, Some(key));
        }
        let error = one_of(both(), "anna", || None).unwrap_err().to_string();
        assert!(error.contains("(10.0.1.2, 10.0.2.2)"), "{error}");
        // Two receivers of one user: the first one is taken.
        let of_one = vec![
            neighbour("anna 1 (2)", first, "10.0.1.2:7000"),
            neighbour("anna 1", first, "10.0.1.2:7479"),
        ];
        let found = one_of(of_one, "anna", || None).unwrap().unwrap();
        assert_eq!(found.instance, "anna 1");
        assert_eq!(one_of(Vec::new(), "anna", || None).unwrap(), None);
    }

    #[test]
    fn addresses_need_no_port_and_no_brackets() {
        for (typed, meant) in [
            ("192.0.2.1", "192.0.2.1:7479"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("2001:db8::1", "[2001:db8::1]:7479"),
            ("[2001:db8::1]", "[2001:db8::1]:7479"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(address(typed, PORT), meant.parse().ok(), "{typed}");
        }
        for (typed, meant) in [
            ("fe80::1%eth0", Some(("fe80::1%eth0", PORT))),
            ("[fe80::1%3]", Some(("fe80::1%3", PORT))),
            ("[fe80::1%eth0]:80", Some(("fe80::1%eth0", 80))),
            ("fe80::1", None),
            ("[fe80::1%eth0]80", None),
            ("100%", None),
        ] {
            assert_eq!(zoned(typed, PORT), meant, "{typed}");
        }
        let no_zone = Peer::find(Service::Files, "fe80::1").unwrap_err();
        assert!(no_zone.to_string().contains("fe80::1%eth0"), "{no_zone}");
        assert!(matches!(
            Peer::find(Service::Files, "fe80::1%no"),
            Err(NoPeer::Zone(_))
        ));
        assert_eq!(address("anna", PORT), None);
        assert_eq!(split("anna:80", PORT), ("anna", 80));
        assert_eq!(split("anna", PORT), ("anna", PORT));
        assert_eq!(split("anna:x", PORT), ("anna:x", PORT));
    }
}
