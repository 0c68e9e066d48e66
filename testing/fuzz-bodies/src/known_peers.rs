//! The file of peers that were met, with any content: whatever the bytes are, it says which peers
//! are known, and no line says it twice.

use airdma_files::session::{
    KNOWN_PEERS_BYTES_MAX, KnownPeers, NetworkName, Pin, Place, PublicKey, Role,
};

use crate::input::Input;

const PINS_MAX: usize = 6;
const NAME_BYTES_MAX: usize = 150;
/// Almost valid lines.
const LINES: [&str; 6] = [
    "0101010101010101010101010101010101010101010101010101010101010101 receiver - anna\n",
    "0101010101010101010101010101010101010101010101010101010101010101 receiver - Anna\n",
    "0202020202020202020202020202020202020202020202020202020202020202 sender - 192.0.2.1\n",
    "0303030303030303030303030303030303030303030303030303030303030303 receiver eth0@10.0.0.0/24 10.0.0.1\n",
    "0404040404040404040404040404040404040404040404040404040404040404 phone\n",
    "# comment\n",
];

/// The bytes as a file; lines with bytes replaced; and peers with any names, beside what the file
/// said.
pub fn run(data: &[u8]) {
    check(&KnownPeers::parse(data));
    let mut input = Input::new(data);
    let mut text: Vec<u8> = Vec::new();
    for _ in 0..input.below(LINES.len() + 1) {
        text.extend(input.pick(&LINES).bytes());
    }
    for _ in 0..input.below(4) {
        if !text.is_empty() {
            let at = input.below(text.len());
            text[at] = input.byte();
        }
    }
    let mut peers = KnownPeers::parse(&text);
    check(&peers);
    for _ in 0..input.below(PINS_MAX) {
        pin(&mut peers, &mut input);
    }
}

/// A peer more is one line more, and no other one.
fn pin(peers: &mut KnownPeers, input: &mut Input<'_>) {
    let key = PublicKey([input.byte(); 32]);
    let role = [Role::Receiver, Role::Sender][input.below(2)];
    let length = input.below(NAME_BYTES_MAX);
    let network = input.take(length.min(20));
    let network = NetworkName::new(&String::from_utf8_lossy(network));
    let place = network.map_or(Place::Anywhere, Place::Network);
    let name = String::from_utf8_lossy(input.take(length)).into_owned();
    let pin = Pin::new(key, role, place.clone(), &name);
    let before: Vec<Pin> = peers.pins().cloned().collect();
    let instead = input.one_in(2);
    let former = peers.pin(pin.clone(), instead);
    let after: Vec<Pin> = peers.pins().cloned().collect();
    assert!(after.contains(&pin) && peers.knows(&key, role));
    assert!(after.iter().all(|it| *it == pin || before.contains(it)));
    let gone = before.iter().filter(|it| !after.contains(it));
    assert!(gone.clone().all(|it| instead && it.role() == role));
    assert!(former.iter().all(|former| *former != key));
    let keys = peers.keys(role, &place, &name);
    assert!(keys.contains(&key) && (!instead || keys == [key]));
    check(peers);
}

/// Checks that a written list is read back as it was.
fn check(peers: &KnownPeers) {
    let bytes = peers.to_bytes();
    let read = KnownPeers::parse(&bytes);
    assert!(read.pins().eq(peers.pins()));
    assert_eq!(read.bad_lines().count(), peers.bad_lines().count());
    assert_eq!(read.to_bytes(), bytes);
    let lines = bytes.split(|&byte| byte == b'\n');
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    assert_eq!(
        lines.count(),
        peers.pins().count() + peers.bad_lines().count()
    );
    assert!((bytes.len() as u64) < KNOWN_PEERS_BYTES_MAX);
    for pin in read.pins() {
        assert!(!pin.name().chars().any(char::is_control));
        assert_eq!(pin.to_string().parse(), Ok(pin.clone()));
        assert!(peers.name(&pin.key(), &[pin.role()]).is_some());
    }
}
