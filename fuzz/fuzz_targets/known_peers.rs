#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| airdma_hostile::known_peers::run(data));
