//! Who writes, and from where.

use serde::{Deserialize, Serialize};

/// Who changed a record, and from where; stands in `updated_by` and in every run record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Actor {
    /// The user, or the service's name.
    pub who: String,
    /// The machine's or pod's name.
    pub host: String,
    /// The process id on that host.
    pub pid: u32,
}

impl Actor {
    /// An actor with a given name in this process.
    pub fn named(who: impl Into<String>) -> Self {
        Self { who: who.into(), host: host_name(), pid: std::process::id() }
    }

    /// The user that runs this process: `USER`, else `LOGNAME`, else the numeric user id.
    pub fn current() -> Self {
        let who = ["USER", "LOGNAME"]
            .iter()
            .filter_map(|name| std::env::var(name).ok())
            .find(|value| !value.is_empty())
            .unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
        Self::named(who)
    }
}

/// The machine's name as the kernel knows it.
pub(crate) fn host_name() -> String {
    // Linux first; elsewhere the shell's variable, and an unknown host never counts as this one's twin (see `claims`).
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .or_else(|_| std::env::var("HOSTNAME"))
        .unwrap_or_else(|_| "unknown".to_owned())
}
