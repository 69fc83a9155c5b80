//! As much of HTTP/1.1 as a proxy needs that changes nothing: heads and bodies as the bytes they came in.

use std::io::{self, BufRead, Read};

/// The largest head that is read.
const MAX_HEAD: usize = 64 << 10;

/// What an aged answer says of when an object was written.
const LONG_AGO: (&str, &str) = ("Wed, 01 Jan 2020 00:00:00 GMT", "2020-01-01T00:00:00.000Z");

/// Whether an object is Squire's own: the registry, a marker, a quarantine.
pub(crate) fn is_ours(key: &str) -> bool {
    key.contains("/_squire") || key.contains("/.squire-")
}

/// A message: its head with the empty line, and its body still in its transfer coding.
pub(crate) struct Message {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// Reads a request; `None` when the connection ends before one begins.
    pub(crate) fn request(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let Some(head) = head(from)? else { return Ok(None) };
        let mut message = Self { head, body: Vec::new() };
        message.read_body(from, false)?;
        Ok(Some(message))
    }

    /// Reads the answer to a request of this method.
    pub(crate) fn response(from: &mut impl BufRead, method: &str) -> io::Result<Self> {
        loop {
            let head = head(from)?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            let mut message = Self { head, body: Vec::new() };
            match message.status() {
                // "Go on" is between the server and us: the body is on its way already.
                100..=199 => continue,
                204 | 304 => return Ok(message),
                _ if method == "HEAD" => return Ok(message),
                _ => message.read_body(from, true)?,
            }
            return Ok(message);
        }
    }

    fn read_body(&mut self, from: &mut impl BufRead, until_end: bool) -> io::Result<()> {
        if self.header("transfer-encoding").is_some_and(|v| v.to_ascii_lowercase().contains("chunked")) {
            return self.read_chunks(from);
        }
        match self.header("content-length").and_then(|v| v.parse::<u64>().ok()) {
            Some(n) => {
                from.take(n).read_to_end(&mut self.body)?;
                if self.body.len() as u64 != n {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            None if until_end => {
                from.read_to_end(&mut self.body)?;
            }
            None => {}
        }
        Ok(())
    }

    fn read_chunks(&mut self, from: &mut impl BufRead) -> io::Result<()> {
        loop {
            let line = line(from)?;
            let size = std::str::from_utf8(&line).unwrap_or_default().split(';').next().unwrap_or_default().trim();
            let size = u64::from_str_radix(size, 16).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
            self.body.extend(&line);
            if size > 0 {
                let before = self.body.len() as u64;
                from.by_ref().take(size + 2).read_to_end(&mut self.body)?;
                if self.body.len() as u64 != before + size + 2 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            }
            // Trailers, up to the empty line.
            loop {
                let trailer = self::line(from)?;
                self.body.extend(&trailer);
                if trailer == b"\r\n" {
                    return Ok(());
                }
            }
        }
    }

    /// Lets an answer say that the object was written long ago.
    pub(crate) fn age(&mut self) {
        self.set_headers(|name| name.eq_ignore_ascii_case("last-modified").then(|| LONG_AGO.0.to_string()));
    }

    /// The same of every object of a listing that is not Squire's own.
    pub(crate) fn age_listing(&mut self) {
        let text = String::from_utf8_lossy(&self.plain_body()).into_owned();
        let mut parts = text.split("<Contents>");
        let mut out = parts.next().unwrap_or_default().to_string();
        for part in parts {
            let between = |from: &str, to: &str| part.split_once(from).and_then(|(_, rest)| rest.split_once(to));
            let (key, time) = (between("<Key>", "</Key>"), between("<LastModified>", "</LastModified>"));
            out += "<Contents>";
            out += &match (key, time) {
                (Some((key, _)), Some((time, _))) if !is_ours(&format!("/{key}")) => part.replace(time, LONG_AGO.1),
                _ => part.to_string(),
            };
        }
        self.body = out.into_bytes();
        let length = self.body.len().to_string();
        self.set_headers(|name| name.eq_ignore_ascii_case("content-length").then(|| length.clone()));
        if self.header("content-length").is_none() {
            let head = String::from_utf8_lossy(&self.head);
            let lines =
                head.lines().filter(|l| !l.to_ascii_lowercase().starts_with("transfer-encoding:") && !l.is_empty());
            let lines: Vec<String> = lines.map(String::from).chain([format!("Content-Length: {length}")]).collect();
            self.head = format!("{}\r\n\r\n", lines.join("\r\n")).into_bytes();
        }
    }

    fn set_headers(&mut self, value: impl Fn(&str) -> Option<String>) {
        let head = String::from_utf8_lossy(&self.head);
        let set = |line: &str| match line.split_once(':').and_then(|(name, _)| Some((name, value(name)?))) {
            Some((name, value)) => format!("{name}: {value}\r\n"),
            None => format!("{line}\r\n"),
        };
        let head = head.lines().map(set).collect::<String>();
        self.head = head.into_bytes();
    }

    /// The body without its transfer coding.
    fn plain_body(&self) -> Vec<u8> {
        if self.header("transfer-encoding").is_none() {
            return self.body.clone();
        }
        let (mut out, mut rest) = (Vec::new(), self.body.as_slice());
        while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
            let size = std::str::from_utf8(&rest[..end]).unwrap_or_default().split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
            let Some(data) = rest.get(end + 2..end + 2 + size).filter(|_| size > 0) else { break };
            out.extend(data);
            rest = rest.get(end + 4 + size..).unwrap_or_default();
        }
        out
    }

    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let text = std::str::from_utf8(&self.head).ok()?;
        text.lines()
            .skip(1)
            .filter_map(|l| l.split_once(':'))
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim())
    }

    /// Method and target as sent.
    pub(crate) fn method_and_target(&self) -> (String, String) {
        let text = String::from_utf8_lossy(&self.head);
        let mut words = text.lines().next().unwrap_or_default().split(' ');
        let mut word = || words.next().unwrap_or_default().to_string();
        (word(), word())
    }

    /// The status of an answer; 0 when it is none.
    pub(crate) fn status(&self) -> u16 {
        let text = String::from_utf8_lossy(&self.head);
        text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0)
    }

    /// Whether the other side ends the connection after this message.
    pub(crate) fn closes(&self) -> bool {
        self.header("connection").is_some_and(|v| v.eq_ignore_ascii_case("close"))
    }
}

