//! Introductions of peers: by code, or by a key that is known.

use airdma_files::session::{Code, Introduction, Pin, Place, Role};
use airdma_transfer::{
    Call, Cancel, CodeTries, Device, Error, Expected, Home, Met, Peer, Service, call,
};

/// The way to a receiver.
pub(crate) struct Way {
    home: Home,
    peer: Peer,
    introduction: Introduction,
    code_tries: CodeTries,
}

impl Way {
    /// Finds a receiver by address or name; the only one on this network if it has none.
    pub(crate) fn find(peer: Option<&str>, code: Option<&str>) -> Result<Way, String> {
        let home = Home::open().map_err(|error| error.to_string())?;
        let peer = match peer {
            Some(typed) => Peer::find(Service::Streams, typed),
            None => Peer::only(Service::Streams),
        };
        let peer = peer.map_err(|error| error.to_string())?;
        let introduction = match (parse(code)?, peer.expected(&home)) {
            (Some(code), _) => Introduction::Code(code),
            (None, Expected::Met(keys)) => Introduction::Known(keys),
            (None, Expected::Announced { .. } | Expected::Unknown) => {
                return Err(format!(
                    "the receiver {} is not known yet: set the property code to the code that it has",
                    peer.name
                ));
            }
        };
        Ok(Way {
            home,
            peer,
            introduction,
            code_tries: CodeTries::default(),
        })
    }

    /// Connects, with the device of an earlier connection if there was one.
    pub(crate) fn connect(
        &mut self,
        device: Option<&Device>,
        cancel: &Cancel,
    ) -> Result<Met, Error> {
        let met = call(
            &Call {
                identity: self.home.identity(),
                to: &self.peer.addresses,
                introduction: self.introduction.clone(),
                code_tries: &self.code_tries,
                device,
            },
            cancel,
        )?;
        if met.by_code
            && let Some(pin) = self.peer.pin(met.peer)
        {
            // Without it the code is needed again.
            let _ = self.home.pin(pin, true);
        }
        self.introduction = Introduction::Known(vec![met.peer]);
        Ok(met)
    }
}

/// Notes a sender that has proven its key by the code.
pub(crate) fn remember(met: &Met, home: &Home) {
    if met.by_code {
        let name = met.address.to_string();
        let pin = Pin::new(met.peer, Role::Sender, Place::Anywhere, &name);
        // Without it the code is needed again.
        let _ = home.pin(pin, false);
    }
}

/// The code of a property.
pub(crate) fn parse(code: Option<&str>) -> Result<Option<Code>, String> {
    let code = code.map(Code::parse).transpose();
    code.map_err(|error| error.to_string())
}
