//! Logging in, and TLS.

use std::path::Path;
use std::process::Command;

use nkeys::KeyPair;
use serde_json::{Value, json};
use squire_service::bus::{Bus, BusErrorKind, Published};
use squire_service::config::{self, BusTls};
use squire_service::telemetry::Metrics;

use super::nats::{Config, Nats};
use super::{ESTATE, pass, patient};

async fn open(config: &config::Bus) -> squire_service::bus::Result<Bus> {
    Bus::open(config, "test", ESTATE, patient(), Metrics::new()).await
}

async fn works(config: &config::Bus) {
    let bus = open(config).await.unwrap_or_else(|e| panic!("{e}"));
    let published = bus.request_pass(&pass(1, &uuid::Uuid::new_v4().to_string())).await.unwrap();
    assert_eq!(published, Published::Stored);
}

#[track_caller]
fn refused(result: squire_service::bus::Result<Bus>, hint: &str) {
    let e = result.err().unwrap();
    assert_eq!(e.kind(), BusErrorKind::Permanent, "{e}");
    assert!(e.to_string().contains(hint), "{e}");
    assert!(!format!("{e} {e:?}").contains("hunter2"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_logs_in_with_a_password() {
    let Some(nats) = Nats::with_config("a_user_logs_in_with_a_password", |_| {
        "authorization { user: \"squire\", password: \"hunter2@:/\" }".to_owned()
    }) else {
        return;
    };
    let with = |user: &str, password: &str| config::Bus {
        user: Some(user.into()),
        password: Some(password.into()),
        ..nats.config()
    };
    works(&with("squire", "hunter2@:/")).await;
    works(&nats.at(&format!("nats://squire:hunter2%40%3A%2F@127.0.0.1:{}", nats.port()))).await;
    refused(open(&with("squire", "hunter22")).await, "bus.password");
    refused(open(&nats.config()).await, "bus.password");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_logs_in() {
    let Some(nats) = Nats::with_config("a_token_logs_in", |_| "authorization { token: \"hunter2\" }".to_owned()) else {
        return;
    };
    works(&config::Bus { token: Some("hunter2".into()), ..nats.config() }).await;
    refused(open(&config::Bus { token: Some("hunter22".into()), ..nats.config() }).await, "bus.token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_nkey_logs_in() {
    let user = KeyPair::new_user();
    let public = user.public_key();
    let Some(nats) =
        Nats::with_config("an_nkey_logs_in", |_| format!("authorization {{ users: [ {{ nkey: {public} }} ] }}"))
    else {
        return;
    };
    let with = |seed: &str| {
        std::fs::write(nats.path("seed"), seed).unwrap();
        config::Bus { nkey: Some(nats.path("seed")), ..nats.config() }
    };
    let seed = user.seed().unwrap();
    works(&with(&format!("# the maintenance fleet\n{seed}\n"))).await;
    refused(open(&with(&KeyPair::new_user().seed().unwrap())).await, "bus.nkey");
    for text in ["", "nothing here"] {
        let e = open(&with(text)).await.unwrap_err();
        assert_eq!(e.kind(), BusErrorKind::Invalid, "{e}");
    }
    let e = open(&config::Bus { nkey: Some(nats.path("none")), ..nats.config() }).await.unwrap_err();
    assert!(e.kind() == BusErrorKind::Invalid && e.to_string().contains("cannot read"), "{e}");
}

fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let n = chunk.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..=chunk.len() {
            out.push(DIGITS[(n >> (18 - 6 * i) & 63) as usize] as char);
        }
    }
    out
}

fn jwt(issuer: &KeyPair, subject: &str, name: &str, claims: Value) -> String {
    let head = base64url(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let mut body =
        json!({ "jti": name, "iat": 1_700_000_000, "iss": issuer.public_key(), "sub": subject, "name": name });
    body["nats"] = claims;
    let text = format!("{head}.{}", base64url(body.to_string().as_bytes()));
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", base64url(&signature))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credentials_file_logs_in() {
    let (operator, account, user) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_user());
    let system = KeyPair::new_account();
    let operators = jwt(&operator, &operator.public_key(), "o", json!({ "type": "operator", "version": 2 }));
    let limits = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1 });
    let accounts =
        jwt(&operator, &account.public_key(), "a", json!({ "limits": limits, "type": "account", "version": 2 }));
    let systems = jwt(&operator, &system.public_key(), "s", json!({ "type": "account", "version": 2 }));
    let users = jwt(
        &account,
        &user.public_key(),
        "u",
        json!({ "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2 }),
    );
    let Some(nats) = Nats::with_config("a_credentials_file_logs_in", |_| {
        format!(
            "operator: {operators}\nsystem_account: {system}\nresolver: MEMORY\n\
             resolver_preload: {{ {account}: {accounts}, {system}: {systems} }}",
            system = system.public_key(),
            account = account.public_key(),
        )
    }) else {
        return;
    };
    let with = |jwt: &str, user: &KeyPair| {
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().unwrap()
        );
        std::fs::write(nats.path("creds"), text).unwrap();
        config::Bus { credentials: Some(nats.path("creds")), ..nats.config() }
    };
    works(&with(&users, &user)).await;
    refused(open(&with(&users, &KeyPair::new_user())).await, "bus.credentials");
    std::fs::write(nats.path("creds"), "hunter2").unwrap();
    let e = open(&config::Bus { credentials: Some(nats.path("creds")), ..nats.config() }).await.unwrap_err();
    assert!(e.kind() == BusErrorKind::Invalid && !e.to_string().contains("hunter2"), "{e}");
}

/// An authority, and a certificate of it for 127.0.0.1 as server and as client.
fn certificates(dir: &Path, authority: &str) {
    let openssl = |args: &[&str]| {
        let output = Command::new("openssl").current_dir(dir).args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let (ca, ca_key) = (format!("{authority}.pem"), format!("{authority}.key"));
    let subject = format!("/CN={authority}");
    openssl(&[&["req", "-x509", "-days", "2", "-subj", &subject, "-keyout", &ca_key, "-out", &ca], &key[..]].concat());
    std::fs::write(dir.join("ext"), "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n").unwrap();
    let (cert, cert_key) = (format!("{authority}-leaf.pem"), format!("{authority}-leaf.key"));
    openssl(&[&["req", "-subj", "/CN=leaf", "-keyout", &cert_key, "-out", "csr"], &key[..]].concat());
    openssl(&[
        "x509",
        "-req",
        "-days",
        "2",
        "-in",
        "csr",
        "-CA",
        &ca,
        "-CAkey",
        &ca_key,
        "-CAcreateserial",
        "-extfile",
        "ext",
        "-out",
        &cert,
    ]);
}

fn tls_server(test: &str, verify: bool) -> Option<Nats> {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("SKIPPED {test}: there is no openssl to make certificates with");
        return None;
    }
    Nats::with_config(test, |dir| {
        certificates(dir, "ours");
        certificates(dir, "theirs");
        let file = |name: &str| format!("{:?}", dir.join(name));
        format!(
            "tls {{ cert_file: {}, key_file: {}, ca_file: {}, verify: {verify} }}",
            file("ours-leaf.pem"),
            file("ours-leaf.key"),
            file("ours.pem")
        )
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_servers_certificate_is_checked_against_our_authority() {
    let Some(nats) = tls_server("a_servers_certificate_is_checked_against_our_authority", false) else { return };
    let with = |ca: &str| {
        let tls = BusTls { ca: Some(nats.path(ca)), ..BusTls::default() };
        config::Bus { tls: Some(tls), ..nats.config() }
    };
    works(&with("ours.pem")).await;
    refused(open(&with("theirs.pem")).await, "[bus.tls]");
    // Without an authority of our own the system's are asked, and none of them knows it.
    refused(open(&nats.at(&format!("tls://127.0.0.1:{}", nats.port()))).await, "[bus.tls]");
    let e = open(&with("nats.conf")).await.unwrap_err();
    assert!(e.kind() == BusErrorKind::Invalid && e.to_string().contains("tls.ca"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_is_shown() {
    let Some(nats) = tls_server("a_client_certificate_is_shown", true) else { return };
    let with = |leaf: Option<&str>| {
        let file = |end: &str| leaf.map(|l| nats.path(&format!("{l}-leaf.{end}")));
        let tls = BusTls { ca: Some(nats.path("ours.pem")), cert: file("pem"), key: file("key") };
        config::Bus { tls: Some(tls), ..nats.config() }
    };
    works(&with(Some("ours"))).await;
    for wrong in [None, Some("theirs")] {
        assert!(open(&with(wrong)).await.is_err(), "{wrong:?}");
    }
}
