//! Loss behind the radio: nftables drops packets that arrive at an interface, each by itself,
//! before any protocol sees them.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::netlink::{ACK, APPEND, CREATE, Conversation, Messages};

const CHAIN: &str = "loss";
/// NFPROTO_NETDEV, version 0.
const NETDEV: u8 = 5;
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const DELETE_TABLE: u16 = SUBSYSTEM << 8 | 2;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
const DELETE_RULE: u16 = SUBSYSTEM << 8 | 8;

/// Probabilities are multiples of one in this many.
const PARTS: u32 = 1 << 20;

/// Loses packets that arrive at an interface.
pub struct Loss {
    conversation: Conversation,
    table: String,
    /// Probability in units of `1 / PARTS`.
    parts: u32,
}

impl Loss {
    /// At the interface of this name, in the namespace of the calling thread. Loses nothing yet.
    pub fn new(interface: &str) -> io::Result<Loss> {
        let mut conversation = Conversation::begin(NETLINK_NETFILTER)?;
        let table = table(interface);
        let make = batch()
            .message(NEW_TABLE, CREATE | ACK, &[NETDEV, 0, 0, 0])
            .string(1, &table)
            .message(NEW_CHAIN, CREATE | ACK, &[NETDEV, 0, 0, 0])
            .string(1, &table)
            .string(3, CHAIN)
            .nested(4, |hook| {
                // Ingress, before everything else, at this device.
                hook.number(1, 0).number(2, 0).string(3, interface)
            })
            .string(7, "filter");
        conversation.tell(&end(make))?;
        Ok(Loss {
            conversation,
            table,
            parts: 0,
        })
    }

    /// The probability from now on that an arriving packet is lost.
    pub fn set(&mut self, probability: f64) -> io::Result<()> {
        let parts = (probability.clamp(0.0, 1.0) * f64::from(PARTS)).round() as u32;
        if parts == self.parts {
            return Ok(());
        }
        let mut change = batch();
        if self.parts > 0 {
            change = self.in_chain(change, DELETE_RULE, 0);
        }
        if parts > 0 {
            change = self
                .in_chain(change, NEW_RULE, CREATE | APPEND)
                .nested(4, |list| rule(list, parts));
        }
        self.conversation.tell(&end(change))?;
        self.parts = parts;
        Ok(())
    }

    fn in_chain(&self, messages: Messages, kind: u16, flags: u16) -> Messages {
        messages
            .message(kind, flags | ACK, &[NETDEV, 0, 0, 0])
            .string(1, &self.table)
            .string(2, CHAIN)
    }

    /// Loses nothing any more at an interface in the namespace of the calling thread.
    pub fn remove(interface: &str) -> io::Result<()> {
        let remove = batch()
            .message(DELETE_TABLE, ACK, &[NETDEV, 0, 0, 0])
            .string(1, &table(interface));
        Conversation::begin(NETLINK_NETFILTER)?.tell(&end(remove))
    }

    /// The probability now.
    pub fn probability(&self) -> f64 {
        f64::from(self.parts) / f64::from(PARTS)
    }
}

/// Two interfaces of a link may be in one namespace.
fn table(interface: &str) -> String {
    format!("airdma_link_{interface}")
}

/// A transaction: all of it happens or nothing.
fn batch() -> Messages {
    Messages::default().message(BATCH_BEGIN, 0, &[0, 0, 0, SUBSYSTEM as u8])
}

fn end(messages: Messages) -> Messages {
    messages.message(BATCH_END, 0, &[0, 0, 0, SUBSYSTEM as u8])
}

/// numgen random mod PARTS < parts drop
fn rule(list: Messages, parts: u32) -> Messages {
    const REGISTER: u32 = 1;
    const RANDOM: u32 = 1;
    const LESS: u32 = 2;
    let random = |data: Messages| {
        let data = data.number(1, REGISTER).number(2, PARTS);
        data.number(3, RANDOM).number(4, 0)
    };
    // Comparisons are of bytes: the number has to be in network order.
    let order = |data: Messages| {
        let data = data.number(1, REGISTER).number(2, REGISTER);
        data.number(3, 1).number(4, 4).number(5, 4)
    };
    let less = |data: Messages| {
        let data = data.number(1, REGISTER).number(2, LESS);
        data.nested(3, |value| value.number(1, parts))
    };
    let drop = |data: Messages| {
        let verdict = |value: Messages| value.nested(2, |verdict| verdict.number(1, 0));
        data.number(1, 0).nested(2, verdict)
    };
    let list = expression(list, "numgen", random);
    let list = expression(list, "byteorder", order);
    let list = expression(list, "cmp", less);
    expression(list, "immediate", drop)
}

fn expression(list: Messages, name: &str, data: impl FnOnce(Messages) -> Messages) -> Messages {
    list.nested(1, |element| element.string(1, name).nested(2, data))
}
