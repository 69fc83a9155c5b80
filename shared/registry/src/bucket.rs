//! What an S3 bucket's own settings say. Requests are signed by the store's own client, and nothing is changed by any of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpRequest};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::capabilities::Answer;

/// How long a signature is good for.
const SIGNED_FOR: Duration = Duration::from_secs(60);

/// An S3 bucket that can be asked for its settings.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    pub(crate) signer: Arc<AmazonS3>,
    pub(crate) client: HttpClient,
}

/// A setting: what it is asked by, the element that the answer is, and the right that it takes.
struct Setting {
    query: &'static str,
    element: &'static str,
    right: &'static str,
}

const VERSIONING: Setting =
    Setting { query: "versioning", element: "VersioningConfiguration", right: "s3:GetBucketVersioning" };
const OBJECT_LOCK: Setting =
    Setting { query: "object-lock", element: "ObjectLockConfiguration", right: "s3:GetBucketObjectLockConfiguration" };
const LIFECYCLE: Setting =
    Setting { query: "lifecycle", element: "LifecycleConfiguration", right: "s3:GetLifecycleConfiguration" };

#[derive(Deserialize)]
struct Refused {
    #[serde(rename = "Code", default)]
    code: String,
}

#[derive(Deserialize)]
struct Versioning {
    #[serde(rename = "Status")]
    status: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ObjectLock {
    object_lock_enabled: Option<String>,
    rule: Option<LockRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LockRule {
    default_retention: Option<Retention>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Retention {
    mode: Option<String>,
    days: Option<u32>,
    years: Option<u32>,
}

#[derive(Deserialize)]
struct Lifecycle {
    #[serde(rename = "Rule", default)]
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Rule {
    status: Option<String>,
    prefix: Option<String>,
    filter: Option<Filter>,
    expiration: Option<When>,
    #[serde(rename = "Transition", default)]
    transitions: Vec<When>,
    noncurrent_version_expiration: Option<When>,
    abort_incomplete_multipart_upload: Option<When>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Filter {
    prefix: Option<String>,
    and: Option<Box<Filter>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct When {
    days: Option<u32>,
    noncurrent_days: Option<u32>,
    days_after_initiation: Option<u32>,
    date: Option<String>,
    storage_class: Option<String>,
}

impl When {
    fn said(&self) -> String {
        match (self.days.or(self.noncurrent_days).or(self.days_after_initiation), &self.date) {
            (Some(days), _) => format!("after {days} days"),
            (None, Some(date)) => format!("from {date} on"),
            // A rule for delete markers alone.
            (None, None) => String::new(),
        }
    }
}

impl Rule {
    fn prefix(&self) -> &str {
        let filter = self.filter.as_ref();
        let inner = filter.and_then(|f| f.and.as_deref()).and_then(|f| f.prefix.as_deref());
        self.prefix.as_deref().or(filter.and_then(|f| f.prefix.as_deref())).or(inner).unwrap_or_default()
    }

    /// What it does to what lies below `root`, in words.
    fn said(&self, root: &str) -> Vec<String> {
        let prefix = self.prefix();
        if self.status.as_deref() != Some("Enabled") {
            return Vec::new();
        }
        let root = if root.is_empty() { String::new() } else { format!("{root}/") };
        let here = match root.starts_with(prefix) || prefix.starts_with(&root) {
            true => ", also files that tables need",
            false => ", not in this place",
        };
        let below = if prefix.is_empty() { String::new() } else { format!(" below `{prefix}`") };
        let timed = |when: &When, what: &str, rest: &str| {
            let said = when.said();
            (!said.is_empty()).then(|| format!("{what}{below} {said}{rest}"))
        };
        let moved = |when: &When| {
            let class = when.storage_class.as_deref().unwrap_or("another class");
            timed(when, "moves objects", &format!(" to {class}{here}"))
        };
        let mut out: Vec<String> = Vec::new();
        out.extend(self.expiration.as_ref().and_then(|w| timed(w, "deletes objects", here)));
        out.extend(self.transitions.iter().filter_map(moved));
        out.extend(
            self.noncurrent_version_expiration.as_ref().and_then(|w| timed(w, "deletes old object versions", "")),
        );
        out.extend(
            self.abort_incomplete_multipart_upload.as_ref().and_then(|w| timed(w, "ends unfinished uploads", "")),
        );
        out
    }
}

impl Bucket {
    /// Whether it keeps what is overwritten or deleted.
    pub(crate) async fn versioning(&self) -> Answer {
        let told = self.ask::<Versioning>(&VERSIONING).await;
        told.map_or_else(
            |answer| answer,
            |told| match told.status.as_deref() {
                Some("Enabled") => Answer::yes(),
                Some(_) => Answer::No("suspended".into()),
                None => Answer::no(),
            },
        )
    }

    /// Whether it keeps objects from being deleted, and for how long by default.
    pub(crate) async fn object_lock(&self) -> Answer {
        let told = self.ask::<ObjectLock>(&OBJECT_LOCK).await;
        let told = match told {
            Ok(told) if told.object_lock_enabled.as_deref() == Some("Enabled") => told,
            Ok(_) => return Answer::no(),
            Err(answer) => return answer,
        };
        let Some(kept) = told.rule.and_then(|rule| rule.default_retention) else {
            return Answer::Yes("no default; objects may be locked one by one".into());
        };
        let span = match (kept.days, kept.years) {
            (Some(days), _) => format!("{days} days"),
            (None, Some(years)) => format!("{years} years"),
            (None, None) => "a time that it does not say".into(),
        };
        let mode = kept.mode.unwrap_or_else(|| "in a mode that it does not say".into());
        Answer::Yes(format!("each new object for {span}, {mode}; clean-up and reclaim cannot free it before"))
    }

    /// By which rules it deletes or moves objects itself, and whether they reach what lies below a prefix.
    pub(crate) async fn lifecycle(&self, below: &str) -> Answer {
        let told = match self.ask::<Lifecycle>(&LIFECYCLE).await {
            Ok(told) => told,
            Err(answer) => return answer,
        };
        let said: Vec<String> = told.rules.iter().flat_map(|rule| rule.said(below)).collect();
        if said.is_empty() { Answer::no() } else { Answer::Yes(said.join("; ")) }
    }

    /// Asks for one setting; the error is the answer where there is none, or none that could be had.
    async fn ask<T: DeserializeOwned>(&self, setting: &Setting) -> Result<T, Answer> {
        let not_known = |why: String| Answer::NotKnown(why);
        let options = SignedUrlOptions::default().with_query([(setting.query, "")]);
        let asked = |e: object_store::Error| not_known(format!("it could not be asked: {e}"));
        let path = Path::default();
        let url = self.signer.signed_url_opts(Default::default(), &path, SIGNED_FOR, &options).await.map_err(asked)?;
        let mut request = HttpRequest::new(Bytes::new().into());
        *request.uri_mut() = url.as_str().parse().map_err(|_| not_known("its address is no URL".into()))?;
        // An error's own text may hold the URL, and the URL a signature.
        let lost = |e: object_store::client::HttpError| not_known(format!("it did not answer: {:?}", e.kind()));
        let response = self.client.execute(request).await.map_err(lost)?;
        let status = response.status().as_u16();
        let body = response.into_body().bytes().await.map_err(lost)?;
        read(setting, status, &String::from_utf8_lossy(&body))
    }
}

fn read<T: DeserializeOwned>(setting: &Setting, status: u16, body: &str) -> Result<T, Answer> {
    if status == 200 {
        let no_answer = || Answer::NotKnown(format!("what it says of its {} cannot be understood", setting.query));
        // A store that does not know the question answers another one, such as with a listing.
        let asked = body.contains(&format!("<{}", setting.element)).then_some(body).ok_or_else(no_answer)?;
        return quick_xml::de::from_str(asked).map_err(|_| no_answer());
    }
    let code = quick_xml::de::from_str::<Refused>(body).map(|refused| refused.code).unwrap_or_default();
    Err(match (status, code.as_str()) {
        (404, "NoSuchLifecycleConfiguration" | "ObjectLockConfigurationNotFoundError") => Answer::no(),
        (401 | 403, _) => Answer::NotKnown(format!("these credentials may not ask; it takes {}", setting.right)),
        (_, code) => Answer::NotKnown(format!("the store answers {status} {code}").trim_end().to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Amazon's documentation of the API has it.
    const RULES: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
        <LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
          <Rule><ID>a</ID><Filter><Prefix>raw/</Prefix></Filter><Status>Enabled</Status>
            <Transition><Days>30</Days><StorageClass>GLACIER</StorageClass></Transition>
            <Transition><Days>90</Days><StorageClass>DEEP_ARCHIVE</StorageClass></Transition>
            <Expiration><Days>365</Days></Expiration></Rule>
          <Rule><ID>b</ID><Filter><And><Prefix>lake/</Prefix><Tag><Key>k</Key><Value>v</Value></Tag></And></Filter>
            <Status>Enabled</Status><Expiration><Date>2027-01-01T00:00:00Z</Date></Expiration></Rule>
          <Rule><ID>c</ID><Filter/><Status>Enabled</Status>
            <NoncurrentVersionExpiration><NoncurrentDays>7</NoncurrentDays></NoncurrentVersionExpiration>
            <AbortIncompleteMultipartUpload><DaysAfterInitiation>3</DaysAfterInitiation></AbortIncompleteMultipartUpload>
            <Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration></Rule>
          <Rule><ID>d</ID><Prefix>old/</Prefix><Status>Disabled</Status><Expiration><Days>1</Days></Expiration></Rule>
        </LifecycleConfiguration>"#;

    fn said(rules: &str, below: &str) -> Vec<String> {
        let told: Lifecycle = read(&LIFECYCLE, 200, rules).unwrap_or_else(|answer| panic!("{answer}"));
        told.rules.iter().flat_map(|rule| rule.said(below)).collect()
    }

    #[test]
    fn lifecycle_rules_are_told_with_what_they_reach() {
        assert_eq!(
            said(RULES, "lake/sales"),
            [
                "deletes objects below `raw/` after 365 days, not in this place",
                "moves objects below `raw/` after 30 days to GLACIER, not in this place",
                "moves objects below `raw/` after 90 days to DEEP_ARCHIVE, not in this place",
                "deletes objects below `lake/` from 2027-01-01T00:00:00Z on, also files that tables need",
                "deletes old object versions after 7 days",
                "ends unfinished uploads after 3 days",
            ]
        );
        for (below, reached) in [("raw", true), ("raw/a", true), ("raw2", false), ("", true)] {
            assert_eq!(said(RULES, below)[0].ends_with("also files that tables need"), reached, "{below}");
        }
        assert_eq!(said("<LifecycleConfiguration/>", ""), Vec::<String>::new());
    }

    #[test]
    fn a_refusal_is_no_answer_and_nothing_set_is_none() {
        let told = |status, body: &str| read::<Lifecycle>(&LIFECYCLE, status, body).err();
        let error = |code: &str| format!("<Error><Code>{code}</Code><Message>m</Message></Error>");
        assert_eq!(told(404, &error("NoSuchLifecycleConfiguration")), Some(Answer::no()));
        assert_eq!(told(404, &error("ObjectLockConfigurationNotFoundError")), Some(Answer::no()));
        let not_known = |why: &str| Some(Answer::NotKnown(why.into()));
        assert_eq!(told(404, &error("NoSuchBucket")), not_known("the store answers 404 NoSuchBucket"));
        assert_eq!(
            told(403, &error("AccessDenied")),
            not_known("these credentials may not ask; it takes s3:GetLifecycleConfiguration")
        );
        assert_eq!(told(501, "no XML"), not_known("the store answers 501"));
        for other in ["no XML", "<ListBucketResult/>"] {
            assert_eq!(told(200, other), not_known("what it says of its lifecycle cannot be understood"));
        }
    }
}
