//! What a fleet spends of its budgets, one record a day, shared by all replicas and runs.
//!
//! Bytes are reserved before a pass and settled after it, each by compare-and-swap, so that two replicas cannot both take the
//! last of a day. What a process that died had reserved stays counted: it may have been written.

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::generation::Change;
use crate::record::fields;
use crate::registry::Registry;

/// One day, in UTC.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Spent {
    /// Bytes rewritten, and reserved for passes at work.
    rewritten_bytes: u64,
}

fields! { Spent => Budget, "budget"; }

fn key(day: NaiveDate) -> String {
    day.format("%Y-%m-%d").to_string()
}

impl Registry {
    /// Bytes rewritten or reserved on a day (UTC).
    ///
    /// # Errors
    /// What the store answers, and [`crate::Error::Unreadable`].
    pub async fn rewritten_on(&self, day: NaiveDate) -> Result<u64> {
        Ok(self.load::<Spent>(&key(day)).await?.map_or(0, |r| r.fields.rewritten_bytes))
    }

    /// Reserves bytes of a day's budget, all of them or none: `Err(left)` within `Ok` is the number of bytes that still fit.
    ///
    /// # Errors
    /// What the store answers, and [`crate::Error::Unreadable`].
    pub async fn reserve_rewrite(
        &self,
        day: NaiveDate,
        bytes: u64,
        per_day: u64,
    ) -> Result<std::result::Result<(), u64>> {
        let mut answer = Ok(());
        self.change::<Spent>(&key(day), None, |current| {
            let spent = current.map_or(0, |c| c.fields.rewritten_bytes);
            let next = spent.saturating_add(bytes);
            if next > per_day {
                answer = Err(per_day.saturating_sub(spent));
                return Ok(Change::Keep);
            }
            answer = Ok(());
            Ok(Change::Put(Spent { rewritten_bytes: next }))
        })
        .await?;
        Ok(answer)
    }

    /// Replaces a reservation by what was really rewritten; without a reservation (`reserved` 0) it is counted all the same.
    ///
    /// # Errors
    /// What the store answers, and [`crate::Error::Unreadable`].
    pub async fn settle_rewrite(&self, day: NaiveDate, reserved: u64, used: u64) -> Result<()> {
        if reserved == used {
            return Ok(());
        }
        self.change::<Spent>(&key(day), None, |current| {
            let spent = current.map_or(0, |c| c.fields.rewritten_bytes);
            Ok(Change::Put(Spent { rewritten_bytes: spent.saturating_sub(reserved).saturating_add(used) }))
        })
        .await?;
        Ok(())
    }
}
