//! What a bucket allows, tried out.

use std::time::Duration;

use object_store::ClientOptions;
use object_store::aws::AmazonS3Builder;
use object_store::client::{HttpConnector, HttpRequest, ReqwestConnector};
use object_store::path::Path;
use object_store::signer::{SignedUrlOptions, Signer};
use squire_registry::{Answer, Root, StorageOptions, capabilities};
use squire_test_support::Server;

use crate::support::none;

#[tokio::test]
async fn a_local_directory_allows_everything_and_nothing_is_left_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path().to_str().unwrap(), &none()).unwrap();
    let found = capabilities(&root, &root).await.unwrap();
    for (name, answer) in found.answers() {
        let wanted = match name {
            "versioning" | "object lock" | "lifecycle" => Answer::No(String::new()),
            _ => Answer::Yes(String::new()),
        };
        assert_eq!(answer, &wanted, "{name}");
    }
    assert!(found.is_fit());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Sets a bucket's lifecycle rules, as an administrator's tool does.
async fn set_lifecycle(options: &StorageOptions, rules: &str) {
    let mut builder = AmazonS3Builder::new().with_bucket_name("lake");
    for (key, value) in options {
        builder = builder.with_config(key.parse().unwrap(), value);
    }
    let query = SignedUrlOptions::default().with_query([("lifecycle", "")]);
    let put = "PUT".parse().unwrap();
    let store = builder.build().unwrap();
    let url = store.signed_url_opts(put, &Path::default(), Duration::from_secs(60), &query).await.unwrap();
    let body = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
    let mut request = HttpRequest::new(body.into());
    *request.method_mut() = "PUT".parse().unwrap();
    *request.uri_mut() = url.as_str().parse().unwrap();
    let client = ReqwestConnector::default().connect(&ClientOptions::new().with_allow_http(true)).unwrap();
    let answer = client.execute(request).await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_on_s3_tells_its_own_settings() {
    let Some(server) = Server::shared("a_bucket_on_s3_tells_its_own_settings") else { return };
    let options: StorageOptions = server.options().clone().into_iter().collect();
    let root = Root::open("s3://lake/settings", &options).unwrap();
    let before = capabilities(&root, &root).await.unwrap();
    let no = Answer::No(String::new());
    assert_eq!([&before.versioning, &before.object_lock, &before.lifecycle], [&no, &no, &no]);
    let rule = "<Rule><ID>r</ID><Filter><Prefix>settings/</Prefix></Filter><Status>Enabled</Status>\
                <Expiration><Days>30</Days></Expiration></Rule>";
    set_lifecycle(&options, rule).await;
    let after = capabilities(&root, &root).await.unwrap();
    let wanted = "deletes objects below `settings/` after 30 days, also files that tables need";
    assert_eq!(after.lifecycle, Answer::Yes(wanted.into()));
    let beside = Root::open("s3://lake/beside", &options).unwrap();
    let told = capabilities(&beside, &beside).await.unwrap().lifecycle;
    assert_eq!(told, Answer::Yes("deletes objects below `settings/` after 30 days, not in this place".into()));

    // Credentials that are not known are no empty list of rules.
    let mut wrong = options.clone();
    wrong.insert("aws_secret_access_key".into(), "wrong".into());
    let denied = Root::open("s3://lake/settings", &wrong).unwrap();
    let told = capabilities(&denied, &denied).await.unwrap();
    for answer in [&told.versioning, &told.object_lock, &told.lifecycle] {
        let Answer::NotKnown(why) = answer else { panic!("{answer:?}") };
        assert!(why.contains("these credentials may not ask; it takes s3:Get"), "{why}");
    }
}
