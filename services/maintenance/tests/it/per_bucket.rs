//! `[storage."s3://…"]`: options of a bucket, or of a part of one, by the longest prefix.

use squire_lake::oracle::Leftovers;
use squire_test_support::{Request, Server};

use super::s3_estate::*;

const USUAL: &str = "fake-test-key";
const OWN: &str = "fake-remover-key";

#[test]
fn each_dataset_is_reached_with_the_options_of_its_longest_prefix() {
    let Some(server) = Server::shared("each_dataset_is_reached_with_the_options_of_its_longest_prefix") else { return };
    let pristine = Pristine::one(server);
    let estate = OnS3::copy(server, &pristine);
    estate.bucket.write(&format!("{}/apart", estate.prefix), &pristine.objects);
    // The name goes on where the prefix ends, and is none of it.
    estate.bucket.write(&format!("{}/apart-not", estate.prefix), &pristine.objects);
    std::thread::sleep(AGE);
    estate.proxy.pass();
    let own = |key: &str, value: &str| format!("storage.\"{}\".{key}={value}", estate.uri("apart"));
    let (key, secret) = (own("aws_access_key_id", OWN), own("aws_secret_access_key", "fake-test-secret"));
    let swept = estate.start(&["--set", &key, "--set", &secret]).end();
    assert_eq!(swept.code(), Some(0), "{}", swept.stderr);
    for name in [format!("{}/orders", estate.prefix), "apart/orders".into(), "apart-not/orders".into()] {
        let row = swept.row(&name);
        for step in ["compact", "cleanup"] {
            assert_eq!(row["steps"][step]["outcome"], "done", "{name}: {row:#}");
        }
    }
    let within = |r: &Request, dataset: &str| {
        let at = format!("{}/{dataset}/", estate.prefix);
        r.path.contains(&at) || r.keys.iter().any(|k| k.contains(&at))
    };
    let log = estate.proxy.log();
    for (dataset, signed_by) in [("orders", USUAL), ("apart/orders", OWN), ("apart-not/orders", USUAL)] {
        let requests: Vec<&Request> = log.iter().filter(|r| within(r, dataset)).collect();
        assert!(requests.iter().any(|r| r.is_write()), "{dataset}");
        for r in requests {
            assert_eq!(r.signed_by, signed_by, "{dataset}: {} {} {:?}", r.method, r.path, r.keys);
        }
    }
    estate.is_explained(Leftovers::None, "after the sweep");
}
