//! The headers that the packet port reads in front of a BTH.

use airdma_port::packet::frame::{Datagram, read};

/// `data`: a frame.
pub fn run(data: &[u8]) {
    let Ok(datagram) = read(data, true) else {
        assert!(
            read(data, false).is_err(),
            "a checksum makes no frame better"
        );
        return;
    };
    let Datagram { payload, .. } = datagram;
    let end = payload.as_ptr_range().end.addr();
    let start = data.as_ptr().addr();
    assert!(
        start <= end && end <= start + data.len(),
        "the payload is in the frame"
    );
    if let Ok(checked) = read(data, false) {
        assert_eq!(checked, datagram);
    }
    let len = end - start;
    assert_eq!(
        read(&data[..len], true),
        Ok(datagram),
        "what follows is padding"
    );
    for cut in [0, len / 2, len - 1] {
        assert!(read(&data[..cut], true).is_err(), "{cut} bytes of {len}");
    }
}
