//! What the page says, and the measurement with the shares of valid bytes.

use crate::measurement::{Curve, Figure, Measurement, Sample};

/// The measurement with the shares of valid bytes as curves of their own.
pub fn with_shares(taken: &Measurement) -> Measurement {
    let mut all = taken.clone();
    for curve in taken.curves.iter().filter(|curve| is_lossy(curve)) {
        let values: [(&str, &str, Share); 2] = [
            ("", "", |sample| sample.valid),
            ("_paper", ", by the paper's rule", |sample| sample.paper),
        ];
        for (name, label, share) in values {
            // The rule is that of the packets that Write-Record has.
            if name.is_empty() || curve.name == "write_record" {
                let shares = shares(curve, name, label, share);
                all.curves
                    .extend(Some(shares).filter(|shares| !shares.points.is_empty()));
            }
        }
    }
    all
}

type Share = fn(&Sample) -> Option<f64>;

fn is_lossy(curve: &Curve) -> bool {
    curve.figure == Figure::Bandwidth && curve.link.starts_with("loss-")
}

fn shares(curve: &Curve, name: &str, label: &str, share: Share) -> Curve {
    Curve {
        name: format!("{}{name}", curve.name),
        label: format!("{}{label}", curve.label),
        ..curve.of_value(Figure::Valid, share)
    }
}

/// What comes before the figures.
pub const INTRODUCTION: &str = "Written by `airdma bench records`. Two network namespaces joined by a veth of MTU 1500, one core a side; \
all series of a row take turns. UD SEND, RC SEND and RC WRITE are perftest's programs on airdma, Write-Record is `airdma bench-end records-serve` and `records-drive` against \
`airdma/verbs_record.h`, which post and poll as perftest does. UD SEND ends at 1,024 bytes. The table of the target has room for 4,032 records that are not freed, not for 192 as by default.\n\n\
*Latency* is half a round trip. RC WRITE's target (`ib_write_lat`) spins on memory, and on one core its answer waits for airdma's other thread ([limits](limits.md)); one that *polls too* looks at its memory and its \
completion queue in turns. The others poll their completion queue. *Bandwidth* counts the bytes declared valid at the target, until the last record that came while the source sent; of RC what was acknowledged. \
*Loss* is by nftables at both ends, each packet alone: segmentation is off on these links (`gso_max_segs 1`), so no segmented send is lost whole. Both directions lose, RC's answers too.\n\n\
*The paper's rule* is computed from the maps of the same records: packets are the fragments of datagrams of 64 KB (65,477 bytes, a packet is of the one that has its last byte), which count when all of them are there, and only if the last datagram is whole. *strict_last* \
is a message that ends with its last packet, in packets of 1,416 bytes, and is lost without it.\n\n\
*Sources*: queue pairs of one process, 256 messages in flight; memory is the growth of the target's resident memory from one source to all, for RC that of a process for a \
queue pair (`idle-pairs`). *Survivors*: 64 queue pairs take reliable records of 4 KiB, one each at a time; then the first one is reset, and its messages fail after a second each. *UD READ* keeps up to 32 reads open, of the memory of an end that polls; what is lost is asked for again until all is there.";
