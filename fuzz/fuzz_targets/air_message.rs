#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| airdma_fuzz_bodies::air_message::run(data));
