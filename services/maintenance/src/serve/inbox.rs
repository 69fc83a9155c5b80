//! Messages of one queue, one after another: a queue that cannot be opened or read is tried again.

use std::time::Duration;

use squire_service::bus::{Consumer, Delivery, Queue};

use super::{BACK_OFF, Daemon};

/// The queue, and its consumer once it is open.
pub(super) struct Inbox {
    queue: Queue,
    open: Option<Consumer>,
}

impl Inbox {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue, open: None }
    }

    /// The next message; `None` where none came within `wait`, none can be taken now, or a stop is asked for.
    pub(super) async fn next(&mut self, daemon: &Daemon, wait: Duration) -> Option<Delivery> {
        if self.open.is_none() {
            match daemon.bus.consumer(self.queue.clone()).await {
                Ok(opened) => self.open = Some(opened),
                Err(e) => {
                    tracing::warn!(error = %e, queue = ?self.queue, "a queue cannot be opened; it is tried again");
                    daemon.pause(BACK_OFF).await;
                }
            }
        }
        let open = self.open.as_mut()?;
        let next = tokio::select! {
            next = open.next(wait) => next,
            () = daemon.shutdown.requested() => return None,
        };
        match next {
            Ok(delivery) => delivery,
            Err(e) => {
                tracing::warn!(error = %e, queue = ?self.queue, "no message could be taken; it is tried again");
                daemon.pause(BACK_OFF).await;
                None
            }
        }
    }
}
