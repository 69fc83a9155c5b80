//! Making the streams, and reading back what the server made of them.

use std::collections::HashMap;

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode};
use uuid::Uuid;

use crate::bus::error::{BusError, Result};
use crate::bus::transport::{STREAM_VERSION, StreamSpec};

/// The first server that keeps metadata, and with it everything that the streams ask for.
pub(super) const OLDEST: (u64, u64) = (2, 10);

const VERSION: &str = "squire.version";
const ESTATE: &str = "squire.estate";

/// Whose streams they are, and on which server.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    pub(super) estate: Uuid,
    pub(super) replicas: Option<usize>,
    /// For messages.
    pub(super) url: String,
    pub(super) server: String,
}

impl Owner {
    pub(super) fn too_old(&self, what: &str) -> BusError {
        BusError::TooOld {
            url: self.url.clone(),
            version: self.server.clone(),
            needed: format!("{}.{}", OLDEST.0, OLDEST.1),
            what: what.to_owned(),
        }
    }

    /// Refuses a server that is too old by its own word. An old server does not refuse settings that it does not know, it
    /// drops them.
    pub(super) fn check_version(&self) -> Result<()> {
        let mut parts = self.server.split(['.', '-']).map(|p| p.parse::<u64>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if version < OLDEST { Err(self.too_old("the streams' metadata")) } else { Ok(()) }
    }
}

fn config(spec: &StreamSpec, owner: &Owner) -> Config {
    let metadata = [(VERSION, STREAM_VERSION.to_string()), (ESTATE, owner.estate.to_string())];
    let (retention, discard) = if spec.queue {
        (RetentionPolicy::WorkQueue, DiscardPolicy::New)
    } else {
        (RetentionPolicy::Limits, DiscardPolicy::Old)
    };
    let per_subject = if spec.queue { Some(1) } else { spec.per_subject };
    Config {
        name: spec.name.clone(),
        subjects: vec![spec.subjects.clone()],
        retention,
        discard,
        discard_new_per_subject: spec.queue,
        max_messages_per_subject: per_subject.map_or(-1, i64::from),
        max_messages: -1,
        max_bytes: -1,
        max_consumers: -1,
        max_age: spec.max_age.unwrap_or_default(),
        duplicate_window: spec.duplicates,
        storage: StorageType::File,
        num_replicas: owner.replicas.unwrap_or(1),
        metadata: metadata.map(|(k, v)| (k.to_owned(), v)).into(),
        ..Config::default()
    }
}

/// Makes a stream, or changes an older build's; one of a newer build is taken as it is.
pub(super) async fn ensure(context: &Context, spec: &StreamSpec, owner: &Owner) -> Result<()> {
    let doing = format!("preparing the stream {}", spec.name);
    let mut want = config(spec, owner);
    // Several replicas start at once; whoever is second finds the first one's stream.
    for _ in 0..3 {
        match read(context, &spec.name, &doing).await? {
            None => match context.create_stream(want.clone()).await {
                Ok(_) => {}
                Err(e) if code_of(&e) == Some(ErrorCode::STREAM_NAME_EXIST) => continue,
                Err(e) => return Err(answer(&doing, &e)),
            },
            Some(have) => {
                belongs(&have, spec, owner)?;
                if version(&have).is_some_and(|v| v > STREAM_VERSION) {
                    return Ok(());
                }
                fits(&have, &want)?;
                if owner.replicas.is_none() {
                    want.num_replicas = have.num_replicas;
                }
                if same(&have, &want) {
                    return Ok(());
                }
                context.update_stream(want.clone()).await.map_err(|e| answer(&doing, &e))?;
            }
        }
        return read_back(context, spec, &want, owner, &doing).await;
    }
    Err(BusError::request(doing, "other replicas kept changing it; try again", true))
}

async fn read_back(context: &Context, spec: &StreamSpec, want: &Config, owner: &Owner, doing: &str) -> Result<()> {
    let have = read(context, &spec.name, doing).await?;
    let have = have.ok_or_else(|| BusError::request(doing, "it was made and is not there; try again", true))?;
    if version(&have).is_none() {
        return Err(owner.too_old("the streams' metadata"));
    }
    belongs(&have, spec, owner)?;
    if have.discard_new_per_subject != want.discard_new_per_subject {
        return Err(owner.too_old("one message per subject (discard_new_per_subject)"));
    }
    if !same(&have, want) && version(&have).is_some_and(|v| v <= STREAM_VERSION) {
        return Err(owner.too_old("the streams' settings, which the server did not keep,"));
    }
    Ok(())
}

async fn read(context: &Context, name: &str, doing: &str) -> Result<Option<Config>> {
    use async_nats::jetstream::context::GetStreamErrorKind as Kind;
    match context.get_stream(name).await {
        Ok(stream) => Ok(Some(stream.cached_info().config.clone())),
        Err(e) => match e.kind() {
            Kind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => Ok(None),
            Kind::JetStream(error) => Err(answered(doing, &error)),
            _ => Err(BusError::request(doing, hint(&e), true)),
        },
    }
}

fn hint(error: &impl std::fmt::Display) -> String {
    format!("{error}; see that the server runs with JetStream (-js) and that the account may use it")
}

fn version(config: &Config) -> Option<u32> {
    config.metadata.get(VERSION)?.parse().ok()
}

fn belongs(have: &Config, spec: &StreamSpec, owner: &Owner) -> Result<()> {
    let ours = owner.estate.to_string();
    match have.metadata.get(ESTATE) {
        Some(theirs) if *theirs != ours => {
            Err(BusError::OtherEstate { stream: spec.name.clone(), theirs: theirs.clone(), ours })
        }
        _ => Ok(()),
    }
}

/// What no update can change.
fn fits(have: &Config, want: &Config) -> Result<()> {
    let unfit = |what: String| Err(BusError::Unfit { stream: want.name.clone(), what });
    if have.retention != want.retention {
        return unfit(format!("retention {:?} instead of {:?}", have.retention, want.retention));
    }
    if have.storage != want.storage {
        return unfit(format!("{:?} storage instead of {:?}", have.storage, want.storage));
    }
    Ok(())
}

fn same(have: &Config, want: &Config) -> bool {
    let ours = |m: &HashMap<String, String>| (m.get(VERSION).cloned(), m.get(ESTATE).cloned());
    have.subjects == want.subjects
        && have.discard == want.discard
        && have.discard_new_per_subject == want.discard_new_per_subject
        && have.max_messages_per_subject == want.max_messages_per_subject
        && have.max_age == want.max_age
        && have.duplicate_window == want.duplicate_window
        && have.num_replicas == want.num_replicas
        && ours(&have.metadata) == ours(&want.metadata)
}

fn code_of(error: &async_nats::jetstream::context::CreateStreamError) -> Option<ErrorCode> {
    use async_nats::jetstream::context::CreateStreamErrorKind as Kind;
    match error.kind() {
        Kind::JetStream(error) => Some(error.error_code()),
        _ => None,
    }
}

fn answer(doing: &str, error: &async_nats::jetstream::context::CreateStreamError) -> BusError {
    use async_nats::jetstream::context::CreateStreamErrorKind as Kind;
    match error.kind() {
        Kind::JetStream(error) => answered(doing, &error),
        _ => BusError::request(doing, hint(error), true),
    }
}

/// What JetStream answered. A cluster that elects a leader, and a server that is short of something, can be asked again.
pub(super) fn answered(doing: &str, error: &async_nats::jetstream::Error) -> BusError {
    let transient = error.code() >= 500 || error.error_code() == ErrorCode::CLUSTER_NOT_LEADER;
    let disabled = [ErrorCode::JETSTREAM_NOT_ENABLED, ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT];
    if disabled.contains(&error.error_code()) {
        let why = format!("{error}; start the server with JetStream (-js), or allow it to the account");
        return BusError::request(doing, why, false);
    }
    BusError::request(doing, error, transient)
}
