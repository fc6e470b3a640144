//! Records of `json` in envelopes of CloudEvents 1.0 (`tailrace.capture.formats.cloud_events`).

use crate::event::Event;
use crate::text;

pub const CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

/// Write the value of a record whose key and value as `json` are given; `source` is where the events come from.
pub fn write(source: &str, event: &Event<'_>, key: &[u8], data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"specversion\":\"1.0\",\"id\":");
    text::quoted(out, event.token);
    out.extend_from_slice(b",\"source\":\"");
    text::escaped(out, source.as_bytes());
    out.push(b'/');
    text::escaped(out, event.database.unwrap_or("").as_bytes());
    if let Some(collection) = event.collection {
        out.push(b'.');
        text::escaped(out, collection.as_bytes());
    }
    out.extend_from_slice(b"\",\"type\":\"com.mongodb.changestream.");
    text::escaped(out, event.operation.as_bytes());
    out.extend_from_slice(b"\",\"subject\":");
    text::quoted(out, key);
    out.extend_from_slice(b",\"time\":\"");
    text::date(out, (event.token_time >> 32) as i64 * 1000);
    out.extend_from_slice(b"\",\"datacontenttype\":\"application/json\",\"data\":");
    out.extend_from_slice(data);
    out.push(b'}');
}
