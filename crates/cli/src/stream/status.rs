//! `airdma stream status`.

use crate::files::show::{Show, Side};
use crate::files::{UNREACHABLE, home};
use airdma_files::session::Role;
use airdma_transfer::{Service, neighbours};
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;

/// Time of the search, unless another is given.
const LOOK_S: u64 = 2;
/// Most receivers that are listed.
const LISTED_MAX: usize = 256;

#[derive(clap::Args)]
pub struct Options {
    /// How long to search, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = LOOK_S)]
    within: u64,
    /// Print one JSON object for each receiver
    #[arg(long)]
    json: bool,
}

pub fn status(options: &Options) -> ExitCode {
    let show = Show::new(Side::Sender, options.json, false, false);
    let limit = Duration::from_secs(options.within.min(60));
    let found = match neighbours(Service::Streams, limit, LISTED_MAX, |_| true) {
        Ok(found) => found,
        Err(error) => {
            show.error("unreachable", UNREACHABLE, &error.to_string());
            return ExitCode::from(UNREACHABLE);
        }
    };
    let home = home(&show).ok();
    for one in &found {
        let is_known = one.key.is_some_and(|key| {
            home.as_ref()
                .is_some_and(|home| home.knows(&key, Role::Receiver))
        });
        let addresses: Vec<_> = one.addresses.iter().map(ToString::to_string).collect();
        show.object(&json!({
            "event": "receiver",
            "name": one.name,
            "addresses": addresses,
            "known": is_known,
        }));
        let known = if is_known { "known" } else { "needs its code" };
        show.must(&format!("{}: {} ({known})", one.name, addresses.join(", ")));
    }
    if found.is_empty() {
        show.error(
            "unreachable",
            UNREACHABLE,
            "no `airdma stream recv` waits on this network",
        );
        return ExitCode::from(UNREACHABLE);
    }
    ExitCode::SUCCESS
}
