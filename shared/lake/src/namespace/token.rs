//! A token for a namespace's server that somebody else renews: a file, read at every request.

use std::collections::HashMap;
use std::path::PathBuf;

use lance_namespace_impls::{DynamicContextProvider, OperationInfo};

use crate::{Error, Kind, Result};

/// Sends `Authorization: Bearer <what the file holds>`. The file is small and local, and whoever renews it replaces it whole.
#[derive(Debug)]
pub(super) struct TokenFile(PathBuf);

impl TokenFile {
    /// The file, which must hold a token now.
    ///
    /// # Errors
    /// `Permanent` where it cannot be read or holds none.
    pub(super) fn at(path: &str, url: &str) -> Result<Self> {
        let file = Self(PathBuf::from(path));
        let remedy = || format!("let token_file in [storage.\"{url}\"] name a file that holds a token and can be read");
        match file.read() {
            Ok(_) => Ok(file),
            Err(e) => {
                let doing = format!("reading the token in {path} for the namespace");
                Err(Error::new(Kind::Permanent, doing, url).because(e).remedy(remedy()))
            }
        }
    }

    fn read(&self) -> std::io::Result<String> {
        let token = std::fs::read_to_string(&self.0)?.trim().to_owned();
        // What could end the header's line is no token.
        if token.is_empty() || token.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(std::io::Error::other("it holds no token"));
        }
        Ok(token)
    }
}

impl DynamicContextProvider for TokenFile {
    fn provide_context(&self, info: &OperationInfo) -> HashMap<String, String> {
        match self.read() {
            Ok(token) => HashMap::from([("headers.authorization".to_owned(), format!("Bearer {token}"))]),
            // Without it the server refuses, and nothing is written.
            Err(error) => {
                tracing::warn!(file = %self.0.display(), %error, operation = %info.operation, "a namespace's token cannot be read");
                HashMap::new()
            }
        }
    }
}
