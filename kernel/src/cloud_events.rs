//! Records of `json` in envelopes of CloudEvents 1.0 (`tailrace.capture.formats.cloud_events`).

use crate::error::{Error, Result};
use crate::event::Event;
use crate::spelling::{Names, Writer};
use crate::styles::ExtendedJson;
use crate::text::{self, utf8};

pub const CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

/// Write the value of a record whose key and value as `json` are given; `source` is what the attribute begins with.
pub fn write(
    source: &str,
    event: &Event<'_>,
    key: &[u8],
    data: &[u8],
    out: &mut Vec<u8>,
    names: &mut Names,
) -> Result<()> {
    out.extend_from_slice(b"{\"specversion\":\"1.0\",\"id\":");
    id(event, out, names)?;
    out.extend_from_slice(b",\"source\":\"");
    text::escaped(out, source.as_bytes());
    out.push(b'/');
    percent_encoded(out, event.database.unwrap_or("").as_bytes());
    if let Some(collection) = event.collection {
        out.push(b'.');
        percent_encoded(out, collection.as_bytes());
    }
    out.extend_from_slice(b"\",\"type\":\"com.mongodb.changestream.");
    text::escaped(out, event.operation.as_bytes());
    out.extend_from_slice(b"\",\"subject\":");
    text::quoted(out, attribute(key)?);
    out.extend_from_slice(b",\"time\":\"");
    text::date(out, (event.token_time >> 32) as i64 * 1000);
    out.extend_from_slice(b"\",\"datacontenttype\":\"application/json\",\"data\":");
    out.extend_from_slice(data);
    out.push(b'}');
    Ok(())
}

/// Write the resume token, and behind one that events share the operation and the documentKey.
fn id(event: &Event<'_>, out: &mut Vec<u8>, names: &mut Names) -> Result<()> {
    if event.operation != "read" && !event.is_recovered {
        text::quoted(out, event.token);
        return Ok(());
    }
    let mut text = [event.token, b"/", event.operation.as_bytes()].concat();
    if let Some(key) = Event::document(event.key) {
        text.push(b'/');
        let begin = text.len();
        Writer { style: ExtendedJson::<false>, out: &mut text, names }.document(key)?;
        attribute(&text[begin..])?;
    }
    text::quoted(out, &text);
    Ok(())
}

/// Give a text as it is; one with characters that attributes must not have is left to the reference.
fn attribute(text: &[u8]) -> Result<&[u8]> {
    let is_refused = |character: char| {
        character.is_control() || matches!(character, '\u{fdd0}'..='\u{fdef}') || character as u32 & 0xFFFE == 0xFFFE
    };
    if !text.iter().all(|byte| matches!(byte, b' '..=b'~')) && utf8(text)?.contains(is_refused) {
        return Err(Error::Declined("an attribute has a character that none may have"));
    }
    Ok(text)
}

/// Write a text with all but letters, digits and `-._~` as `%` and two digits: a segment of a URI's path.
fn percent_encoded(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_are_encoded() {
        let mut out = Vec::new();
        percent_encoded(&mut out, "a-._~ %/?#é".as_bytes());
        assert_eq!(out, b"a-._~%20%25%2F%3F%23%C3%A9");
    }

    #[test]
    fn attributes_have_no_control_characters() {
        for refused in ["\u{7f}", "\u{85}", "\u{fdd0}", "\u{ffff}", "\u{1fffe}"] {
            assert!(attribute(refused.as_bytes()).is_err());
        }
        assert!(attribute("é \u{a0}\u{fffd}\u{10000}".as_bytes()).is_ok());
    }
}
