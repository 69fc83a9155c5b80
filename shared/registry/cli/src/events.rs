//! What a person changed is told on the bus, where the estate has one that others hear.

use squire_registry::Registry;
use squire_service::bus::data::RecordData;
use squire_service::bus::{Bus, EventType, Settings};
use squire_service::config::BusKind;
use squire_service::telemetry::Metrics;
use uuid::Uuid;

use crate::context::Context;

/// Announces a change that is made already: that it could not be told is said, and changes nothing about the exit code.
pub(crate) async fn tell(context: &Context, registry: &Registry, kind: EventType, subject: &str, data: RecordData) {
    let config = context.config();
    if config.bus.kind == BusKind::Embedded {
        return;
    }
    let data = RecordData { by: data.by.or_else(|| Some(registry.actor().who.clone())), ..data };
    let settings = Settings::of(&config.bus, config.grace.claim_ttl);
    let told = async {
        let bus = Bus::open(&config.bus, registry.name(), registry.id(), settings, Metrics::new()).await?;
        // Each change is an event of its own: the id is run, type and subject.
        bus.announce(Uuid::now_v7(), kind, subject, &data).await
    };
    if let Err(e) = told.await {
        tracing::warn!(error = %e, event = %kind, subject, "the change is made, and could not be announced on the bus");
    }
}
