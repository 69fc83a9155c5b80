//! One warning of Lance's is not passed on: that it does not recognise the type of an index. It comes with every manifest that is
//! read, also for types that are well known under another name, and says nothing that the state of an index in a report (`unsupported`)
//! does not say once and rightly.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Keeps the warning from every layer.
pub(super) struct FalseAlarm;

impl<S: Subscriber> Layer<S> for FalseAlarm {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        // Lance writes through the `log` facade; the record's own target stands in a field.
        let mut said = Said::default();
        event.record(&mut said);
        !is_false_alarm(&said.0)
    }
}

fn is_false_alarm(message: &str) -> bool {
    message.starts_with("Index ") && message.contains(" has unrecognized type ")
}

#[derive(Default)]
struct Said(String);

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing into a String cannot fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("a lock").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_false_warning_is_kept_back_and_others_pass() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry().with(FalseAlarm).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!("Index id_idx has unrecognized type /lance.table.XIndexDetails, ignoring it");
            tracing::warn!("Index id_idx has version 9, which is not supported (<=2), ignoring it");
        });
        let text = String::from_utf8(lines.0.lock().expect("a lock").clone()).expect("UTF-8");
        assert!(!text.contains("unrecognized") && text.contains("has version 9"), "{text}");
    }
}
