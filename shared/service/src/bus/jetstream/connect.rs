//! The connection: addresses, credentials, TLS.

use std::sync::Arc;
use std::time::Duration;

use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{ClientConfig, RootCertStore, crypto};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr};

use crate::bus::error::{BusError, Result};
use crate::config;

/// How long the first connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a request of the client may take.
const REQUEST: Duration = Duration::from_secs(5);
/// The longest pause between attempts to reconnect.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Where to connect, without secrets, and who we are there.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) addresses: Vec<ServerAddr>,
    /// For messages.
    pub(super) shown: String,
    login: Option<(String, String)>,
}

/// The servers of `bus.url`: several are parted by commas. User and password are taken out of them, so that no log line
/// of the client shows them.
pub(super) fn servers(config: &config::Bus) -> Result<Servers> {
    let bad = |what: String| BusError::Config {
        key: "url",
        what,
        remedy: "name one or more servers, such as \"nats://host:4222\" or \"tls://a:4222,tls://b:4222\"".to_owned(),
    };
    let text = config.url.as_deref().unwrap_or_default();
    let mut servers = Servers { addresses: Vec::new(), shown: String::new(), login: None };
    let mut shown = Vec::new();
    for (at, part) in text.split(',').map(str::trim).filter(|p| !p.is_empty()).enumerate() {
        // The text may hold a password, so that it is named by its place.
        let address: ServerAddr = part.parse().map_err(|e| bad(format!("server {} is no address ({e})", at + 1)))?;
        let mut url = address.into_inner();
        if url.host_str().unwrap_or_default().is_empty() {
            return Err(bad(format!("server {} has no host", at + 1)));
        }
        if !url.username().is_empty() {
            let password = url.password().unwrap_or_default();
            servers.login = Some((decoded(url.username()), decoded(password)));
        }
        // Both fail only for URLs that can have no user, and those are no addresses of servers.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        shown.push(url.to_string().trim_end_matches('/').to_owned());
        servers.addresses.push(ServerAddr::from_url(url).map_err(|e| bad(e.to_string()))?);
    }
    if servers.addresses.is_empty() {
        return Err(bad("no server is named".to_owned()));
    }
    servers.shown = shown.join(",");
    Ok(servers)
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

pub(super) async fn connect(config: &config::Bus, servers: &Servers) -> Result<Client> {
    let mut options = login(config, servers).await?;
    if let Some(tls) = &config.tls {
        options = options.require_tls(true).tls_client_config(tls_config(tls)?);
    } else if servers.addresses.iter().any(ServerAddr::tls_required) {
        options = options.require_tls(true).tls_client_config(tls_config(&config::BusTls::default())?);
    }
    options = options
        .name("squire")
        .connection_timeout(CONNECT)
        .request_timeout(Some(REQUEST))
        .reconnect_delay_callback(|attempts| {
            let doubled = Duration::from_millis(20).saturating_mul(1 << attempts.min(10));
            if attempts <= 1 { Duration::ZERO } else { doubled.min(LONGEST_PAUSE) }
        })
        .event_callback(|event| async move {
            match event {
                async_nats::Event::Connected => tracing::info!("connected to NATS"),
                async_nats::Event::Disconnected => tracing::warn!("the connection to NATS is down; reconnecting"),
                other => tracing::debug!(event = %other, "NATS"),
            }
        });
    options.connect(servers.addresses.clone()).await.map_err(|e| explain(&e, &servers.shown))
}

async fn login(config: &config::Bus, servers: &Servers) -> Result<ConnectOptions> {
    let mut options = ConnectOptions::new();
    let user = config.user.clone().zip(config.password.clone()).or_else(|| servers.login.clone());
    if let Some((user, password)) = user {
        options = options.user_and_password(user, password);
    }
    if let Some(token) = &config.token {
        options = options.token(token.clone());
    }
    if let Some(path) = &config.nkey {
        let seed = read("nkey", path)?;
        // A file with comments, as `nsc` writes it, or the seed alone.
        let seed = seed.lines().map(str::trim).find(|line| line.starts_with('S')).ok_or_else(|| BusError::Config {
            key: "nkey",
            what: format!("{path} holds no NKey seed"),
            remedy: "name a file with a user's seed; it begins with SU".to_owned(),
        })?;
        options = options.nkey(seed.to_owned());
    }
    if let Some(path) = &config.credentials {
        let credentials = read("credentials", path)?;
        options = options.credentials(&credentials).map_err(|e| BusError::Config {
            key: "credentials",
            what: format!("{path} is no credentials file ({e})"),
            remedy: "name a file as `nsc generate creds` writes it".to_owned(),
        })?;
    }
    Ok(options)
}

fn read(key: &'static str, path: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| BusError::Config {
        key,
        what: format!("cannot read {path}: {e}"),
        remedy: "name a file that this process may read".to_owned(),
    })
}

/// Built here, since the process has two cryptographic providers and the client would not know which to take.
fn tls_config(tls: &config::BusTls) -> Result<ClientConfig> {
    let bad = |key: &'static str, path: &str, why: String| BusError::Config {
        key,
        what: format!("{path}: {why}"),
        remedy: "name a PEM file that this process may read".to_owned(),
    };
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            for certificate in certificates(path).map_err(|e| bad("tls.ca", path, e))? {
                roots.add(certificate).map_err(|e| bad("tls.ca", path, e.to_string()))?;
            }
        }
        None => {
            // The system's authorities are trusted only where none of our own is named.
            let found = rustls_native_certs::load_native_certs();
            for error in &found.errors {
                tracing::warn!(%error, "a certificate authority of the system was not read");
            }
            roots.add_parsable_certificates(found.certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| bad("tls", "TLS", e.to_string()))?
        .with_root_certificates(roots);
    let (Some(cert), Some(key)) = (&tls.cert, &tls.key) else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(cert).map_err(|e| bad("tls.cert", cert, e))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| bad("tls.key", key, e.to_string()))?;
    builder.with_client_auth_cert(chain, secret).map_err(|e| bad("tls.cert", cert, e.to_string()))
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|e| e.to_string())?;
    if all.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(all) }
}

fn explain(error: &async_nats::ConnectError, url: &str) -> BusError {
    let (remedy, transient) = match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            ("check bus.user and bus.password, bus.token, bus.nkey or bus.credentials", false)
        }
        ConnectErrorKind::Tls => ("check [bus.tls] and the server's certificate", false),
        ConnectErrorKind::ServerParse => ("correct bus.url", false),
        ConnectErrorKind::Dns => ("check the name in bus.url", true),
        ConnectErrorKind::TimedOut | ConnectErrorKind::Io | ConnectErrorKind::MaxReconnects => {
            // A failed handshake arrives as an I/O error.
            let why = format!("{error:?}");
            if ["InvalidCertificate", "AlertReceived", "BadCertificate"].iter().any(|mark| why.contains(mark)) {
                ("check [bus.tls] and the server's certificate", false)
            } else {
                ("see that the server runs and can be reached", true)
            }
        }
    };
    BusError::Connect { url: url.to_owned(), why: error.to_string(), remedy, transient }
}
