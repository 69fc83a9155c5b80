//! `shares`: who takes part in a limit that a whole fleet keeps together, as objects beside the records.
//!
//! Each member puts an empty object of its own again and again; whoever's object is younger than the time to live takes part. Ages
//! are differences between two times of the store's clock, so that no member's own clock matters.

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use crate::error::Result;
use crate::key;
use crate::registry::Registry;

/// What a member leaves behind when it dies is removed by another one after so many times to live.
const FORGOTTEN: i32 = 10;

impl Registry {
    /// Takes part in a limit for another `ttl`, and says how many members there are with this one: at least 1. One PUT, one LIST.
    ///
    /// # Errors
    /// What the store answers; then it is not known who else takes part.
    pub async fn share_take(&self, of: &str, member: Uuid, ttl: Duration) -> Result<u32> {
        let below = self.root().path(&["v1", "shares", &key::hash(of)])?;
        let own = self.root().path(&["v1", "shares", &key::hash(of), &member.to_string()])?;
        self.root().put(&own, Bytes::new()).await?;
        let listed = self.root().list(&below).await?;
        let Some(now) = listed.iter().find(|m| m.location == own).map(|m| m.last_modified) else { return Ok(1) };
        let ttl = chrono::Duration::from_std(ttl).unwrap_or(chrono::Duration::MAX);
        for dead in listed.iter().filter(|m| now - m.last_modified > ttl.checked_mul(FORGOTTEN).unwrap_or(ttl)) {
            self.root().delete(&dead.location).await?;
        }
        let members = listed.iter().filter(|m| now - m.last_modified <= ttl).count();
        Ok(u32::try_from(members).unwrap_or(u32::MAX))
    }

    /// Takes part no longer.
    ///
    /// # Errors
    /// What the store answers; then the others find out after the time to live.
    pub async fn share_leave(&self, of: &str, member: Uuid) -> Result<()> {
        self.root().delete(&self.root().path(&["v1", "shares", &key::hash(of), &member.to_string()])?).await
    }
}
