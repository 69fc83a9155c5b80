//! A table's name moves; its bytes stay.
//!
//! The source is retired first, through the trash: from the first write on the dataset is frozen and can come back under
//! its old name, so that a rename that is cut off loses nothing. Then the new name is claimed with all that the old one
//! carried. Where it cannot be had, the old one comes back.

use std::time::Duration;

use chrono::Utc;

use crate::error::{Error, Result};
use crate::hierarchy::{exists, missing, shape_path};
use crate::policy::Policy;
use crate::record::{Namespace, Table, Trash};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::subject::Subject;
use crate::trash::Going;

/// How long a rename that was cut off stays in the trash before it counts as dropped.
const CUT_OFF: Duration = Duration::from_secs(30 * 86_400);

impl Registry {
    /// Renames a table, within its warehouse. Its protection, policy and blocks move along. Cut off, the same call goes on.
    ///
    /// `defaults` is the estate's policy: a name under which versions would go sooner is refused, since such a change has
    /// to wait and a name cannot.
    ///
    /// # Errors
    /// [`Error::Missing`] without the source or the target's namespace, [`Error::Exists`] when the name is taken,
    /// [`Error::Refused`] under protection (`force` gets past `no-drop` only), into another warehouse, out from under a
    /// block, or under a shorter policy.
    pub async fn table_rename(
        &self,
        from: &[String],
        to: &[String],
        force: bool,
        defaults: &Policy,
        reason: Option<&str>,
    ) -> Result<Table> {
        shape_path(to, 2)?;
        let (old, new) = (Subject::Table(from.to_vec()), Subject::Table(to.to_vec()));
        if old == new {
            return Err(Error::Invalid(format!("{old} has this name already")));
        }
        let before = self.snapshot().await?;
        refuse_target(&before, &old, &new)?;
        let filed = match before.table(from) {
            Some(_) => {
                refuse_unblocking(&before, &old, &new)?;
                refuse_sooner(&before, &old, &new, defaults)?;
                let going = Going { renamed_to: Some(new.clone()), ..Going::after(CUT_OFF, force)? };
                self.drop_tables(&before, &[from.to_vec()], &going, reason).await?.into_iter().next()
            }
            // A rename that was cut off.
            None => before.trash().find(|t| half_renamed(&t.fields, &old, &new)).map(|t| t.fields.clone()),
        };
        let trash = filed.ok_or_else(|| missing(&old, "; see `table list`"))?;
        self.finish_rename(&trash, &new, reason).await
    }

    /// The second half of a rename.
    pub(crate) async fn finish_rename(&self, trash: &Trash, new: &Subject, reason: Option<&str>) -> Result<Table> {
        let (Some(was), Subject::Table(path)) = (&trash.table, new) else { return Err(missing(new, "")) };
        let table = Table { path: path.clone(), ..was.clone() };
        let landed = match self.load::<Table>(&new.id()).await? {
            // Cut off between the name and the end of the trash record.
            Some(live) if live.fields.uri == table.uri => Ok(()),
            Some(_) => Err(exists(new)),
            // Who blocked it until now is seen here, also where the first half lies long ago.
            None => match refuse_unblocking(&self.snapshot().await?, &trash.subject, new) {
                Ok(()) => self.land(&table, trash, reason).await,
                Err(e) => Err(e),
            },
        };
        if let Err(e) = landed {
            if let Err(back) = self.undrop(&trash.subject, Some("it could not be renamed")).await {
                tracing::warn!(error = %back, table = %trash.subject, "a rename failed, and the old name did not come back");
            }
            return Err(e);
        }
        let now = self.snapshot().await?;
        for record in now.trash().filter(|t| half_renamed(&t.fields, &trash.subject, new)) {
            self.remove_own::<Trash>(&record.meta.id, record.meta.nonce, reason.or(Some("renamed"))).await?;
        }
        Ok(table)
    }
}

fn half_renamed(trash: &Trash, old: &Subject, new: &Subject) -> bool {
    trash.subject == *old && trash.renamed_to.as_ref() == Some(new)
}

/// Where the new name lies, and that it is free.
fn refuse_target(snapshot: &Snapshot, old: &Subject, new: &Subject) -> Result<()> {
    let parent = new.parent_namespace().ok_or_else(|| missing(new, ""))?;
    let namespace: Option<&Namespace> = snapshot.namespaces.get(&parent.id()).map(|n| &n.fields);
    match namespace {
        None => return Err(missing(&parent, "; make it first")),
        Some(n) if n.deleting => {
            return Err(Error::Refused(format!("{parent} is being dropped; nothing new goes into it")));
        }
        Some(_) => {}
    }
    let (from, to) = (snapshot.warehouse_of(old), snapshot.warehouse_of(new));
    if from != to {
        return Err(Error::Refused(format!(
            "{old} lies in warehouse `{}` and {new} would lie in `{}`; a rename moves a name and no bytes",
            from.unwrap_or_default(),
            to.unwrap_or_default()
        )));
    }
    match snapshot.tables.get(&new.id()) {
        Some(live) if !snapshot.trash_at(&live.fields.uri).any(|t| half_renamed(&t.fields, old, new)) => {
            Err(exists(new))
        }
        _ => Ok(()),
    }
}

/// A namespace's block stays with the namespace; under a name elsewhere the table would be maintained. Warehouse, project and
/// location are the same after a rename, and the table's own blocks move along.
fn refuse_unblocking(snapshot: &Snapshot, old: &Subject, new: &Subject) -> Result<()> {
    let (from, to) = (snapshot.chain_of(old), snapshot.chain_of(new));
    let now = Utc::now();
    let mut left = snapshot.blocks().filter(|b| {
        let on = &b.fields.subject;
        matches!(on, Subject::Namespace(_)) && b.fields.active_at(now) && from.contains(on) && !to.contains(on)
    });
    let Some(block) = left.next() else { return Ok(()) };
    Err(Error::Refused(format!(
        "block {} on {}{} holds for {old} and would not for {new}; put a block on {old} itself, it moves along, and lift that \
         one, or rename it when the block has ended",
        block.meta.id,
        block.fields.subject,
        block.meta.reason.as_ref().map(|r| format!(" ({r})")).unwrap_or_default(),
    )))
}

fn refuse_sooner(snapshot: &Snapshot, old: &Subject, new: &Subject, defaults: &Policy) -> Result<()> {
    if snapshot.policy_of(old).is_some() {
        return Ok(());
    }
    let now = Utc::now();
    let before = snapshot.inherited(old, defaults, now).policy;
    let above = snapshot.inherited(new, defaults, now);
    let sooner = before.sooner(&above.policy);
    if sooner.is_empty() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "under {new} the policy of {} would let versions go sooner ({}); give {old} a policy of its own first, it moves along",
        above.source.id,
        sooner.join("; ")
    )))
}
