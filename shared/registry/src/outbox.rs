//! `outbox`: messages that could not be sent when they were due, as opaque objects beside the records. Whoever reaches the bus
//! next sends and removes them; a message that is sent twice is known by its own id.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::storage::PutOutcome;

/// One message that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Its name; names are in the order of time.
    pub name: String,
    /// When it was put, by the store's clock.
    pub since: DateTime<Utc>,
    /// What was to be sent.
    pub bytes: Bytes,
}

impl Registry {
    /// Keeps a message for later.
    ///
    /// # Errors
    /// What the store answers; the message may then be kept or not.
    pub async fn outbox_put(&self, bytes: Bytes) -> Result<()> {
        let path = self.root().path(&["v1", "outbox", &Uuid::now_v7().to_string()])?;
        match self.root().create(&path, bytes).await {
            PutOutcome::Created => Ok(()),
            PutOutcome::Refused | PutOutcome::Unknown(_) => match self.root().get(&path).await? {
                Some(_) => Ok(()),
                None => Err(Error::InDoubt { doing: format!("putting {path}") }),
            },
        }
    }

    /// At most `n` of the messages that wait, oldest first. One LIST, and a GET for each.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn outbox(&self, n: usize) -> Result<Vec<Waiting>> {
        let mut listed = self.root().list(&self.root().path(&["v1", "outbox"])?).await?;
        listed.sort_by(|a, b| a.location.cmp(&b.location));
        let mut out = Vec::new();
        for meta in listed.into_iter().take(n) {
            // Gone: another replica was quicker.
            let Some(bytes) = self.root().get(&meta.location).await? else { continue };
            let Some(name) = meta.location.filename() else { continue };
            out.push(Waiting { name: name.to_owned(), since: meta.last_modified, bytes });
        }
        Ok(out)
    }

    /// Removes a message that was sent, or is too old for anybody.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn outbox_remove(&self, waiting: &Waiting) -> Result<()> {
        self.root().delete(&self.root().path(&["v1", "outbox", &waiting.name])?).await
    }
}
