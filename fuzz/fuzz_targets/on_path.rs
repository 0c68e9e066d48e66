#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| airdma_hostile::on_path::run(data));
