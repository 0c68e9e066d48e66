//! A sender and a receiver of one QUIC stream for `airdma bench wireless` and `airdma bench files`,
//! by quinn.
//!
//! It has quinn's default windows, and one thread for each end, which reads and writes files as
//! well. It is a program of its own, so that airdma's users need not build TLS. Each end prints its
//! result as one line of JSON.

use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use airdma_link::traffic::{Bins, Found, cpu_s, ready};
use anyhow::{Context, bail};
use clap::Parser;
use quinn::congestion::{BbrConfig, CubicConfig};
use quinn::{ClientConfig, Connection, Endpoint, SendStream, ServerConfig, TransportConfig};
use rcgen::{CertificateParams, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::time::{Instant, timeout, timeout_at};

/// Host name in the certificate.
const NAME: &str = "airdma";
/// An Ed25519 key as PKCS #8 (RFC 8410) without its last 32 bytes, the key itself. There is no
/// secret in a benchmark: both ends make the same certificate from it, and trust no other.
const KEY: [u8; 16] = [
    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
];
const FIRST: Duration = Duration::from_secs(10);
/// Time in which the receiver must acknowledge the end, and close.
const LAST: Duration = Duration::from_secs(10);
/// Length of reads and writes, the same as in TCP's end.
const CHUNK_BYTES: usize = 64 << 10;

/// One end of a measurement of `airdma bench wireless` or `airdma bench files`.
#[derive(Parser)]
#[command(name = "airdma-quic-peer", version)]
enum End {
    /// Takes one stream.
    Receive {
        /// Bound to any address.
        #[arg(long)]
        port: u16,
        /// File for the data; without it they are discarded.
        #[arg(long)]
        into: Option<PathBuf>,
    },
    /// Sends one stream.
    Send {
        /// The receiver.
        #[arg(long)]
        to: SocketAddr,
        /// For how long, at most.
        #[arg(long)]
        seconds: f64,
        /// Most bytes.
        #[arg(long)]
        bytes: u64,
        /// cubic or bbr.
        #[arg(long)]
        congestion: String,
        /// File or pipe whose content is sent, to its end; without it, zeros.
        #[arg(long)]
        from: Option<PathBuf>,
    },
}

fn main() -> anyhow::Result<()> {
    let found = match End::parse() {
        End::Receive { port, into } => receive(port, into.as_deref())?,
        End::Send {
            to,
            seconds,
            bytes,
            congestion,
            from,
        } => {
            let time = Duration::try_from_secs_f64(seconds).context("--seconds")?;
            send(to, time, bytes, &congestion, from.as_deref())?
        }
    };
    writeln!(io::stdout(), "{}", serde_json::to_string(&found)?)?;
    Ok(())
}

/// Takes one stream, and says what arrived.
fn receive(port: u16, into: Option<&Path>) -> anyhow::Result<Found> {
    run(async {
        let mut file = into.map(File::create).transpose().context("--into")?;
        let (certificate, key) = identity()?;
        let configuration = ServerConfig::with_single_cert(vec![certificate], key)?;
        let endpoint = Endpoint::server(configuration, (Ipv4Addr::UNSPECIFIED, port).into())?;
        ready()?;
        let incoming = timeout(FIRST, endpoint.accept()).await;
        let connection = incoming
            .context("no sender connected")?
            .context("no endpoint")?
            .await?;
        let mut stream = connection.accept_uni().await?;
        let mut bins = Bins::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        while let Some(length) = stream.read(&mut chunk).await? {
            bins.count(length);
            if let Some(file) = &mut file {
                file.write_all(&chunk[..length]).context("writing")?;
            }
        }
        // The sender has to hear that all is there, and then says goodbye.
        let _ = timeout(LAST, connection.closed()).await;
        Ok(bins.found())
    })
}

/// Sends a number of bytes, or for a time, or to the end of a file.
fn send(
    to: SocketAddr,
    time: Duration,
    bytes: u64,
    congestion: &str,
    from: Option<&Path>,
) -> anyhow::Result<Found> {
    let mut transport = TransportConfig::default();
    match congestion {
        "cubic" => transport.congestion_controller_factory(Arc::new(CubicConfig::default())),
        "bbr" => transport.congestion_controller_factory(Arc::new(BbrConfig::default())),
        other => bail!("quinn has no congestion control called {other}: cubic or bbr"),
    };
    run(async {
        let mut file = from.map(File::open).transpose().context("--from")?;
        let mut roots = RootCertStore::empty();
        roots.add(identity()?.0)?;
        let mut configuration = ClientConfig::with_root_certificates(Arc::new(roots))?;
        configuration.transport_config(Arc::new(transport));
        let endpoint = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())?;
        let connecting = endpoint.connect_with(configuration, to, NAME)?;
        let connection = timeout(FIRST, connecting).await.context("no answer")??;
        let found = send_on(&connection, time, bytes, &mut file).await?;
        connection.close(0u8.into(), b"");
        let _ = timeout(LAST, endpoint.wait_idle()).await;
        Ok(found)
    })
}

