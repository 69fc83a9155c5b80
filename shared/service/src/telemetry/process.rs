//! What is known of the process itself.

/// Name of the variable by which Lance decides how its metrics are labelled; read once.
const LABELS: &str = "LANCE_OBJECT_STORE_METRICS_LABEL";

/// Peak resident set of this process in bytes, where the system tells.
pub fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Resident set of this process in bytes now, where the system tells.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// Makes Lance label its metrics with the full store (`s3$bucket`) instead of the scheme, unless
/// the environment says otherwise.
///
/// Lance reads that from the environment only, and setting a variable of a running process is not
/// safe; so where it is missing the process starts itself again, with the same arguments, id and
/// standard streams, and this call does not return. For daemons and for `--metrics-file`, first
/// thing in `main`, before standard input is read. Where that is not possible the labels stay
/// short.
pub fn with_full_store_labels() {
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        if std::env::var_os(LABELS).is_some() {
            return;
        }
        let Ok(program) = std::env::current_exe() else { return };
        let mut args = std::env::args_os();
        let mut command = std::process::Command::new(program);
        if let Some(name) = args.next() {
            command.arg0(name);
        }
        // Returns only when it failed; then the process goes on as it is.
        // Index statistics otherwise carry every centroid, and Lance warns about it on each call.
        let _ = command.args(args).env(LABELS, "full").env("LANCE_INCLUDE_VECTOR_CENTROIDS", "false").exec();
    }
    #[cfg(not(unix))]
    let _ = LABELS;
}
