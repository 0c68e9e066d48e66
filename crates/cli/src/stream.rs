//! `airdma stream`: frames of many devices over one connection; the command line of
//! `airdma-stream`.

mod board;
mod pattern;
mod rates;
mod recv;
mod send;
mod sink;
mod source;
mod status;
mod y4m;

use clap::Subcommand;
use std::process::ExitCode;

#[derive(Subcommand)]
pub enum StreamCommand {
    /// Send frames to a host where `airdma stream recv` waits.
    ///
    /// Each SOURCE is a device, numbered from 0 in the order given: a file, a named pipe or `-`
    /// with YUV4MPEG2 (FFmpeg: `-f yuv4mpegpipe`), or a test pattern, `test` or `test:640x480`.
    /// With --raw, files and pipes hold frames of that many bytes.
    #[command(after_long_help = send::HELP)]
    Send(send::Options),
    /// Receive frames from a host with `airdma stream send`.
    ///
    /// Shows a code for the sender, unless it is known. Without --out, frames are counted and
    /// dropped.
    #[command(after_long_help = recv::HELP)]
    Recv(recv::Options),
    /// Show the streams of this user on this host, and the receivers that wait on this network.
    ///
    /// A line for each device has its rate and latency, and its late, dropped and missing frames.
    #[command(after_long_help = status::HELP)]
    Status(status::Options),
}

pub fn stream(command: StreamCommand) -> ExitCode {
    match command {
        StreamCommand::Send(options) => send::send(&options),
        StreamCommand::Recv(options) => recv::recv(&options),
        StreamCommand::Status(options) => status::status(&options),
    }
}
