#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| airdma_hostile::file_journal::run(data));
