//! Version clean-up: planned again on a fresh look, and only what both plans name goes.

use chrono::{DateTime, Utc};
use squire_lake::clean;
use squire_lake::look::{Look, Looked, look_again};
use squire_lake::{Kind, contain};
use squire_registry::Governance;
use squire_service::report::{FailureKind, StepReason};

use super::pass::Pass;
use super::{only_planned, recheck};
use crate::plan::{self, Layout, Rules};

impl Pass<'_> {
    /// Plans the clean-up on a fresh look and applies what both plans name.
    #[tracing::instrument(level = "debug", skip_all)]
    pub(super) async fn cleanup(&mut self, verified: bool) {
        // Another step's failure does not stop clean-up; an unverified rewrite does, and so does a file that could not be
        // read although its size is right: an older version may be the only good one.
        let damaged = self.out.failures.values().find(|(kind, _)| *kind == FailureKind::Damaged);
        let refused = match (verified, damaged) {
            (false, _) => {
                let why = self.out.failures.values().map(|(_, text)| text.clone()).next();
                Some((StepReason::VerifyFailed, why.unwrap_or_default()))
            }
            (true, Some((_, why))) => Some((StepReason::Unhealthy, why.clone())),
            (true, None) => None,
        };
        if let Some((reason, why)) = refused {
            self.out.cleanup_verdict = Some(plan::Verdict::refused(reason, why));
            return;
        }
        let now: DateTime<Utc> = self.tools.estate.now();
        let (fresh, governance) = match self.fresh_look(now).await {
            Some(found) => found,
            None => return,
        };
        let keep = self.tools.graph.keep_set(&self.plan.uri);
        let lost = match self.tools.estate.lost(&self.plan.uri).await {
            Some(why) => Some(why),
            None => self.tools.estate.another_is_nearer(&self.plan.uri).await,
        };
        let rules = Rules {
            governance: &governance,
            settings: &self.tools.settings,
            registry_lost: lost.as_deref(),
            rewritten: &[],
            free_bytes: None,
            now,
        };
        let layout = Layout::of(&fresh, &governance.policy.policy, None, now);
        let (verdict, removal, retained) = plan::retention::plan(&fresh, &layout, &keep, &rules);
        self.out.retained = Some(retained);
        if !verdict.is_planned() {
            let detail = "the plan named versions that today's policy, refs or clones keep".to_string();
            self.out.cleanup_verdict =
                Some(plan::Verdict { detail: verdict.detail.clone().or(Some(detail)), ..verdict });
            return;
        }
        let removal = only_planned(removal, &self.plan.removal);
        self.remove(&removal).await;
    }

    async fn fresh_look(&mut self, now: DateTime<Utc>) -> Option<(Look, Governance)> {
        let fresh = match look_again(&self.tools.estate.lake, &self.plan.uri, now, self.look).await {
            Ok(Looked::Dataset(fresh)) => *fresh,
            Ok(_) => {
                let e = squire_lake::Error::new(Kind::Damaged, "looking again before clean-up", &self.plan.uri);
                self.out.fail("cleanup", &e);
                return None;
            }
            Err(e) => {
                self.out.fail("cleanup", &e);
                return None;
            }
        };
        match recheck(self.tools, &fresh).await {
            Ok(governance) => Some((fresh, governance)),
            Err(skip) => {
                self.out.skipped = Some(skip);
                None
            }
        }
    }

    async fn remove(&mut self, removal: &clean::Removal) {
        let uri = &self.plan.uri;
        let deletes = match self.tools.estate.config().storage.delete_missing(uri) {
            Some(why) => Err(why),
            None => self.tools.estate.lake.deleting_place(uri).await.map_err(|e| e.to_string()),
        };
        let deletes = match deletes {
            Ok(place) => place,
            Err(why) => {
                self.out.cleanup_verdict = Some(plan::Verdict::refused(StepReason::NoDeletePermission, why));
                return;
            }
        };
        let ends = clean::Ends { reads: &self.place, deletes: &deletes };
        let per_second = self.tools.estate.config().limits.delete_rate;
        let (rate, _share) = match self.tools.rates.deletes(&self.tools.registry, uri, per_second).await {
            Ok(found) => found,
            Err(e) => {
                let e =
                    squire_lake::Error::new(Kind::Transient, "asking who else deletes from the bucket", uri).because(e);
                self.out.fail("cleanup", &e);
                return;
            }
        };
        let name = squire_lake::uri::name(&self.plan.uri);
        let total = removal.versions.len();
        let allowed = || async {
            if self.tools.shutdown.is_requested() {
                return Err("stopped by a signal".to_string());
            }
            match recheck(self.tools, self.look).await {
                Ok(governance) => match governance.held_by() {
                    Some(hold) => Err(format!("held by {} since the plan", hold.subject)),
                    None => self.named_versions(&governance, removal),
                },
                Err(skip) => Err(skip.detail),
            }?;
            match self.claim.lock().await.as_ref() {
                Some(claim) if claim.still_ours() => Ok(()),
                _ => Err("the claim is no longer ours".to_string()),
            }
        };
        let progress = |n: usize| (self.tools.progress)(&format!("{name}: {n} of {total} versions removed"));
        let mut cleaned = clean::Cleaned::default();
        let work = clean::apply_into(&mut cleaned, ends, removal, &rate, allowed, progress);
        let started = std::time::Instant::now();
        let done = contain::contained(&self.tools.estate.lake, "removing old versions", &self.plan.uri, work).await;
        self.out.cleanup_seconds += started.elapsed().as_secs_f64();
        if let Some(why) = &cleaned.stopped {
            tracing::warn!(dataset = self.plan.uri, "clean-up stopped: {why}");
        }
        if let Some(why) = cleaned.denied.take() {
            self.out.cleanup_verdict = Some(plan::Verdict::refused(StepReason::NoDeletePermission, why));
        }
        // Also after a failure: what is gone is reported and recorded.
        self.out.cleaned = Some(cleaned);
        if let Err(e) = done {
            self.out.fail("cleanup", &e);
        }
    }

    /// A reader's block that arrived since the plan.
    fn named_versions(&self, governance: &Governance, removal: &clean::Removal) -> Result<(), String> {
        let wanted = governance.reader_versions();
        match removal.versions.iter().find(|v| wanted.contains(&v.version)) {
            Some(v) => Err(format!("a reader needs version {} since the plan", v.version)),
            None => Ok(()),
        }
    }
}