fn head(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    loop {
        let before = head.len();
        from.take((MAX_HEAD - before) as u64).read_until(b'\n', &mut head)?;
        match &head[before..] {
            [] if head.is_empty() => return Ok(None),
            b"\r\n" => return Ok(Some(head)),
            new if new.ends_with(b"\n") => {}
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(MAX_HEAD as u64).read_until(b'\n', &mut line)?;
    if line.ends_with(b"\r\n") { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The keys in the body of a bulk delete.
pub(crate) fn deleted_keys(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body);
    let plain = |key: &str| key.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    text.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>")).map(|(key, _)| plain(key)).collect()
}

/// An answer as S3 gives it to a bulk delete of which some keys failed.
pub(crate) fn bulk_answer(keys: &[String], failed: impl Fn(&str) -> bool) -> Vec<u8> {
    let one = |key: &String| match failed(key) {
        true => {
            format!("<Error><Key>{key}</Key><Code>InvalidObjectState</Code><Message>a test says so</Message></Error>")
        }
        false => format!("<Deleted><Key>{key}</Key></Deleted>"),
    };
    let entries: String = keys.iter().map(one).collect();
    let body = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?><DeleteResult>{entries}</DeleteResult>");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n", body.len());
    (head + &body).into_bytes()
}

/// The access key in an `Authorization` header (`AWS4-HMAC-SHA256 Credential=KEY/DATE/...`), or its bearer token; empty when it
/// has neither.
pub(crate) fn signer(authorization: &str) -> String {
    if let Some(token) = authorization.strip_prefix("Bearer ") {
        return token.to_string();
    }
    let after = authorization.split_once("Credential=").map_or("", |(_, rest)| rest);
    after.split('/').next().unwrap_or_default().to_string()
}

/// An answer as S3 gives it to a failed request.
pub(crate) fn failure(status: u16, method: &str) -> Vec<u8> {
    let (reason, code) = match status {
        503 => ("Service Unavailable", "SlowDown"),
        500 => ("Internal Server Error", "InternalError"),
        403 => ("Forbidden", "AccessDenied"),
        _ => ("Failure", "Failure"),
    };
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>the proxy of a test says so</Message></Error>"
    );
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    if method == "HEAD" { head.into_bytes() } else { (head + &body).into_bytes() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aged_listing_says_so_of_everything_but_squires_own() {
        let body = "<L><Contents><Key>a/x</Key><LastModified>2026-11-30T00:00:00Z</LastModified></Contents>\
                    <Contents><Key>a/_squire/x</Key><LastModified>2026-11-30T00:00:00Z</LastModified></Contents></L>";
        let aged = body.replacen("2026-11-30T00:00:00Z", "2020-01-01T00:00:00.000Z", 1);
        let (one, two) = body.split_at(40);
        let chunked = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n",
            one.len(),
            two.len()
        );
        let sized = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        for text in [chunked, sized] {
            let mut message = Message::response(&mut text.as_bytes(), "GET").unwrap();
            message.age_listing();
            assert_eq!(String::from_utf8_lossy(&message.body), aged);
            assert_eq!(message.header("content-length"), Some(aged.len().to_string().as_str()));
            assert_eq!(message.header("transfer-encoding"), None);
            assert!(message.head.ends_with(b"\r\n\r\n"));
        }
        let head =
            b"HTTP/1.1 200 OK\r\nLast-Modified: Mon, 30 Nov 2026 00:00:00 GMT\r\nContent-Length: 3\r\n\r\n".as_slice();
        let mut message = Message::response(&mut &head[..], "HEAD").unwrap();
        message.age();
        assert_eq!(message.header("last-modified"), Some("Wed, 01 Jan 2020 00:00:00 GMT"));
        assert_eq!(message.header("content-length"), Some("3"));
    }

    #[test]
    fn bodies_keep_their_bytes_in_every_framing() {
        let sized = b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcGET".as_slice();
        let message = Message::request(&mut &sized[..]).unwrap().unwrap();
        assert_eq!((message.body.as_slice(), message.header("HOST")), (b"abc".as_slice(), Some("h")));
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP".as_slice();
        let message = Message::response(&mut &chunked[..], "GET").unwrap();
        assert_eq!((message.status(), message.body.as_slice()), (200, b"3\r\nabc\r\n0\r\n\r\n".as_slice()));
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n".as_slice();
        assert!(Message::response(&mut &head[..], "HEAD").unwrap().body.is_empty());
        assert!(Message::request(&mut &b""[..]).unwrap().is_none());
        assert_eq!(
            deleted_keys(b"<Delete><Object><Key>a/b</Key></Object><Object><Key>c&amp;d</Key></Object></Delete>"),
            ["a/b", "c&d"]
        );
        assert!(Message::request(&mut &sized[..sized.len() - 4]).is_err(), "a cut body is no body");
    }
}
