#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| airdma_fuzz_bodies::stream_block::run(data));
