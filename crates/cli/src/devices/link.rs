//! The kernel's facts about the link of a device, one line each.

use std::time::Instant;

use airdma_radio::{LinkView, Station, Survey, Unreadable};

/// Facts about the interface with this number: label and value.
pub fn facts(index: u32) -> Vec<(String, String)> {
    let mut view = LinkView::open(index);
    let link = view.read(Instant::now());
    let mut facts = vec![("queue".to_owned(), words(&link.queue.value))];
    let Ok(interface) = &link.wireless.value else {
        return facts;
    };
    let channel = interface
        .channel
        .map_or_else(|| "none".to_owned(), |channel| channel.to_string());
    facts.push(("channel".to_owned(), channel));
    let survey = link.survey.value.map_or_else(because, airtime);
    facts.push(("airtime".to_owned(), survey));
    match &link.stations.value {
        Ok(stations) => facts.extend(stations.iter().map(station)),
        Err(reason) => facts.push(("stations".to_owned(), because(*reason))),
    }
    facts
}

fn words(value: &Result<impl ToString, Unreadable>) -> String {
    value
        .as_ref()
        .map_or_else(|reason| because(*reason), ToString::to_string)
}

fn because(reason: Unreadable) -> String {
    format!("not readable: {reason}")
}

fn airtime(survey: Survey) -> String {
    match (survey.busy_ms, survey.active_ms) {
        (Some(busy), Some(active)) => format!("{busy} of {active} ms busy"),
        _ => because(Unreadable::NotOffered),
    }
}

fn station(station: &Station) -> (String, String) {
    let mac = station.mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut facts = Vec::new();
    let mut fact = |text: Option<String>| facts.extend(text);
    fact(station.signal_dbm.map(|dbm| format!("{dbm} dBm")));
    fact(station.transmit.map(|rate| format!("sends {rate}")));
    fact(station.receive.map(|rate| format!("receives {rate}")));
    let retries = station.transmit_retries;
    fact(retries.map(|retries| format!("{retries} retries")));
    let failed = station.transmit_failed;
    fact(failed.map(|failed| format!("{failed} failed")));
    let queue = station.queue;
    fact(queue.map(|queue| format!("{} bytes wait in mac80211", queue.bytes)));
    (format!("station {mac}"), facts.join(", "))
}
