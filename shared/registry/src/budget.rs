//! What a fleet spends of its budgets, one record a day, shared by all replicas and runs.
//!
//! A pass reserves first and settles after, each by compare-and-swap, so that two replicas cannot both take the last of a day.
//! What a process that died had reserved stays counted: it may have been spent.

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::generation::Change;
use crate::record::fields;
use crate::registry::Registry;

/// What was spent on a day (UTC), or is to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spending {
    /// Bytes rewritten, and reserved for passes at work.
    pub rewritten_bytes: u64,
    /// The cost of requests, in the currency of the estate's prices.
    #[serde(default)]
    pub cost: f64,
}

/// What may be spent a day; `None` is not bounded.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PerDay {
    /// Bytes rewritten.
    pub rewritten_bytes: Option<u64>,
    /// The cost of requests.
    pub cost: Option<f64>,
}

fields! { Spending => Budget, "budget"; }

impl PerDay {
    /// What is left of a day; where nothing is bounded, everything.
    pub fn left(&self, spent: Spending) -> Spending {
        Spending {
            rewritten_bytes: self.rewritten_bytes.map_or(u64::MAX, |most| most.saturating_sub(spent.rewritten_bytes)),
            cost: self.cost.map_or(f64::INFINITY, |most| (most - spent.cost).max(0.0)),
        }
    }
}

impl Spending {
    /// Whether it fits into what is left. A day without anything left takes nothing more.
    pub fn fits(&self, left: Spending) -> bool {
        self.rewritten_bytes <= left.rewritten_bytes && self.cost <= left.cost && left.cost > 0.0
    }

    /// The sum.
    pub fn plus(self, other: Self) -> Self {
        Self {
            rewritten_bytes: self.rewritten_bytes.saturating_add(other.rewritten_bytes),
            cost: self.cost + other.cost,
        }
    }

    /// The difference, never below zero.
    pub fn minus(self, other: Self) -> Self {
        Self {
            rewritten_bytes: self.rewritten_bytes.saturating_sub(other.rewritten_bytes),
            cost: (self.cost - other.cost).max(0.0),
        }
    }
}

fn key(day: NaiveDate) -> String {
    day.format("%Y-%m-%d").to_string()
}

impl Registry {
    /// What was spent or reserved on a day (UTC).
    ///
    /// # Errors
    /// What the store answers, and [`crate::Error::Unreadable`].
    pub async fn spent_on(&self, day: NaiveDate) -> Result<Spending> {
        Ok(self.load::<Spending>(&key(day)).await?.map_or(Spending::default(), |r| r.fields))
    }

    /// Reserves of a day's budget, all of it or nothing: `Err(left)` within `Ok` is what is left.
    ///
    /// # Errors
    /// What the store answers, and [`crate::Error::Unreadable`].
    pub async fn reserve(
        &self,
        day: NaiveDate,
        wanted: Spending,
        per_day: PerDay,
    ) -> Result<std::result::Result<(), Spending>> {
        let mut answer = Ok(());
        self.change::<Spending>(&key(day), None, |current| {
            let spent = current.map_or(Spending::default(), |c| c.fields);
            let left = per_day.left(spent);
            if !wanted.fits(left) {
                answer = Err(left);
                return Ok(Change::Keep);
            }
            answer = Ok(());
            Ok(Change::Put(spent.plus(wanted)))
        })
        .await?;
        Ok(answer)
    }

    /// Replaces a reservation by what was really spent; without a reservation it is counted all the same.
    ///
    /// # Errors
    /// What the store answers, and [`crate::Error::Unreadable`].
    pub async fn settle(&self, day: NaiveDate, reserved: Spending, used: Spending) -> Result<()> {
        if reserved == used {
            return Ok(());
        }
        self.change::<Spending>(&key(day), None, |current| {
            let spent = current.map_or(Spending::default(), |c| c.fields);
            Ok(Change::Put(spent.minus(reserved).plus(used)))
        })
        .await?;
        Ok(())
    }
}