async fn send_on(
    connection: &Connection,
    time: Duration,
    bytes: u64,
    file: &mut Option<File>,
) -> anyhow::Result<Found> {
    let mut stream: SendStream = connection.open_uni().await?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut held = 0..0;
    let began = Instant::now();
    let mut found = Found::default();
    loop {
        if held.is_empty() {
            let most = (bytes - found.bytes).min(CHUNK_BYTES as u64) as usize;
            held = match file {
                Some(file) => 0..file.read(&mut chunk[..most]).context("reading")?,
                None => 0..most,
            };
        }
        if held.is_empty() {
            break;
        }
        match timeout_at(began + time, stream.write(&chunk[held.clone()])).await {
            Ok(written) => {
                let written = written?;
                held.start += written;
                found.bytes += written as u64;
            }
            Err(_) => break,
        }
    }
    stream.finish()?;
    let acknowledged = timeout(LAST, stream.stopped()).await;
    acknowledged.context("what was sent last is not acknowledged")??;
    found.seconds = began.elapsed().as_secs_f64();
    Ok(found)
}

/// The certificate and its key, the same at each call.
fn identity() -> anyhow::Result<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
    let key = PrivatePkcs8KeyDer::from([&KEY[..], &[7; 32]].concat());
    let pair = KeyPair::try_from(&key)?;
    let certificate = CertificateParams::new([NAME.to_owned()])?.self_signed(&pair)?;
    Ok((certificate.into(), key.into()))
}

fn run(end: impl Future<Output = anyhow::Result<Found>>) -> anyhow::Result<Found> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut found = runtime.block_on(end)?;
    found.cpu_s = cpu_s();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_make_the_same_certificate() {
        assert_eq!(identity().unwrap().0, identity().unwrap().0);
    }

    #[test]
    fn what_was_sent_arrives() {
        for (congestion, port) in [("cubic", 45_921), ("bbr", 45_922)] {
            let receiver = std::thread::spawn(move || receive(port, None));
            std::thread::sleep(Duration::from_millis(300));
            let to = (Ipv4Addr::LOCALHOST, port).into();
            let sent = send(to, Duration::from_secs(30), 3_000_000, congestion, None).unwrap();
            let came = receiver.join().unwrap().unwrap();
            assert_eq!((sent.bytes, came.bytes), (3_000_000, 3_000_000));
        }
    }

    #[test]
    fn a_sender_ends_in_time() {
        let port = 45_923;
        let receiver = std::thread::spawn(move || receive(port, None));
        std::thread::sleep(Duration::from_millis(300));
        let to = (Ipv4Addr::LOCALHOST, port).into();
        let sent = send(to, Duration::from_millis(300), u64::MAX, "cubic", None).unwrap();
        let came = receiver.join().unwrap().unwrap();
        assert!(
            sent.bytes > 0 && sent.bytes == came.bytes,
            "{sent:?} {came:?}"
        );
    }

    #[test]
    fn a_file_arrives_as_it_is() {
        let folder = std::env::temp_dir().join(format!("airdma-quic-peer-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (from, into) = (folder.join("from"), folder.join("into"));
        let content: Vec<u8> = (0..300_001u32).map(|at| (at * 7 % 251) as u8).collect();
        std::fs::write(&from, &content).unwrap();
        let port = 45_924;
        let file = into.clone();
        let receiver = std::thread::spawn(move || receive(port, Some(&file)));
        std::thread::sleep(Duration::from_millis(300));
        let to = (Ipv4Addr::LOCALHOST, port).into();
        send(to, Duration::from_secs(30), u64::MAX, "cubic", Some(&from)).unwrap();
        receiver.join().unwrap().unwrap();
        assert!(std::fs::read(&into).unwrap() == content);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
