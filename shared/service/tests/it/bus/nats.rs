//! How the bus's configuration names a server of the tests.

use squire_service::config::{Bus, BusKind};
pub(crate) use squire_test_support::Nats;

/// `[bus]` for a server.
pub(crate) trait Config {
    /// Without credentials.
    fn config(&self) -> Bus;
    /// With this URL.
    fn at(&self, url: &str) -> Bus;
}

impl Config for Nats {
    fn config(&self) -> Bus {
        self.at(&self.url())
    }

    fn at(&self, url: &str) -> Bus {
        Bus { kind: BusKind::Nats, url: Some(url.to_owned()), ..Bus::default() }
    }
}
